//! What latency is asked for, as `p99=5ms`, and whether a run has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::result::{Latency, RunResult};

/// One bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slo {
    /// p50, p90, p99, p99.9, p99.99 or max.
    pub figure: String,
    /// Until a consumer has the record, not until the acknowledgement.
    pub end_to_end: bool,
    pub at_most_us: f64,
}

impl Slo {
    /// `[end-to-end.]FIGURE=TIME`, the time in us, ms or s.
    pub fn parse(text: &str) -> Result<Slo, Error> {
        let wrong = || {
            Error::Usage(format!(
                "{text}: it takes a figure and a time, as p99=5ms or end-to-end.p99.9=20ms"
            ))
        };
        let (figure, time) = text.split_once('=').ok_or_else(wrong)?;
        let (end_to_end, figure) = match figure.strip_prefix("end-to-end.") {
            Some(rest) => (true, rest),
            None => (false, figure),
        };
        of(&Latency::none(), figure).ok_or_else(wrong)?;
        // "ms" before "s".
        let units = [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6)];
        let parts = units
            .iter()
            .find_map(|(unit, us)| Some((time.strip_suffix(unit)?, us)));
        let (number, us) = parts.ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let at_most_us = number * us;
        if !(1.0..=3.6e9).contains(&at_most_us) {
            return Err(wrong());
        }
        Ok(Slo {
            figure: figure.into(),
            end_to_end,
            at_most_us,
        })
    }

    /// What a run has, in microseconds; none where it has no consumers to ask.
    pub fn found(&self, run: &RunResult) -> Option<f64> {
        let latency = match self.end_to_end {
            true => run.end_to_end.as_ref()?,
            false => &run.produce,
        };
        of(latency, &self.figure)
    }
}

impl std::fmt::Display for Slo {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let prefix = if self.end_to_end { "end-to-end." } else { "" };
        write!(f, "{prefix}{} ≤ {} ms", self.figure, self.at_most_us / 1e3)
    }
}

fn of(latency: &Latency, figure: &str) -> Option<f64> {
    Some(match figure {
        "p50" => latency.p50,
        "p90" => latency.p90,
        "p99" => latency.p99,
        "p99.9" => latency.p99_9,
        "p99.99" => latency.p99_99,
        "max" => latency.max,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read() {
        let read = |text| {
            Slo::parse(text)
                .map(|s| (s.figure, s.end_to_end, s.at_most_us))
                .ok()
        };
        assert_eq!(read("p99=5ms"), Some(("p99".into(), false, 5_000.0)));
        assert_eq!(
            read("end-to-end.p99.9=1.5s"),
            Some(("p99.9".into(), true, 1_500_000.0))
        );
        assert_eq!(read("max=800us"), Some(("max".into(), false, 800.0)));
        for wrong in [
            "",
            "p99",
            "p99=5",
            "p98=5ms",
            "p99=ms",
            "p99=-1ms",
            "p99=nanms",
            "p99=0ms",
            "p99=5h",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
