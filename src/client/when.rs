//! Points in time and durations as people type them. Times without a zone are UTC, as in Kafka's own tools.

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;
/// Years that are taken: what is outside is a mistake.
const YEARS: std::ops::RangeInclusive<i64> = 1970..=9999;

/// Milliseconds since 1970 of `2026-11-30`, `2026-11-30T12:00`, `2026-11-30 12:00:05.250`, each with `Z` or `+01:00` behind it or nothing, or of `@MS`.
pub fn timestamp(text: &str) -> Option<i64> {
    if let Some(ms) = text.strip_prefix('@') {
        return ms.parse().ok().filter(|ms| *ms >= 0);
    }
    let (text, shift_ms) = zone(text)?;
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut fields = date.splitn(3, '-');
    let year = digits(fields.next()?, 4).filter(|y| YEARS.contains(y))?;
    let month = digits(fields.next()?, 2).filter(|m| (1..=12).contains(m))?;
    let day = digits(fields.next()?, 2).filter(|d| (1..=days_in(year, month)).contains(d))?;
    let time_ms = match time {
        Some(time) => time_of_day(time)?,
        None => 0,
    };
    Some(days_from_civil(year, month, day) * DAY_MS + time_ms - shift_ms).filter(|ms| *ms >= 0)
}

/// Cuts a zone off the end of a time: how far it is ahead of UTC, in milliseconds.
fn zone(text: &str) -> Option<(&str, i64)> {
    if let Some(rest) = text.strip_suffix(['Z', 'z']) {
        return Some((rest, 0));
    }
    // A date has two hyphens; one behind a time is a zone's.
    let from = text.find(['T', ' ']).map_or(text.len(), |at| at + 1);
    let Some(at) = text[from..].find(['+', '-']).map(|at| from + at) else {
        return Some((text, 0));
    };
    let (sign, offset) = (&text[at..=at], &text[at + 1..]);
    let (hours, minutes) = match offset.split_once(':') {
        Some(parts) => parts,
        None if offset.len() == 4 && offset.is_ascii() => offset.split_at(2),
        None => (offset, "00"),
    };
    let hours = digits(hours, 2).filter(|h| *h <= 18)?;
    let minutes = digits(minutes, 2).filter(|m| *m < 60)?;
    let ms = (hours * 60 + minutes) * 60_000;
    Some((&text[..at], if sign == "-" { -ms } else { ms }))
}

fn time_of_day(text: &str) -> Option<i64> {
    let (text, ms) = match text.split_once('.') {
        Some((text, fraction)) => (text, fraction_ms(fraction)?),
        None => (text, 0),
    };
    let mut fields = text.splitn(3, ':');
    let hours = digits(fields.next()?, 2).filter(|h| *h < 24)?;
    let minutes = digits(fields.next()?, 2).filter(|m| *m < 60)?;
    let seconds = match fields.next() {
        Some(seconds) => digits(seconds, 2).filter(|s| *s < 60)?,
        None if ms == 0 => 0,
        None => return None,
    };
    Some(((hours * 60 + minutes) * 60 + seconds) * 1000 + ms)
}

/// Of `.25`: 250. What is finer than a millisecond is cut off.
fn fraction_ms(text: &str) -> Option<i64> {
    if text.is_empty() || text.len() > 9 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    format!("{text:0<3}")[..3].parse().ok()
}

/// A number of exactly so many digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    (text.len() == count && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

/// Milliseconds of `90s`, `1h30m`, `2d`, `250ms`, or of ISO 8601's `P1DT2H30M5S`.
pub fn duration(text: &str) -> Option<i64> {
    let lower = text.to_ascii_lowercase();
    let (iso, lower) = match lower.strip_prefix('p') {
        Some(rest) => (true, rest),
        None => (false, lower.as_str()),
    };
    let (mut total, mut rest, mut in_time, mut any) = (0_i64, lower, !iso, false);
    while !rest.is_empty() {
        if iso
            && !in_time
            && let Some(time) = rest.strip_prefix('t')
        {
            (in_time, rest) = (true, time);
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: i64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..]
            .find(|c: char| !c.is_ascii_alphabetic() || (iso && c == 't'))
            .map_or(rest.len(), |at| end + at);
        let unit_ms = match (&rest[end..unit_end], in_time) {
            ("w", _) if !iso || !in_time => 7 * DAY_MS,
            ("d", _) if !iso || !in_time => DAY_MS,
            ("h", true) => 3_600_000,
            ("m" | "min", true) => 60_000,
            ("s", true) => 1000,
            ("ms", true) if !iso => 1,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(unit_ms)?)?;
        any = true;
        rest = &rest[unit_end..];
    }
    any.then_some(total)
}

