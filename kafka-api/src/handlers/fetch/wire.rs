//! Fetch on the wire, versions 4-18, by hand: the answer is written around the log's own bytes, which are never copied.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::error::{ErrorCode, Malformed};
use crate::frame::{Request, finish};
use crate::handlers::produce::wire::{Endpoint, LeaderHint, write_endpoints, write_leader};
use crate::limits;
use crate::shard::map;
use crate::wire::{Writer, uvarint_bytes};

/// A Fetch request. Topics and partitions in the client's order, which is the order in which they share the answer's bytes.
#[derive(Debug)]
pub struct FetchRequest {
    /// The reader's node id if it claims to be a replica, else -1.
    pub replica_id: i32,
    pub max_wait_ms: i32,
    pub min_bytes: i32,
    pub max_bytes: i32,
    pub session_id: i32,
    pub session_epoch: i32,
    pub topics: SmallVec<[FetchTopic; 1]>,
    pub parts: SmallVec<[FetchPart; 1]>,
    /// What a session is to read no more: topics, as in `topics` but without parts, and partitions.
    pub forgotten: Vec<(FetchTopic, Vec<i32>)>,
}

#[derive(Debug)]
pub struct FetchTopic {
    /// Up to version 12; empty after.
    pub name: StrBytes,
    /// From version 13 on; nil before.
    pub id: Uuid,
    /// How many of [`FetchRequest::parts`] are this topic's.
    pub parts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPart {
    pub index: i32,
    /// -1: the client doesn't say, as in all these.
    pub current_leader_epoch: i32,
    pub fetch_offset: i64,
    pub last_fetched_epoch: i32,
    pub max_bytes: i32,
}

impl FetchRequest {
    /// Keeps nothing of the frame, and not what a session was to forget.
    pub fn own(&mut self) {
        self.forgotten = Vec::new();
        for topic in &mut self.topics {
            if !topic.name.is_empty() {
                topic.name = StrBytes::from_string(topic.name.to_string());
            }
        }
    }

    pub fn read(request: &Request) -> Result<FetchRequest, Malformed> {
        let version = request.version;
        let flexible = request.flexible();
        let mut r = request.body.clone();
        let mut replica_id = if version <= 14 { r.i32()? } else { -1 };
        let max_wait_ms = r.i32()?;
        let min_bytes = r.i32()?;
        let max_bytes = r.i32()?;
        // The isolation level: without transactions both see the same.
        r.i8()?;
        let (session_id, session_epoch) = if version >= 7 {
            (r.i32()?, r.i32()?)
        } else {
            (0, -1)
        };
        let smallest_topic = if version >= 13 { 18 } else { 3 };
        let count = r.array(flexible, smallest_topic)?;
        let mut topics = SmallVec::with_capacity(count);
        let mut parts = SmallVec::new();
        let mut forgotten = Vec::new();
        let smallest_part = match version {
            0..=4 => 16,
            5..=8 => 24,
            9..=11 => 28,
            _ => 33,
        };
        for _ in 0..count {
            let (name, id) = if version >= 13 {
                (StrBytes::default(), r.uuid()?)
            } else {
                (r.string(flexible)?, Uuid::nil())
            };
            let count = r.array(flexible, smallest_part)?;
            parts.reserve(count);
            for _ in 0..count {
                let index = r.i32()?;
                let current_leader_epoch = if version >= 9 { r.i32()? } else { -1 };
                let fetch_offset = r.i64()?;
                let last_fetched_epoch = if version >= 12 { r.i32()? } else { -1 };
                if version >= 5 {
                    // The log start of a replica.
                    r.i64()?;
                }
                let max_bytes = r.i32()?;
                // Directory ids and high watermarks of replicas.
                r.skip_tags(flexible)?;
                parts.push(FetchPart {
                    index,
                    current_leader_epoch,
                    fetch_offset,
                    last_fetched_epoch,
                    max_bytes,
                });
            }
            r.skip_tags(flexible)?;
            topics.push(FetchTopic {
                name,
                id,
                parts: count,
            });
        }
        if version >= 7 {
            for _ in 0..r.array(flexible, smallest_topic)? {
                let (name, id) = if version >= 13 {
                    (StrBytes::default(), r.uuid()?)
                } else {
                    (r.string(flexible)?, Uuid::nil())
                };
                let count = r.array(flexible, 4)?;
                let mut partitions = Vec::with_capacity(count);
                for _ in 0..count {
                    partitions.push(r.i32()?);
                }
                r.skip_tags(flexible)?;
                forgotten.push((FetchTopic { name, id, parts: 0 }, partitions));
            }
        }
        if version >= 11 {
            r.skip_string(flexible)?;
        }
        r.tags(flexible, |tag, field| {
            if tag == 1 && version >= 15 {
                replica_id = field.i32()?;
                field.i64()?;
            }
            Ok(())
        })?;
        Ok(FetchRequest {
            replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            session_id,
            session_epoch,
            topics,
            parts,
            forgotten,
        })
    }

