//! Kafka's error codes, as far as this crate answers with them, and the error of a request that cannot be read.

use thiserror::Error;

/// A code of Kafka's protocol. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum ErrorCode {
    UnknownServerError = -1,
    None = 0,
    OffsetOutOfRange = 1,
    CorruptMessage = 2,
    UnknownTopicOrPartition = 3,
    LeaderNotAvailable = 5,
    NotLeaderOrFollower = 6,
    RequestTimedOut = 7,
    ReplicaNotAvailable = 9,
    MessageTooLarge = 10,
    OffsetMetadataTooLarge = 12,
    CoordinatorLoadInProgress = 14,
    CoordinatorNotAvailable = 15,
    NotCoordinator = 16,
    InvalidTopic = 17,
    RecordListTooLarge = 18,
    NotEnoughReplicas = 19,
    NotEnoughReplicasAfterAppend = 20,
    InvalidRequiredAcks = 21,
    IllegalGeneration = 22,
    InconsistentGroupProtocol = 23,
    InvalidGroupId = 24,
    UnknownMemberId = 25,
    InvalidSessionTimeout = 26,
    RebalanceInProgress = 27,
    InvalidCommitOffsetSize = 28,
    InvalidTimestamp = 32,
    UnsupportedVersion = 35,
    TopicAlreadyExists = 36,
    InvalidPartitions = 37,
    InvalidReplicationFactor = 38,
    InvalidReplicaAssignment = 39,
    InvalidConfig = 40,
    NotController = 41,
    InvalidRequest = 42,
    PolicyViolation = 44,
    OutOfOrderSequenceNumber = 45,
    DuplicateSequenceNumber = 46,
    InvalidProducerEpoch = 47,
    TransactionalIdAuthorizationFailed = 53,
    KafkaStorageError = 56,
    UnknownProducerId = 59,
    NonEmptyGroup = 68,
    GroupIdNotFound = 69,
    FetchSessionIdNotFound = 70,
    InvalidFetchSessionEpoch = 71,
    FencedLeaderEpoch = 74,
    UnknownLeaderEpoch = 75,
    UnsupportedCompressionType = 76,
    OffsetNotAvailable = 78,
    PreferredLeaderNotAvailable = 80,
    EligibleLeadersNotAvailable = 83,
    ElectionNotNeeded = 84,
    MemberIdRequired = 79,
    GroupMaxSizeReached = 81,
    FencedInstanceId = 82,
    GroupSubscribedToTopic = 86,
    InvalidRecord = 87,
    ThrottlingQuotaExceeded = 89,
    UnknownTopicId = 100,
    InconsistentTopicId = 103,
    FetchSessionTopicIdError = 106,
    MismatchedEndpointType = 114,
    UnsupportedEndpointType = 115,
    UnknownSubscriptionId = 117,
    TelemetryTooLarge = 118,
    RebootstrapRequired = 129,
}

impl ErrorCode {
    pub fn code(self) -> i16 {
        self as i16
    }

    pub fn is_none(self) -> bool {
        self == ErrorCode::None
    }
}

/// Why a request cannot be read. There is no answer to such a request: the connection is closed, as Kafka does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("the request ends {0} bytes before a field does")]
    Short(usize),
    #[error("a length of {0} where none is possible")]
    Length(i64),
    #[error("arrays of more than 1,000,000 elements")]
    Elements,
    #[error("more than 10,000 tagged fields, or tags out of order")]
    Tags,
    #[error("a varint of more than 5 bytes")]
    Varint,
    #[error("a string that is not UTF-8")]
    Utf8,
    #[error("null where the field cannot be null")]
    Null,
    #[error("the request does not follow its schema")]
    Schema,
    #[error("the answer could not be encoded")]
    Answer,
    #[error("a frame of {0} bytes")]
    FrameSize(i32),
    #[error("no API with key {key} and version {version} here")]
    Unsupported { key: i16, version: i16 },
}
