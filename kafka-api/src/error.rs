//! Kafka's error codes, as far as this crate answers with them, and the error of a request that cannot be read.

use thiserror::Error;

macro_rules! codes {
    ($($name:ident = $code:literal $said:literal,)*) => {
        /// A code of Kafka's protocol. The numbers are the protocol's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i16)]
        pub enum ErrorCode {
            $($name = $code,)*
        }

        /// Kafka's name of a code; those that nothing here answers with have none.
        pub fn name(code: i16) -> &'static str {
            match code {
                $($code => $said,)*
                _ => "OTHER",
            }
        }
    };
}

codes! {
    UnknownServerError = -1 "UNKNOWN_SERVER_ERROR",
    None = 0 "NONE",
    OffsetOutOfRange = 1 "OFFSET_OUT_OF_RANGE",
    CorruptMessage = 2 "CORRUPT_MESSAGE",
    UnknownTopicOrPartition = 3 "UNKNOWN_TOPIC_OR_PARTITION",
    LeaderNotAvailable = 5 "LEADER_NOT_AVAILABLE",
    NotLeaderOrFollower = 6 "NOT_LEADER_OR_FOLLOWER",
    RequestTimedOut = 7 "REQUEST_TIMED_OUT",
    ReplicaNotAvailable = 9 "REPLICA_NOT_AVAILABLE",
    MessageTooLarge = 10 "MESSAGE_TOO_LARGE",
    OffsetMetadataTooLarge = 12 "OFFSET_METADATA_TOO_LARGE",
    CoordinatorLoadInProgress = 14 "COORDINATOR_LOAD_IN_PROGRESS",
    CoordinatorNotAvailable = 15 "COORDINATOR_NOT_AVAILABLE",
    NotCoordinator = 16 "NOT_COORDINATOR",
    InvalidTopic = 17 "INVALID_TOPIC_EXCEPTION",
    RecordListTooLarge = 18 "RECORD_LIST_TOO_LARGE",
    NotEnoughReplicas = 19 "NOT_ENOUGH_REPLICAS",
    NotEnoughReplicasAfterAppend = 20 "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    InvalidRequiredAcks = 21 "INVALID_REQUIRED_ACKS",
    IllegalGeneration = 22 "ILLEGAL_GENERATION",
    InconsistentGroupProtocol = 23 "INCONSISTENT_GROUP_PROTOCOL",
    InvalidGroupId = 24 "INVALID_GROUP_ID",
    UnknownMemberId = 25 "UNKNOWN_MEMBER_ID",
    InvalidSessionTimeout = 26 "INVALID_SESSION_TIMEOUT",
    RebalanceInProgress = 27 "REBALANCE_IN_PROGRESS",
    InvalidCommitOffsetSize = 28 "INVALID_COMMIT_OFFSET_SIZE",
    InvalidTimestamp = 32 "INVALID_TIMESTAMP",
    UnsupportedVersion = 35 "UNSUPPORTED_VERSION",
    TopicAlreadyExists = 36 "TOPIC_ALREADY_EXISTS",
    InvalidPartitions = 37 "INVALID_PARTITIONS",
    InvalidReplicationFactor = 38 "INVALID_REPLICATION_FACTOR",
    InvalidReplicaAssignment = 39 "INVALID_REPLICA_ASSIGNMENT",
    InvalidConfig = 40 "INVALID_CONFIG",
    NotController = 41 "NOT_CONTROLLER",
    InvalidRequest = 42 "INVALID_REQUEST",
    PolicyViolation = 44 "POLICY_VIOLATION",
    OutOfOrderSequenceNumber = 45 "OUT_OF_ORDER_SEQUENCE_NUMBER",
    DuplicateSequenceNumber = 46 "DUPLICATE_SEQUENCE_NUMBER",
    InvalidProducerEpoch = 47 "INVALID_PRODUCER_EPOCH",
    TransactionalIdAuthorizationFailed = 53 "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    KafkaStorageError = 56 "KAFKA_STORAGE_ERROR",
    LogDirNotFound = 57 "LOG_DIR_NOT_FOUND",
    UnknownProducerId = 59 "UNKNOWN_PRODUCER_ID",
    NonEmptyGroup = 68 "NON_EMPTY_GROUP",
    GroupIdNotFound = 69 "GROUP_ID_NOT_FOUND",
    FetchSessionIdNotFound = 70 "FETCH_SESSION_ID_NOT_FOUND",
    InvalidFetchSessionEpoch = 71 "INVALID_FETCH_SESSION_EPOCH",
    FencedLeaderEpoch = 74 "FENCED_LEADER_EPOCH",
    UnknownLeaderEpoch = 75 "UNKNOWN_LEADER_EPOCH",
    UnsupportedCompressionType = 76 "UNSUPPORTED_COMPRESSION_TYPE",
    OffsetNotAvailable = 78 "OFFSET_NOT_AVAILABLE",
    PreferredLeaderNotAvailable = 80 "PREFERRED_LEADER_NOT_AVAILABLE",
    EligibleLeadersNotAvailable = 83 "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    ElectionNotNeeded = 84 "ELECTION_NOT_NEEDED",
    MemberIdRequired = 79 "MEMBER_ID_REQUIRED",
    GroupMaxSizeReached = 81 "GROUP_MAX_SIZE_REACHED",
    FencedInstanceId = 82 "FENCED_INSTANCE_ID",
    GroupSubscribedToTopic = 86 "GROUP_SUBSCRIBED_TO_TOPIC",
    InvalidRecord = 87 "INVALID_RECORD",
    ThrottlingQuotaExceeded = 89 "THROTTLING_QUOTA_EXCEEDED",
    UnknownTopicId = 100 "UNKNOWN_TOPIC_ID",
    InconsistentTopicId = 103 "INCONSISTENT_TOPIC_ID",
    FetchSessionTopicIdError = 106 "FETCH_SESSION_TOPIC_ID_ERROR",
    MismatchedEndpointType = 114 "MISMATCHED_ENDPOINT_TYPE",
    UnsupportedEndpointType = 115 "UNSUPPORTED_ENDPOINT_TYPE",
    UnknownSubscriptionId = 117 "UNKNOWN_SUBSCRIPTION_ID",
    TelemetryTooLarge = 118 "TELEMETRY_TOO_LARGE",
    RebootstrapRequired = 129 "REBOOTSTRAP_REQUIRED",
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
    #[error("arrays of more than 250,000 elements")]
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
