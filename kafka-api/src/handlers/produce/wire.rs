//! Produce on the wire, versions 3-13, by hand: it is hot, and its records must stay slices of the frame.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::wire::{Writer, uvarint_bytes};

/// A Produce request. Topics and partitions in the client's order.
#[derive(Debug)]
pub struct ProduceRequest {
    pub transactional_id: Option<StrBytes>,
    pub acks: i16,
    pub timeout_ms: i32,
    pub topics: SmallVec<[TopicData; 1]>,
    pub parts: SmallVec<[PartData; 1]>,
}

#[derive(Debug)]
pub struct TopicData {
    /// Up to version 12; empty after.
    pub name: StrBytes,
    /// From version 13 on; nil before.
    pub id: Uuid,
    /// How many of [`ProduceRequest::parts`] are this topic's.
    pub parts: usize,
}

#[derive(Debug)]
pub struct PartData {
    pub index: i32,
    pub records: Option<Bytes>,
}

impl ProduceRequest {
    pub fn read(request: &Request) -> Result<ProduceRequest, Malformed> {
        let version = request.version;
        let flexible = request.flexible();
        let mut r = request.body.clone();
        let transactional_id = r.nullable_string(flexible)?;
        let acks = r.i16()?;
        let timeout_ms = r.i32()?;
        let smallest_topic = if version >= 13 { 18 } else { 3 };
        let count = r.array(flexible, smallest_topic)?;
        let mut topics = SmallVec::with_capacity(count);
        let mut parts = SmallVec::new();
        for _ in 0..count {
            let (name, id) = if version >= 13 {
                (StrBytes::default(), r.uuid()?)
            } else {
                (r.string(flexible)?, Uuid::nil())
            };
            let count = r.array(flexible, if flexible { 6 } else { 8 })?;
            parts.reserve(count);
            for _ in 0..count {
                let index = r.i32()?;
                let records = r.nullable_bytes(flexible)?;
                r.skip_tags(flexible)?;
                parts.push(PartData { index, records });
            }
            r.skip_tags(flexible)?;
            topics.push(TopicData {
                name,
                id,
                parts: count,
            });
        }
        r.skip_tags(flexible)?;
        Ok(ProduceRequest {
            transactional_id,
            acks,
            timeout_ms,
            topics,
            parts,
        })
    }
}

/// A leader that the client may turn to instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    pub node: i32,
    pub epoch: i32,
}

/// Where a node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub node: i32,
    pub host: String,
    pub port: i32,
    pub rack: Option<String>,
}

/// The answer for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAnswer {
    pub error: ErrorCode,
    pub base_offset: i64,
    pub log_append_time_ms: i64,
    pub log_start_offset: i64,
    pub details: Option<Box<Details>>,
}

/// What seldom goes with an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub message: Option<Cow<'static, str>>,
    pub records: Vec<(i32, &'static str)>,
    pub leader: Option<LeaderHint>,
}

impl PartAnswer {
    pub fn error(error: ErrorCode) -> PartAnswer {
        PartAnswer {
            error,
            base_offset: -1,
            log_append_time_ms: -1,
            log_start_offset: -1,
            details: None,
        }
    }
}

/// Encodes the answer to `request`: `answers` holds one for each of its parts, in their order.
pub fn write(
    request: &Request,
    topics: &[TopicData],
    parts: &[PartData],
    answers: &[PartAnswer],
    endpoints: &[Endpoint],
    throttle_ms: u32,
) -> BytesMut {
    assert_eq!(parts.len(), answers.len(), "one answer per part");
    let version = request.version;
    let flexible = request.flexible();
    let names: usize = topics.iter().map(|t| t.name.len() + 24).sum();
    let mut out = request.answer(names + 48 * parts.len() + 16);
    // A topic without partitions is left out, as Kafka does.
    let topics = || topics.iter().filter(|t| t.parts > 0);
    out.put_array(topics().count(), flexible);
    let mut at = 0;
    for topic in topics() {
        if version >= 13 {
            out.put_slice(topic.id.as_bytes());
        } else {
            out.put_str(&topic.name, flexible);
        }
        out.put_array(topic.parts, flexible);
        for (part, answer) in parts[at..at + topic.parts].iter().zip(&answers[at..]) {
            write_part(&mut out, version, flexible, part.index, answer);
        }
        at += topic.parts;
        out.put_no_tags(flexible);
    }
    out.put_i32(i32::try_from(throttle_ms).unwrap_or(i32::MAX));
    if version >= 10 && !endpoints.is_empty() {
        write_endpoints(&mut out, endpoints);
    } else {
        out.put_no_tags(flexible);
    }
    out
}