/// `2026-11-30T12:00:00.000Z`; what is before 1970 stays a number.
pub fn show(ms: i64) -> String {
    if ms < 0 {
        return format!("{ms} ms");
    }
    let (days, ms) = (ms / DAY_MS, ms % DAY_MS);
    let (year, month, day) = civil_from_days(days);
    let seconds = ms / 1000;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        ms % 1000
    )
}

/// `1d2h`, `90s` as `1m30s`; nothing shorter than a millisecond.
pub fn show_duration(ms: i64) -> String {
    let mut left = ms;
    let mut text = String::new();
    for (unit, unit_ms) in [
        ("d", DAY_MS),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if left >= unit_ms {
            text += &format!("{}{unit}", left / unit_ms);
            left %= unit_ms;
        }
    }
    text
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Leap days before a year, counted from year 0.
fn leap_days_before(year: i64) -> i64 {
    let y = year - 1;
    y / 4 - y / 100 + y / 400
}

/// Days since 1970 of a date from 1970 on.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let years = (year - 1970) * 365 + leap_days_before(year) - leap_days_before(1970);
    let months: i64 = (1..month).map(|m| days_in(year, m)).sum();
    years + months + day - 1
}

fn civil_from_days(mut days: i64) -> (i64, i64, i64) {
    // Not too late, and at most a day per year too early.
    let mut year = 1970 + days / 366;
    while days_from_civil(year + 1, 1, 1) <= days {
        year += 1;
    }
    days -= days_from_civil(year, 1, 1);
    let mut month = 1;
    while days >= days_in(year, month) {
        days -= days_in(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read() {
        let noon = 1_796_040_000_000;
        for text in [
            "2026-11-30T12:00",
            "2026-11-30 12:00:00",
            "2026-11-30T12:00:00.000Z",
            "2026-11-30T13:00:00+01:00",
            "2026-11-30T06:30-0530",
            "@1796040000000",
        ] {
            assert_eq!(timestamp(text), Some(noon), "{text}");
        }
        assert_eq!(timestamp("2026-11-30"), Some(noon - DAY_MS / 2));
        assert_eq!(timestamp("2026-11-30T12:00:00.25"), Some(noon + 250));
        assert_eq!(timestamp("1970-01-01"), Some(0));
        assert_eq!(timestamp("2024-02-29"), Some(1_709_164_800_000));
        for text in [
            "",
            "soon",
            "2026-02-29",
            "2026-13-01",
            "2026-11-30T24:00",
            "2026-11-30T",
            "26-11-30",
            "1969-01-01",
            "2026-11-30T12:00:00.",
            "2026-11-30T12.5",
            "@-1",
            "2026-11-30T12:00+99:00",
            "2026-11-30é",
        ] {
            assert_eq!(timestamp(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_shown() {
        assert_eq!(show_duration(7 * DAY_MS), "7d");
        assert_eq!(show_duration(90_001), "1m30s1ms");
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(duration("90s"), Some(90_000));
        assert_eq!(duration("1h30m"), Some(5_400_000));
        assert_eq!(duration("2d"), Some(2 * DAY_MS));
        assert_eq!(duration("250ms"), Some(250));
        assert_eq!(duration("P1DT2H30M5S"), Some(DAY_MS + 9_005_000));
        assert_eq!(duration("PT0S"), Some(0));
        for text in [
            "",
            "P",
            "PT",
            "5",
            "1x",
            "h",
            "-1h",
            "P1H",
            "PT1D",
            "999999999999999999d",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(ms in 0..253_402_300_799_999_i64) {
            prop_assert_eq!(timestamp(&show(ms)), Some(ms));
        }

        #[test]
        fn durations_too(ms in 1..i64::MAX) {
            prop_assert_eq!(duration(&show_duration(ms)), Some(ms));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,30}") {
            let _ = (timestamp(&text), duration(&text));
        }
    }
}
