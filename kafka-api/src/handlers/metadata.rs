//! Metadata, key 3, versions 0-13.
//!
//! Answered from the shard's own copy. Version 0 asks for all topics with an empty list, later ones with null. Topics that are asked for by name and
//! aren't there are made, if node and client allow it (clients can say no from version 4 on), and are there when they are asked for again ([`auto_create`]). From 10 on topics have ids, from 12 on they can be
//! asked for by id, which before is INVALID_REQUEST. What is named twice is answered once, as in Kafka: a request of a megabyte could else ask for a large topic a hundred thousand times. The answer is
//! written by hand, partition by partition, once there is memory for all of it. Authorized operations are told to who asks for them, from version 8 on, and are all of them: there are no authorizations yet. The controller is told to be the node that is
//! asked: admin requests are served anywhere.

use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use cluster::topic_name;
use cluster::view::Topic;
use engine::rt;
use engine::types::{ShardId, TopicId};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use uuid::Uuid;

use crate::error::{ErrorCode, Malformed};
use crate::faces::Faces;
use crate::frame::{Request, finish};
use crate::groups::topic as offsets;
use crate::handlers::describe_cluster::CLUSTER_OPERATIONS;
use crate::handlers::describe_cluster::OPERATIONS_NOT_TOLD;
use crate::handlers::describe_topic_partitions::TOPIC_OPERATIONS;
use crate::handlers::produce::wire::Endpoint;
use crate::handlers::{Answer, auto_create, memory_for};
use crate::limits;
use crate::refusals::Refusals;
use crate::schema;
use crate::shard::{Map, Shard, map};
use crate::wire::Writer;

/// How long an answer waits for the leaders of topics that it created.
const LEADERS_WAIT: Duration = Duration::from_secs(1);
const LEADERS_LOOK: Duration = Duration::from_millis(2);
/// Partitions that are written before other tasks may get a turn.
const PARTITIONS_A_TURN: usize = 128;

/// What is told of one topic.
enum Told {
    Topic(Rc<Topic>),
    Missing {
        name: Option<TopicName>,
        id: Uuid,
        error: ErrorCode,
    },
}

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let version = request.version;
    let asked: MetadataRequest = schema::decode(request, version)?;
    if (10..12).contains(&version)
        && let Some(topics) = &asked.topics
        && topics
            .iter()
            .any(|t| !t.topic_id.is_nil() || t.name.is_none())
    {
        return Answer::encode(shard, request, &too_early(topics), version).await;
    }
    let mut told = Vec::new();
    match asked.topics {
        None => told.extend(shard.view.topics().into_iter().map(Told::Topic)),
        Some(topics) if topics.is_empty() && version == 0 => {
            told.extend(shard.view.topics().into_iter().map(Told::Topic));
        }
        Some(topics) => {
            let may_create = (version < 4 || asked.allow_auto_topic_creation)
                && shard.config.broker.auto_create_topics;
            let mut created = 0;
            for (name, id) in once_each(topics, version) {
                told.push(match name {
                    Some(name) => find(shard, name, may_create, &mut created).await,
                    None => by_id(shard, id),
                });
                rt::yield_if_needed().await;
            }
        }
    }
    let out = Out {
        version,
        flexible: request.flexible(),
        cluster_operations: match asked.include_cluster_authorized_operations {
            true => CLUSTER_OPERATIONS,
            false => OPERATIONS_NOT_TOLD,
        },
        topic_operations: match asked.include_topic_authorized_operations {
            true => TOPIC_OPERATIONS,
            false => OPERATIONS_NOT_TOLD,
        },
    };
    let faces = shard.faces();
    let brokers = faces.all();
    let cluster_id = shard.view.cluster_id().map(|id| id.to_string());
    let bytes = bytes_of(&brokers, &told);
    let memory = memory_for(shard, bytes).await;
    let head = request.answer(bytes);
    // Changes of the metadata are made on shard 0.
    let controller = faces.of_shard(shard.node, ShardId(0));
    let (answer, refusals) = out
        .write(
            head,
            (&faces, &brokers),
            cluster_id.as_deref(),
            controller,
            &told,
            &async || rt::yield_if_needed().await,
        )
        .await;
    Ok(Answer {
        refusals,
        ..Answer::held(answer, memory)
    })
}

