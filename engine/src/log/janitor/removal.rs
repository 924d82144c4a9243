//! Removing files that nothing names any more.

use std::path::Path;
use std::time::Duration;

use super::Janitor;
use crate::log::LogError;
use crate::log::files::{TRASH_PREFIX, io_error};
use crate::log::segment::index_path;
use crate::log::shard::Trash;
use crate::rt::{self, File, OpenOptions};

/// What a file shrinks by before it is unlinked: a big unlink costs the journal milliseconds.
const SHRINK_BYTES: u64 = 1 << 20;
const SHRINK_PAUSE: Duration = Duration::from_millis(2);

impl Janitor {
    /// Files that no checkpoint names any more.
    pub(super) async fn remove(&self, trash: Vec<Trash>) -> Result<(), LogError> {
        for t in trash {
            match t {
                Trash::Segment(s) => {
                    self.inner.files.forget(&s);
                    shrink_and_remove(&s.path).await?;
                    shrink_and_remove(&index_path(&s.path)).await?;
                }
                Trash::Directory(d) => {
                    if rt::fs::exists(&d)
                        .await
                        .map_err(io_error("cannot look for", &d))?
                    {
                        // Files that a crash left unnamed go with it.
                        for name in rt::fs::read_dir(&d)
                            .await
                            .map_err(io_error("cannot list", &d))?
                        {
                            shrink_and_remove(&d.join(name)).await?;
                        }
                        rt::fs::remove_dir(&d)
                            .await
                            .map_err(io_error("cannot remove", &d))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A big file is never unlinked at once. First it gets a name that nobody reads: a file that is half gone must not be taken for a whole one.
pub(super) async fn shrink_and_remove(path: &Path) -> Result<(), LogError> {
    if !rt::fs::exists(path)
        .await
        .map_err(io_error("cannot look for", path))?
    {
        return Ok(());
    }
    let directory = path.parent().expect("a file lies in a directory");
    let trash = directory.join(format!("{}{:016x}", TRASH_PREFIX, rt::random_u64()));
    rt::fs::rename(path, &trash)
        .await
        .map_err(io_error("cannot rename", path))?;
    rt::fs::sync_dir(directory)
        .await
        .map_err(io_error("cannot sync", directory))?;
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(&trash, options)
        .await
        .map_err(io_error("cannot open", &trash))?;
    let mut length = file.len().await.map_err(io_error("cannot stat", &trash))?;
    while length > SHRINK_BYTES {
        length -= SHRINK_BYTES;
        file.set_len(length)
            .await
            .map_err(io_error("cannot shrink", &trash))?;
        rt::sleep(SHRINK_PAUSE).await;
    }
    file.close()
        .await
        .map_err(io_error("cannot close", &trash))?;
    rt::fs::remove_file(&trash)
        .await
        .map_err(io_error("cannot remove", &trash))
}
