//! Kafka's rules for topic names.

use std::borrow::Cow;

use crate::error::{Refusal, Refused};
use crate::limits::TOPIC_NAME_BYTES;

/// 1 to 249 characters of `[a-zA-Z0-9._-]`, and neither `.` nor `..`.
pub fn check(name: &str) -> Result<(), Refused> {
    let refuse = |why: String| Err(Refused::new(Refusal::InvalidTopic, why));
    if name.is_empty() {
        return refuse("A topic name can't be empty.".into());
    }
    if name == "." || name == ".." {
        return refuse(format!("A topic can't be called '{name}'."));
    }
    if name.len() > TOPIC_NAME_BYTES {
        return refuse(format!(
            "The topic name is {} bytes long; {TOPIC_NAME_BYTES} are allowed.",
            name.len()
        ));
    }
    if !name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    {
        return refuse(format!(
            "Topic name '{}' has characters other than ASCII letters, digits, '.', '_' and '-'.",
            name.escape_default()
        ));
    }
    Ok(())
}

/// Two names with the same key collide: Kafka's metric names write '.' as '_', so it allows only one of `a.b` and `a_b`.
pub fn collision_key(name: &str) -> Cow<'_, str> {
    if name.contains('.') {
        Cow::Owned(name.replace('.', "_"))
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_kafka_takes() {
        for name in [
            "a",
            "orders",
            "a.b_c-D9",
            "...",
            "__internal",
            &"x".repeat(249),
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_kafka_refuses() {
        for name in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "ä",
            "a\0",
            "a:b",
            &"x".repeat(250),
        ] {
            assert_eq!(
                check(name).map_err(|r| r.refusal),
                Err(Refusal::InvalidTopic),
                "{name}"
            );
        }
    }

    #[test]
    fn dots_and_underscores_collide() {
        assert_eq!(collision_key("a.b_c"), collision_key("a_b.c"));
        assert_ne!(collision_key("a.b"), collision_key("ab"));
    }
}
