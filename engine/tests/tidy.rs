//! Rules of style that no lint knows.
#![cfg(not(tailrace_sim))]
#![allow(
    clippy::disallowed_methods,
    reason = "the test reads the sources, it doesn't run on a shard"
)]

use std::collections::BTreeSet;
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
        "node",
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

/// Rules of the design that nothing keeps yet, each with what it waits for. Whoever brings that takes the rule off here.
const RULES_TO_COME: [(&str, &str); 3] = [
    (
        "G4",
        "several nodes that form a cluster: today a node is one by itself",
    ),
    ("G9", "snapshots: today no replica has a peer"),
    (
        "G12",
        "compaction: today nothing is removed from the middle of a log",
    ),
];

/// The rules of `docs/design.md` §4 and §5, by the letters and numbers that their paragraphs begin with.
fn rules() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/design.md")).expect("the design");
    let rules: Vec<String> = text
        .lines()
        .filter_map(|l| l.strip_prefix("- **"))
        .filter_map(|l| l.split([' ', '*']).next())
        .filter(|name| is_rule(name))
        .map(str::to_owned)
        .collect();
    let expected = (1..=13)
        .map(|n| format!("L{n}"))
        .chain((1..=12).map(|n| format!("G{n}")));
    assert_eq!(rules, expected.collect::<Vec<_>>());
    rules
}

fn is_rule(word: &str) -> bool {
    let mut letters = word.chars();
    matches!(letters.next(), Some('L' | 'G'))
        && word.len() > 1
        && letters.all(|c| c.is_ascii_digit())
}

/// The rules that a text names.
fn named(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|w| is_rule(w))
        .map(str::to_owned)
}

/// Rules named in shipped code, and those in the names of tests or in the comments directly above them.
fn kept_and_tested() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut kept, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for file in files() {
        let path = file.to_string_lossy();
        let name = file.file_name().expect("a file").to_string_lossy();
        let text = std::fs::read_to_string(&file).expect("a readable source");
        let mut shipped = path.contains("/src/")
            && !path.contains("/tests/")
            && !name.ends_with("tests.rs")
            && name != "simulation.rs";
        let (mut comment, mut test) = (String::new(), false);
        for line in text.lines().map(str::trim_start) {
            // Unit tests come last in a file.
            shipped &= line != "#[cfg(test)]";
            if shipped {
                kept.extend(named(line));
            }
            if line.starts_with("///") {
                comment.push_str(line);
            } else if line.starts_with("#[") {
                test |= line == "#[test]";
            } else {
                if let Some(function) = line.strip_prefix("fn ").filter(|_| test) {
                    let name = function.split('(').next().expect("a name");
                    tested.extend(named(&comment));
                    tested.extend(named(&name.to_uppercase().replace('_', " ")));
                }
                comment.clear();
                test = false;
            }
        }
    }
    (kept, tested)
}

#[test]
fn every_rule_is_named_by_the_code_that_keeps_it_and_by_a_test() {
    let (kept, tested) = kept_and_tested();
    for rule in rules() {
        let to_come = RULES_TO_COME.iter().find(|(name, _)| *name == rule);
        if let Some((_, what)) = to_come {
            assert!(
                !kept.contains(&rule) || !tested.contains(&rule),
                "{rule} is kept and tested: it no longer waits for {what}"
            );
            continue;
        }
        assert!(kept.contains(&rule), "no shipped code names {rule}");
        assert!(
            tested.contains(&rule),
            "no test has {rule} in its name or in the comment above it"
        );
    }
}
