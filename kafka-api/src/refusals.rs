//! What clients are refused, for the operator: every error that goes out is counted by its name in Kafka, and what a client should not have
//! sent leaves a line in the log, one a second for each connection and ten for all of a shard at most ([`engine::line_limit`]).
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
    /// The words that went with the first that is worth a line.
    why: Option<Cow<'static, str>>,
}

impl Refusals {
    pub fn of<T: Errors>(message: &T) -> Refusals {
        let mut refusals = Refusals::default();
        message.errors(&mut |code, why| {
            refusals.tell(code, why.map(|w| Cow::Owned(w.to_string())));
        });
        refusals
    }

    /// Notes a code with the words that go with it.
    pub fn tell(&mut self, code: i16, why: Option<impl Into<Cow<'static, str>>>) {
        if self.why.is_none() && code != 0 && !ordinary(code) {
            self.why = why.map(Into::into);
        }
        self.note(code);
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
        if let Some((kept_back, of_all)) = self.connections.lines.refusal(lines, rt::now()) {
            let peer = request
                .peer
                .map_or_else(|| "unknown".to_string(), |p| p.to_string());
            // Left away when there are no words besides the error's name.
            let why = refusals.why.as_deref();
            tracing::warn!(
                peer,
                client = %request.client_id,
                api = ?request.api.key,
                version = request.version,
                error = error::name(*code),
                parts,
                why,
                kept_back,
                of_all,
                "a request was refused"
            );
        }
    }
}

/// A message that tells errors.
pub trait Errors {
    /// Hands every code in it to `note`, also those that say that all is well, with the words that go with it.
    fn errors(&self, note: &mut dyn FnMut(i16, Option<&str>));
}

macro_rules! errors {
    ($($message:ident($it:ident, $note:ident) $body:block)*) => {
        $(impl Errors for m::$message {
            fn errors(&self, $note: &mut dyn FnMut(i16, Option<&str>)) {
                let $it = self;
                $body
            }
        })*
    };
}

errors! {
    ListOffsetsResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
    }
    MetadataResponse(it, note) {
        note(it.error_code, None);
        for topic in &it.topics {
            note(topic.error_code, None);
            topic.partitions.iter().for_each(|p| note(p.error_code, None));
        }
    }
    CreateTopicsResponse(it, note) {
        it.topics.iter().for_each(|t| note(t.error_code, t.error_message.as_deref()));
    }
    DeleteTopicsResponse(it, note) {
        it.responses.iter().for_each(|t| note(t.error_code, t.error_message.as_deref()));
    }
    CreatePartitionsResponse(it, note) {
        it.results.iter().for_each(|t| note(t.error_code, t.error_message.as_deref()));
    }
    DeleteRecordsResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
    }
    InitProducerIdResponse(it, note) { note(it.error_code, None) }
    OffsetForLeaderEpochResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
    }
    IncrementalAlterConfigsResponse(it, note) {
        it.responses.iter().for_each(|r| note(r.error_code, r.error_message.as_deref()));
    }
    AlterConfigsResponse(it, note) {
        it.responses.iter().for_each(|r| note(r.error_code, r.error_message.as_deref()));
    }
    ElectLeadersResponse(it, note) {
        note(it.error_code, None);
        let results = it.replica_election_results.iter();
        results.flat_map(|t| &t.partition_result).for_each(|p| note(p.error_code, p.error_message.as_deref()));
    }
    DescribeProducersResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, p.error_message.as_deref()));
    }
    DescribeTopicPartitionsResponse(it, note) {
        for topic in &it.topics {
            note(topic.error_code, None);
            topic.partitions.iter().for_each(|p| note(p.error_code, None));
        }
    }
    DescribeClientQuotasResponse(it, note) { note(it.error_code, it.error_message.as_deref()) }
    AlterClientQuotasResponse(it, note) {
        it.entries.iter().for_each(|e| note(e.error_code, e.error_message.as_deref()));
    }
    AlterReplicaLogDirsResponse(it, note) {
        it.results.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
    }
    ListConfigResourcesResponse(it, note) { note(it.error_code, None) }
    DescribeClusterResponse(it, note) { note(it.error_code, it.error_message.as_deref()) }
    GetTelemetrySubscriptionsResponse(it, note) { note(it.error_code, None) }
    PushTelemetryResponse(it, note) { note(it.error_code, None) }
    OffsetCommitResponse(it, note) {
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
    }
    OffsetFetchResponse(it, note) {
        note(it.error_code, None);
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
        for group in &it.groups {
            note(group.error_code, None);
            group.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
        }
    }
    FindCoordinatorResponse(it, note) {
        note(it.error_code, it.error_message.as_deref());
        it.coordinators.iter().for_each(|c| note(c.error_code, c.error_message.as_deref()));
    }
    JoinGroupResponse(it, note) { note(it.error_code, None) }
    SyncGroupResponse(it, note) { note(it.error_code, None) }
    HeartbeatResponse(it, note) { note(it.error_code, None) }
    LeaveGroupResponse(it, note) {
        note(it.error_code, None);
        it.members.iter().for_each(|m| note(m.error_code, None));
    }
    DescribeGroupsResponse(it, note) {
        it.groups.iter().for_each(|g| note(g.error_code, g.error_message.as_deref()));
    }
    ListGroupsResponse(it, note) { note(it.error_code, None) }
    DeleteGroupsResponse(it, note) {
        it.results.iter().for_each(|g| note(g.error_code, None));
    }
    OffsetDeleteResponse(it, note) {
        note(it.error_code, None);
        it.topics.iter().flat_map(|t| &t.partitions).for_each(|p| note(p.error_code, None));
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::StrBytes;

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
    fn a_line_has_the_words_of_the_error_that_it_names() {
        let topic = |code: i16, words: Option<&'static str>| {
            m::create_topics_response::CreatableTopicResult::default()
                .with_error_code(code)
                .with_error_message(words.map(StrBytes::from_static_str))
        };
        let why = |topics: Vec<_>| {
            Refusals::of(&m::CreateTopicsResponse::default().with_topics(topics)).why
        };
        // 36, TOPIC_ALREADY_EXISTS, is ordinary.
        let topics = vec![
            topic(0, None),
            topic(36, Some("It exists.")),
            topic(37, Some("A topic has at least one partition.")),
            topic(17, Some("Bad name.")),
        ];
        assert_eq!(why(topics).unwrap(), "A topic has at least one partition.");
        assert_eq!(why(vec![topic(37, None)]), None);
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
