//! Every bound of the engine, with its unit, in one place (design §8.2).

use std::time::Duration;

/// Of a kind of log line that others can provoke, one source writes one in this time.
pub const LINE_EVERY: Duration = Duration::from_secs(1);
/// Alignment of direct I/O and of everything on disk, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Largest journal commit, in bytes (L3).
pub const COMMIT_BYTES: usize = 1 << 20;
/// Commits on their way to the disk at one time.
pub const COMMITS_IN_FLIGHT: usize = 4;
/// Batches larger than this go to an extent file instead of the journal (L7), in bytes; a small journal sets a lower bound.
pub const LARGE_APPEND_BYTES: usize = 1 << 20;
/// An extent file is left for a new one when it is this long, in bytes.
pub const EXTENT_FILE_BYTES: u64 = 256 << 20;
/// Bytes of an extent that are written before other tasks get a turn, and those that are read and checked. Extents are read one piece at a
/// time by a shard: the journal's next write then waits for 64 KiB at the disk and not for megabytes (docs/measured.md).
pub const EXTENT_PIECE_BYTES: usize = 1 << 20;
pub const EXTENT_READ_BYTES: usize = 64 << 10;
/// Memory of a large buffer that a helper thread makes at a time ([`crate::rt::populate`]), in bytes: a large page.
pub const POPULATE_BYTES: usize = 2 << 20;
pub const EXTENT_READS_IN_FLIGHT: u64 = 1;
/// Extents that a shard writes at one time.
pub const EXTENT_WRITES: usize = 2;
/// Size of a new journal, in bytes; it is extended in the background.
pub const JOURNAL_START_BYTES: u64 = 32 << 20;
/// Smallest journal, in bytes, however little memory there is.
pub const JOURNAL_MIN_BYTES: u64 = 512 << 10;
/// Largest live journal, in bytes, whatever the memory (L3).
pub const JOURNAL_MAX_BYTES: u64 = 512 << 20;
/// Quiet time after which an empty commit vouches for the last one, in milliseconds (L4).
pub const JOURNAL_IDLE_MS: u64 = 10;
/// How long a clean stop waits for the commit that vouches for the last one, in milliseconds.
pub const CLOSE_VOUCH_MS: u64 = 1_000;
/// Largest write of the background to a segment, in bytes.
pub const WRITE_OUT_BYTES: usize = 128 << 10;
/// Free space below which batches are refused, in bytes: a twentieth of the filesystem, but at least and at most this (and a quarter of a small one).
pub const LOW_WATER_MIN_BYTES: u64 = 32 << 20;
pub const LOW_WATER_MAX_BYTES: u64 = 1 << 30;
/// Free space that write-out leaves to checkpoints and indexes, in bytes (a sixty-fourth of a small filesystem).
pub const WRITE_OUT_FLOOR_BYTES: u64 = 4 << 20;
/// The reserve file, in bytes (a thirty-second of a small filesystem).
pub const RESERVE_BYTES: u64 = 8 << 20;
/// Distance between two rows of a segment's sparse index, in bytes of the segment.
pub const INDEX_INTERVAL_BYTES: u64 = 64 << 10;
/// Smallest and largest read of a segment for a reader, in bytes; it grows while the reader goes on.
pub const READ_AHEAD_MIN_BYTES: usize = 64 << 10;
pub const READ_AHEAD_MAX_BYTES: usize = 1 << 20;
/// Reads of segments and extents that a shard has at the disk at one time, and those among them that are ahead of readers.
pub const READS_IN_FLIGHT: u64 = 4;
pub const READ_AHEADS_IN_FLIGHT: usize = 2;
/// What is served out of a larger buffer is copied if it is at most this many bytes and less than half of it.
pub const COPY_OUT_BYTES: usize = 64 << 10;
/// Operations on files that a shard has with the kernel at one time, journal writes apart.
pub const DISK_OPS_IN_FLIGHT: usize = 256;
/// Journal writes that a shard has with the kernel at one time, over all its journal files.
pub const JOURNAL_WRITES_IN_FLIGHT: usize = 64;
/// Connections that wait to be accepted, per listener.
pub const LISTEN_BACKLOG: i32 = 1024;
/// Bytes handed to the kernel by one `sendmsg`, so that a large answer does not hold up the shard: about 50 µs.
pub const SEND_BYTES: usize = 128 << 10;
/// Memory that a replica is counted with besides its entries, in bytes: its group, its log, its place in the metadata (measured: tests/show/spine/8).
pub const REPLICA_BYTES: u64 = 8 << 10;
/// Descriptors of a node besides those of its segments and connections: of the process (standard streams, lock, signals, the admin address's connections), and of each shard
/// (its ring, its journal, its listener, files of the janitor).
pub const PROCESS_DESCRIPTORS: usize = 64;
pub const SHARD_DESCRIPTORS: usize = 32;
/// Segment files that a node keeps open, over all its shards; each has an equal part. Less where few descriptors are allowed ([`crate::descriptors`]).
pub const OPEN_FILES: usize = 3072;
/// The least part of them that a shard has.
pub const OPEN_FILES_MIN: usize = 8;
/// What a file that is needed whole (a checkpoint, an index) is read in, in bytes.
pub const WHOLE_FILE_PIECE_BYTES: u64 = 8 << 20;
