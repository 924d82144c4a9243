//! The part of a page that a comparison makes: verdicts as tables and spreads, then the curves of every run, a colour a side.

use super::chart::Spread;
use super::{Named, charts, details, escape, machine};
use crate::compare::Ratio;
use crate::versus::{Compared, Verdict, Versus};

pub fn section(versus: &Versus) -> String {
    let ours = versus.sides.first().map_or("", |s| s.label.as_str());
    let mut out = String::new();
    for compared in &versus.workloads {
        let layout = &versus.layout.name;
        out += &format!(
            "<h2>{}, {} layout</h2>\n",
            escape(&compared.workload),
            escape(layout)
        );
        if let Some(problem) = &compared.problem {
            out += &format!("<p class=\"bad\">{}</p>\n", escape(problem));
        }
        for verdict in &compared.verdicts {
            out += &table(verdict, ours);
        }
        let named = named(versus, compared);
        if !named.is_empty() {
            out += &charts(&named);
            if let Some(first) = named.first() {
                out += &details(first);
            }
        }
        for why in &compared.repeated {
            out += &format!(
                "<p>A round was made again, the instrument was late: {}</p>\n",
                escape(why)
            );
        }
    }
    out += &machine(&versus.machine, &versus.version, &versus.started);
    for side in &versus.sides {
        let version = side.version.as_deref().unwrap_or("");
        out += &format!(
            "<p>{}: <code>{}</code> {}</p>\n",
            escape(&side.label),
            escape(&side.command),
            escape(version)
        );
    }
    out
}

/// Every run of every side, sides one behind the other, so that each is one colour.
pub fn named<'a>(versus: &Versus, compared: &'a Compared) -> Vec<Named<'a>> {
    let mut named = Vec::new();
    for (colour, side) in versus.sides.iter().enumerate() {
        for run in compared.rounds.iter().filter_map(|round| round.get(colour)) {
            named.push(Named {
                name: format!("{}, {}", side.label, compared.workload),
                run,
                colour,
            });
        }
    }
    named
}

fn table(verdict: &Verdict, ours: &str) -> String {
    let pairs = match verdict.pairs {
        1 => "one pair".to_owned(),
        n => format!("{n} pairs"),
    };
    let title = format!("{ours} against {}, {pairs}", verdict.theirs);
    let mut out = format!("<h3>{}</h3>\n", escape(&title));
    if let Some(problem) = &verdict.problem {
        return out + &format!("<p class=\"bad\">{}</p>\n", escape(problem));
    }
    if verdict.overloaded > 0 {
        out += &format!(
            "<p>{} couldn't keep up in {} of its runs: its latencies are lower bounds.</p>\n",
            escape(&verdict.theirs),
            verdict.overloaded
        );
    }
    if !verdict.claim {
        out += "<p>There are too few pairs for a claim.</p>\n";
    }
    out += &format!(
        "<div class=\"wide\"><table><thead><tr><th>median of runs</th><th>{}</th><th>{}</th><th>times better: lowest</th><th>median</th><th>highest</th></tr></thead><tbody>\n",
        escape(ours),
        escape(&verdict.theirs)
    );
    for ratio in &verdict.ratios {
        out += &row(ratio);
    }
    out += "</tbody></table></div>\n";
    let lines = verdict.ratios.iter();
    let spread = Spread {
        title: format!("How many times better than {}", verdict.theirs),
        lines: lines
            .map(|r| (r.figure.clone(), r.low, r.median, r.high))
            .collect(),
    };
    out + &format!("<figure>{}</figure>\n", spread.svg())
}

fn row(ratio: &Ratio) -> String {
    let class = if ratio.low >= super::LEVEL {
        "good"
    } else {
        "bad"
    };
    let number = crate::compare::number;
    format!(
        "<tr><th>{}</th><td>{}</td><td>{}</td><td class=\"{class}\">{:.2}×</td><td>{:.2}×</td><td>{:.2}×</td></tr>\n",
        escape(&ratio.figure),
        number(ratio.ours),
        number(ratio.theirs),
        ratio.low,
        ratio.median,
        ratio.high
    )
}