/// The answer to a question by id in a version that has ids, but asks by name: INVALID_REQUEST for all of it.
pub(crate) fn too_early(topics: &[MetadataRequestTopic]) -> MetadataResponse {
    let rows = topics.iter().map(|t| {
        MetadataResponseTopic::default()
            // The version's answers have no null names.
            .with_name(Some(t.name.clone().unwrap_or_default()))
            .with_topic_id(t.topic_id)
            .with_error_code(ErrorCode::InvalidRequest.code())
    });
    MetadataResponse::default().with_topics(rows.collect())
}

/// What is asked for, each once, as Kafka answers: one id is enough, and names stand for nothing.
pub(crate) fn once_each(
    topics: Vec<MetadataRequestTopic>,
    version: i16,
) -> impl Iterator<Item = (Option<TopicName>, Uuid)> {
    let by_id = version >= 12 && topics.iter().any(|t| !t.topic_id.is_nil());
    let mut named: Map<(Option<TopicName>, Uuid), ()> = map();
    for topic in topics {
        match topic.name {
            _ if by_id && topic.topic_id.is_nil() => {}
            Some(name) if !by_id => {
                named.insert((Some(name), Uuid::nil()), ());
            }
            _ => {
                named.insert((None, topic.topic_id), ());
            }
        }
    }
    named.into_keys()
}

fn by_id(shard: &Shard, id: Uuid) -> Told {
    match shard.view.topic_by_id(TopicId(id)) {
        Some(topic) => Told::Topic(topic),
        None => Told::Missing {
            name: None,
            id,
            error: ErrorCode::UnknownTopicId,
        },
    }
}

async fn find(shard: &Rc<Shard>, name: TopicName, may_create: bool, created: &mut usize) -> Told {
    let missing = |error| Told::Missing {
        name: Some(name.clone()),
        id: Uuid::nil(),
        error,
    };
    if shard.making.has(&name) {
        return missing(ErrorCode::UnknownTopicOrPartition);
    }
    if let Some(topic) = shard.view.topic(&name) {
        return Told::Topic(topic);
    }
    if topic_name::check(&name).is_err() {
        return missing(ErrorCode::InvalidTopic);
    }
    if !may_create || *created >= limits::AUTO_CREATE_TOPICS {
        return missing(ErrorCode::UnknownTopicOrPartition);
    }
    *created += 1;
    missing(auto_create::make(shard, &name).await)
}

/// Waits a little until a new topic's partitions have leaders.
pub(crate) async fn wait_for_leaders(shard: &Shard, name: &str) {
    let led = || {
        shard.view.topic(name).is_some_and(|t| {
            (0..t.partitions.len()).all(|p| t.leader(p as i32).is_some_and(|l| l.node.is_some()))
        })
    };
    let wait = async {
        while !led() {
            rt::sleep(LEADERS_LOOK).await;
        }
    };
    let _ = rt::timeout(LEADERS_WAIT, wait).await;
}

/// Bytes that an answer takes, at most.
fn bytes_of(brokers: &[Endpoint], told: &[Told]) -> usize {
    let brokers = brokers
        .iter()
        .map(|b| 24 + b.host.len() + b.rack.as_ref().map_or(0, String::len));
    let topics = told.iter().map(|t| match t {
        Told::Topic(t) => {
            let parts = t.partitions.iter();
            40 + t.name.len() + parts.map(|p| 30 + 8 * p.replicas.len()).sum::<usize>()
        }
        Told::Missing { name, .. } => 40 + name.as_ref().map_or(0, |n| n.len()),
    });
    96 + brokers.sum::<usize>() + topics.sum::<usize>()
}

/// How an answer is written.
#[derive(Clone, Copy)]
struct Out {
    version: i16,
    flexible: bool,
    cluster_operations: i32,
    topic_operations: i32,
}

