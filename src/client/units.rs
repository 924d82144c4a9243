//! Numbers of configs and quotas as people type and read them: `retention.ms=7d`, `segment.bytes=128MiB`, and back.
//!
//! Kafka takes plain numbers there, so what has a unit is made one before it is sent, going by the config's name; everything else passes as it is.

use super::when;

/// Units of bytes; the longest that fits comes first.
const UNITS: [(&str, f64); 10] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
    ("", 1.0),
];

/// Bytes of `1048576`, `1MiB`, `1.5 kB`.
pub fn size(text: &str) -> Option<f64> {
    UNITS.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * factor)
    })
}

fn is_of_bytes(config: &str) -> bool {
    config.ends_with("bytes") || config.ends_with("bytes.per.second")
}

/// A config's value for the broker; the error says what it takes.
pub fn for_the_broker(config: &str, value: &str) -> Result<String, String> {
    // Also what is no number here may be one there, or is refused there with its bounds.
    if value.trim().parse::<i128>().is_ok() {
        return Ok(value.to_string());
    }
    let (number, takes) = if config.ends_with(".ms") {
        let takes = "milliseconds, or a duration like 90s, 1h30m, 7d or 52w";
        (when::duration(value), takes)
    } else if is_of_bytes(config) {
        let whole = size(value).filter(|n| n.fract() == 0.0 && (0.0..1e18).contains(n));
        let takes = "bytes, or a size like 64KiB, 128MiB or 1GiB";
        (whole.map(|n| n as i64), takes)
    } else {
        return Ok(value.to_string());
    };
    match number {
        Some(number) => Ok(number.to_string()),
        None => Err(format!("{config} can't be '{value}': it takes {takes}")),
    }
}

/// A config's value with what it means, where a plain number is hard to read.
pub fn for_people(config: &str, value: &str) -> String {
    let meaning = value.parse().ok().and_then(|n: i64| {
        if config.ends_with(".ms") && (1000..1 << 53).contains(&n) {
            return Some(when::show_duration(n));
        }
        (is_of_bytes(config) && (1024..1 << 53).contains(&n)).then(|| super::output::bytes(n))
    });
    match meaning {
        Some(meaning) => format!("{value} ({meaning})"),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("1048576"), Some(1_048_576.0));
        assert_eq!(size("1MiB"), Some(1_048_576.0));
        assert_eq!(size("1.5 kB"), Some(1500.0));
        assert_eq!(size("12B"), Some(12.0));
        for text in ["", "MiB", "x", "1 xB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn values_with_a_unit_become_numbers_and_others_stay() {
        let told = |config, value| for_the_broker(config, value).unwrap();
        assert_eq!(told("retention.ms", "7d"), "604800000");
        assert_eq!(told("segment.bytes", "128MiB"), "134217728");
        assert_eq!(told("retention.ms", "-1"), "-1");
        assert_eq!(told("cleanup.policy", "7d"), "7d");
        assert_eq!(told("segment.bytes", "1000"), "1000");
        assert_eq!(
            told("segment.bytes", "9999999999999999999"),
            "9999999999999999999"
        );
    }

    #[test]
    fn units_that_there_are_not_are_told_with_those_that_there_are() {
        for (config, value, unit) in [
            ("retention.ms", "1y", "52w"),
            ("retention.ms", "abc", "7d"),
            ("retention.ms", "", "7d"),
            ("segment.bytes", "0.3B", "128MiB"),
            ("segment.bytes", "1x", "128MiB"),
        ] {
            let why = for_the_broker(config, value).unwrap_err();
            assert!(why.contains(unit) && why.contains(config), "{why}");
        }
    }

    #[test]
    fn what_is_hard_to_read_is_explained() {
        assert_eq!(for_people("retention.ms", "604800000"), "604800000 (7d)");
        assert_eq!(
            for_people("segment.bytes", "1073741824"),
            "1073741824 (1.0 GiB)"
        );
        assert_eq!(for_people("retention.ms", "-1"), "-1");
        assert_eq!(
            for_people("flush.ms", &i64::MAX.to_string()),
            i64::MAX.to_string()
        );
        assert_eq!(for_people("cleanup.policy", "delete"), "delete");
    }
}
