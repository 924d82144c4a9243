//! `bench report`: result files as one self-contained page, for people: percentile curves on a log axis, latency and throughput over time, cost;
//! for files of `versus`, ratios with their spread before them.
//!
//! The page loads nothing: charts are SVG within it. Text from a result file is escaped, wherever it goes.

mod chart;
mod comparison;

use std::collections::BTreeMap;

use chart::{Chart, Scale, Series};

use crate::machine::Machine;
use crate::result::{IntervalFigures, Latency, RunResult};
use crate::run::ms;
use crate::versus::Versus;

/// Ratios from here on are shown as no worse: one rate that both hold is the same rate.
const LEVEL: f64 = 0.995;

/// One run of the page, with what it is called there.
pub struct Named<'a> {
    pub name: String,
    pub run: &'a RunResult,
    /// The colour of its lines; of several runs of one colour the first is in the legend.
    pub colour: usize,
}

impl Named<'_> {
    fn in_legend(&self, before: &[Named]) -> Option<String> {
        let first = before.iter().all(|n| n.colour != self.colour);
        first.then(|| self.name.clone())
    }
}

/// Names for runs: what their caller called the broker, the workload's name; numbered where that isn't unique.
pub fn name(runs: &[RunResult]) -> Vec<Named<'_>> {
    let plain = |run: &RunResult| match &run.broker.label {
        Some(label) => format!("{label}, {}", run.workload.name),
        None => format!("{}, {}", run.broker.bootstrap, run.workload.name),
    };
    let all: Vec<String> = runs.iter().map(plain).collect();
    runs.iter()
        .enumerate()
        .map(|(index, run)| {
            let name = &all[index];
            let same = all.iter().filter(|n| *n == name).count();
            let before = all[..index].iter().filter(|n| *n == name).count();
            let name = match same {
                1 => name.clone(),
                _ => format!("{name} ({})", before + 1),
            };
            Named {
                name,
                run,
                colour: index,
            }
        })
        .collect()
}

/// The percentile curves of all runs, or else of the first comparison's first workload, as an SVG document.
pub fn curves(material: &Material) -> String {
    let mut compared = material.comparisons.iter();
    let compared = compared.find_map(|v| Some(comparison::named(v, v.workloads.first()?)));
    let runs = match material.runs.is_empty() {
        true => compared.unwrap_or_default(),
        false => name(&material.runs),
    };
    curve_chart(&runs, "Latency by percentile", |r| Some(&r.produce)).svg()
}

fn curve_chart<'a>(
    runs: &'a [Named<'a>],
    title: &str,
    which: impl Fn(&'a RunResult) -> Option<&'a Latency>,
) -> Chart {
    let points = |l: &Latency| {
        let last = l.curve.last().map_or(0.0, |p| p.0);
        let curve = l.curve.iter().filter(|p| p.1 > 0.0);
        curve
            .map(|(q, us)| (1.0 / (1.0 - q.min(0.999_999_9)), us / 1e3))
            // What is above the last point is the maximum.
            .chain((last > 0.0).then(|| (l.count.max(1) as f64, l.max / 1e3)))
            .collect::<Vec<_>>()
    };
    Chart {
        title: title.into(),
        x_label: "percentile".into(),
        y_label: "ms".into(),
        x: Scale::Percentile,
        shaded: 0.0,
        marks: Vec::new(),
        y: Scale::Log,
        series: runs
            .iter()
            .enumerate()
            .filter_map(|(index, n)| {
                let mut points = points(which(n.run)?);
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                Some(Series {
                    name: n.in_legend(&runs[..index]),
                    colour: n.colour,
                    points,
                })
            })
            .collect(),
    }
}