    /// Leaves of a partition that is named several times the last one, in the place of the first, and drops topics without partitions, as Kafka does. So nothing
    /// is done for a partition more than once, however often a request names it. `pause` is awaited on the way.
    pub async fn without_repeats(&mut self, pause: &impl AsyncFn()) {
        self.topics.retain(|t| t.parts > 0);
        if self.parts.len() < 2 {
            return;
        }
        let mut numbers = map::<(StrBytes, Uuid), usize>();
        let mut places = map::<(usize, i32), usize>();
        let mut kept = SmallVec::<[FetchPart; 1]>::new();
        let mut parts = self.parts.drain(..).enumerate();
        for topic in &mut self.topics {
            let next = numbers.len();
            let number = *numbers
                .entry((topic.name.clone(), topic.id))
                .or_insert(next);
            let (asked, before) = (topic.parts, kept.len());
            for (at, part) in parts.by_ref().take(asked) {
                let place = *places.entry((number, part.index)).or_insert(kept.len());
                if place < kept.len() {
                    kept[place] = part;
                } else {
                    kept.push(part);
                }
                if at % limits::FETCH_SLICE == 0 {
                    pause().await;
                }
            }
            topic.parts = kept.len() - before;
        }
        drop(parts);
        self.parts = kept;
        self.topics.retain(|t| t.parts > 0);
    }
}

/// The answer for one partition.
#[derive(Clone, Debug)]
pub struct PartAnswer {
    pub error: ErrorCode,
    pub high_watermark: i64,
    pub log_start_offset: i64,
    /// Whole batches, one behind the other.
    pub records: SmallVec<[Bytes; 2]>,
    /// Where the reader's log parted from this one: epoch and its end offset.
    pub diverging: Option<(i32, i64)>,
    pub leader: Option<LeaderHint>,
}

impl PartAnswer {
    pub fn error(error: ErrorCode) -> PartAnswer {
        PartAnswer {
            error,
            high_watermark: -1,
            log_start_offset: -1,
            records: SmallVec::new(),
            diverging: None,
            leader: None,
        }
    }

    pub fn record_bytes(&self) -> usize {
        self.records.iter().map(Bytes::len).sum()
    }
}

/// An answer in the making: service bytes and the log's bytes, in order.
struct Parts {
    done: Vec<Bytes>,
    tail: BytesMut,
    /// Bytes of `done`.
    bytes: usize,
}

impl Parts {
    fn push(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        self.done.push(bytes);
    }