fn write_part(out: &mut BytesMut, version: i16, flexible: bool, index: i32, answer: &PartAnswer) {
    out.put_i32(index);
    out.put_i16(answer.error.code());
    out.put_i64(answer.base_offset);
    out.put_i64(answer.log_append_time_ms);
    if version >= 5 {
        out.put_i64(answer.log_start_offset);
    }
    let details = answer.details.as_deref();
    if version >= 8 {
        let records = details.map_or(&[][..], |d| &d.records);
        out.put_array(records.len(), flexible);
        for (index, message) in records {
            out.put_i32(*index);
            out.put_nullable_str(Some(message), flexible);
            out.put_no_tags(flexible);
        }
        out.put_nullable_str(details.and_then(|d| d.message.as_deref()), flexible);
    }
    match details.and_then(|d| d.leader.as_ref()) {
        Some(leader) if version >= 10 => {
            out.put_u8(1);
            write_leader(out, 0, leader);
        }
        _ => out.put_no_tags(flexible),
    }
}

/// The tagged field `CurrentLeader`, of Produce and Fetch alike.
pub fn write_leader(out: &mut BytesMut, tag: u32, leader: &LeaderHint) {
    out.put_uvarint(tag);
    out.put_uvarint(9);
    out.put_i32(leader.node);
    out.put_i32(leader.epoch);
    out.put_u8(0);
}

