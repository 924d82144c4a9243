//! The requests of the instrument, each in one version that has no compact fields and that Kafka speaks from 2.1 to 4.x.
//!
//! | request | version | used for |
//! |---|---|---|
//! | ApiVersions | 0 | to refuse a broker that lacks one of these |
//! | ListOffsets | 1 | whether a leader serves its partition yet |
//! | Metadata | 5 | who leads which partition |
//! | CreateTopics | 2 | the run's topics |
//! | DeleteTopics | 1 | the same, after it |
//! | Produce | 7 | one batch per partition and request |
//! | InitProducerId | 1 | ids of idempotent producers |
//! | Fetch | 11 | with fetch sessions (KIP-227) where the broker keeps them |

use crate::wire::{Frame, Malformed, Reader};
use crate::workload::Topics;

pub const PRODUCE: (i16, i16) = (0, 7);
pub const FETCH: (i16, i16) = (1, 11);
pub const LIST_OFFSETS: (i16, i16) = (2, 1);
pub const METADATA: (i16, i16) = (3, 5);
pub const API_VERSIONS: (i16, i16) = (18, 0);
pub const CREATE_TOPICS: (i16, i16) = (19, 2);
pub const DELETE_TOPICS: (i16, i16) = (20, 1);
pub const INIT_PRODUCER_ID: (i16, i16) = (22, 1);

/// Names of the error codes that a run may meet; others are shown by number.
pub fn error_name(code: i16) -> String {
    let name = match code {
        -1 => "UNKNOWN_SERVER_ERROR",
        1 => "OFFSET_OUT_OF_RANGE",
        2 => "CORRUPT_MESSAGE",
        3 => "UNKNOWN_TOPIC_OR_PARTITION",
        5 => "LEADER_NOT_AVAILABLE",
        6 => "NOT_LEADER_OR_FOLLOWER",
        7 => "REQUEST_TIMED_OUT",
        10 => "MESSAGE_TOO_LARGE",
        18 => "RECORD_LIST_TOO_LARGE",
        14 => "COORDINATOR_LOAD_IN_PROGRESS",
        15 => "COORDINATOR_NOT_AVAILABLE",
        19 => "NOT_ENOUGH_REPLICAS",
        20 => "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        29 => "TOPIC_AUTHORIZATION_FAILED",
        31 => "CLUSTER_AUTHORIZATION_FAILED",
        35 => "UNSUPPORTED_VERSION",
        36 => "TOPIC_ALREADY_EXISTS",
        37 => "INVALID_PARTITIONS",
        38 => "INVALID_REPLICATION_FACTOR",
        40 => "INVALID_CONFIG",
        41 => "NOT_CONTROLLER",
        42 => "INVALID_REQUEST",
        45 => "OUT_OF_ORDER_SEQUENCE_NUMBER",
        46 => "DUPLICATE_SEQUENCE_NUMBER",
        47 => "INVALID_PRODUCER_EPOCH",
        59 => "UNKNOWN_PRODUCER_ID",
        56 => "KAFKA_STORAGE_ERROR",
        70 => "FETCH_SESSION_ID_NOT_FOUND",
        71 => "INVALID_FETCH_SESSION_EPOCH",
        87 => "INVALID_RECORD",
        _ => return format!("error {code}"),
    };
    name.into()
}

/// Whether an error passes: the same may be sent again, perhaps to another broker.
pub fn passes(code: i16) -> bool {
    // No topic or leader yet, not the leader, timed out, network, replicas missing, the disk, a batch before this one missing.
    matches!(code, 3 | 5 | 6 | 7 | 13 | 19 | 20 | 45 | 56)
}

/// The broker has had this batch before: its answer was lost.
pub const DUPLICATE: i16 = 46;

fn begin(out: &mut Vec<u8>, api: (i16, i16), correlation: i32) -> Frame<'_> {
    Frame::begin(out, api.0, api.1, correlation)
}

pub fn api_versions(out: &mut Vec<u8>) {
    begin(out, API_VERSIONS, 0).end();
}

/// (key, lowest, highest version) of each request that the broker speaks.
pub fn read_api_versions(r: &mut Reader) -> Result<Vec<(i16, i16, i16)>, Malformed> {
    if r.i16()? != 0 {
        return Ok(Vec::new());
    }
    (0..r.count(6)?)
        .map(|_| Ok((r.i16()?, r.i16()?, r.i16()?)))
        .collect()
}