fn over_time(
    runs: &[Named],
    title: &str,
    unit: &str,
    y: Scale,
    value: impl Fn(&IntervalFigures) -> f64,
) -> Chart {
    // What happens in many runs at the same moment is one mark.
    let all = runs.iter().flat_map(|n| &n.run.faults);
    let faults: BTreeMap<u64, (f64, String)> = all
        .map(|f| ((f.due_s * 1e3) as u64, (f.due_s, f.what.clone())))
        .collect();
    Chart {
        title: title.into(),
        x_label: "seconds".into(),
        y_label: unit.into(),
        x: Scale::Linear,
        shaded: runs
            .iter()
            .map(|n| n.run.workload.time.warm_up_s)
            .fold(f64::INFINITY, f64::min),
        marks: faults.into_values().collect(),
        y,
        series: runs
            .iter()
            .enumerate()
            .map(|(index, n)| Series {
                name: n.in_legend(&runs[..index]),
                colour: n.colour,
                points: whole_seconds(n.run).map(|i| (i.at_s, value(i))).collect(),
            })
            .collect(),
    }
}

/// The intervals of a run but for the rest of a second at its end, whose figures are of a few records.
fn whole_seconds(run: &RunResult) -> impl Iterator<Item = &IntervalFigures> {
    let mut before = 0.0;
    run.intervals.iter().filter(move |i| {
        let length = i.at_s - std::mem::replace(&mut before, i.at_s);
        length > 0.5
    })
}

/// What a page is made of.
#[derive(Default)]
pub struct Material {
    pub runs: Vec<RunResult>,
    pub comparisons: Vec<Versus>,
}

