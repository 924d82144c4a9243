//! The crate's one error type: a request or command that was refused, with the Kafka error that makes a client do the right thing and a
//! sentence for the person in front of it.

use std::fmt;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why something was refused. The discriminants are Kafka's error codes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i16)]
        pub enum Refusal {
            $($(#[$doc])* $name = $code,)*
        }
    };
}

refusals! {
    /// The topic doesn't exist (client refreshes its metadata).
    UnknownTopicOrPartition = 3,
    /// The metadata group can't take the command now, or another change came first (client tries again).
    RequestTimedOut = 7,
    InvalidTopic = 17,
    TopicAlreadyExists = 36,
    InvalidPartitions = 37,
    InvalidReplicationFactor = 38,
    InvalidReplicaAssignment = 39,
    InvalidConfig = 40,
    /// This node doesn't lead the metadata group (client looks for the one that does).
    NotController = 41,
    InvalidRequest = 42,
    /// A bound in [`crate::limits`] would be passed.
    PolicyViolation = 44,
    /// The disk failed, or is nearly full (client tries again).
    StorageError = 56,
    UnknownTopicId = 100,
    /// Something that only a defect can cause.
    UnknownServerError = -1,
}

impl Refusal {
    /// Kafka's error code.
    pub fn code(self) -> i16 {
        self as i16
    }
}

/// A refused request: what the client is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    pub refusal: Refusal,
    pub message: String,
}

impl Refused {
    pub fn new(refusal: Refusal, message: impl Into<String>) -> Refused {
        Refused {
            refusal,
            message: message.into(),
        }
    }

    /// Kafka's error code.
    pub fn code(&self) -> i16 {
        self.refusal.code()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.refusal, self.message)
    }
}
