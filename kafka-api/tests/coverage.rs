//! `docs/kafka-api.md` lists what ApiVersions tells, and each handler's header says the same of itself.

#![allow(clippy::disallowed_methods)] // It reads the repository's own files; nothing of it runs on a shard.

use std::fs;
use std::path::Path;

use kafka_api::versions::TABLE;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn range(min: i16, max: i16) -> String {
    if min == max {
        min.to_string()
    } else {
        format!("{min}-{max}")
    }
}

/// The rows of the document's table: key, name, versions, module.
fn rows() -> Vec<[String; 4]> {
    read("docs/kafka-api.md")
        .lines()
        .filter_map(|line| {
            let cells: Vec<String> = line.split('|').map(|c| c.trim().to_string()).collect();
            let cells: [String; 6] = cells.try_into().ok()?;
            let [_, key, name, versions, module, _] = cells;
            key.parse::<i16>()
                .is_ok()
                .then_some([key, name, versions, module])
        })
        .collect()
}

#[test]
fn the_document_lists_what_is_served() {
    let served: Vec<_> = TABLE
        .iter()
        .map(|api| {
            let key = (api.key as i16).to_string();
            let hidden = if api.hidden { ", not told" } else { "" };
            let versions = range(api.min, api.max) + hidden;
            (key, format!("{:?}", api.key), versions)
        })
        .collect();
    let listed: Vec<_> = rows()
        .into_iter()
        .map(|[key, name, versions, _]| (key, name, versions))
        .collect();
    assert_eq!(listed, served);
    assert!(
        TABLE
            .windows(2)
            .all(|pair| (pair[0].key as i16) < pair[1].key as i16)
    );
}

#[test]
fn every_handler_says_what_it_serves() {
    for [key, name, versions, module] in rows() {
        let file = format!("kafka-api/src/handlers/{module}");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let file = if root.join(&file).is_dir() {
            format!("{file}/mod.rs")
        } else {
            format!("{file}.rs")
        };
        let text = read(&file);
        let first = text.lines().next().unwrap_or_default();
        let plural = if versions.contains('-') {
            "versions"
        } else {
            "version"
        };
        let versions = versions.split(',').next().unwrap_or_default();
        let wanted = format!("//! {name}, key {key}, {plural} {versions}");
        assert!(
            first.starts_with(&wanted),
            "{file} begins with\n{first}\nnot with\n{wanted}"
        );
    }
}
