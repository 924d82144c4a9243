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

/// Every crate but the root's.
const CRATES: [&str; 7] = [
    "engine",
    "raftgroup",
    "cluster",
    "kafka-api",
    "node",
    "bench",
    "fuzz",
];

fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in CRATES.iter().chain(&["src"]) {
        sources(&root().join(part), &mut found);
    }
    assert!(found.len() > 50, "the sources are where they were");
    found.retain(|f| !f.components().any(|c| c.as_os_str() == "target"));
    found
}

fn inside(file: &Path) -> String {
    file.strip_prefix(root())
        .expect("below the root")
        .to_string_lossy()
        .into_owned()
}

fn manifests() -> Vec<PathBuf> {
    let folders = [""].iter().chain(&CRATES);
    folders.map(|f| root().join(f).join("Cargo.toml")).collect()
}

/// Lines of the manifests that name the switch: that it exists, and what the real runtime is built with.
const SWITCHES: [(&str, &str); 2] = [
    ("Cargo.toml", "unexpected_cfgs = "),
    (
        "engine/Cargo.toml",
        "[target.'cfg(not(any(loom, tailrace_sim)))'.dependencies]",
    ),
];

/// What is simulated is the shipped code: the switch is known to the runtime seam and to test harnesses alone.
#[test]
fn only_the_runtime_knows_that_it_is_simulated() {
    for file in files() {
        let inside = inside(&file);
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
    for file in manifests() {
        let inside = inside(&file);
        let text = std::fs::read_to_string(&file).expect("a readable manifest");
        for line in text.lines().filter(|l| l.contains("tailrace_sim")) {
            let allowed = inside.starts_with("fuzz/")
                || SWITCHES
                    .iter()
                    .any(|(f, l)| inside == *f && line.starts_with(l));
            assert!(allowed, "{inside} names the simulation switch: {line}");
        }
    }
}

/// Shards wait in `engine::rt` alone, and what asks whether they can asks it.
#[test]
fn only_the_runtime_knows_io_uring() {
    for file in files() {
        let inside = inside(&file);
        let text = std::fs::read_to_string(&file).expect("a readable source");
        let named = text.contains("io_uring::");
        assert!(
            inside.starts_with("engine/src/rt") || inside == TIDY || !named,
            "{inside} names io_uring"
        );
    }
    for file in manifests() {
        let inside = inside(&file);
        let text = std::fs::read_to_string(&file).expect("a readable manifest");
        assert!(
            inside == "engine/Cargo.toml" || !text.contains("io-uring"),
            "{inside} depends on io_uring"
        );
    }
}

/// This file, which has the words that it looks for.
const TIDY: &str = "engine/tests/tidy.rs";

/// Crates whose code runs on shards.
const OF_SHARDS: [&str; 5] = ["engine", "raftgroup", "cluster", "kafka-api", "node"];

/// What would make two runs of a seed differ and is no type or method that clippy could be told of: (what it is, how it is written).
const UNREPEATABLE: [(&str, &[&str]); 5] = [
    ("a thread local", &["thread_local!"]),
    ("a static", &["static "]),
    ("a random UUID", &["Uuid::new_v", "Uuid::now_v"]),
    (
        "randomness of the process's own",
        &[
            "thread_rng",
            "rand::rng(",
            "rand::random",
            "from_os_rng",
            "getrandom",
            "RandomState::new",
            "RandomState::default",
            "AHashMap",
            "AHashSet",
            "future::race(",
        ],
    ),
    (
        "a pointer taken for a number",
        &[
            "as *const",
            "as *mut",
            "Rc::as_ptr",
            "Arc::as_ptr",
            "ptr::hash",
            ".addr()",
            "expose_provenance",
            ":p}",
        ],
    ),
];

/// Where one of them is as it should be, by its line, and why.
const REPEATABLE_ALL_THE_SAME: [(&str, &str, &str); 1] = [(
    "cluster/src/topic_config/table.rs",
    "pub static $table: ",
    "a table that nobody writes",
)];

/// The lines of shipped code with their numbers: no comments, no unit tests (which come last in a file, or in files of their own).
fn shipped_lines(inside: &str, text: &str) -> Vec<(usize, String)> {
    let name = inside.rsplit('/').next().expect("a name");
    let of_tests =
        inside.contains("/tests/") || name.ends_with("tests.rs") || name == "simulation.rs";
    if of_tests || !inside.contains("/src/") {
        return Vec::new();
    }
    let mut lines = Vec::new();
    let mut for_tests = false;
    for (number, line) in text.lines().map(str::trim_start).enumerate() {
        if for_tests && line.starts_with("mod ") && line.ends_with('{') {
            break;
        }
        // Attributes stand between the switch and its module.
        for_tests = line == "#[cfg(test)]" || for_tests && line.starts_with("#[");
        if !line.starts_with("//") {
            lines.push((number + 1, line.to_owned()));
        }
    }
    lines
}

/// What a line has of [`UNREPEATABLE`]. A static is an item, not the lifetime of a type, nor a word of a text.
fn unrepeatable(line: &str) -> Option<&'static str> {
    let item = line.strip_prefix("pub ").unwrap_or(line);
    let item = item
        .strip_prefix("pub(crate) ")
        .or(item.strip_prefix("pub(super) "))
        .unwrap_or(item);
    UNREPEATABLE
        .iter()
        .find(|(_, words)| {
            words.iter().any(|w| match *w {
                "static " => item.starts_with(w),
                w => line.contains(w),
            })
        })
        .map(|(what, _)| *what)
}

