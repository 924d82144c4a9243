//! Which name was meant by a mistyped one.

/// The known name that is fewest edits away, if they are few for its length.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, name) = known.map(|name| (edits(given, name), name)).min()?;
    (edits <= name.len() / 4 + 1).then_some(name)
}

/// Insertions, deletions and replacements of bytes that make one text of the other.
fn edits(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
    }

    #[test]
    fn only_what_is_near_is_named() {
        let known = ["data-dir", "shards", "log"];
        let find = |text| nearest(text, known.into_iter());
        assert_eq!(find("datadir"), Some("data-dir"));
        assert_eq!(find("shard"), Some("shards"));
        assert_eq!(find("zookeeper.connect"), None);
        assert_eq!(find("xyz"), None);
    }
}
