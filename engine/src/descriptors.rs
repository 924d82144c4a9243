//! How the descriptors that a process may have open are divided: what files need is kept back from connections, which others open as they like.
//!
//! Pure; called when the shards are launched, by the log and by whoever accepts. From the limit (RLIMIT_NOFILE, raised as far as it goes) the process and each shard take
//! what they always need. Of the rest three eighths are for segments that stay open, an eighth for files that are open for one use (extents, checkpoints, indexes,
//! segments in use beyond their limit), up to bounds of their own; connections get what is left. A file operation that finds no descriptor all the same (the system has an
//! end too) waits for one in [`crate::rt`].

use crate::limits::{OPEN_FILES, OPEN_FILES_MIN, PROCESS_DESCRIPTORS, SHARD_DESCRIPTORS};

/// What a shard gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Segments that it keeps open.
    pub segments: usize,
    pub connections: usize,
}

/// `None`: the limit is too low for so many shards.
pub fn divide(limit: u64, shards: u16) -> Option<Division> {
    let shards = usize::from(shards.max(1));
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let rest = limit.checked_sub(PROCESS_DESCRIPTORS + shards * SHARD_DESCRIPTORS)?;
    let wanted = OPEN_FILES.max(shards * OPEN_FILES_MIN).next_multiple_of(3);
    let for_files = (rest / 2).min(wanted / 3 * 4);
    let segments = for_files / 4 * 3 / shards;
    let connections = (rest - for_files) / shards;
    (segments >= OPEN_FILES_MIN).then_some(Division {
        segments,
        connections,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_have_theirs_whatever_connections_want() {
        assert_eq!(
            divide(1 << 20, 2),
            Some(Division {
                segments: 1536,
                connections: 522_176,
            })
        );
        assert_eq!(
            divide(1024, 2),
            Some(Division {
                segments: 168,
                connections: 224,
            })
        );
        assert_eq!(divide(64, 1), None);
        assert_eq!(divide(1024, 32), None);
        assert!(divide(4096, 32).is_some());
        assert_eq!(divide(1 << 20, 1000).unwrap().segments, OPEN_FILES_MIN);
    }

    proptest! {
        #[test]
        fn nobody_gets_what_is_not_there(limit in 0u64..1 << 21, shards in 1u16..200) {
            if let Some(d) = divide(limit, shards) {
                let n = usize::from(shards);
                let all = PROCESS_DESCRIPTORS + n * (SHARD_DESCRIPTORS + d.segments + d.segments / 3 + d.connections);
                prop_assert!(all as u64 <= limit);
                prop_assert!(d.connections >= d.segments && n * d.segments <= OPEN_FILES.max(n * OPEN_FILES_MIN));
            }
        }
    }
}
