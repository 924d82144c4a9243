//! One Raft group per partition on top of the log (design §5).
//!
//! The crate owns consensus: who leads, what is committed, which batches were written before. It turns raft's output into records of the
//! engine's log and tells waiters and watchers what moved. It knows nothing of Kafka requests, topics' names, nodes or placement.
//!
//! Read in this order: [`api`], [`handle`] and [`groups`] (what callers see), [`pump`] (what runs), [`group`] and [`peers`] (the state machine), [`state`] and
//! [`producers`] (what follows from the log), [`held`] (what was refused), [`storage`] and [`store`] (the log as raft and as the machine see it), [`codec`], [`wait`], [`limits`].

mod api;
mod codec;
mod group;
mod groups;
mod handle;
mod held;
pub mod limits;
mod peers;
mod producers;
mod pump;
mod random;
mod state;
mod storage;
mod store;
mod wait;

#[cfg(test)]
mod memory_log;
#[cfg(test)]
mod simulation;

pub use api::{
    Acks, ActiveProducer, Appended, GroupError, GroupSink, ProduceError, Produced, SubscriptionKey,
    Watcher,
};
pub use groups::Groups;
pub use handle::Group;
pub use wait::CommitWait;
