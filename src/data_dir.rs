//! The data directory's own papers: who holds it (`LOCK`) and whose it is (`node.toml`).
//!
//! Invariants: one process at a time works on a directory (an flock, which ends with the process however it ends); the papers are on the disk, with
//! the directory's entry, before anything else is written; a directory of a newer format or of another node is left alone.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::exit::{Exit, Fatal, advice};
use cluster::ids::{kafka_uuid, parse_kafka_uuid};

/// The format of the directory as a whole that this build writes, and the newest it reads.
const FORMAT: u32 = 1;
const LOCK: &str = "LOCK";
const PAPERS: &str = "node.toml";

#[derive(Serialize, Deserialize)]
struct Papers {
    format: u32,
    node_id: i32,
    directory_id: String,
}

/// Only the part that every format has.
#[derive(Deserialize)]
struct AnyPapers {
    format: u32,
}

/// A data directory that this process holds.
#[derive(Debug)]
pub struct DataDir {
    /// The directory's identity (G3).
    pub id: Uuid,
    /// Held for as long as the process works on the directory.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is missing, takes the lock, reads or writes the papers. `new_id` is the identity of a directory that has none.
    pub fn open(path: &Path, node_id: i32, new_id: Uuid) -> Result<DataDir, Fatal> {
        std::fs::create_dir_all(path).map_err(|e| cannot("make the data directory", path, &e))?;
        let lock = lock(path)?;
        let id = match std::fs::read_to_string(path.join(PAPERS)) {
            Ok(text) => read_papers(&text, path, node_id)?,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                check_is_empty(path)?;
                write_papers(path, node_id, new_id)?;
                new_id
            }
            Err(e) => return Err(cannot("read", &path.join(PAPERS), &e)),
        };
        Ok(DataDir { id, _lock: lock })
    }
}

/// An error of the filesystem, with what to do where that is known.
pub fn cannot(what: &str, path: &Path, e: &std::io::Error) -> Fatal {
    let (exit, advice) = advice(e);
    Fatal::new(
        exit,
        format!("can't {what} {}: {e}{advice}", path.display()),
    )
}

fn lock(path: &Path) -> Result<File, Fatal> {
    let place = path.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&place)
        .map_err(|e| cannot("open", &place, &e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let who = match holder.trim() {
                "" => "another process".to_string(),
                pid => format!("another process (pid {pid})"),
            };
            return Err(Fatal::new(
                Exit::Locked,
                format!(
                    "{who} works on the data directory {}: stop it, or choose another --data-dir",
                    path.display()
                ),
            ));
        }
        Err(std::fs::TryLockError::Error(e)) => return Err(cannot("lock", &place, &e)),
    }
    // Always as long, over what is there: that takes no room. The lock counts, not the number: it may be missing on a full disk.
    let pid = format!("{:<10}\n", std::process::id());
    match file.rewind().and_then(|()| file.write_all(pid.as_bytes())) {
        Err(e) if e.kind() != ErrorKind::StorageFull => Err(cannot("write", &place, &e)),
        _ => Ok(file),
    }
}

fn read_papers(text: &str, path: &Path, node_id: i32) -> Result<Uuid, Fatal> {
    let damaged = |why: String| {
        Fatal::new(
            Exit::Data,
            format!(
                "{} can't be read: {why}. It names the node whose data this is: restore it from a backup, or choose another --data-dir",
                path.join(PAPERS).display()
            ),
        )
    };
    let any: AnyPapers = toml::from_str(text).map_err(|e| damaged(e.to_string()))?;
    if any.format > FORMAT {
        return Err(Fatal::new(
            Exit::Data,
            format!(
                "the data in {} was written by a newer version of Tailrace (format {}, this one reads up to {FORMAT}): \
                 start that version again, or choose another --data-dir",
                path.display(),
                any.format
            ),
        ));
    }
    let papers: Papers = toml::from_str(text).map_err(|e| damaged(e.to_string()))?;
    if papers.node_id != node_id {
        return Err(Fatal::new(
            Exit::Usage,
            format!(
                "the data in {} is node {}'s, but node-id is {node_id}: set --node-id {}, or choose another --data-dir",
                path.display(),
                papers.node_id,
                papers.node_id
            ),
        ));
    }
    parse_kafka_uuid(&papers.directory_id)
        .ok_or_else(|| damaged(format!("'{}' is no directory id", papers.directory_id)))
}

/// A directory without papers must hold nothing, so that nobody's files are mixed with ours.
fn check_is_empty(path: &Path) -> Result<(), Fatal> {
    let entries = std::fs::read_dir(path).map_err(|e| cannot("read", path, &e))?;
    for entry in entries {
        let name = entry.map_err(|e| cannot("read", path, &e))?.file_name();
        // A crash can leave a half-written file of papers; a filesystem of its own begins with lost+found.
        if ![LOCK, "node.toml.new", "lost+found"]
            .iter()
            .any(|known| name == *known)
        {
            return Err(Fatal::new(
                Exit::Data,
                format!(
                    "{} is not empty and no data directory of Tailrace (it has '{}' but no {PAPERS}): choose an empty --data-dir",
                    path.display(),
                    name.to_string_lossy()
                ),
            ));
        }
    }
    Ok(())
}