    fn cut(&mut self) {
        if !self.tail.is_empty() {
            let head = self.tail.split().freeze();
            self.push(head);
        }
    }
}

/// Encodes the answer to `request`: `answers` holds one for each of its parts, in their order. With an `error` on top there are no
/// partitions in it. `session` is the id of the session, 0 for none.
pub fn write(
    request: &Request,
    error: ErrorCode,
    session: i32,
    topics: &[FetchTopic],
    parts: &[FetchPart],
    answers: Vec<PartAnswer>,
    endpoints: &[Endpoint],
) -> Vec<Bytes> {
    assert_eq!(parts.len(), answers.len(), "one answer per part");
    let version = request.version;
    let flexible = request.flexible();
    let names: usize = topics.iter().map(|t| t.name.len() + 24).sum();
    let mut out = Parts {
        done: Vec::new(),
        tail: request.answer(names + 80 * parts.len() + 16),
        bytes: 0,
    };
    out.tail.put_i32(0);
    if version >= 7 {
        out.tail.put_i16(error.code());
        out.tail.put_i32(session);
    }
    // A topic without partitions is left out, as Kafka does.
    let topics = || topics.iter().filter(|t| t.parts > 0);
    out.tail.put_array(topics().count(), flexible);
    let mut both = parts.iter().zip(answers);
    for topic in topics() {
        if version >= 13 {
            out.tail.put_slice(topic.id.as_bytes());
        } else {
            out.tail.put_str(&topic.name, flexible);
        }
        out.tail.put_array(topic.parts, flexible);
        for (part, answer) in both.by_ref().take(topic.parts) {
            write_part(&mut out, version, flexible, part.index, answer);
        }
        out.tail.put_no_tags(flexible);
    }
    if version >= 16 && !endpoints.is_empty() {
        write_endpoints(&mut out.tail, endpoints);
    } else {
        out.tail.put_no_tags(flexible);
    }
    if out.done.is_empty() {
        finish(&mut out.tail, 0);
        return vec![out.tail.freeze()];
    }
    out.cut();
    // The length stands in the first piece, which nobody else has seen yet.
    let first = std::mem::take(&mut out.done[0]);
    let behind = out.bytes - first.len();
    let mut first = BytesMut::from(first);
    finish(&mut first, behind);
    out.done[0] = first.freeze();
    out.done
}

fn write_part(out: &mut Parts, version: i16, flexible: bool, index: i32, answer: PartAnswer) {
    out.tail.put_i32(index);
    out.tail.put_i16(answer.error.code());
    out.tail.put_i64(answer.high_watermark);
    // The last stable offset: without transactions it is the high watermark.
    out.tail.put_i64(answer.high_watermark);
    if version >= 5 {
        out.tail.put_i64(answer.log_start_offset);
    }
    // No aborted transactions: null.
    if flexible {
        out.tail.put_uvarint(0);
    } else {
        out.tail.put_i32(-1);
    }
    if version >= 11 {
        out.tail.put_i32(-1);
    }
    let length = answer.record_bytes();
    out.tail.put_bytes_length(length, flexible);
    if length > 0 {
        out.cut();
        for bytes in answer.records {
            out.push(bytes);
        }
    }
    if !flexible {
        return;
    }
    let tags = u8::from(answer.diverging.is_some()) + u8::from(answer.leader.is_some());
    out.tail.put_u8(tags);
    if let Some((epoch, end_offset)) = answer.diverging {
        out.tail.put_uvarint(0);
        out.tail.put_uvarint(13);
        out.tail.put_i32(epoch);
        out.tail.put_i64(end_offset);
        out.tail.put_u8(0);
    }
    if let Some(leader) = &answer.leader {
        write_leader(&mut out.tail, 1, leader);
    }
}

/// Bytes of an answer as Kafka counts them for a quota: the length and the body.
pub fn size(request: &Request, fetch: &FetchRequest, answers: &[PartAnswer]) -> usize {
    let flexible = request.flexible();
    let version = request.version;
    let length = |n: usize| match flexible {
        true => uvarint_bytes(n as u32 + 1),
        false => 4,
    };
    let topics = || fetch.topics.iter().filter(|t| t.parts > 0);
    let mut bytes = 8 + length(topics().count()) + usize::from(flexible);
    bytes += if version >= 7 { 6 } else { 0 };
    for topic in topics() {
        bytes += match version {
            13.. => 16,
            _ if flexible => uvarint_bytes(topic.name.len() as u32 + 1) + topic.name.len(),
            _ => 2 + topic.name.len(),
        };
        bytes += length(topic.parts) + usize::from(flexible);
    }
    let part = 22
        + if version >= 5 { 8 } else { 0 }
        + if flexible { 2 } else { 4 }
        + if version >= 11 { 4 } else { 0 };
    for answer in answers {
        let records = answer.record_bytes();
        bytes += part + length(records) + records;
        bytes += answer.diverging.map_or(0, |_| 15) + answer.leader.as_ref().map_or(0, |_| 11);
    }
    bytes
}

/// Bytes of an answer beside its records, at most.
pub fn overhead_bytes(parts: usize) -> usize {
    64 + parts * (80 + uvarint_bytes(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame};
    use bytes::Buf;
    use kafka_protocol::messages as m;
    use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};
    use proptest::prelude::*;

    fn s(v: &'static str) -> StrBytes {
        StrBytes::from_static_str(v)
    }

    #[test]
    fn a_partition_named_again_is_answered_once() {
        let topic = |name, parts| FetchTopic {
            name: s(name),
            id: Uuid::nil(),
            parts,
        };
        let part = |index, fetch_offset| FetchPart {
            index,
            current_leader_epoch: -1,
            fetch_offset,
            last_fetched_epoch: -1,
            max_bytes: 1,
        };
        let mut fetch = FetchRequest {
            replica_id: -1,
            max_wait_ms: 0,
            min_bytes: 0,
            max_bytes: 0,
            session_id: 0,
            session_epoch: -1,
            topics: vec![
                topic("a", 3),
                topic("none", 0),
                topic("b", 1),
                topic("a", 1),
            ]
            .into(),
            parts: vec![part(0, 1), part(1, 2), part(0, 3), part(0, 4), part(1, 5)].into(),
            forgotten: Vec::new(),
        };
        let pauses = std::cell::Cell::new(0);
        let pause = async || pauses.set(pauses.get() + 1);
        crate::records::testing::run(fetch.without_repeats(&pause));
        let topics: Vec<_> = fetch.topics.iter().map(|t| (&*t.name, t.parts)).collect();
        assert_eq!(topics, [("a", 2), ("b", 1)]);
        assert_eq!(fetch.parts[..], [part(0, 3), part(1, 5), part(0, 4)]);
        // One partition, again and again: the others get their turns.
        fetch.topics = [topic("a", 100_000)].into();
        fetch.parts = vec![part(7, 1); 100_000].into();
        pauses.set(0);
        crate::records::testing::run(fetch.without_repeats(&pause));
        assert_eq!((fetch.topics[0].parts, fetch.parts.len()), (1, 1));
        assert!(pauses.get() > 1_000, "{}", pauses.get());
    }

    fn library_request(version: i16) -> m::FetchRequest {
        let part = |index, offset| {
            let p = m::fetch_request::FetchPartition::default()
                .with_partition(index)
                .with_fetch_offset(offset)
                .with_partition_max_bytes(1 << 20);
            let p = if version >= 9 {
                p.with_current_leader_epoch(4)
            } else {
                p
            };
            if version >= 12 {
                p.with_last_fetched_epoch(3)
            } else {
                p
            }
        };
        let topic = |name: &'static str, id, parts| {
            let t = m::fetch_request::FetchTopic::default().with_partitions(parts);
            if version >= 13 {
                t.with_topic_id(Uuid::from_u128(id))
            } else {
                t.with_topic(s(name).into())
            }
        };
        let r = m::FetchRequest::default()
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(1 << 24)
            .with_topics(vec![
                topic("orders", 7, vec![part(3, 100), part(1, 0)]),
                topic("b", 8, vec![part(0, 5)]),
                topic("empty", 9, vec![]),
            ]);
        let r = if version >= 7 {
            let forgotten = m::fetch_request::ForgottenTopic::default().with_partitions(vec![1, 2]);
            let forgotten = if version >= 13 {
                forgotten.with_topic_id(Uuid::from_u128(1))
            } else {
                forgotten.with_topic(s("gone").into())
            };
            r.with_session_id(0)
                .with_session_epoch(-1)
                .with_forgotten_topics_data(vec![forgotten])
        } else {
            r
        };
        let r = if version >= 11 {
            r.with_rack_id(s("rack"))
        } else {
            r
        };
        if version >= 15 {
            r.with_replica_state(
                m::fetch_request::ReplicaState::default().with_replica_id(5.into()),
            )
        } else {
            r.with_replica_id(5.into())
        }
    }

