//! Classic consumer groups and committed offsets: one coordinator per partition of `__consumer_offsets`.
//!
//! [`Coordinator`] is a pure state machine: [`Coordinator::handle`] takes an event and the time and gives effects: answers, and records to
//! write. It does nothing by itself. Its shell, [`crate::groups`], writes the records to the partition it belongs to, tells the outcome back
//! ([`Event::Written`]), wakes it when its next deadline has passed ([`Event::Tick`]), and rebuilds it from the partition's records at a start
//! ([`Coordinator::replay`]).
//!
//! It decides as Kafka 4.4's coordinator of classic groups does: [`group`] is the state of one group, [`join`] the way to a new
//! generation, [`sync`] what members do in it, [`offsets`] commits, their expiry and who may commit when, [`admin`] what tools ask,
//! [`record`] Kafka's own record format, [`timers`] the deadlines.
//!
//! Invariants, which property tests hold the code to:
//! - A request is answered exactly once, unless its coordinator is given up; then its shell answers.
//! - In one generation each member is told the assignment that the leader of that generation gave, and only after it was written.
//! - An offset is told and kept only once it was written; offsets of one partition are applied in the order of the log.
//! - Bounds: [`limits::GROUP_MEMBERS`], [`limits::GROUP_BYTES`], [`limits::GROUPS`], and [`Settings::memory_bytes`] for all of it together.
//!
//! [`limits::GROUP_MEMBERS`]: crate::limits::GROUP_MEMBERS
//! [`limits::GROUP_BYTES`]: crate::limits::GROUP_BYTES
//! [`limits::GROUPS`]: crate::limits::GROUPS

use cluster::broker_config::GroupConfig;
use kafka_protocol::protocol::StrBytes;

pub mod admin;
pub mod group;
mod join;
mod machine;
mod offsets;
pub mod record;
mod replay;
pub mod requests;
mod subscription;
mod sync;
#[cfg(test)]
mod tests;
pub mod timers;

pub use machine::Coordinator;
pub use requests::{Reply, Request};

/// A group's id, a member's, a topic's name: cheap to clone, may cross threads.
pub type Name = StrBytes;

/// A copy of a name that keeps no request in memory.
pub(crate) fn own(name: &str) -> Name {
    StrBytes::from_string(name.to_string())
}

/// Marks a request on its way to its answer. Chosen by the shell.
pub type Token = u64;

/// Numbers the writes of a coordinator, from 1 on.
pub type WriteId = u64;

/// The time of an event.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// A clock that never goes back, in milliseconds: for timeouts.
    pub ms: u64,
    /// The time of day, in milliseconds: for what is written and for retention.
    pub wall_ms: i64,
}

/// What a coordinator goes by; Kafka's names and defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `group.initial.rebalance.delay.ms`
    pub initial_rebalance_delay_ms: u64,
    /// `group.min.session.timeout.ms`
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`
    pub max_session_timeout_ms: i32,
    /// `group.max.size`, no more than `limits::GROUP_MEMBERS`.
    pub max_size: usize,
    /// `offset.metadata.max.bytes`: of one offset's metadata, in UTF-16 code units, as Kafka counts them.
    pub offset_metadata_max: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// Memory that the groups of this coordinator may take, in bytes.
    pub memory_bytes: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(&GroupConfig::default())
    }
}

impl Settings {
    /// From the node's own settings, which are in range.
    pub fn of(config: &GroupConfig) -> Settings {
        let whole = |n: i32| usize::try_from(n).unwrap_or_default();
        Settings {
            initial_rebalance_delay_ms: u64::from(config.initial_rebalance_delay_ms.unsigned_abs()),
            min_session_timeout_ms: config.min_session_timeout_ms,
            max_session_timeout_ms: config.max_session_timeout_ms,
            max_size: whole(config.max_size),
            offset_metadata_max: whole(config.offset_metadata_max_bytes),
            offsets_retention_ms: i64::from(config.offsets_retention_minutes) * 60_000,
            memory_bytes: 64 << 20,
        }
    }
}

/// Why records were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The partition isn't this node's to write any more.
    NotCoordinator,
    /// It can't be written at the moment: try again.
    Unavailable,
    /// The log takes nothing that large.
    TooLarge,
}

#[derive(Debug)]
pub enum Event {
    Request(Token, Request),
    /// The outcome of the oldest write that has none yet.
    Written(WriteId, Result<(), WriteError>),
    /// Time has passed.
    Tick,
    /// Offsets that are too old go, and groups with nothing in them.
    Expire,
    /// A topic was deleted: its offsets go.
    TopicDeleted(Name),
}

/// What an event leads to.
#[derive(Debug, Default)]
pub struct Effects {
    pub answers: Vec<(Token, Reply)>,
    /// To be written in this order.
    pub writes: Vec<Write>,
}

/// Records to be written together.
#[derive(Debug)]
pub struct Write {
    pub id: WriteId,
    pub records: Vec<record::Record>,
}