/// The file is synced, then named, then the name is synced: it is there whole or not at all.
fn write_papers(path: &Path, node_id: i32, id: Uuid) -> Result<(), Fatal> {
    let text = toml::to_string(&Papers {
        format: FORMAT,
        node_id,
        directory_id: kafka_uuid(id),
    })
    .expect("three plain fields make a table");
    let (draft, place): (PathBuf, PathBuf) = (path.join("node.toml.new"), path.join(PAPERS));
    let written = File::create(&draft).and_then(|mut f| {
        f.write_all(text.as_bytes())?;
        f.sync_all()
    });
    written.map_err(|e| cannot("write", &draft, &e))?;
    std::fs::rename(&draft, &place).map_err(|e| cannot("write", &place, &e))?;
    sync_directory(path)?;
    // The directory itself may be new, too.
    match path
        .canonicalize()
        .ok()
        .and_then(|p| p.parent().map(Path::to_path_buf))
    {
        Some(parent) => sync_directory(&parent),
        None => Ok(()),
    }
}

fn sync_directory(path: &Path) -> Result<(), Fatal> {
    File::open(path)
        .and_then(|d| d.sync_all())
        .map_err(|e| cannot("sync", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("tailrace-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn open(s: &Scratch, node: i32) -> Result<DataDir, Fatal> {
        DataDir::open(&s.0, node, Uuid::from_u128(77))
    }

    #[test]
    fn a_directory_keeps_its_id_and_its_node() {
        let s = Scratch::new("papers");
        assert_eq!(open(&s, 1).unwrap().id, Uuid::from_u128(77));
        let again = DataDir::open(&s.0, 1, Uuid::from_u128(78)).unwrap();
        assert_eq!(again.id, Uuid::from_u128(77));
        drop(again);
        let other = open(&s, 2).unwrap_err();
        assert_eq!(other.exit, Exit::Usage);
        assert!(other.message.contains("--node-id 1"), "{other}");
    }

    #[test]
    fn only_one_process_holds_it() {
        let s = Scratch::new("lock");
        let held = open(&s, 1).unwrap();
        let second = open(&s, 1).unwrap_err();
        assert_eq!(second.exit, Exit::Locked);
        assert!(
            second.message.contains(&std::process::id().to_string()),
            "{second}"
        );
        drop(held);
        open(&s, 1).unwrap();
    }

    #[test]
    fn newer_damaged_and_strange_directories_are_left_alone() {
        let s = Scratch::new("strange");
        drop(open(&s, 1).unwrap());
        let papers = s.0.join(PAPERS);
        std::fs::write(&papers, "format = 9\nshape = \"new\"").unwrap();
        let newer = open(&s, 1).unwrap_err();
        assert_eq!(newer.exit, Exit::Data);
        assert!(newer.message.contains("newer version"), "{newer}");
        for text in [
            "",
            "format = 1",
            "format = 1\nnode_id = 1\ndirectory_id = \"x\"",
        ] {
            std::fs::write(&papers, text).unwrap();
            assert_eq!(open(&s, 1).unwrap_err().exit, Exit::Data, "{text}");
        }
        std::fs::remove_file(&papers).unwrap();
        drop(open(&s, 1).unwrap());
        std::fs::remove_file(&papers).unwrap();
        std::fs::write(s.0.join("holiday.jpg"), "").unwrap();
        let strange = open(&s, 1).unwrap_err();
        assert!(strange.message.contains("holiday.jpg"), "{strange}");
    }

    #[test]
    fn a_disk_that_fails_or_is_full_is_told_apart() {
        for (code, exit, word) in [
            (libc::EIO, Exit::Disk, "dmesg"),
            (libc::ENOSPC, Exit::Disk, "free some space"),
            (libc::EDQUOT, Exit::Disk, "quota"),
            (libc::EROFS, Exit::Unfit, "read-only"),
            (libc::EACCES, Exit::Unfit, "permission"),
            (libc::EMFILE, Exit::Unfit, "ulimit -n"),
        ] {
            let e = cannot(
                "read",
                Path::new("/d"),
                &std::io::Error::from_raw_os_error(code),
            );
            assert_eq!(e.exit, exit, "{e}");
            assert!(e.message.contains(word), "{e}");
        }
    }

    #[test]
    fn a_file_in_the_way_is_told() {
        let s = Scratch::new("file");
        std::fs::write(&s.0, "").unwrap();
        assert_eq!(open(&s, 1).unwrap_err().exit, Exit::Unfit);
        std::fs::remove_file(&s.0).unwrap();
    }
}
