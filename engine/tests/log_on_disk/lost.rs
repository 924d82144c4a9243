//! Starts whose journals are not those that they left.

use std::path::Path;
use std::sync::{Arc, Mutex};

use engine::log::recover;
use engine::rt::{self, Launch};
use engine::types::*;

use crate::harness::*;

/// Why a start refuses.
fn refusal(dir: &Path, shards: u16) -> String {
    let said = Arc::new(Mutex::new(String::new()));
    let (cfg, told) = (config(dir, shards), said.clone());
    let launch = Launch {
        shards: 1,
        overprovisioned: true,
        cpus: None,
        seed: None,
    };
    rt::launch(launch, move |_| {
        let (cfg, told) = (cfg.clone(), told.clone());
        async move {
            if let Err(e) = recover(&cfg).await {
                *told.lock().unwrap() = e.to_string();
            }
        }
    })
    .unwrap();
    let said = said.lock().unwrap();
    assert!(!said.is_empty(), "it starts");
    said.clone()
}

/// Batches may have been acknowledged that only the journal held, also where no checkpoint knows of a replica yet.
#[test]
fn a_journal_that_was_used_must_be_there() {
    let dir = temp("lost-journal");
    let (journal, aside) = (dir.join("journal-1"), dir.join("aside"));
    start(&dir, 2, 0, vec![Do::Settle]);
    std::fs::copy(&journal, &aside).unwrap();
    std::fs::remove_file(&journal).unwrap();
    assert!(refusal(&dir, 2).contains("is missing"));
    // Nor with fewer shards: what it held may be another's.
    assert!(refusal(&dir, 1).contains("is missing"));
    let length = std::fs::metadata(&aside).unwrap().len();
    std::fs::write(&journal, vec![0u8; length as usize]).unwrap();
    assert!(refusal(&dir, 2).contains("is empty"));
    std::fs::copy(&aside, &journal).unwrap();
    start(&dir, 2, 0, vec![Do::Settle]);
    std::fs::copy(&aside, &journal).unwrap();
    assert!(refusal(&dir, 2).contains("is from before"));
    std::fs::remove_dir_all(dir).unwrap();
}

/// L13: what a checkpoint knows of and no journal has is lost by name, and its offsets aren't given out again.
#[test]
fn entries_that_a_checkpoint_knows_of_and_no_journal_has_are_named() {
    let dir = temp("older-journal");
    start(
        &dir,
        1,
        1,
        vec![
            Do::Produce(50, 3, 20),
            Do::Settle,
            Do::CopyJournal,
            Do::Produce(50, 3, 20),
            Do::Close,
        ],
    );
    std::fs::rename(dir.join("copy"), dir.join("journal-0")).unwrap();
    let lost = Do::CheckDamaged(Offset(150), Offset(300));
    start(&dir, 1, 1, vec![lost.clone(), Do::Produce(50, 3, 20), lost]);
    std::fs::remove_dir_all(dir).unwrap();
}
