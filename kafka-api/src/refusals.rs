//! What clients are refused, for the operator: every error that goes out is counted by its name in Kafka, and what a client should not have
//! sent leaves a line in the log, one a second for each connection at most ([`engine::line_limit`]).
//!
//! Messages of the library say their errors by [`Errors`]; answers that are written by hand note theirs themselves. The connection hands
//! them to [`Shard::refused`] when the answer is ready.

use std::borrow::Cow;

use engine::line_limit::LineLimit;
use engine::rt;
use kafka_protocol::messages as m;
use smallvec::SmallVec;

use crate::error::{self, ErrorCode};
use crate::frame::Request;
use crate::shard::Shard;

/// The errors of one answer, each with how often it is in there.
#[derive(Debug, Default)]
pub struct Refusals {
    codes: SmallVec<[(i16, u32); 1]>,
    /// The words that went with the first.
    pub why: Option<Cow<'static, str>>,
}

impl Refusals {
    pub fn of<T: Errors>(message: &T) -> Refusals {
        let mut refusals = Refusals::default();
        message.errors(&mut |code| refusals.note(code));
        refusals
    }

    pub fn note(&mut self, code: i16) {
        if code == 0 {
            return;
        }
        match self.codes.iter_mut().find(|known| known.0 == code) {
            Some((_, n)) => *n = n.saturating_add(1),
            None => self.codes.push((code, 1)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }
}

/// What a client meets that did nothing wrong: it steers it, or has it try again. What the disk refuses has lines of its own where that is found.
fn ordinary(code: i16) -> bool {
    const ORDINARY: [ErrorCode; 25] = [
        ErrorCode::KafkaStorageError,
        ErrorCode::OffsetOutOfRange,
        ErrorCode::UnknownTopicOrPartition,
        ErrorCode::LeaderNotAvailable,
        ErrorCode::NotLeaderOrFollower,
        ErrorCode::RequestTimedOut,
        ErrorCode::CoordinatorLoadInProgress,
        ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotCoordinator,
        ErrorCode::IllegalGeneration,
        ErrorCode::UnknownMemberId,
        ErrorCode::RebalanceInProgress,
        ErrorCode::TopicAlreadyExists,
        ErrorCode::NotController,
        ErrorCode::GroupIdNotFound,
        ErrorCode::FetchSessionIdNotFound,
        ErrorCode::InvalidFetchSessionEpoch,
        ErrorCode::FencedLeaderEpoch,
        ErrorCode::UnknownLeaderEpoch,
        ErrorCode::OffsetNotAvailable,
        ErrorCode::MemberIdRequired,
        ErrorCode::ElectionNotNeeded,
        ErrorCode::ThrottlingQuotaExceeded,
        ErrorCode::UnknownTopicId,
        ErrorCode::UnsupportedVersion,
    ];
    ORDINARY.iter().any(|known| known.code() == code)
}

impl Shard {
    /// Counts what was refused and says it, if it is the connection's turn to say something.
    pub(crate) fn refused(&self, lines: &LineLimit, request: &Request, refusals: &Refusals) {
        for (code, n) in &refusals.codes {
            self.metrics.refusals.add(error::name(*code), u64::from(*n));
        }
        let Some((code, parts)) = refusals.codes.iter().find(|(code, _)| !ordinary(*code)) else {
            return;
        };
        if let Some(kept_back) = lines.pass(rt::now()) {
            let peer = request
                .peer
                .map_or_else(|| "unknown".to_string(), |p| p.to_string());
            let why = refusals.why.as_deref().unwrap_or_default();
            tracing::warn!(
                peer,
                client = %request.client_id,
                api = ?request.api.key,
                version = request.version,
                error = error::name(*code),
                parts,
                why,
                kept_back,
                "a request was refused"
            );
        }
    }
}

/// A message that tells errors.
pub trait Errors {
    /// Hands every code in it to `note`, also those that say that all is well.
    fn errors(&self, note: &mut dyn FnMut(i16));
}

macro_rules! errors {
    ($($message:ident($it:ident, $note:ident) $body:block)*) => {
        $(impl Errors for m::$message {
            fn errors(&self, $note: &mut dyn FnMut(i16)) {
                let $it = self;
                $body
            }
        })*
    };
}

errors! {
    ListOffsetsResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
    MetadataResponse(it, note) {
        note(it.error_code);
        for topic in &it.topics {
            note(topic.error_code);
            topic.partitions.iter().for_each(|p| note(p.error_code));
        }
    }
    CreateTopicsResponse(it, note) {
        it.topics.iter().for_each(|t| note(t.error_code));
    }
    DeleteTopicsResponse(it, note) {
        it.responses.iter().for_each(|t| note(t.error_code));
    }
    CreatePartitionsResponse(it, note) {
        it.results.iter().for_each(|t| note(t.error_code));
    }
    DeleteRecordsResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
    InitProducerIdResponse(it, note) { note(it.error_code) }
    OffsetForLeaderEpochResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
    IncrementalAlterConfigsResponse(it, note) {
        it.responses.iter().for_each(|r| note(r.error_code));
    }
    AlterConfigsResponse(it, note) {
        it.responses.iter().for_each(|r| note(r.error_code));
    }
    ElectLeadersResponse(it, note) {
        note(it.error_code);
        let results = it.replica_election_results.iter();
        results.flat_map(|t| &t.partition_result).for_each(|p| note(p.error_code));
    }
    DescribeProducersResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
    DescribeTopicPartitionsResponse(it, note) {
        for topic in &it.topics {
            note(topic.error_code);
            topic.partitions.iter().for_each(|p| note(p.error_code));
        }
    }
    DescribeClientQuotasResponse(it, note) { note(it.error_code) }
    AlterClientQuotasResponse(it, note) {
        it.entries.iter().for_each(|e| note(e.error_code));
    }
    AlterReplicaLogDirsResponse(it, note) {
        it.results.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
    ListConfigResourcesResponse(it, note) { note(it.error_code) }
    DescribeClusterResponse(it, note) { note(it.error_code) }
    GetTelemetrySubscriptionsResponse(it, note) { note(it.error_code) }
    PushTelemetryResponse(it, note) { note(it.error_code) }
    OffsetCommitResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
    OffsetFetchResponse(it, note) {
        note(it.error_code);
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
        for group in &it.groups {
            note(group.error_code);
            group.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
        }
    }
    FindCoordinatorResponse(it, note) {
        note(it.error_code);
        it.coordinators.iter().for_each(|c| note(c.error_code));
    }
    JoinGroupResponse(it, note) { note(it.error_code) }
    SyncGroupResponse(it, note) { note(it.error_code) }
    HeartbeatResponse(it, note) { note(it.error_code) }
    LeaveGroupResponse(it, note) {
        note(it.error_code);
        it.members.iter().for_each(|m| note(m.error_code));
    }
    DescribeGroupsResponse(it, note) {
        it.groups.iter().for_each(|g| note(g.error_code));
    }
    ListGroupsResponse(it, note) { note(it.error_code) }
    DeleteGroupsResponse(it, note) {
        it.results.iter().for_each(|g| note(g.error_code));
    }
    OffsetDeleteResponse(it, note) {
        note(it.error_code);
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_code() {
        let topic =
            |code| m::create_topics_response::CreatableTopicResult::default().with_error_code(code);
        let codes = [0, 37, 17, 37, 0];
        let message = m::CreateTopicsResponse::default().with_topics(codes.map(topic).to_vec());
        let refusals = Refusals::of(&message);
        assert_eq!(refusals.codes.as_slice(), [(37, 2), (17, 1)]);
        assert!(Refusals::of(&m::HeartbeatResponse::default()).is_empty());
    }

    #[test]
    fn kafkas_names_are_in_use() {
        assert_eq!(error::name(2), "CORRUPT_MESSAGE");
        assert_eq!(error::name(17), "INVALID_TOPIC_EXCEPTION");
        assert_eq!(error::name(-1), "UNKNOWN_SERVER_ERROR");
        assert_eq!(error::name(4711), "OTHER");
        assert!(ordinary(ErrorCode::RebalanceInProgress.code()));
        assert!(!ordinary(ErrorCode::CorruptMessage.code()));
    }
}
