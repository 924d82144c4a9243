//! Producers: idempotent ones, which send what was not answered again and again, also to the next process; and those with acks=1, which send everything once.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use engine::rt;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

use super::known::{Id, Outside, Place, TOPICS, places};
use super::wire::{Connection, Gone};
use super::{chance, connect, draw, pause};

/// Batches of a partition that an idempotent producer has under way, as with Kafka's `max.in.flight.requests.per.connection`.
const IN_FLIGHT: usize = 5;

pub struct Batch {
    ids: Vec<Id>,
    bytes: Bytes,
    sent: u32,
}

#[derive(Default)]
struct Lane {
    next_n: u64,
    next_sequence: i32,
    pending: VecDeque<Batch>,
}

/// What an idempotent producer must not forget.
#[derive(Default)]
pub struct Idempotent {
    number: u32,
    id: Option<(i64, i16)>,
    lanes: BTreeMap<Place, Lane>,
}

impl Idempotent {
    pub fn new(number: u32) -> Idempotent {
        Idempotent {
            number,
            ..Idempotent::default()
        }
    }

    fn add(&mut self, outside: &Outside) {
        let all: Vec<Place> = places()
            .filter(|p| outside.topics[p.0].there.get())
            .collect();
        for place in all {
            let lane = self.lanes.entry(place).or_default();
            for _ in 0..draw(4).saturating_sub(1) {
                if lane.pending.len() == IN_FLIGHT {
                    break;
                }
                let ids: Vec<Id> = (0..1 + draw(4))
                    .map(|i| Id {
                        producer: self.number,
                        stream: 0,
                        n: lane.next_n + i,
                    })
                    .collect();
                let (pid, epoch) = self.id.expect("it has one before it sends");
                let bytes = batch(outside, &ids, Some((pid, epoch, lane.next_sequence)));
                let mut log = outside.log(place);
                for id in &ids {
                    log.sends(*id);
                    log.open.insert(*id);
                }
                lane.next_n += ids.len() as u64;
                lane.next_sequence += ids.len() as i32;
                lane.pending.push_back(Batch {
                    ids,
                    bytes,
                    sent: 0,
                });
            }
        }
    }

    /// The next batch of every partition that has so many, as one request.
    fn request(&mut self, nth: usize, outside: &Outside) -> Vec<(Place, Bytes)> {
        let mut parts = Vec::new();
        for (place, lane) in &mut self.lanes {
            if let Some(batch) = lane.pending.get_mut(nth) {
                outside.count(|c| c.resent += u64::from(batch.sent > 0));
                batch.sent += 1;
                parts.push((*place, batch.bytes.clone()));
            }
        }
        parts
    }

    /// Takes the answer for the oldest batch of a partition that has none. False when it must be sent again.
    fn answered(
        &mut self,
        outside: &Outside,
        place: Place,
        code: i16,
        base: i64,
        refused: bool,
    ) -> bool {
        let lane = self.lanes.get_mut(&place).expect("it was asked");
        let first = lane.pending.front().expect("an answer is to a batch");
        match code {
            // None, and what was taken before.
            0 | 46 => {
                assert!(
                    !refused,
                    "{place:?}: a batch is taken behind one that was refused: {:?}",
                    first.ids
                );
                let batch = lane.pending.pop_front().expect("just seen");
                let mut repeat = false;
                for (id, i) in batch.ids.iter().zip(0..) {
                    let offset = (code == 0 && base >= 0).then_some(base + i);
                    repeat |= outside.log(place).acknowledge(place, offset, *id);
                }
                outside.count(|c| c.duplicates += u64::from(repeat && batch.sent > 1));
                true
            }
            45 if refused => false,
            _ if transient(code) => false,
            _ => panic!(
                "{place:?}: {:?} sent {} times is refused: {code}",
                first.ids, first.sent
            ),
        }
    }
}

