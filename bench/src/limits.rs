//! Every bound of the instrument, in one place.

/// An answer larger than this is not read, in bytes. Above what a broker sends for `FETCH_BYTES` with one oversized batch.
pub const MAX_FRAME_BYTES: usize = 128 << 20;
/// What a fetch asks for at most, in bytes: the whole answer, and one partition.
pub const FETCH_BYTES: i32 = 8 << 20;
pub const FETCH_PARTITION_BYTES: i32 = 1 << 20;
/// How long a broker may hold a fetch that finds nothing, in milliseconds.
pub const FETCH_WAIT_MS: i32 = 500;
/// How long a broker may take for a produce request, in milliseconds.
pub const PRODUCE_TIMEOUT_MS: i32 = 30_000;
/// How long one request of the set-up (metadata, topics) may take, in seconds.
pub const CONTROL_TIMEOUT_S: u64 = 240;
/// How long new topics may take until every partition has a leader, in seconds.
pub const LEADERS_WITHIN_S: u64 = 240;
/// Records that one producer generates before the loop looks at its sockets again.
pub const RECORDS_PER_TURN: usize = 512;
/// Bytes read from a socket at once.
pub const READ_BYTES: usize = 256 << 10;
/// Latencies are kept up to this, in nanoseconds (an hour), with three significant digits.
pub const MAX_LATENCY_NS: u64 = 3_600_000_000_000;
pub const SIGNIFICANT_DIGITS: u8 = 3;
/// Mean distance of the moments at which the records in flight are counted, in nanoseconds.
pub const SAMPLE_EVERY_NS: f64 = 2_000_000.0;
/// Length of an interval of the log and of the progress line, in nanoseconds.
pub const INTERVAL_NS: u64 = 1_000_000_000;
/// Random bytes that record values are cut from.
pub const PAYLOAD_POOL_BYTES: usize = 4 << 20;
/// The longest run, in seconds, and the most of each kind a workload may ask for.
pub const MAX_RUN_S: f64 = 7.0 * 86_400.0;
pub const MAX_RECORD_BYTES: usize = 16 << 20;
pub const MAX_PARTITIONS: usize = 200_000;
pub const MAX_CLIENTS: usize = 1_000;
pub const MAX_RATE: f64 = 50_000_000.0;
pub const MAX_THREADS: usize = 256;
/// What all producers together may hold back for a slow broker, in bytes.
pub const MAX_BUFFER_BYTES: usize = 8 << 30;
/// How late the generator may be at p50, p99 and p99.9 where that is more than a quarter of the latency, in nanoseconds.
pub const GENERATOR_LAG_NS: u64 = 1_000_000;
/// Interval figures kept of a run (a week of seconds).
pub const MAX_INTERVALS: usize = 700_000;
/// What a batch may hold when its compression is taken off, in bytes.
pub const MAX_BATCH_BYTES: usize = 64 << 20;
/// How long a command of the timeline may take beyond the run's end, in seconds.
pub const FAULT_WITHIN_S: u64 = 10;
/// How long a broker that a comparison starts may take until it answers, and until it has ended, in seconds.
pub const BROKER_WITHIN_S: u64 = 180;
pub const BROKER_ENDS_WITHIN_S: u64 = 60;
/// How long a client waits before it tries again what was refused or wasn't reached, in nanoseconds.
pub const RETRY_AFTER_NS: u64 = 50_000_000;
/// How long a broker may take to say who leads, in a run that goes on meanwhile, in seconds.
pub const LEADERS_TIMEOUT_S: u64 = 2;