/// The whole page.
pub fn page(material: &Material) -> String {
    let mut body = String::from("<h1>tailrace bench</h1>\n");
    body += "<p>Records are due on a schedule that never waits for the broker; latency counts from the scheduled moment. A closed loop (one at a time, flat out) \
             has no schedule: there it counts from the moment at which the record was made.</p>\n";
    for versus in &material.comparisons {
        body += &comparison::section(versus);
    }
    if !material.runs.is_empty() {
        let named = name(&material.runs);
        for named in named.iter().filter(|n| !n.run.valid) {
            let problems = named.run.problems.join("; ");
            body += &format!(
                "<p class=\"bad\">{} is not a result: {}</p>\n",
                escape(&named.name),
                escape(&problems)
            );
        }
        body += &table(&named);
        body += &charts(&named);
        body += "<h2>What was run</h2>\n";
        named.iter().for_each(|named| body += &details(named));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tailrace bench</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
}

/// Curves and courses of runs that may be shown in one chart.
fn charts(runs: &[Named]) -> String {
    let mut charts = vec![curve_chart(
        runs,
        "Produce: from the scheduled moment to the acknowledgement",
        |r| Some(&r.produce),
    )];
    if runs.iter().any(|n| n.run.end_to_end.is_some()) {
        charts.push(curve_chart(
            runs,
            "End to end: until a consumer has the record",
            |r| r.end_to_end.as_ref(),
        ));
    }
    charts.push(over_time(
        runs,
        "p99 of each second; the warm-up is shaded",
        "ms",
        Scale::Log,
        |i| i.p99 / 1e3,
    ));
    charts.push(over_time(
        runs,
        "Acknowledged",
        "records/s",
        Scale::Linear,
        |i| i.records_per_s,
    ));
    charts.push(over_time(
        runs,
        "In flight at the end of each second",
        "records",
        Scale::Linear,
        |i| i.in_flight as f64,
    ));
    let figure = |chart: &Chart| format!("<figure>{}</figure>\n", chart.svg());
    charts.iter().map(figure).collect()
}

/// A run's machine, command and whole workload, folded.
fn details(named: &Named) -> String {
    let run = named.run;
    let workload = toml::to_string(&run.workload).unwrap_or_default();
    let faults = run.faults.iter().map(|f| {
        let (what, outcome) = (escape(&f.what), escape(&f.outcome));
        format!("<p>At {:.1} s: <code>{what}</code>, {outcome}</p>", f.at_s)
    });
    format!(
        "<details><summary>{}</summary>{}{}<p><code>{}</code></p><pre>{}</pre></details>\n",
        escape(&named.name),
        machine(&run.machine, &run.version, &run.started),
        faults.collect::<String>(),
        escape(&run.command.join(" ")),
        escape(&workload)
    )
}

fn machine(machine: &Machine, version: &str, started: &str) -> String {
    format!(
        "<p>{}, {} CPUs ({}), {} GiB, Linux {}; load average {:.1}; tailrace bench {}; begun {}</p>",
        escape(&machine.hostname),
        machine.cpus,
        escape(&machine.cpu),
        machine.memory_bytes >> 30,
        escape(&machine.kernel),
        machine.load_average[0],
        escape(version),
        escape(started),
    )
}

fn table(runs: &[Named]) -> String {
    let mut out = String::from(
        "<div class=\"wide\"><table><thead><tr><th>run</th><th>records/s</th><th>MB/s</th><th>p50 ms</th><th>p90</th><th>p99</th><th>p99.9</th><th>p99.99</th>\
         <th>max</th><th>records per CPU second</th><th>MiB resident</th><th>written ÷ produced</th></tr></thead><tbody>\n",
    );
    for named in runs {
        let run = named.run;
        let mut row = |name: &str, l: &Latency, cost: bool| {
            out += &format!("<tr><th>{}</th>", escape(name));
            let mut cell = |text: String| out += &format!("<td>{text}</td>");
            cell(if cost {
                format!("{:.0}", run.records_per_s)
            } else {
                String::new()
            });
            cell(if cost {
                format!("{:.2}", run.bytes_per_s / 1e6)
            } else {
                String::new()
            });
            [l.p50, l.p90, l.p99, l.p99_9, l.p99_99, l.max]
                .into_iter()
                .for_each(|us| cell(ms(us)));
            let process = run.process.as_ref().filter(|_| cost);
            cell(process.map_or(String::new(), |p| format!("{:.0}", p.records_per_cpu_s)));
            cell(process.map_or(String::new(), |p| format!("{}", p.rss_bytes >> 20)));
            cell(
                process
                    .and_then(|p| p.written_per_produced)
                    .map_or(String::new(), |w| format!("{w:.2}")),
            );
            out += "</tr>\n";
        };
        row(&named.name, &run.produce, true);
        if let Some(consumed) = &run.end_to_end {
            row(&format!("{}, end to end", named.name), consumed, false);
        }
    }
    out + "</tbody></table></div>\n"
}

/// Text as it may stand in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1.1rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}\
caption{text-align:left;font-weight:600;padding:.4rem 0}td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}thead th{white-space:normal;vertical-align:bottom}th:first-child{text-align:left}\
figure{margin:1.5rem 0}svg{width:100%;height:auto}.good{color:#0a6b3d;font-weight:600}.bad{color:#a00;font-weight:600}.wide{overflow-x:auto}pre{background:#f6f6f6;padding:.8rem;overflow-x:auto}\
code{overflow-wrap:anywhere}";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    pub(crate) fn a_run(label: &str) -> RunResult {
        let responder = crate::null::NullResponder::start("127.0.0.1:0", None, None).unwrap();
        let mut workload = crate::workload::Workload::default();
        workload.time.warm_up_s = 0.0;
        workload.time.length_s = 1.2;
        workload.load.rate = 1_000.0;
        let options = crate::run::Options {
            bootstrap: responder.address(),
            workload,
            label: Some(label.into()),
            quiet: true,
            ..Default::default()
        };
        crate::run::measure(&options, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn a_page_has_every_run_and_loads_nothing() {
        let runs = [
            a_run("one"),
            a_run("<script>alert(1)</script>"),
            a_run("one"),
        ];
        let again: RunResult =
            serde_json::from_str(&serde_json::to_string(&runs[0]).unwrap()).unwrap();
        assert_eq!(again.produce.count, 1_200, "a result is read back");
        let material = Material {
            runs: runs.to_vec(),
            comparisons: Vec::new(),
        };
        let page = page(&material);
        assert!(
            page.contains("one,  (1)") && page.contains("one,  (2)"),
            "names are unique"
        );
        assert!(!page.contains("<script"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let found = page
                .replace("http://www.w3.org/2000/svg", "")
                .contains(outside);
            assert!(!found, "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(!page.contains("NaN") && !page.contains("inf\""));
        let svg = curves(&material);
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>"));
        assert_eq!(svg.matches("<polyline").count(), 3);
    }
}