/// Not now: unknown topic, not leader, timed out, not enough replicas, storage, unknown topic id.
fn transient(code: i16) -> bool {
    [3, 5, 6, 7, 19, 56, 100].contains(&code)
}

/// A batch of these records, compressed somehow.
pub fn batch(outside: &Outside, ids: &[Id], producer: Option<(i64, i16, i32)>) -> Bytes {
    let padding = match draw(40) {
        0 => 400_000 + draw(200_000),
        1..4 => draw(9_000),
        _ => draw(300),
    };
    outside.count(|c| c.large += u64::from(padding >= 400_000));
    let (pid, epoch, sequence) = producer.unwrap_or((-1, -1, -1));
    let records: Vec<Record> = ids
        .iter()
        .zip(0..)
        .map(|(id, i)| Record {
            transactional: false,
            control: false,
            partition_leader_epoch: -1,
            producer_id: pid,
            producer_epoch: epoch,
            timestamp_type: TimestampType::Creation,
            offset: i,
            sequence: sequence + i as i32,
            timestamp: rt::wall_clock_ms(),
            delete_horizon: false,
            key: None,
            value: Some(id.value(if i == 0 { padding as usize } else { 10 })),
            headers: Default::default(),
        })
        .collect();
    // Zstd isn't for every version.
    let compression = match draw(8) {
        0 => Compression::Gzip,
        1 => Compression::Snappy,
        2 => Compression::Lz4,
        _ => Compression::None,
    };
    let mut out = BytesMut::new();
    let options = RecordEncodeOptions {
        version: 2,
        compression,
    };
    RecordBatchEncoder::encode(&mut out, &records, &options).expect("a batch of a few records");
    out.freeze()
}

pub fn request(
    outside: &Outside,
    version: i16,
    acks: i16,
    parts: &[(Place, Bytes)],
) -> ProduceRequest {
    let mut topics: Vec<TopicProduceData> = Vec::new();
    for ((topic, partition), bytes) in parts {
        let data = PartitionProduceData::default()
            .with_index(*partition)
            .with_records(Some(bytes.clone()));
        let named = if version >= 13 {
            let id = outside.topics[*topic].id.get().expect("it is there");
            TopicProduceData::default().with_topic_id(id)
        } else {
            let name = StrBytes::from_static_str(TOPICS[*topic].0);
            TopicProduceData::default().with_name(name.into())
        };
        let known = topics
            .iter_mut()
            .find(|t| t.name == named.name && t.topic_id == named.topic_id);
        match known {
            Some(t) => t.partition_data.push(data),
            None => topics.push(named.with_partition_data(vec![data])),
        }
    }
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(30_000)
        .with_topic_data(topics)
}

/// (partition, error, base offset) of every part.
fn results(outside: &Outside, response: &ProduceResponse, version: i16) -> Vec<(Place, i16, i64)> {
    let mut all = Vec::new();
    for topic in &response.responses {
        let place = (0..TOPICS.len()).find(|t| match version {
            13.. => outside.topics[*t].id.get() == Some(topic.topic_id),
            _ => TOPICS[*t].0 == topic.name.0.as_str(),
        });
        let place = place.expect("a topic that was asked for");
        for p in &topic.partition_responses {
            all.push(((place, p.index), p.error_code, p.base_offset));
        }
    }
    all
}

/// An idempotent producer, for so many rounds.
pub async fn idempotent(outside: Rc<Outside>, number: usize, rounds: u64) {
    let mut connection = None;
    for _ in 0..rounds {
        if outside.stopping.get() {
            return;
        }
        let Some(c) = connection.as_mut() else {
            connection = connect(&outside).await;
            continue;
        };
        if let Err(Gone) = round(&outside, number, c).await {
            connection = None;
        }
        pause().await;
    }
}

