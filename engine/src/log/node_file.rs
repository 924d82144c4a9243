//! `node`: the data directory's identity and the number of starts (design §4).
//!
//! Two slots of 4 KiB hold the same, written one after the other; the newer valid one counts. Both are synced before a start's first other write, so that
//! a boot epoch is never used twice, also when one of them rots.

use std::path::Path;

use bytes::{BufMut, BytesMut};

use super::wire::Reader;
use super::{LogError, files};
use crate::limits::BLOCK_BYTES;
use crate::rt::{self, File, OpenOptions};
use crate::types::*;

const MAGIC: u32 = u32::from_le_bytes(*b"TRN1");
/// Raised when an older Tailrace couldn't read what this one writes.
const VERSION: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFile {
    /// Drawn once, when the directory was made; part of every CRC's seed.
    pub directory_id: u64,
    pub boot_epoch: BootEpoch,
}

impl NodeFile {
    pub fn encode(&self) -> BytesMut {
        let mut out = BytesMut::new();
        out.put_u32_le(MAGIC);
        out.put_u32_le(0);
        out.put_u32_le(VERSION);
        out.put_u64_le(self.directory_id);
        out.put_u64_le(self.boot_epoch.0);
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<(u32, NodeFile)> {
        let mut r = Reader::new(bytes);
        if r.u32()? != MAGIC {
            return None;
        }
        let stored = r.u32()?;
        let version = r.u32()?;
        let node = NodeFile {
            directory_id: r.u64()?,
            boot_epoch: BootEpoch(r.long()?),
        };
        (crc32c::crc32c(&bytes[8..28]) == stored).then_some((version, node))
    }
}

/// Raises the boot epoch durably and returns it; makes the file in an empty directory.
pub async fn raise_boot_epoch(data_dir: &Path) -> Result<NodeFile, LogError> {
    let path = data_dir.join("node");
    let new = !rt::fs::exists(&path)
        .await
        .map_err(files::io_error("cannot look for", &path))?;
    if new && !nothing_of_ours(data_dir).await? {
        return Err(LogError::Format {
            path,
            why: "the file is missing, but the directory holds data of Tailrace; restore it or choose an empty directory".into(),
        });
    }
    let options = OpenOptions {
        create: true,
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(&path, options)
        .await
        .map_err(files::io_error("cannot open", &path))?;
    let bytes = file
        .read_at(0, 2 * BLOCK_BYTES)
        .await
        .map_err(files::io_error("cannot read", &path))?;
    let mut found: Option<NodeFile> = None;
    for slot in bytes.chunks(BLOCK_BYTES) {
        let Some((version, node)) = NodeFile::decode(slot) else {
            continue;
        };
        if version > VERSION {
            return Err(LogError::Format {
                path,
                why: format!(
                    "written by a newer Tailrace (data format {version}, this one knows {VERSION}); run that version or choose another directory"
                ),
            });
        }
        if version < VERSION {
            return Err(LogError::Format {
                path,
                why: format!(
                    "written by an early Tailrace (data format {version}, this one knows {VERSION} only); read it with that version, or choose another directory"
                ),
            });
        }
        if found.is_none_or(|f| f.boot_epoch < node.boot_epoch) {
            found = Some(node);
        }
    }
    // A crash while the first slot was being written for the first time leaves a file without a valid slot and nothing else.
    if found.is_none() && !new && !nothing_of_ours(data_dir).await? {
        return Err(LogError::Format {
            path,
            why: "both copies are damaged; restore the file from a backup of this directory".into(),
        });
    }
    let next = match found {
        Some(f) => NodeFile {
            boot_epoch: BootEpoch(f.boot_epoch.0 + 1),
            ..f
        },
        None => NodeFile {
            directory_id: rt::random_u64(),
            boot_epoch: BootEpoch(1),
        },
    };
    // Each copy is whole on the disk before the other is touched.
    for copy in 0..2 {
        let slot = (next.boot_epoch.0 + copy) % 2 * BLOCK_BYTES as u64;
        file.write_at(slot, files::aligned(&next.encode()))
            .await
            .map_err(files::io_error("cannot write", &path))?;
        file.sync()
            .await
            .map_err(files::io_error("cannot sync", &path))?;
    }
    file.close()
        .await
        .map_err(files::io_error("cannot close", &path))?;
    rt::fs::sync_dir(data_dir)
        .await
        .map_err(files::io_error("cannot sync", data_dir))?;
    Ok(next)
}

async fn nothing_of_ours(data_dir: &Path) -> Result<bool, LogError> {
    let names = rt::fs::read_dir(data_dir)
        .await
        .map_err(files::io_error("cannot list", data_dir))?;
    Ok(!names
        .iter()
        .any(|n| n.starts_with("journal-") || n.starts_with("checkpoint-") || n == "partitions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_rot_is_seen() {
        let node = NodeFile {
            directory_id: 3,
            boot_epoch: BootEpoch(8),
        };
        let bytes = node.encode();
        assert_eq!(NodeFile::decode(&bytes), Some((VERSION, node)));
        for at in 0..bytes.len() {
            let mut b = bytes.to_vec();
            b[at] ^= 1;
            assert_eq!(NodeFile::decode(&b), None);
        }
    }
}
