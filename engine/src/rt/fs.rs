//! Directories and names. Runs off the shard's thread; nothing here is durable before [`sync_dir`] of the directory concerned.

use std::io;
use std::path::Path;

use super::imp;

pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    imp::fs::create_dir_all(path).await
}

/// Replaces `to` if it exists (which then frees `to`'s blocks: rename to unused names).
pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    imp::fs::rename(from, to).await
}

pub async fn remove_file(path: &Path) -> io::Result<()> {
    imp::fs::remove_file(path).await
}

/// Only an empty directory.
pub async fn remove_dir(path: &Path) -> io::Result<()> {
    imp::fs::remove_dir(path).await
}

/// Names in the directory, sorted. A name that isn't UTF-8 is an error.
pub async fn read_dir(path: &Path) -> io::Result<Vec<String>> {
    imp::fs::read_dir(path).await
}

/// Makes the names in the directory durable.
pub async fn sync_dir(path: &Path) -> io::Result<()> {
    imp::fs::sync_dir(path).await
}

/// Room on a filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What a process without privileges may still write.
    pub free: u64,
    pub total: u64,
}

/// The room of the filesystem that holds `path`, which must exist.
pub async fn room(path: &Path) -> io::Result<Room> {
    imp::fs::room(path).await
}

pub async fn exists(path: &Path) -> io::Result<bool> {
    imp::fs::exists(path).await
}