impl Out {
    /// Writes the answer behind its header; `turn` lets other tasks run.
    async fn write(
        self,
        mut out: BytesMut,
        (faces, brokers): (&Faces, &[Endpoint]),
        cluster_id: Option<&str>,
        controller: i32,
        told: &[Told],
        turn: &impl AsyncFn(),
    ) -> (Bytes, Refusals) {
        let (version, flexible) = (self.version, self.flexible);
        if version >= 3 {
            out.put_i32(0);
        }
        out.put_array(brokers.len(), flexible);
        for broker in brokers {
            out.put_i32(broker.node);
            out.put_str(&broker.host, flexible);
            out.put_i32(broker.port);
            if version >= 1 {
                out.put_nullable_str(broker.rack.as_deref(), flexible);
            }
            out.put_no_tags(flexible);
        }
        if version >= 2 {
            out.put_nullable_str(cluster_id, flexible);
        }
        if version >= 1 {
            out.put_i32(controller);
        }
        let mut refusals = Refusals::default();
        out.put_array(told.len(), flexible);
        for topic in told {
            self.topic(&mut out, faces, topic, &mut refusals, turn)
                .await;
            turn().await;
        }
        if (8..=10).contains(&version) {
            out.put_i32(self.cluster_operations);
        }
        if version >= 13 {
            out.put_i16(0);
        }
        out.put_no_tags(flexible);
        finish(&mut out, 0);
        (out.freeze(), refusals)
    }

    async fn topic(
        self,
        out: &mut BytesMut,
        faces: &Faces,
        told: &Told,
        refusals: &mut Refusals,
        turn: &impl AsyncFn(),
    ) {
        let (version, flexible) = (self.version, self.flexible);
        let (error, name, id) = match told {
            Told::Topic(topic) => (ErrorCode::None, Some(&*topic.name), topic.id.0),
            Told::Missing { name, id, error } => (*error, name.as_ref().map(|n| &***n), *id),
        };
        refusals.note(error.code());
        out.put_i16(error.code());
        if version >= 12 {
            out.put_nullable_str(name, flexible);
        } else {
            out.put_str(name.unwrap_or_default(), flexible);
        }
        if version >= 10 {
            out.put_slice(id.as_bytes());
        }
        let topic = match told {
            Told::Topic(topic) => Some(topic),
            Told::Missing { .. } => None,
        };
        if version >= 1 {
            out.put_u8(
                topic
                    .is_some_and(|t| offsets::INTERNAL.contains(&&*t.name))
                    .into(),
            );
        }
        out.put_array(topic.map_or(0, |t| t.partitions.len()), flexible);
        for p in 0..topic.map_or(0, |t| t.partitions.len()) {
            if let Some(topic) = topic {
                self.partition(out, faces, topic, p, refusals);
            }
            if p % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1 {
                turn().await;
            }
        }
        if version >= 8 {
            // Of an id that no topic has there is nothing to tell.
            out.put_i32(match name {
                Some(_) => self.topic_operations,
                None => OPERATIONS_NOT_TOLD,
            });
        }
        out.put_no_tags(flexible);
    }

    fn partition(
        self,
        out: &mut BytesMut,
        faces: &Faces,
        topic: &Topic,
        p: usize,
        refusals: &mut Refusals,
    ) {
        let (version, flexible) = (self.version, self.flexible);
        let group = topic.group(p as i32);
        let leader = topic.leader(p as i32);
        let node = leader.and_then(|l| l.node);
        let error = match node {
            Some(_) => ErrorCode::None,
            None => ErrorCode::LeaderNotAvailable,
        };
        refusals.note(error.code());
        out.put_i16(error.code());
        out.put_i32(p as i32);
        out.put_i32(node.map_or(-1, |n| faces.of(n, group)));
        if version >= 7 {
            out.put_i32(leader.map_or(-1, |l| l.epoch().0));
        }
        let replicas = &topic.partitions[p].replicas;
        // All of them, and those in sync.
        for _ in 0..2 {
            out.put_array(replicas.len(), flexible);
            for replica in replicas {
                out.put_i32(faces.of(replica.node, group));
            }
        }
        if version >= 5 {
            out.put_array(0, flexible);
        }
        out.put_no_tags(flexible);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame};
    use crate::testing;
    use crate::versions::ApiKey;
    use std::cell::Cell;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use bytes::Buf;
    use cluster::metadata::{Change, Partition, Replica, Topic as Placed};
    use engine::types::{NodeId, ReplicaId};
    use kafka_protocol::messages::ResponseHeader;
    use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
    use proptest::prelude::*;

    fn name(n: &str) -> TopicName {
        StrBytes::from_string(n.to_string()).into()
    }

