//! What a target begins with: real encodings, as files in `corpus/<target>`. `SEEDS=write cargo test --manifest-path fuzz/Cargo.toml` makes them
//! anew; else the tests hold the files against what is made.
//!
//! Files named `found-*` are inputs that found something once: they stay, and every run begins with them too.

use std::path::{Path, PathBuf};

/// Where the seeds of a target lie.
pub fn directory(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target)
}

/// (name, bytes) of each seed of a target.
#[cfg(not(tailrace_sim))]
pub fn of(target: &str) -> Vec<(String, Vec<u8>)> {
    use crate::{batches, files, journal};
    use kafka_api::testing;
    use kafka_api::versions::TABLE;

    let numbered = |all: Vec<Vec<u8>>| {
        let named = |(n, bytes)| (format!("{n:02}"), bytes);
        all.into_iter().enumerate().map(named).collect()
    };
    match target {
        // Every version of each.
        "frames" => TABLE
            .iter()
            .flat_map(|api| (api.min..=api.max).map(move |version| (api, version)))
            .map(|(api, version)| {
                let name = format!("{:?}-{version}", api.key);
                (name, testing::frame(api.key, version).to_vec())
            })
            .collect(),
        "batches" => {
            let rules = [1; batches::RULE_BYTES];
            let with_rules = |batch: &bytes::Bytes| [&rules[..], &batch[..]].concat();
            numbered(testing::batches().iter().map(with_rules).collect())
        }
        "journal" => numbered(journal::seeds()),
        "files" => numbered(files::seeds()),
        other => panic!("there is no target {other}"),
    }
}

/// Draws of several lengths; the directories that they damage are made when a target starts.
#[cfg(tailrace_sim)]
pub fn of(_target: &str) -> Vec<(String, Vec<u8>)> {
    let mut random = crate::random::Random::seeded(1);
    (0..12)
        .map(|n| {
            let length = 16 << (n % 4);
            let draws = (0..length).map(|_| random.any() as u8).collect();
            (format!("{n:02}"), draws)
        })
        .collect()
}
