//! Kafka's config values: text that is parsed by type, checked, and written back in one canonical form.

use std::fmt;

use super::table::Definition;
use crate::error::{Refusal, Refused};
use crate::limits::CONFIG_VALUE_BYTES;

/// The type of a config; the numbers are DescribeConfigs' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ValueType {
    /// Of what is no setting: a logger's level.
    Unknown = 0,
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// Which values of the type are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    Any,
    /// Numbers from .. to, both included.
    Range(i64, i64),
    /// Numbers from .. to, and this one.
    RangeOr(i64, i64, i64),
    /// One of these words; for lists, any number of them, each once.
    OneOf(&'static [&'static str]),
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Boolean(bool),
    String(String),
    Int(i32),
    Long(i64),
    Double(f64),
    List(Vec<String>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Boolean(v) => v.fmt(f),
            Value::String(v) => v.fmt(f),
            Value::Int(v) => v.fmt(f),
            Value::Long(v) => v.fmt(f),
            Value::Double(v) => v.fmt(f),
            Value::List(v) => v.join(",").fmt(f),
        }
    }
}

/// Parses and checks a value. The error is InvalidConfig, in a sentence.
pub fn parse(d: &Definition, text: &str) -> Result<Value, Refused> {
    let refuse = |why: String| {
        let shown: String = text.chars().take(64).collect();
        Refused::new(
            Refusal::InvalidConfig,
            format!(
                "Invalid value '{}' for {}: {why}.",
                shown.escape_debug(),
                d.name
            ),
        )
    };
    if text.len() > CONFIG_VALUE_BYTES {
        return Err(refuse(format!(
            "it is longer than {CONFIG_VALUE_BYTES} bytes"
        )));
    }
    // Kafka trims everything but free text.
    let trimmed = text.trim();
    let value = match d.value_type {
        ValueType::Boolean => match trimmed {
            t if t.eq_ignore_ascii_case("true") => Value::Boolean(true),
            t if t.eq_ignore_ascii_case("false") => Value::Boolean(false),
            _ => return Err(refuse("it must be true or false".into())),
        },
        ValueType::String | ValueType::Unknown => Value::String(trimmed.to_string()),
        ValueType::Int => match trimmed.parse() {
            Ok(v) => Value::Int(v),
            Err(_) => return Err(refuse("it must be a 32-bit whole number".into())),
        },
        ValueType::Long => match trimmed.parse() {
            Ok(v) => Value::Long(v),
            Err(_) => return Err(refuse("it must be a 64-bit whole number".into())),
        },
        ValueType::Double => match trimmed.parse::<f64>() {
            Ok(v) if v.is_finite() => Value::Double(v),
            _ => return Err(refuse("it must be a number".into())),
        },
        ValueType::List => Value::List(split_list(trimmed)),
    };
    check(d.valid, &value).map_err(refuse)?;
    Ok(value)
}

/// The items of a list in text form; an empty text is an empty list.
pub fn split_list(text: &str) -> Vec<String> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    text.split(',')
        .map(|item| item.trim().to_string())
        .collect()
}

fn check(valid: Valid, value: &Value) -> Result<(), String> {
    let in_range = |low: i64, high: i64| match value {
        Value::Int(v) => (low..=high).contains(&i64::from(*v)),
        Value::Long(v) => (low..=high).contains(v),
        Value::Double(v) => (low as f64..=high as f64).contains(v),
        _ => false,
    };
    let one_of = |words: &[&str]| format!("it must be one of {}", words.join(", "));
    match valid {
        Valid::Any => Ok(()),
        Valid::Range(low, high) if in_range(low, high) => Ok(()),
        Valid::Range(low, i64::MAX) => Err(format!("it must be at least {low}")),
        Valid::Range(low, high) => Err(format!("it must be from {low} to {high}")),
        Valid::RangeOr(low, high, other) if in_range(low, high) || in_range(other, other) => Ok(()),
        Valid::RangeOr(low, high, other) => {
            Err(format!("it must be from {low} to {high}, or {other}"))
        }
        Valid::OneOf(words) => match value {
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    if !words.contains(&item.as_str()) {
                        return Err(format!("its items must be from {}", words.join(", ")));
                    }
                    if items[..i].contains(item) {
                        return Err(format!("it has '{item}' twice"));
                    }
                }
                Ok(())
            }
            Value::String(text) if words.contains(&text.as_str()) => Ok(()),
            _ => Err(one_of(words)),
        },
    }
}