/// The tags of an answer that has `NodeEndpoints` (tag 0 of Produce and of Fetch).
pub fn write_endpoints(out: &mut BytesMut, endpoints: &[Endpoint]) {
    let mut field = BytesMut::new();
    field.put_array(endpoints.len(), true);
    for endpoint in endpoints {
        field.put_i32(endpoint.node);
        field.put_str(&endpoint.host, true);
        field.put_i32(endpoint.port);
        field.put_nullable_str(endpoint.rack.as_deref(), true);
        field.put_u8(0);
    }
    out.reserve(2 + uvarint_bytes(field.len() as u32) + field.len());
    out.put_u8(1);
    out.put_uvarint(0);
    out.put_uvarint(field.len() as u32);
    out.put_slice(&field);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame, finish};
    use kafka_protocol::messages as m;
    use kafka_protocol::messages::produce_response as pr;
    use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};

    fn s(v: &'static str) -> StrBytes {
        StrBytes::from_static_str(v)
    }

    fn library_request(version: i16) -> m::ProduceRequest {
        let part = |index, records: Option<&'static [u8]>| {
            m::produce_request::PartitionProduceData::default()
                .with_index(index)
                .with_records(records.map(Bytes::from_static))
        };
        let topic = |name: &'static str, id, parts| {
            let t = m::produce_request::TopicProduceData::default().with_partition_data(parts);
            if version >= 13 {
                t.with_topic_id(Uuid::from_u128(id))
            } else {
                t.with_name(s(name).into())
            }
        };
        m::ProduceRequest::default()
            .with_transactional_id(Some(s("tx").into()))
            .with_acks(-1)
            .with_timeout_ms(1_500)
            .with_topic_data(vec![
                topic("orders", 7, vec![part(3, Some(b"batch")), part(1, None)]),
                topic("b", 8, vec![part(0, Some(b""))]),
                topic("empty", 9, vec![]),
            ])
    }

    fn request(version: i16, body: &[u8]) -> Request {
        let mut b = BytesMut::new();
        b.put_i16(0);
        b.put_i16(version);
        b.put_i32(42);
        b.put_str("me", false);
        b.put_no_tags(version >= 9);
        b.put_slice(body);
        match frame::parse(b.freeze()) {
            Ok(Frame::Request(r)) => r,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_of_every_version_are_read() {
        for version in 3..=13 {
            let mut body = BytesMut::new();
            library_request(version).encode(&mut body, version).unwrap();
            let request = request(version, &body);
            let read = ProduceRequest::read(&request).unwrap();
            assert_eq!(read.transactional_id.as_deref(), Some("tx"));
            assert_eq!((read.acks, read.timeout_ms), (-1, 1_500));
            let shape: Vec<_> = read.topics.iter().map(|t| t.parts).collect();
            assert_eq!(shape, [2, 1, 0]);
            if version >= 13 {
                assert_eq!(read.topics[1].id, Uuid::from_u128(8));
            } else {
                assert_eq!(&*read.topics[0].name, "orders");
            }
            let parts: Vec<_> = read
                .parts
                .iter()
                .map(|p| (p.index, p.records.as_deref()))
                .collect();
            assert_eq!(
                parts,
                [(3, Some(&b"batch"[..])), (1, None), (0, Some(&b""[..]))]
            );
            for cut in 0..body.len() {
                let cut = self::request(version, &body[..cut]);
                assert!(ProduceRequest::read(&cut).is_err());
            }
        }
    }

    #[test]
    fn answers_of_every_version_are_what_the_library_reads() {
        for version in 3..=13 {
            let mut body = BytesMut::new();
            library_request(version).encode(&mut body, version).unwrap();
            let request = request(version, &body);
            let read = ProduceRequest::read(&request).unwrap();
            let answers = [
                PartAnswer {
                    error: ErrorCode::None,
                    base_offset: 100,
                    log_append_time_ms: 5,
                    log_start_offset: 7,
                    details: None,
                },
                PartAnswer {
                    details: Some(Box::new(Details {
                        message: Some("no".into()),
                        records: vec![(2, "bad"), (4, "worse")],
                        leader: None,
                    })),
                    ..PartAnswer::error(ErrorCode::InvalidRecord)
                },
                PartAnswer {
                    details: Some(Box::new(Details {
                        leader: Some(LeaderHint { node: 2, epoch: 9 }),
                        ..Details::default()
                    })),
                    ..PartAnswer::error(ErrorCode::NotLeaderOrFollower)
                },
            ];
            let endpoints = [Endpoint {
                node: 2,
                host: "there".into(),
                port: 9_092,
                rack: None,
            }];
            let mut out = write(&request, &read.topics, &read.parts, &answers, &endpoints, 0);
            finish(&mut out, 0);
            let mut bytes = out.freeze();
            let length = i32::decode_be(&mut bytes);
            assert_eq!(length as usize, bytes.len());
            let header =
                m::ResponseHeader::decode(&mut bytes, m::ProduceResponse::header_version(version))
                    .unwrap();
            assert_eq!(header.correlation_id, 42);
            let got = m::ProduceResponse::decode(&mut bytes, version).unwrap();
            assert!(bytes.is_empty(), "version {version}");
            // Not the one without partitions.
            assert_eq!(got.responses.len(), 2);
            let one = &got.responses[0].partition_responses;
            assert_eq!((one[0].index, one[0].base_offset), (3, 100));
            assert_eq!(one[0].log_append_time_ms, 5);
            assert_eq!(one[0].log_start_offset, if version >= 5 { 7 } else { -1 });
            assert_eq!(one[1].error_code, 87);
            if version >= 8 {
                assert_eq!(one[1].record_errors[1].batch_index, 4);
                assert_eq!(one[1].error_message.as_deref(), Some("no"));
            }
            let other = &got.responses[1].partition_responses[0];
            assert_eq!(other.error_code, 6);
            if version >= 10 {
                let want = pr::LeaderIdAndEpoch::default()
                    .with_leader_id(2.into())
                    .with_leader_epoch(9);
                assert_eq!(other.current_leader, want);
                assert_eq!(got.node_endpoints[0].port, 9_092);
                assert_eq!(&*got.node_endpoints[0].host, "there");
            }
        }
    }

    trait DecodeBe {
        fn decode_be(bytes: &mut Bytes) -> i32;
    }
    impl DecodeBe for i32 {
        fn decode_be(bytes: &mut Bytes) -> i32 {
            use bytes::Buf;
            bytes.get_i32()
        }
    }

    use proptest::prelude::*;
    proptest! {
        #[test]
        fn any_body_is_answered(version in 3i16..=13, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ProduceRequest::read(&request(version, &body));
        }

        #[test]
        fn any_change_is_answered(version in 3i16..=13, at in any::<prop::sample::Index>(), with: u8) {
            let mut body = BytesMut::new();
            library_request(version).encode(&mut body, version).unwrap();
            let at = at.index(body.len());
            body[at] = with;
            let _ = ProduceRequest::read(&request(version, &body));
        }
    }
}