pub fn metadata(out: &mut Vec<u8>, topics: &[String]) {
    let mut f = begin(out, METADATA, 0);
    f.i32(topics.len() as i32);
    for topic in topics {
        f.string(topic);
    }
    f.i8(0); // no topic is created by asking
    f.end();
}

#[derive(Debug, Default)]
pub struct Metadata {
    /// Node id and address.
    pub brokers: Vec<(i32, String)>,
    pub cluster_id: Option<String>,
    /// Topic, and the leader of each partition (-1 for none).
    pub topics: Vec<(String, i16, Vec<i32>)>,
}

pub fn read_metadata(r: &mut Reader) -> Result<Metadata, Malformed> {
    let mut found = Metadata::default();
    r.i32()?;
    for _ in 0..r.count(12)? {
        let (id, host, port) = (r.i32()?, r.string()?, r.i32()?);
        r.nullable_string()?;
        found.brokers.push((id, format!("{host}:{port}")));
    }
    found.cluster_id = r.nullable_string()?.map(Into::into);
    r.i32()?;
    for _ in 0..r.count(9)? {
        let (error, name) = (r.i16()?, r.string()?.to_owned());
        r.i8()?;
        let count = r.count(22)?;
        let mut leaders = vec![-1; count];
        for _ in 0..count {
            let (_error, index, leader) = (r.i16()?, r.i32()?, r.i32()?);
            for _ in 0..3 {
                let nodes = r.count(4)?;
                r.bytes(4 * nodes)?;
            }
            let slot = usize::try_from(index).ok().and_then(|i| leaders.get_mut(i));
            *slot.ok_or(Malformed)? = leader;
        }
        found.topics.push((name, error, leaders));
    }
    Ok(found)
}

pub fn create_topics(out: &mut Vec<u8>, names: &[String], topics: &Topics, timeout_ms: i32) {
    let mut f = begin(out, CREATE_TOPICS, 0);
    f.i32(names.len() as i32);
    for name in names {
        f.string(name)
            .i32(topics.partitions)
            .i16(topics.replication)
            .i32(0);
        f.i32(topics.configs.len() as i32);
        for (key, value) in &topics.configs {
            f.string(key).string(value);
        }
    }
    f.i32(timeout_ms).i8(0);
    f.end();
}

/// Topic, error code, what the broker says.
pub fn read_create_topics(r: &mut Reader) -> Result<Vec<(String, i16, String)>, Malformed> {
    r.i32()?;
    (0..r.count(6)?)
        .map(|_| {
            let (name, error) = (r.string()?.to_owned(), r.i16()?);
            Ok((name, error, r.nullable_string()?.unwrap_or("").to_owned()))
        })
        .collect()
}

pub fn delete_topics(out: &mut Vec<u8>, names: &[String], timeout_ms: i32) {
    let mut f = begin(out, DELETE_TOPICS, 0);
    f.i32(names.len() as i32);
    for name in names {
        f.string(name);
    }
    f.i32(timeout_ms);
    f.end();
}

/// Topic and error code.
pub fn read_delete_topics(r: &mut Reader) -> Result<Vec<(String, i16)>, Malformed> {
    r.i32()?;
    (0..r.count(4)?)
        .map(|_| Ok((r.string()?.to_owned(), r.i16()?)))
        .collect()
}

/// Asks for the id of a producer without transactions.
pub fn init_producer_id(out: &mut Vec<u8>) {
    let mut f = begin(out, INIT_PRODUCER_ID, 0);
    f.i16(-1).i32(60_000);
    f.end();
}

/// Error code, producer id and epoch.
pub fn read_init_producer_id(r: &mut Reader) -> Result<(i16, i64, i16), Malformed> {
    r.i32()?;
    Ok((r.i16()?, r.i64()?, r.i16()?))
}

/// Asks for the end of partitions: their topic and index, topics together.
pub fn list_offsets(out: &mut Vec<u8>, partitions: &[(&str, i32)]) {
    let mut f = begin(out, LIST_OFFSETS, 0);
    f.i32(-1);
    let same = |a: &(&str, i32), b: &(&str, i32)| a.0 == b.0;
    f.i32(partitions.chunk_by(same).count() as i32);
    for topic in partitions.chunk_by(same) {
        f.string(topic[0].0).i32(topic.len() as i32);
        for (_, index) in topic {
            f.i32(*index).i64(-1);
        }
    }
    f.end();
}

