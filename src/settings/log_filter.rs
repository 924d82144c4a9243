//! The setting `log`: a level, or levels for parts of Tailrace. What the logging library would take for the name of an unknown part, and so log nothing, is
//! refused.

use super::nearest::nearest;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// What log lines are named after: the crates.
const PARTS: [&str; 6] = [
    "tailrace",
    "node",
    "engine",
    "raftgroup",
    "cluster",
    "kafka_api",
];

/// Checks a filter; gives it with a level for everything that it doesn't name.
pub fn parse(text: &str) -> Result<String, String> {
    let mut directives = Vec::new();
    let mut general = false;
    for directive in text.split(',').map(str::trim) {
        match directive.split_once('=') {
            None => {
                general = true;
                directives.push(level(directive)?);
            }
            Some((part, at)) => {
                let name = part.split("::").next().unwrap_or(part);
                if !PARTS.contains(&name) {
                    return Err(format!(
                        "there is no part '{name}'; there are {}",
                        PARTS.join(", ")
                    ));
                }
                directives.push(format!("{part}={}", level(at)?));
            }
        }
    }
    if !general {
        directives.insert(0, "info".into());
    }
    Ok(directives.join(","))
}

fn level(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    if LEVELS.contains(&lower.as_str()) {
        return Ok(lower);
    }
    let meant = nearest(&lower, LEVELS.into_iter())
        .map(|l| format!(", for instance {l}"))
        .unwrap_or_default();
    Err(format!(
        "it must be one of {}{meant}, or like info,engine=debug",
        LEVELS.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts() {
        for (given, meant) in [
            ("info", "info"),
            ("WARN", "warn"),
            ("warn, engine=debug", "warn,engine=debug"),
            ("engine::log=trace", "info,engine::log=trace"),
            ("off", "off"),
        ] {
            assert_eq!(parse(given).as_deref(), Ok(meant), "{given}");
            assert!(tracing_subscriber::EnvFilter::try_new(meant).is_ok());
        }
    }

    #[test]
    fn what_would_silence_the_log_is_refused() {
        for text in [
            "bogus",
            "",
            "engine",
            "inof",
            "info,",
            "engine=loud",
            "enigne=debug",
            "kafka-api=debug",
            "3",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("inof").unwrap_err().contains("info"));
    }
}