    fn request(version: i16, body: &[u8]) -> Request {
        let mut b = BytesMut::new();
        b.put_i16(1);
        b.put_i16(version);
        b.put_i32(42);
        b.put_str("me", false);
        b.put_no_tags(version >= 12);
        b.put_slice(body);
        match frame::parse(b.freeze()) {
            Ok(Frame::Request(r)) => r,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_of_every_version_are_read() {
        for version in 4..=18 {
            let mut body = BytesMut::new();
            library_request(version).encode(&mut body, version).unwrap();
            let read = FetchRequest::read(&request(version, &body)).unwrap();
            assert_eq!(read.replica_id, 5, "version {version}");
            assert_eq!(
                (read.max_wait_ms, read.min_bytes, read.max_bytes),
                (500, 1, 1 << 24)
            );
            let shape: Vec<_> = read.topics.iter().map(|t| t.parts).collect();
            assert_eq!(shape, [2, 1, 0]);
            let offsets: Vec<_> = read
                .parts
                .iter()
                .map(|p| (p.index, p.fetch_offset))
                .collect();
            assert_eq!(offsets, [(3, 100), (1, 0), (0, 5)]);
            let frame = Bytes::copy_from_slice(&body);
            let mut held = self::request(version, &frame);
            let mut kept = FetchRequest::read(&held).unwrap();
            let whole = held.body.whole().clone();
            held.let_go();
            kept.own();
            assert!(whole.is_unique(), "version {version}");
            assert_eq!(kept.topics[0].name, read.topics[0].name);
            let forgotten: Vec<_> = read.forgotten.iter().map(|(_, p)| p.clone()).collect();
            assert_eq!(forgotten.is_empty(), version < 7);
            assert!(forgotten.iter().all(|p| *p == [1, 2]));
            let p = read.parts[0];
            assert_eq!(p.max_bytes, 1 << 20);
            assert_eq!(p.current_leader_epoch, if version >= 9 { 4 } else { -1 });
            assert_eq!(p.last_fetched_epoch, if version >= 12 { 3 } else { -1 });
            for cut in 0..body.len() {
                assert!(FetchRequest::read(&self::request(version, &body[..cut])).is_err());
            }
        }
    }

    #[test]
    fn answers_of_every_version_are_what_the_library_reads() {
        for version in 4..=18 {
            for with_data in [false, true] {
                let mut body = BytesMut::new();
                library_request(version).encode(&mut body, version).unwrap();
                let request = request(version, &body);
                let read = FetchRequest::read(&request).unwrap();
                let one = Bytes::from_static(b"first batch");
                let two = Bytes::from_static(b"second batch");
                let records: SmallVec<[Bytes; 2]> = if with_data {
                    [one.clone(), two.clone()].into_iter().collect()
                } else {
                    SmallVec::new()
                };
                let answers = vec![
                    PartAnswer {
                        error: ErrorCode::None,
                        high_watermark: 200,
                        log_start_offset: 10,
                        records,
                        diverging: None,
                        leader: None,
                    },
                    PartAnswer {
                        leader: Some(LeaderHint { node: 2, epoch: 9 }),
                        ..PartAnswer::error(ErrorCode::NotLeaderOrFollower)
                    },
                    PartAnswer {
                        high_watermark: 7,
                        diverging: Some((3, 77)),
                        ..PartAnswer::error(ErrorCode::None)
                    },
                ];
                let endpoints = [Endpoint {
                    node: 2,
                    host: "there".into(),
                    port: 9_092,
                    rack: Some("r".into()),
                }];
                let pieces = write(
                    &request,
                    ErrorCode::None,
                    if version >= 7 { 77 } else { 0 },
                    &read.topics,
                    &read.parts,
                    answers,
                    &endpoints,
                );
                if with_data {
                    // The log's bytes themselves, not copies.
                    assert_eq!(pieces[1].as_ptr(), one.as_ptr());
                    assert_eq!(pieces[2].as_ptr(), two.as_ptr());
                }
                let mut bytes = Bytes::from(pieces.concat());
                assert_eq!(bytes.get_i32() as usize, bytes.len());
                let header = m::ResponseHeader::decode(
                    &mut bytes,
                    m::FetchResponse::header_version(version),
                )
                .unwrap();
                assert_eq!(header.correlation_id, 42);
                let got = m::FetchResponse::decode(&mut bytes, version).unwrap();
                assert!(bytes.is_empty(), "version {version}");
                assert_eq!(got.session_id, if version >= 7 { 77 } else { 0 });
                assert_eq!(got.responses.len(), 2, "not the one without partitions");
                let parts = &got.responses[0].partitions;
                assert_eq!(parts[0].partition_index, 3);
                assert_eq!(parts[0].high_watermark, 200);
                assert_eq!(parts[0].last_stable_offset, 200);
                assert!(parts[0].aborted_transactions.is_none());
                let want = if with_data {
                    "first batchsecond batch"
                } else {
                    ""
                };
                assert_eq!(parts[0].records.as_deref(), Some(want.as_bytes()));
                assert_eq!(parts[1].error_code, 6);
                let other = &got.responses[1].partitions[0];
                if version >= 12 {
                    assert_eq!(i32::from(parts[1].current_leader.leader_id), 2);
                    assert_eq!(other.diverging_epoch.epoch, 3);
                    assert_eq!(other.diverging_epoch.end_offset, 77);
                }
                if version >= 16 {
                    assert_eq!(got.node_endpoints[0].rack.as_deref(), Some("r"));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_body_is_answered(version in 4i16..=18, body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = FetchRequest::read(&request(version, &body));
        }

        #[test]
        fn any_change_is_answered(version in 4i16..=18, at in any::<prop::sample::Index>(), with: u8) {
            let mut body = BytesMut::new();
            library_request(version).encode(&mut body, version).unwrap();
            let at = at.index(body.len());
            body[at] = with;
            let _ = FetchRequest::read(&request(version, &body));
        }
    }
}
