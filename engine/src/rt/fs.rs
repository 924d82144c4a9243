//! Directories and names.
use std::io;
use std::path::Path;

pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    let _ = path;
    todo!()
}
/// Replaces `to` if it exists. Durable after [`sync_dir`] of both directories.
pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let _ = (from, to);
    todo!()
}
pub async fn remove_file(path: &Path) -> io::Result<()> {
    let _ = path;
    todo!()
}
/// Only an empty directory.
pub async fn remove_dir(path: &Path) -> io::Result<()> {
    let _ = path;
    todo!()
}
/// Names in the directory, sorted.
pub async fn read_dir(path: &Path) -> io::Result<Vec<String>> {
    let _ = path;
    todo!()
}
pub async fn sync_dir(path: &Path) -> io::Result<()> {
    let _ = path;
    todo!()
}
pub async fn exists(path: &Path) -> io::Result<bool> {
    let _ = path;
    todo!()
}