/// The error code of each partition asked for.
pub fn read_list_offsets(r: &mut Reader) -> Result<Vec<i16>, Malformed> {
    let mut errors = Vec::new();
    for _ in 0..r.count(6)? {
        r.string()?;
        for _ in 0..r.count(22)? {
            r.i32()?;
            errors.push(r.i16()?);
            r.bytes(16)?; // timestamp and offset
        }
    }
    Ok(errors)
}

/// A produce request of one topic, partition by partition. Requests of several topics repeat the topic part.
pub struct Produce<'a> {
    frame: Frame<'a>,
}

impl<'a> Produce<'a> {
    pub fn begin(out: &'a mut Vec<u8>, correlation: i32, acks: i16, topics: usize) -> Produce<'a> {
        let mut frame = begin(out, PRODUCE, correlation);
        frame
            .i16(-1)
            .i16(acks)
            .i32(crate::limits::PRODUCE_TIMEOUT_MS)
            .i32(topics as i32);
        Produce { frame }
    }

    pub fn topic(&mut self, name: &str, partitions: usize) {
        self.frame.string(name).i32(partitions as i32);
    }

    pub fn partition(&mut self, index: i32, batch: &[u8]) {
        self.frame.i32(index).bytes(batch);
    }

    pub fn end(self) {
        self.frame.end();
    }
}

/// Calls `partition(topic, index, error)` for every partition of a produce answer.
pub fn read_produce(
    r: &mut Reader,
    mut partition: impl FnMut(&str, i32, i16),
) -> Result<(), Malformed> {
    for _ in 0..r.count(6)? {
        let topic = r.string()?;
        for _ in 0..r.count(30)? {
            let (index, error) = (r.i32()?, r.i16()?);
            r.bytes(24)?; // base offset, append time, log start
            partition(topic, index, error);
        }
    }
    r.i32()?;
    Ok(())
}

/// What a fetch asks of one partition.
#[derive(Clone, Copy, Debug)]
pub struct FetchPartition {
    pub index: i32,
    pub offset: i64,
}

/// A fetch of a session: `session` and `epoch` are 0 to begin one. `topics` gives each topic with what is asked of it.
pub fn fetch(
    out: &mut Vec<u8>,
    correlation: i32,
    session: i32,
    epoch: i32,
    topics: &[(&str, Vec<FetchPartition>)],
) {
    let mut f = begin(out, FETCH, correlation);
    f.i32(-1)
        .i32(crate::limits::FETCH_WAIT_MS)
        .i32(1)
        .i32(crate::limits::FETCH_BYTES)
        .i8(0);
    f.i32(session).i32(epoch).i32(topics.len() as i32);
    for (name, partitions) in topics {
        f.string(name).i32(partitions.len() as i32);
        for p in partitions {
            f.i32(p.index)
                .i32(-1)
                .i64(p.offset)
                .i64(-1)
                .i32(crate::limits::FETCH_PARTITION_BYTES);
        }
    }
    f.i32(0).string("");
    f.end();
}

/// The head of a fetch answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub error: i16,
    pub session: i32,
}

