//! One Raft group per partition on top of the log.
mod api;
mod groups;
mod handle;
mod wait;

pub use api::{
    Acks, Appended, GroupError, GroupSink, ProduceError, Produced, SubscriptionKey, Watcher,
};
pub use groups::Groups;
pub use handle::Group;
pub use wait::CommitWait;