async fn round(outside: &Outside, number: usize, c: &mut Connection) -> Result<(), Gone> {
    let me = &outside.idempotent[number];
    if me.borrow().id.is_none() {
        let version = draw(6) as i16;
        let request = InitProducerIdRequest::default().with_transactional_id(None);
        let answer = c.call(version, &request).await?;
        if answer.error_code == 0 {
            me.borrow_mut().id = Some((answer.producer_id.0, answer.producer_epoch));
        } else {
            assert!([7, 14, 15].contains(&answer.error_code), "{answer:?}");
        }
        return Ok(());
    }
    me.borrow_mut().add(outside);
    let mut asked: Vec<(i16, usize)> = Vec::new();
    for nth in 0..IN_FLIGHT {
        let parts = me.borrow_mut().request(nth, outside);
        if parts.is_empty() {
            break;
        }
        let version = 3 + draw(11) as i16;
        let frame = c.frame(version, &request(outside, version, -1, &parts));
        if chance(60) {
            // The connection ends within a frame.
            let part = frame.slice(..1 + draw(frame.len() as u64 - 1) as usize);
            c.send_bytes(part).await?;
            outside.count(|k| k.cut_in_frame += 1);
            c.cut();
            return Err(Gone);
        }
        c.send_bytes(frame).await?;
        outside.count(|k| k.requests += 1);
        asked.push((version, parts.len()));
    }
    if chance(40) {
        outside.count(|k| k.cut_unanswered += 1);
        pause().await;
        c.cut();
        return Err(Gone);
    }
    let mut refused: Vec<Place> = Vec::new();
    for (version, parts) in asked {
        let response = c.answer::<ProduceRequest>(version).await?;
        let results = results(outside, &response, version);
        assert_eq!(results.len(), parts, "every partition is answered");
        for (place, code, base) in results {
            let before = refused.contains(&place);
            if !me.borrow_mut().answered(outside, place, code, base, before) {
                refused.push(place);
            }
        }
    }
    Ok(())
}

/// A producer with acks=1, or with none at all, that sends nothing twice.
pub async fn careless(outside: Rc<Outside>, number: u32, rounds: u64) {
    let mut connection = None;
    let (mut stream, mut n) = (0, 0);
    for _ in 0..rounds {
        if outside.stopping.get() {
            return;
        }
        let Some(c) = connection.as_mut() else {
            connection = connect(&outside).await;
            stream = outside.streams.get() + 1;
            outside.streams.set(stream);
            continue;
        };
        let mut ids = Vec::new();
        for _ in 0..1 + draw(4) {
            ids.push(Id {
                producer: number,
                stream,
                n,
            });
            n += 1;
        }
        if let Err(Gone) = send_once(&outside, c, &ids).await {
            connection = None;
        }
        pause().await;
    }
}

async fn send_once(outside: &Outside, c: &mut Connection, ids: &[Id]) -> Result<(), Gone> {
    let there: Vec<Place> = places()
        .filter(|p| outside.topics[p.0].there.get())
        .collect();
    if there.is_empty() {
        return Ok(());
    }
    let place = there[draw(there.len() as u64) as usize];
    for id in ids {
        outside.log(place).sends(*id);
    }
    let version = 3 + draw(11) as i16;
    let parts = [(place, batch(outside, ids, None))];
    if chance(6) {
        c.send(version, &request(outside, version, 0, &parts))
            .await?;
        c.expects_none();
        return Ok(());
    }
    c.send(version, &request(outside, version, 1, &parts))
        .await?;
    if chance(30) {
        outside.count(|k| k.cut_unanswered += 1);
        c.cut();
        return Err(Gone);
    }
    let response = c.answer::<ProduceRequest>(version).await?;
    outside.count(|k| k.requests += 1);
    for (place, code, base) in results(outside, &response, version) {
        if code == 0 {
            outside.count(|k| k.acks_1 += ids.len() as u64);
            for (id, i) in ids.iter().zip(0..) {
                outside
                    .log(place)
                    .acknowledge_in_memory(place, base + i, *id);
            }
        } else {
            assert!(transient(code), "{place:?}: {code}");
        }
    }
    Ok(())
}
