//! What coordinators are asked and answer: the requests of clients without their versions and encodings. Plain data that crosses the rings.

use bytes::Bytes;
use uuid::Uuid;

use super::Name;
use super::group::State;
use crate::error::ErrorCode;

/// A set of states of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States(u8);

impl States {
    pub const NONE: States = States(0);
    pub const ALL: States = States(u8::MAX);

    #[must_use]
    pub fn with(self, state: State) -> States {
        States(self.0 | 1 << state as u8)
    }

    pub fn have(self, state: State) -> bool {
        self.0 & 1 << state as u8 != 0
    }
}

#[derive(Debug)]
pub enum Request {
    Join(Box<Join>),
    Sync(Box<Sync>),
    Heartbeat(Membership),
    Leave(Leave),
    Commit(Box<Commit>),
    Offsets(OffsetsOf),
    DeleteOffsets(DeleteOffsets),
    Describe(Name),
    /// Groups in these states.
    List(States),
    Delete(Name),
}

/// The answer to each.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// To any request.
    Refused(ErrorCode),
    Joined(Box<Joined>),
    Synced(Synced),
    Heartbeat(ErrorCode),
    /// One for each member that was named.
    Left(Vec<ErrorCode>),
    /// One for each partition, in order.
    Committed(Vec<ErrorCode>),
    Offsets(Vec<TopicOffsets>),
    /// One for each partition, in order.
    OffsetsDeleted(Vec<ErrorCode>),
    Described(Box<Described>),
    Listed(Vec<Listed>),
    Deleted(ErrorCode),
}

#[derive(Clone, Debug)]
pub struct Join {
    pub group: Name,
    pub member: Name,
    pub instance: Option<Name>,
    pub client_id: Name,
    pub client_host: Name,
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    pub protocol_type: Name,
    /// Name and metadata, what the member likes best first.
    pub protocols: Vec<(Name, Bytes)>,
    /// KIP-394: one that comes without an id is given one and must come again (version 4 on).
    pub needs_known_member: bool,
    /// KIP-814: a leader can be told to leave the assignment as it is (version 9 on).
    pub can_skip_assignment: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Joined {
    pub error: ErrorCode,
    pub member: Name,
    pub generation: i32,
    pub protocol_type: Option<Name>,
    pub protocol: Option<Name>,
    pub leader: Name,
    pub skip_assignment: bool,
    /// For the leader: everybody.
    pub members: Vec<JoinedMember>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct JoinedMember {
    pub member: Name,
    pub instance: Option<Name>,
    pub metadata: Bytes,
}

impl Joined {
    pub fn error(member: Name, error: ErrorCode) -> Reply {
        Reply::Joined(Box::new(Joined {
            error,
            member,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: Name::default(),
            skip_assignment: false,
            members: Vec::new(),
        }))
    }
}

/// Who a member says it is.
#[derive(Clone, Debug)]
pub struct Membership {
    pub group: Name,
    pub member: Name,
    pub instance: Option<Name>,
    pub generation: i32,
}

#[derive(Debug)]
pub struct Sync {
    pub who: Membership,
    pub protocol_type: Option<Name>,
    pub protocol: Option<Name>,
    /// From the leader: members and what they get.
    pub assignments: Vec<(Name, Bytes)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Synced {
    pub error: ErrorCode,
    pub protocol_type: Option<Name>,
    pub protocol: Option<Name>,
    pub assignment: Bytes,
}

impl Synced {
    pub fn error(error: ErrorCode) -> Reply {
        Reply::Synced(Synced {
            error,
            protocol_type: None,
            protocol: None,
            assignment: Bytes::new(),
        })
    }
}

#[derive(Debug)]
pub struct Leave {
    pub group: Name,
    /// Member id and instance id of those who leave.
    pub members: Vec<(Name, Option<Name>)>,
}

#[derive(Debug)]
pub struct Commit {
    pub who: Membership,
    /// Versions 2 to 4: how long the offsets are kept, in milliseconds.
    pub retention_ms: Option<i64>,
    /// The error for a group that isn't there and a generation that is (by version).
    pub no_group: ErrorCode,
    pub offsets: Vec<CommitOffset>,
}

/// One offset to commit.
#[derive(Clone, Debug)]
pub struct CommitOffset {
    pub topic: Name,
    pub topic_id: Uuid,
    pub partition: i32,
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: Name,
}

#[derive(Debug)]
pub struct OffsetsOf {
    pub group: Name,
    /// Topics and partitions; `None`: all that there are.
    pub topics: Option<Vec<(Name, Vec<i32>)>>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct TopicOffsets {
    pub topic: Name,
    pub partitions: Vec<PartitionOffset>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionOffset {
    pub partition: i32,
    /// -1: none is committed.
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: Name,
}

#[derive(Debug)]
pub struct DeleteOffsets {
    pub group: Name,
    pub partitions: Vec<(Name, i32)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Described {
    pub state: &'static str,
    pub protocol_type: Name,
    pub protocol: Name,
    pub members: Vec<DescribedMember>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct DescribedMember {
    pub member: Name,
    pub instance: Option<Name>,
    pub client_id: Name,
    pub client_host: Name,
    pub metadata: Bytes,
    pub assignment: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Listed {
    pub group: Name,
    pub protocol_type: Name,
    pub state: &'static str,
}
