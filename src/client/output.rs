//! What commands print for people and for programs: aligned tables, JSON, lists of partitions.
//!
//! Names, hosts and configs come from a broker: control characters in them are printed escaped, so that they neither break a table nor reach the terminal.
//! A table is made in memory before it is printed: as large as its rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use serde::Serialize;

use super::ClientError;

/// What stands where there is nothing to tell.
pub const NOTHING: &str = "-";

/// Rows under column names, printed with two spaces between columns.
pub struct Table {
    /// Names, and whether the column is of numbers, which end where the column ends.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A name that begins with `>` is that of a column of numbers.
    pub fn new(columns: &[&'static str]) -> Table {
        let columns = columns
            .iter()
            .map(|name| match name.strip_prefix('>') {
                Some(name) => (name, true),
                None => (*name, false),
            })
            .collect();
        Table {
            columns,
            rows: Vec::new(),
        }
    }

    /// One cell for every column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(
            cells.len(),
            self.columns.len(),
            "a row has a cell for each column"
        );
        let cells = cells.iter().map(|cell| clean(cell)).collect();
        self.rows.push(cells);
    }

    pub fn render(&self) -> String {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (name, _))| {
                let cells = self.rows.iter().map(|row| row[i].chars().count());
                cells.max().unwrap_or(0).max(name.len())
            })
            .collect();
        let mut out = String::new();
        let names: Vec<String> = self
            .columns
            .iter()
            .map(|(name, _)| (*name).into())
            .collect();
        for row in std::iter::once(&names).chain(&self.rows) {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                let width = widths[i];
                // Writing to a String doesn't fail.
                let _ = if self.columns[i].1 {
                    write!(line, "{gap}{cell:>width$}")
                } else {
                    write!(line, "{gap}{cell:<width$}")
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    /// Prints it; an empty one is only its column names.
    pub fn print(&self) -> Result<(), ClientError> {
        std::io::stdout()
            .write_all(self.render().as_bytes())
            .map_err(ClientError::Output)
    }
}

/// Text of others, with control characters escaped; nothing is [`NOTHING`].
pub fn clean(text: &str) -> String {
    if text.is_empty() {
        return NOTHING.into();
    }
    if !text.contains(char::is_control) {
        return text.into();
    }
    text.chars()
        .flat_map(|c| {
            let escaped: Vec<char> = if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            };
            escaped
        })
        .collect()
}

/// A number that may be missing.
pub fn or_nothing<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NOTHING.into(), |v| v.to_string())
}

/// Prints JSON for programs: indented, in the order of the type's fields.
pub fn print_json(value: &impl Serialize) -> Result<(), ClientError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| ClientError::Output(std::io::Error::other(e)))?;
    text.push('\n');
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(ClientError::Output)
}

/// `0-2,5` for 0, 1, 2 and 5, which must be in order.
pub fn ranges(numbers: impl IntoIterator<Item = i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let texts: Vec<String> = runs
        .iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

/// `orders 0-2, payments 1` for partitions of topics.
pub fn partitions<'a>(places: impl IntoIterator<Item = (&'a str, i32)>) -> String {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in places {
        topics.entry(topic).or_default().push(partition);
    }
    let texts: Vec<String> = topics
        .into_iter()
        .map(|(topic, mut numbers)| {
            numbers.sort_unstable();
            format!("{topic} {}", ranges(numbers))
        })
        .collect();
    texts.join(", ")
}

/// `1 partition`, `2 partitions`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Bytes in the largest unit that leaves at least one.
pub fn bytes(n: i64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_where_their_text_does() {
        let mut table = Table::new(&["GROUP", ">LAG", "HOST"]);
        table.row(vec!["a".into(), "1".into(), "h".into()]);
        table.row(vec!["größer".into(), "12345".into(), String::new()]);
        assert_eq!(
            table.render(),
            "GROUP     LAG  HOST\na           1  h\ngrößer  12345  -\n"
        );
    }

    #[test]
    fn names_of_others_do_nothing_to_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(clean("naïve"), "naïve");
        assert_eq!(clean(""), NOTHING);
    }

    #[test]
    fn partitions_are_told_in_ranges() {
        assert_eq!(ranges([0, 1, 2, 4, 5, 9]), "0-2,4,5,9");
        assert_eq!(ranges([i32::MAX]), i32::MAX.to_string());
        assert_eq!(ranges([]), "");
        let places = [("b", 1), ("a", 2), ("a", 0), ("a", 1)];
        assert_eq!(partitions(places), "a 0-2, b 1");
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 40), "3.0 TiB");
        assert_eq!(bytes(i64::MAX), "8388608.0 TiB");
    }
}
