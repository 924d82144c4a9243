//! A run's verdict, and a run in a few lines for people.

use crate::result::{Latency, RunResult};
use crate::workload::Mode;

/// Why the figures of a run must not be used.
pub fn problems(result: &RunResult) -> Vec<String> {
    let mut found = Vec::new();
    let generator = &result.generator;
    if result.produce.count == 0 {
        found.push("nothing was measured".into());
    }
    for error in &result.errors {
        found.push(format!(
            "{} records were refused: {}",
            error.records, error.name
        ));
    }
    let refused: u64 = result.errors.iter().map(|e| e.records).sum();
    if result.unfinished > refused {
        found.push(format!(
            "{} records were never answered",
            result.unfinished - refused
        ));
    }
    if let Some(unread @ 1..) = result.unread {
        found.push(format!("{unread} acknowledged records reached no consumer"));
    }
    if result.workload.load.mode == Mode::Open && generator.fell_behind {
        found.push(format!(
            "the generator fell behind its schedule: p50 {:.0}, p99 {:.0}, p99.9 {:.0} µs late",
            generator.lag_p50, generator.lag_p99, generator.lag_p99_9
        ));
    }
    let little = &result.little;
    if !little.holds {
        found.push(format!(
            "Little's law doesn't hold: {:.2} records in flight were counted, {:.2} follow from rate and latency",
            little.in_flight, little.from_latency
        ));
    }
    found
}

/// Microseconds as milliseconds, three digits that count.
pub fn ms(us: f64) -> String {
    let ms = us / 1e3;
    match ms {
        m if m < 10.0 => format!("{m:.3}"),
        m if m < 100.0 => format!("{m:.2}"),
        m => format!("{m:.1}"),
    }
}

/// A run in a few lines, for people.
pub fn summary(r: &RunResult) -> String {
    let line = |name: &str, l: &Latency| {
        format!(
            "{name:<12} p50 {}  p90 {}  p99 {}  p99.9 {}  p99.99 {}  max {} ms\n",
            ms(l.p50),
            ms(l.p90),
            ms(l.p99),
            ms(l.p99_9),
            ms(l.p99_99),
            ms(l.max)
        )
    };
    let mut out = format!(
        "{}: {:.0} records/s, {:.2} MB/s over {:.1} s{}\n",
        if r.workload.name.is_empty() {
            "run"
        } else {
            &r.workload.name
        },
        r.records_per_s,
        r.bytes_per_s / 1e6,
        r.window_s,
        if r.interrupted { ", ended early" } else { "" }
    );
    out += &line("produce", &r.produce);
    if let Some(consumed) = &r.end_to_end {
        out += &line("end to end", consumed);
    }
    if r.workload.load.mode == Mode::Open {
        out += &format!(
            "generator    late by p50 {}  p99 {}  p99.9 {}  max {} ms; {} records held back by the broker\n",
            ms(r.generator.lag_p50),
            ms(r.generator.lag_p99),
            ms(r.generator.lag_p99_9),
            ms(r.generator.lag_max),
            r.generator.held_back
        );
    }
    out += &format!(
        "Little's law {:.2} in flight counted, {:.2} from rate × latency: {}\n",
        r.little.in_flight,
        r.little.from_latency,
        if r.little.holds {
            "holds"
        } else {
            "DOESN'T HOLD"
        }
    );
    if let Some(backlog) = &r.backlog {
        out += &match backlog.drained_s {
            Some(s) => format!(
                "backlog      {} records, read up in {s:.1} s\n",
                backlog.records
            ),
            None => format!("backlog      {} records, not read up\n", backlog.records),
        };
    }
    if let Some(replay) = &r.replay {
        let whole = if replay.whole {
            "all of it"
        } else {
            "not all of it"
        };
        out += &format!(
            "replay       {:.0} MB in {:.1} s, {:.1} MB/s, {whole}\n",
            replay.bytes as f64 / 1e6,
            replay.seconds,
            replay.bytes_per_s / 1e6
        );
    }
    if let Some(device) = &r.device {
        out += &format!(
            "{:<12} {:.2} bytes written per byte produced, {} writes and {} flushes in the window\n",
            device.device, device.settled_per_produced, device.writes, device.flushes
        );
    }
    for (name, p) in [
        ("broker", r.process.as_ref()),
        ("load", Some(&r.load_process)),
    ] {
        let Some(p) = p else { continue };
        let written = match p.written_per_produced {
            Some(ratio) if name == "broker" => {
                format!(", {ratio:.2} bytes written per byte produced")
            }
            _ => String::new(),
        };
        out += &format!(
            "{name:<12} {:.2} CPU s, {:.0} records per CPU s, {} MiB resident, {} context switches{written}\n",
            p.user_cpu_s + p.system_cpu_s,
            p.records_per_cpu_s,
            p.rss_bytes >> 20,
            p.voluntary_switches + p.involuntary_switches
        );
    }
    out
}