/// Calls `partition(topic, index, error, records)` for every partition of a fetch answer.
pub fn read_fetch(
    r: &mut Reader,
    mut partition: impl FnMut(&str, i32, i16, &[u8]),
) -> Result<Fetched, Malformed> {
    r.i32()?;
    let head = Fetched {
        error: r.i16()?,
        session: r.i32()?,
    };
    for _ in 0..r.count(6)? {
        let topic = r.string()?;
        for _ in 0..r.count(42)? {
            let (index, error) = (r.i32()?, r.i16()?);
            r.bytes(24)?; // high watermark, last stable offset, log start
            let aborted = r.count(16)?;
            r.bytes(16 * aborted)?;
            r.i32()?;
            partition(topic, index, error, r.nullable_bytes()?.unwrap_or(&[]));
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Buf, Bytes};
    use kafka_protocol::messages::*;
    use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
    use proptest::prelude::*;

    /// Takes the frame's length and header off and decodes the rest with a decoder that isn't ours.
    fn decoded<T: Decodable>(out: &[u8], api: (i16, i16)) -> T {
        let mut bytes = Bytes::copy_from_slice(out);
        assert_eq!(bytes.get_i32() as usize, out.len() - 4);
        let header = RequestHeader::decode(&mut bytes, 1).unwrap();
        assert_eq!((header.request_api_key, header.request_api_version), api);
        let body = T::decode(&mut bytes, api.1).unwrap();
        assert!(bytes.is_empty(), "nothing is left over");
        body
    }

    fn encoded<T: Encodable>(body: &T, api: (i16, i16)) -> Vec<u8> {
        let mut out = Vec::new();
        body.encode(&mut out, api.1).unwrap();
        out
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("t{i}")).collect()
    }

    #[test]
    fn requests_are_what_the_protocol_says() {
        let mut out = Vec::new();
        metadata(&mut out, &names(3));
        let m: MetadataRequest = decoded(&out, METADATA);
        assert_eq!(m.topics.unwrap().len(), 3);
        assert!(!m.allow_auto_topic_creation);

        out.clear();
        let topics = Topics {
            configs: [("a".to_owned(), "b".to_owned())].into(),
            ..Topics::default()
        };
        create_topics(&mut out, &names(2), &topics, 5);
        let c: CreateTopicsRequest = decoded(&out, CREATE_TOPICS);
        assert_eq!(
            (
                c.topics.len(),
                c.topics[1].num_partitions,
                c.topics[0].configs.len(),
                c.timeout_ms
            ),
            (2, 12, 1, 5)
        );

        out.clear();
        delete_topics(&mut out, &names(2), 5);
        assert_eq!(
            decoded::<DeleteTopicsRequest>(&out, DELETE_TOPICS)
                .topic_names
                .len(),
            2
        );

        out.clear();
        list_offsets(&mut out, &[("t0", 0), ("t0", 3), ("t1", 1)]);
        let l: ListOffsetsRequest = decoded(&out, LIST_OFFSETS);
        let counts: Vec<usize> = l.topics.iter().map(|t| t.partitions.len()).collect();
        assert_eq!(counts, [2, 1]);
        assert_eq!(l.topics[0].partitions[1].partition_index, 3);
        assert_eq!(l.topics[0].partitions[1].timestamp, -1);

        out.clear();
        api_versions(&mut out);
        decoded::<ApiVersionsRequest>(&out, API_VERSIONS);

        out.clear();
        let mut p = Produce::begin(&mut out, 9, -1, 2);
        p.topic("t0", 2);
        p.partition(0, b"abc");
        p.partition(5, b"d");
        p.topic("t1", 1);
        p.partition(1, b"");
        p.end();
        let p: ProduceRequest = decoded(&out, PRODUCE);
        assert_eq!(
            (
                p.acks,
                p.topic_data.len(),
                p.topic_data[0].partition_data[1].index
            ),
            (-1, 2, 5)
        );
        assert_eq!(
            p.topic_data[0].partition_data[0].records.as_deref(),
            Some(&b"abc"[..])
        );

        out.clear();
        fetch(
            &mut out,
            9,
            7,
            8,
            &[(
                "t0",
                vec![FetchPartition {
                    index: 3,
                    offset: 11,
                }],
            )],
        );
        let f: FetchRequest = decoded(&out, FETCH);
        assert_eq!((f.session_id, f.session_epoch, f.min_bytes), (7, 8, 1));
        assert_eq!(f.topics[0].partitions[0].fetch_offset, 11);
    }

    #[test]
    fn answers_are_read_as_the_protocol_says() {
        let topic = |name: &str| TopicName(StrBytes::from_string(name.to_owned()));
        let body = MetadataResponse::default()
            .with_cluster_id(Some(StrBytes::from_static_str("c")))
            .with_brokers(vec![
                metadata_response::MetadataResponseBroker::default()
                    .with_node_id(BrokerId(3))
                    .with_host(StrBytes::from_static_str("h"))
                    .with_port(9),
            ])
            .with_topics(vec![
                metadata_response::MetadataResponseTopic::default()
                    .with_name(Some(topic("t")))
                    .with_partitions(vec![
                        metadata_response::MetadataResponsePartition::default()
                            .with_partition_index(1)
                            .with_leader_id(BrokerId(3))
                            .with_replica_nodes(vec![BrokerId(3)]),
                        metadata_response::MetadataResponsePartition::default()
                            .with_leader_id(BrokerId(-1)),
                    ]),
            ]);
        let found = read_metadata(&mut Reader(&encoded(&body, METADATA))).unwrap();
        assert_eq!(found.brokers, [(3, "h:9".to_owned())]);
        assert_eq!(found.topics, [("t".to_owned(), 0, vec![-1, 3])]);

        let body = ProduceResponse::default().with_responses(vec![
            produce_response::TopicProduceResponse::default()
                .with_name(topic("t"))
                .with_partition_responses(vec![
                    produce_response::PartitionProduceResponse::default()
                        .with_index(4)
                        .with_error_code(6)
                        .with_base_offset(12),
                ]),
        ]);
        let mut seen = Vec::new();
        read_produce(&mut Reader(&encoded(&body, PRODUCE)), |t, i, e| {
            seen.push((t.to_owned(), i, e))
        })
        .unwrap();
        assert_eq!(seen, [("t".to_owned(), 4, 6)]);

        let body = FetchResponse::default()
            .with_session_id(77)
            .with_responses(vec![
                fetch_response::FetchableTopicResponse::default()
                    .with_topic(topic("t"))
                    .with_partitions(vec![
                        fetch_response::PartitionData::default()
                            .with_partition_index(4)
                            .with_aborted_transactions(Some(vec![
                                fetch_response::AbortedTransaction::default(),
                            ]))
                            .with_records(Some(Bytes::from_static(b"xyz"))),
                    ]),
            ]);
        let mut seen = Vec::new();
        let head = read_fetch(&mut Reader(&encoded(&body, FETCH)), |t, i, e, r| {
            seen.push((t.to_owned(), i, e, r.to_vec()))
        });
        assert_eq!(
            head,
            Ok(Fetched {
                error: 0,
                session: 77
            })
        );
        assert_eq!(seen, [("t".to_owned(), 4, 0, b"xyz".to_vec())]);

        let body = CreateTopicsResponse::default().with_topics(vec![
            create_topics_response::CreatableTopicResult::default()
                .with_name(topic("t"))
                .with_error_code(36)
                .with_error_message(Some(StrBytes::from_static_str("there"))),
        ]);
        let found = read_create_topics(&mut Reader(&encoded(&body, CREATE_TOPICS))).unwrap();
        assert_eq!(found, [("t".to_owned(), 36, "there".to_owned())]);

        let body = DeleteTopicsResponse::default().with_responses(vec![
            delete_topics_response::DeletableTopicResult::default()
                .with_name(Some(topic("t")))
                .with_error_code(3),
        ]);
        let found = read_delete_topics(&mut Reader(&encoded(&body, DELETE_TOPICS))).unwrap();
        assert_eq!(found, [("t".to_owned(), 3)]);

        let body = ListOffsetsResponse::default().with_topics(vec![
            list_offsets_response::ListOffsetsTopicResponse::default()
                .with_name(topic("t"))
                .with_partitions(vec![
                    list_offsets_response::ListOffsetsPartitionResponse::default()
                        .with_error_code(6)
                        .with_offset(9),
                    list_offsets_response::ListOffsetsPartitionResponse::default(),
                ]),
        ]);
        assert_eq!(
            read_list_offsets(&mut Reader(&encoded(&body, LIST_OFFSETS))),
            Ok(vec![6, 0])
        );

        let body = ApiVersionsResponse::default().with_api_keys(vec![
            api_versions_response::ApiVersion::default()
                .with_api_key(1)
                .with_min_version(4)
                .with_max_version(18),
        ]);
        let found = read_api_versions(&mut Reader(&encoded(&body, API_VERSIONS))).unwrap();
        assert_eq!(found, [(1, 4, 18)]);
    }

    proptest! {
        /// Answers come from a socket: no panic and no great allocation, whatever they are.
        #[test]
        fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_api_versions(&mut Reader(&bytes));
            let _ = read_metadata(&mut Reader(&bytes));
            let _ = read_create_topics(&mut Reader(&bytes));
            let _ = read_delete_topics(&mut Reader(&bytes));
            let _ = read_list_offsets(&mut Reader(&bytes));
            let _ = read_produce(&mut Reader(&bytes), |_, _, _| {});
            let _ = read_fetch(&mut Reader(&bytes), |_, _, _, _| {});
        }
    }
}