    #[test]
    fn ids_before_their_version_are_refused_with_all_that_is_asked() {
        for version in 10..12 {
            let named = MetadataRequestTopic::default().with_name(Some(name("t")));
            let by_id = MetadataRequestTopic::default()
                .with_topic_id(Uuid::from_u128(5))
                .with_name(None);
            let response = too_early(&[named, by_id]);
            assert!(response.topics.iter().all(|t| t.error_code == 42));
            let mut out = BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }

    #[test]
    fn answers_of_every_version_are_what_the_library_reads() {
        for version in 0..=13 {
            let frame = testing::frame(ApiKey::Metadata, version);
            let Ok(Frame::Request(request)) = frame::parse(frame) else {
                panic!("a good frame");
            };
            let told = [
                Told::Missing {
                    name: Some(name("t")),
                    id: Uuid::nil(),
                    error: ErrorCode::UnknownTopicOrPartition,
                },
                Told::Missing {
                    name: None,
                    id: Uuid::from_u128(5),
                    error: ErrorCode::UnknownTopicId,
                },
                Told::Topic(topic(1_000)),
            ];
            let out = Out {
                version,
                flexible: request.flexible(),
                cluster_operations: 7,
                topic_operations: 9,
            };
            let bytes = bytes_of(&[], &told);
            let head = request.answer(bytes);
            let turns = Cell::new(0);
            let turn = async || turns.set(turns.get() + 1);
            let faces = Faces::new(std::rc::Rc::from([]), false, NodeId(1), 1);
            let brokers = (&faces, [].as_slice());
            let mut written = Box::pin(out.write(head, brokers, Some("cluster"), 4, &told, &turn));
            let mut cx = Context::from_waker(Waker::noop());
            let Poll::Ready((mut answer, refusals)) = written.as_mut().poll(&mut cx) else {
                panic!("nothing waits here");
            };
            assert!(turns.get() >= 1_000 / PARTITIONS_A_TURN);
            assert!(answer.len() <= bytes, "version {version}");
            assert!(!refusals.is_empty());
            assert_eq!(answer.get_i32() as usize, answer.len());
            let header = MetadataResponse::header_version(version);
            ResponseHeader::decode(&mut answer, header).unwrap();
            let got = MetadataResponse::decode(&mut answer, version).unwrap();
            assert!(answer.is_empty(), "version {version}");
            let codes: Vec<i16> = got.topics.iter().map(|t| t.error_code).collect();
            assert_eq!(codes, [3, 100, 0]);
            let all = &got.topics[2];
            assert_eq!(all.name, Some(name("placed")));
            assert_eq!(all.partitions.len(), 1_000);
            let part = &all.partitions[999];
            assert_eq!((part.partition_index, part.error_code), (999, 5));
            assert_eq!(part.replica_nodes, [1i32, 2]);
            assert_eq!(part.isr_nodes, [1i32, 2]);
            if version >= 1 {
                assert_eq!(i32::from(got.controller_id), 4);
            }
            if version >= 8 {
                assert_eq!(all.topic_authorized_operations, 9);
            }
            if version >= 10 {
                assert_eq!(all.topic_id, Uuid::from_u128(6));
            }
        }
    }

    fn topic(partitions: usize) -> Rc<Topic> {
        let view = cluster::view::View::new(NodeId(1));
        let replica = |node| Replica {
            node: NodeId(node),
            id: ReplicaId(node as u64),
        };
        let placed = Partition {
            replicas: vec![replica(1), replica(2)],
        };
        view.apply(&Change::TopicCreated(Placed {
            id: TopicId(Uuid::from_u128(6)),
            name: "placed".into(),
            partitions: vec![placed; partitions],
            configs: Default::default(),
            config_version: 0,
        }));
        view.topic("placed").expect("it was just put there")
    }

    proptest! {
        #[test]
        fn what_is_named_twice_is_asked_for_once(picks in proptest::collection::vec((0..3u8, 0..3u128), 0..50), version in 0i16..=13) {
            let asked = |&(n, id): &(u8, u128)| MetadataRequestTopic::default()
                .with_name((n > 0).then(|| name(&n.to_string())))
                .with_topic_id(Uuid::from_u128(id));
            let asked: Vec<_> = picks.iter().map(asked).collect();
            let got: Vec<_> = once_each(asked, version).collect();
            for (at, one) in got.iter().enumerate() {
                prop_assert!(!got[..at].contains(one));
            }
            let by_id = version >= 12 && picks.iter().any(|p| p.1 > 0);
            for (n, id) in picks {
                let wanted = match n {
                    _ if by_id && id == 0 => continue,
                    1.. if !by_id => (Some(name(&n.to_string())), Uuid::nil()),
                    _ => (None, Uuid::from_u128(id)),
                };
                prop_assert!(got.contains(&wanted));
            }
        }
    }
}
