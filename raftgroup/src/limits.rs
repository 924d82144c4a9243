//! Every bound of the groups, with its unit, in one place (design §8.2).

use std::time::Duration;

/// Batches per producer that a repeat is recognised among; what clients may have in flight (KIP-98).
pub const BATCHES_REMEMBERED: usize = 5;
/// Producers that one group remembers. Beyond it those that wrote longest ago are forgotten, a sixteenth at a time.
pub const PRODUCERS_PER_GROUP: usize = 4096;
/// A producer that has not written for this long is forgotten, in milliseconds (Kafka's producer.id.expiration.ms).
pub const PRODUCER_EXPIRATION_MS: i64 = 24 * 3600 * 1000;
/// Producers of a group whose refused batches are remembered for what is in flight behind them, and for how long, in milliseconds: as
/// long as clients wait for an answer (their request.timeout.ms).
pub const HELD_PER_GROUP: usize = 128;
pub const HELD_MS: i64 = 30_000;
/// Entries of a group that may be uncommitted at one time.
pub const UNCOMMITTED_ENTRIES: usize = 16 * 1024;
/// Bytes of a group that may be uncommitted before it takes no more; one batch of any size always fits.
pub const UNCOMMITTED_BYTES: u64 = 64 << 20;
/// Callers of a group that may wait for commits at one time.
pub const WAITS_PER_GROUP: usize = 2 * UNCOMMITTED_ENTRIES;
/// How full the live journal may be (0 to 1) before a produce is refused; callers slow down long before.
pub const REFUSE_PRESSURE: f32 = 0.98;
/// Members of one kind (voters, learners) in a group's configuration.
pub const MEMBERS: usize = 255;
/// Bytes of a configuration change as it lies in the log.
pub const CONFIG_CHANGE_BYTES: usize = 4096;
/// Bytes of one metadata command.
pub const COMMAND_BYTES: usize = 16 << 20;
/// Fetches of old entries for lagging followers that a group has under way.
pub const FETCHES_PER_GROUP: usize = 16;
/// Bytes of entries in one append message, and of one fetch of old entries.
pub const APPEND_MESSAGE_BYTES: u64 = 1 << 20;
/// Append messages in flight to one follower; raft keeps eight bytes for each in every group.
pub const APPENDS_IN_FLIGHT: usize = 32;
/// Headers (about 32 bytes each) of committed entries that one Ready gives, in bytes.
pub const COMMITTED_HEADERS_BYTES: u64 = 1 << 20;

/// Ticks between heartbeats, and the range of the election timeout, in ticks (G5: a wide range).
pub const HEARTBEAT_TICKS: usize = 3;
pub const ELECTION_TICKS_MIN: usize = 10;
pub const ELECTION_TICKS_MAX: usize = 40;

/// Groups that the pump turns before it looks whether others should run.
pub const GROUPS_PER_SLICE: usize = 64;
/// Time between two looks for expired log and forgotten producers.
pub const RETENTION_INTERVAL: Duration = Duration::from_secs(30);
