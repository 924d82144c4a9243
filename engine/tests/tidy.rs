//! Rules of style that no lint knows.
#![cfg(not(tailrace_sim))]
#![allow(
    clippy::disallowed_methods,
    reason = "the test reads the sources, it doesn't run on a shard"
)]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("a readable directory").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in [
        "engine",
        "raftgroup",
        "cluster",
        "kafka-api",
        "bench",
        "fuzz",
        "src",
    ] {
        sources(&root().join(part), &mut found);
    }
    assert!(found.len() > 50, "the sources are where they were");
    found.retain(|f| !f.components().any(|c| c.as_os_str() == "target"));
    found
}

/// What is simulated is the shipped code: the switch is known to the runtime seam and to test harnesses alone.
#[test]
fn only_the_runtime_knows_that_it_is_simulated() {
    for file in files() {
        let inside = file
            .strip_prefix(root())
            .expect("below the root")
            .to_string_lossy()
            .into_owned();
        let allowed = inside.starts_with("engine/src/rt")
            || inside.starts_with("fuzz/")
            || inside.contains("/tests/")
            || inside.contains("/examples/");
        let text = std::fs::read_to_string(&file).expect("a readable source");
        let named = text
            .lines()
            .any(|l| l.contains("tailrace_sim") && !l.trim_start().starts_with("//"));
        assert!(allowed || !named, "{inside} names the simulation switch");
    }
}

#[test]
fn files_hold_one_idea() {
    for file in files() {
        let lines = std::fs::read_to_string(&file)
            .expect("a readable source")
            .lines()
            .count();
        assert!(
            lines <= 800,
            "{} has {lines} lines: split it along a seam that has a name",
            file.display()
        );
    }
}
