//! The layer of the environment, and the variables in it that would do nothing: those are refused, so that a mistyped one is found.
//!
//! Two kinds of strangers are let pass: what this project's tests go by, and what Kubernetes puts into every container of a namespace that has a
//! service called `tailrace`.

use super::{KEYS, Layer, SettingsError, Source, environment_name, nearest};

/// Variables of ours that are no settings of a node, and who reads them: this call for its config file, client commands, the tests.
const OTHERS: [&str; 4] = [
    "TAILRACE_CONFIG",
    "TAILRACE_BROKER",
    "TAILRACE_BIN",
    "TAILRACE_TEST_DIR",
];

/// What the names of all our variables begin with.
const PREFIX: &str = "TAILRACE_";

/// Reads the settings among these variables.
pub fn from_environment(
    variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Result<Layer, SettingsError> {
    let mut layer = Layer::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|n| n.starts_with(PREFIX)) else {
            continue;
        };
        let key = KEYS.iter().find(|k| environment_name(k.name) == name);
        let other = OTHERS.contains(&name);
        match (key, value.into_string()) {
            (Some(key), Ok(value)) => {
                let source = Source::Environment(name.to_string());
                layer.insert(key.name, (value, source));
            }
            (Some(_), Err(_)) => {
                return Err(SettingsError(format!(
                    "the environment variable {name} isn't UTF-8: give the setting in a form that is"
                )));
            }
            (None, _) if other => {}
            (None, Ok(value)) if is_service_link(name, &value) => {}
            (None, _) => return Err(stranger(name)),
        }
    }
    Ok(layer)
}

fn stranger(name: &str) -> SettingsError {
    let ours = KEYS.iter().map(|k| environment_name(k.name));
    let others = OTHERS[..2].iter().map(|n| n.to_string());
    let names: Vec<String> = ours.chain(others).collect();
    // Without what all have in common, which would make any two of them look alike.
    let own = |name| str::strip_prefix(name, PREFIX).unwrap_or(name);
    let meant = match nearest::nearest(own(name), names.iter().map(|n| own(n))) {
        Some(meant) => format!("did you mean {PREFIX}{meant}? Else unset it"),
        None => "unset it; `tailrace serve --help` has the settings".to_string(),
    };
    SettingsError(format!(
        "the environment variable {name} is no setting of Tailrace and would do nothing: {meant}"
    ))
}

/// What Kubernetes says about a service called `tailrace`: `TAILRACE_SERVICE_HOST`, `TAILRACE_SERVICE_PORT…`, `TAILRACE_PORT=tcp://…`,
/// `TAILRACE_PORT_9092_TCP…`.
fn is_service_link(name: &str, value: &str) -> bool {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    if name == "SERVICE_HOST" || name.starts_with("SERVICE_PORT") {
        return true;
    }
    match name.strip_prefix("PORT") {
        Some("") => value.contains("://"),
        Some(rest) => rest
            .strip_prefix('_')
            .is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit())),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Layer, SettingsError> {
        from_environment(pairs.iter().map(|(k, v)| (k.into(), v.into())))
    }

    #[test]
    fn a_variable_without_effect_is_refused_and_the_right_one_named() {
        for (name, meant) in [
            ("TAILRACE_SHARDZ", "TAILRACE_SHARDS?"),
            ("TAILRACE_KAFKA_ADDRESS", "TAILRACE_KAFKA_ADDR?"),
            ("TAILRACE_DATADIR", "TAILRACE_DATA_DIR?"),
            ("TAILRACE_BROKERS", "TAILRACE_BROKER?"),
            ("TAILRACE_SOMETHING_ELSE", "--help"),
            ("TAILRACE_PORT", "unset it"),
        ] {
            let e = read(&[(name, "1")]).unwrap_err().to_string();
            assert!(e.contains(name) && e.contains(meant), "{e}");
        }
    }

    #[test]
    fn what_others_set_is_let_pass() {
        let layer = read(&[
            ("PATH", "/bin"),
            ("TAILRACE_BIN", "x"),
            ("TAILRACE_CONFIG", "t.toml"),
            ("TAILRACE_BROKER", "b:1"),
            ("TAILRACE_SERVICE_HOST", "10.0.0.1"),
            ("TAILRACE_SERVICE_PORT_KAFKA", "9092"),
            ("TAILRACE_PORT", "tcp://10.0.0.1:9092"),
            ("TAILRACE_PORT_9092_TCP_ADDR", "10.0.0.1"),
            ("TAILRACE_SHARDS", "2"),
        ])
        .unwrap();
        assert_eq!(layer.keys().copied().collect::<Vec<_>>(), ["shards"]);
    }

    #[test]
    fn a_value_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let value = std::ffi::OsString::from_vec(vec![b'/', 0xFF]);
        let e = from_environment([("TAILRACE_DATA_DIR".into(), value)].into_iter()).unwrap_err();
        assert!(e.to_string().contains("UTF-8"), "{e}");
    }
}
