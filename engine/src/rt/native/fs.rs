//! Names of files and the room for them, on the shard's helper threads. `unsafe`: one call of the C library.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::blocking;
use super::descriptors::when_free;
use crate::rt::fs::Room;

async fn with<T: Send + 'static>(
    path: &Path,
    f: impl Fn(&Path) -> io::Result<T> + Clone + Send + 'static,
) -> io::Result<T> {
    let attempt = async || {
        let (path, f): (PathBuf, _) = (path.to_owned(), f.clone());
        blocking(move || f(&path)).await
    };
    when_free(Some(path), attempt)
        .await
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    with(path, |p| std::fs::create_dir_all(p)).await
}

pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let to = to.to_owned();
    with(from, move |from| std::fs::rename(from, &to)).await
}

pub async fn remove_file(path: &Path) -> io::Result<()> {
    with(path, |p| std::fs::remove_file(p)).await
}

pub async fn remove_dir(path: &Path) -> io::Result<()> {
    with(path, |p| std::fs::remove_dir(p)).await
}

pub async fn read_dir(path: &Path) -> io::Result<Vec<String>> {
    with(path, |p| {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(p)? {
            let name = entry?.file_name();
            names.push(name.into_string().map_err(|n| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{n:?} is not a name of ours"),
                )
            })?);
        }
        names.sort_unstable();
        Ok(names)
    })
    .await
}

pub async fn sync_dir(path: &Path) -> io::Result<()> {
    // A relative path of one component has the empty path as its parent: the current directory.
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    with(path, |p| std::fs::File::open(p)?.sync_all()).await
}

pub async fn room(path: &Path) -> io::Result<Room> {
    with(path, statvfs).await
}

fn statvfs(path: &Path) -> io::Result<Room> {
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in a zero byte and the kernel fills the whole structure, whose memory is ours.
    let result = unsafe { libc::statvfs(c_path.as_ptr(), found.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it is filled.
    let found = unsafe { found.assume_init() };
    let block = found.f_frsize;
    Ok(Room {
        free: found.f_bavail.saturating_mul(block),
        total: found.f_blocks.saturating_mul(block),
    })
}

pub async fn exists(path: &Path) -> io::Result<bool> {
    with(path, |p| p.try_exists()).await
}
