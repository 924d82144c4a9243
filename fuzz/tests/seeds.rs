//! The seeds are what the encoders write today and are taken by their targets, which else would be blind; what was found once is found no
//! more.
#![allow(
    clippy::disallowed_methods,
    reason = "tests read files as everybody does"
)]

use std::collections::BTreeSet;
use std::fs;

use fuzz::{TARGETS, seeds};
// Where what the compiler puts in for coverage is defined.
use libfuzzer_sys as _;

#[test]
fn seeds_are_what_is_encoded_today() {
    let write = std::env::var_os("SEEDS").is_some_and(|v| v == "write");
    for (target, _) in TARGETS {
        let directory = seeds::directory(target);
        if write {
            fs::create_dir_all(&directory).expect("a directory for seeds");
        }
        let mut known = BTreeSet::new();
        for (name, bytes) in seeds::of(target) {
            let path = directory.join(&name);
            if write {
                fs::write(&path, &bytes).expect("a seed is written");
            }
            let there = fs::read(&path).expect("a seed is there: SEEDS=write makes it");
            assert_eq!(
                there,
                bytes,
                "{}: SEEDS=write makes it anew",
                path.display()
            );
            known.insert(name);
        }
        for entry in fs::read_dir(&directory).expect("a directory of seeds") {
            let name = entry.expect("a readable directory").file_name();
            let name = name.to_string_lossy().into_owned();
            let expected = known.contains(&name) || name.starts_with("found-");
            if !expected && write {
                fs::remove_file(directory.join(&name)).expect("a seed is removed");
            }
            assert!(expected || write, "{target}/{name} is no seed");
        }
    }
}

#[test]
fn every_seed_of_a_decoder_is_taken() {
    for (target, run) in TARGETS {
        let taken = seeds::of(target).iter().filter(|(_, s)| run(s)).count();
        let all = seeds::of(target).len();
        // Draws damage something: some of it can be served and some not.
        let least = if cfg!(tailrace_sim) { 1 } else { all };
        assert!(taken >= least, "{target}: {taken} of {all} are taken");
    }
}

#[test]
fn what_was_found_stays_away() {
    for (target, run) in TARGETS {
        for entry in fs::read_dir(seeds::directory(target)).expect("a directory of seeds") {
            let path = entry.expect("a readable directory").path();
            let found = path
                .file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("found-"));
            if found {
                run(&fs::read(&path).expect("an input"));
            }
        }
    }
}

/// Nothing is changed, nothing is found: else the targets are blind.
#[cfg(tailrace_sim)]
#[test]
fn an_unchanged_directory_is_served_whole() {
    use fuzz::image::{self, Answer};

    for seed in 1..=6 {
        let image = image::make(seed);
        let Answer::Served(served) = image::start(image.newest(), seed, 2, true) else {
            panic!("image {seed} is refused");
        };
        assert!(served.batches.len() > 100, "{}", served.batches.len());
        assert_eq!(
            (served.named, served.gaps, served.failed),
            (0, vec![], None)
        );
    }
}

/// A target that can't tell a wrong answer from a right one finds nothing.
#[cfg(not(tailrace_sim))]
#[test]
fn cut_seeds_are_refused() {
    for (target, run) in TARGETS {
        let cut = |s: &Vec<u8>| run(&s[..s.len() / 2]);
        let seeds = seeds::of(target);
        let refused = seeds.iter().filter(|(_, s)| !cut(s)).count();
        assert!(
            refused * 2 >= seeds.len(),
            "{target}: {refused} of {}",
            seeds.len()
        );
    }
}