/// Two runs of a seed take the same steps: iteration over std's maps and the system's clocks clippy refuses (clippy.toml); the rest is looked for here.
#[test]
fn shards_have_nothing_that_differs_from_run_to_run() {
    let mut excused: BTreeSet<&(&str, &str, &str)> = BTreeSet::new();
    let mut looked_at = 0;
    for file in files() {
        let inside = inside(&file);
        let of_a_shard = OF_SHARDS
            .iter()
            .any(|c| inside.starts_with(&format!("{c}/src/")));
        if !of_a_shard || inside.starts_with("engine/src/rt") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a readable source");
        let lines = shipped_lines(&inside, &text);
        looked_at += lines.len();
        for (i, (number, line)) in lines.iter().enumerate() {
            let excuse = REPEATABLE_ALL_THE_SAME
                .iter()
                .find(|(f, l, _)| inside == *f && line.starts_with(l));
            excused.extend(excuse);
            if let Some(what) = unrepeatable(line).filter(|_| excuse.is_none()) {
                panic!("{inside}:{number} has {what}: {line}");
            }
            // Without it each turn draws which of what is ready goes on.
            let biased = lines.get(i + 1).is_some_and(|(_, next)| next == "biased;");
            assert!(
                !line.contains("select!") || biased,
                "{inside}:{number} has a select that isn't biased"
            );
        }
    }
    assert!(
        looked_at > 20_000,
        "{looked_at} lines: the crates are where they were"
    );
    assert_eq!(
        excused.len(),
        REPEATABLE_ALL_THE_SAME.len(),
        "an exception that nobody needs"
    );
}

#[test]
fn what_differs_from_run_to_run_is_found() {
    for (line, what) in [
        ("thread_local! {", Some("a thread local")),
        (
            "pub(crate) static COUNT: AtomicU64 = AtomicU64::new(0);",
            Some("a static"),
        ),
        ("static mut COUNT: u64 = 0;", Some("a static")),
        ("let id = Uuid::new_v4();", Some("a random UUID")),
        (
            "let order = Rc::as_ptr(&a) < Rc::as_ptr(&b);",
            Some("a pointer taken for a number"),
        ),
        (
            "let at = &raw const x as *const u8 as usize;",
            Some("a pointer taken for a number"),
        ),
        (
            "let seen: AHashMap<u64, u64> = Default::default();",
            Some("randomness of the process's own"),
        ),
        ("fn name() -> &'static str {", None),
        ("let same = Rc::ptr_eq(&a, &b);", None),
        (
            "let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);",
            None,
        ),
    ] {
        assert_eq!(unrepeatable(line), what, "{line}");
    }
    let text = "#[cfg(test)]\n#[path = \"x_tests.rs\"]\nmod tests;\n// static A\nstatic A: u8 = 0;\n#[cfg(test)]\nmod more {\nstatic B: u8 = 0;\n";
    let lines = shipped_lines("engine/src/x.rs", text);
    let found: Vec<usize> = lines
        .iter()
        .filter(|(_, l)| unrepeatable(l).is_some())
        .map(|(n, _)| *n)
        .collect();
    assert_eq!(
        found,
        [5],
        "a comment, shipped code behind a module of tests, and a test's own"
    );
    assert!(shipped_lines("engine/src/x_tests.rs", text).is_empty());
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
