//! Sends batches and counts what was acknowledged.
//!
//! A round sends the first waiting batch of every partition, in one request to each leader; a round that fails for a reason that passes is repeated with fresh
//! metadata, and the sender gives up when nothing was acknowledged for the command's whole time. A partition has one batch on its way at most, so order
//! holds, and a refused batch can be halved: the sequence numbers move only with an acknowledgement. Without ids (acks 1 and 0) a batch that may have
//! been written isn't sent again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::messages::InitProducerIdRequest;
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;

use super::cluster::{Cluster, RETRY_PAUSE, topic_name};
use super::records::{Producer, Record, encode};
use super::{ClientError, at, check};
use crate::cli::{AcksArg, ProduceArgs};

/// The last version of Produce that names topics rather than numbering them.
const PRODUCE_BY_NAME: i16 = 12;
/// Largest request, in bytes: what brokers take by default, less what is around the batches.
const REQUEST_BYTES: usize = (100 << 20) - (4 << 10);
/// Kafka's codes for a batch that is too large.
const TOO_LARGE: [i16; 2] = [10, 18];
/// Kafka's code for a batch that is in the log already.
const DUPLICATE: i16 = 46;

/// Records of one partition that go as one batch.
struct Waiting {
    records: Vec<Record>,
    /// The input line of each record.
    lines: Vec<u64>,
    /// Made when it is sent first, and the same when it is sent again.
    batch: Option<Bytes>,
    /// Whether it may have been written: it was sent, and no answer came.
    unsure: bool,
}

pub struct Sender<'a> {
    args: &'a ProduceArgs,
    cluster: Cluster,
    topic: MetadataResponseTopic,
    producer: Option<(i64, i16)>,
    /// The next sequence number by partition.
    sequences: BTreeMap<i32, i32>,
    waiting: BTreeMap<i32, VecDeque<Waiting>>,
    acknowledged: Arc<AtomicU64>,
}

/// What came of a round.
enum Round {
    /// Everything that was sent is acknowledged, or was halved.
    Good,
    /// Something has to be sent again.
    Again(ClientError),
}

impl<'a> Sender<'a> {
    pub fn open(
        args: &'a ProduceArgs,
        acknowledged: Arc<AtomicU64>,
    ) -> Result<Sender<'a>, ClientError> {
        let mut cluster = Cluster::open(&args.broker)?;
        let topic = cluster.topic(&args.topic, true)?;
        let count = topic.partitions.len() as i32;
        if let Some(p) = args.partition.filter(|p| !(0..count).contains(p)) {
            return Err(ClientError::Missing(format!(
                "there is no partition {p}: topic '{}' has partitions 0 to {}",
                args.topic,
                count - 1
            )));
        }
        let idempotent =
            args.acks == AcksArg::All && cluster.any()?.supports::<InitProducerIdRequest>();
        let producer = if idempotent {
            Some(cluster.producer_id()?)
        } else {
            None
        };
        Ok(Sender {
            args,
            cluster,
            topic,
            producer,
            sequences: BTreeMap::new(),
            waiting: BTreeMap::new(),
            acknowledged,
        })
    }

    pub fn partitions(&self) -> usize {
        self.topic.partitions.len()
    }

    /// Takes a record of an input line; it joins the batch of its partition.
    pub fn add(&mut self, partition: i32, line: u64, record: Record) {
        let queue = self.waiting.entry(partition).or_default();
        if queue.is_empty() {
            queue.push_back(Waiting {
                records: Vec::new(),
                lines: Vec::new(),
                batch: None,
                unsure: false,
            });
        }
        let last = queue.back_mut().expect("one was put there");
        last.records.push(record);
        last.lines.push(line);
    }

    /// How many records were acknowledged (or sent, without acknowledgements).
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// What is known of the records that weren't acknowledged, if there are any.
    pub fn rest(&self) -> Option<String> {
        let left = || self.waiting.values().flatten();
        let first = left().filter_map(|w| w.lines.first()).min()?;
        let fate = if left().any(|w| w.unsure) {
            "; what was on its way may be written or not"
        } else {
            ""
        };
        Some(format!("the first that was not is line {first}{fate}"))
    }

    /// Sends everything that waits.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let mut progress = (Instant::now(), self.acknowledged());
        while self.waiting.values().any(|queue| !queue.is_empty()) {
            let result = self.round();
            if self.acknowledged() > progress.1 {
                progress = (Instant::now(), self.acknowledged());
            }
            match result? {
                Round::Good => {}
                Round::Again(e) if progress.0.elapsed() + RETRY_PAUSE >= self.cluster.timeout() => {
                    return Err(e);
                }
                Round::Again(e) => {
                    if matches!(e, ClientError::Connection(_)) {
                        self.cluster.disconnect();
                    }
                    std::thread::sleep(RETRY_PAUSE);
                    match self.cluster.topic_now(&self.args.topic, true) {
                        Ok(topic) => self.topic = topic,
                        Err(e) if e.is_retriable() => {}
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        self.waiting.clear();
        Ok(())
    }

    fn round(&mut self) -> Result<Round, ClientError> {
        let mut problem = None;
        for (leader, batches) in self.by_leader()? {
            let partitions: Vec<i32> = batches.iter().map(|(p, _)| *p).collect();
            match self.request(leader, batches) {
                Ok(answers) => {
                    for (partition, answer) in answers {
                        if let Round::Again(e) = self.settle(partition, answer)? {
                            problem = Some(e);
                        }
                    }
                }
                Err(e) if e.is_retriable() => problem = Some(e),
                Err(e) => return Err(place(&partitions, e)),
            }
        }
        Ok(problem.map_or(Round::Good, Round::Again))
    }

    /// The first waiting batch of every partition, by leader, as far as they fit one request.
    fn by_leader(&mut self) -> Result<BTreeMap<i32, Vec<(i32, Bytes)>>, ClientError> {
        let mut requests: BTreeMap<i32, (usize, Vec<(i32, Bytes)>)> = BTreeMap::new();
        for (partition, queue) in &mut self.waiting {
            let Some(first) = queue.front_mut() else {
                continue;
            };
            let leader = self
                .topic
                .partitions
                .iter()
                .find(|p| p.partition_index == *partition)
                .map_or(-1, |p| p.leader_id.0);
            let producer = self
                .producer
                .map_or(Producer::NONE, |(id, epoch)| Producer {
                    id,
                    epoch,
                    sequence: self.sequences.get(partition).copied().unwrap_or(0),
                });
            let batch = match &first.batch {
                Some(batch) => batch.clone(),
                None => encode(&first.records, self.args.codec, producer)?,
            };
            first.batch = Some(batch.clone());
            if batch.len() > REQUEST_BYTES && first.records.len() == 1 {
                return Err(ClientError::Usage(format!(
                    "the record on line {} takes {} bytes, and brokers take requests up to {} MiB: split it, or try --codec zstd",
                    first.lines.first().copied().unwrap_or(0),
                    batch.len(),
                    100
                )));
            }
            let (bytes, batches) = requests.entry(leader).or_default();
            if batches.is_empty() || *bytes + batch.len() <= REQUEST_BYTES {
                *bytes += batch.len();
                batches.push((*partition, batch));
            }
        }
        Ok(requests.into_iter().map(|(l, (_, b))| (l, b)).collect())
    }

    /// One request; its answers by partition, which are empty without acknowledgements.
    fn request(
        &mut self,
        leader: i32,
        batches: Vec<(i32, Bytes)>,
    ) -> Result<Vec<(i32, Option<PartitionProduceResponse>)>, ClientError> {
        let partitions: Vec<i32> = batches.iter().map(|(p, _)| *p).collect();
        let data = batches
            .into_iter()
            .map(|(partition, batch)| {
                PartitionProduceData::default()
                    .with_index(partition)
                    .with_records(Some(batch))
            })
            .collect();
        let request = ProduceRequest::default()
            .with_acks(match self.args.acks {
                AcksArg::All => -1,
                AcksArg::Leader => 1,
                AcksArg::None => 0,
            })
            .with_timeout_ms(self.cluster.timeout_ms())
            .with_topic_data(vec![
                TopicProduceData::default()
                    .with_name(topic_name(&self.args.topic))
                    .with_partition_data(data),
            ]);
        // Not sent yet: this may be tried again in any case.
        let connection = self.cluster.broker(leader)?;
        let answer = match self.args.acks {
            AcksArg::None => connection.send(&request, PRODUCE_BY_NAME).map(|_| None),
            _ => connection.call(&request, PRODUCE_BY_NAME).map(Some),
        };
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(partitions.into_iter().map(|p| (p, None)).collect()),
            Err(e) => {
                for partition in &partitions {
                    let queue = self.waiting.get_mut(partition);
                    if let Some(first) = queue.and_then(VecDeque::front_mut) {
                        first.unsure = true;
                    }
                }
                // Without ids a second attempt could write the records twice.
                return Err(match e {
                    ClientError::Connection(text) if self.producer.is_none() => {
                        ClientError::Protocol(text)
                    }
                    e => e,
                });
            }
        };
        Ok(answer
            .responses
            .into_iter()
            .flat_map(|t| t.partition_responses)
            .map(|p| (p.index, Some(p)))
            .collect())
    }

    /// What one partition's answer means for its batch.
    fn settle(
        &mut self,
        partition: i32,
        answer: Option<PartitionProduceResponse>,
    ) -> Result<Round, ClientError> {
        let queue = self.waiting.entry(partition).or_default();
        let Some(mut sent) = queue.pop_front() else {
            return Ok(Round::Good);
        };
        sent.unsure = false;
        let offset = match &answer {
            None => None,
            Some(answer) if matches!(answer.error_code, 0 | DUPLICATE) => Some(answer.base_offset),
            Some(answer) if TOO_LARGE.contains(&answer.error_code) && sent.records.len() > 1 => {
                let (left, right) = halve(sent);
                queue.push_front(right);
                queue.push_front(left);
                return Ok(Round::Good);
            }
            Some(answer) => {
                let message = answer.error_message.as_deref().or_else(|| {
                    answer
                        .record_errors
                        .first()
                        .and_then(|e| e.batch_index_error_message.as_deref())
                });
                let line = sent.lines.first().copied().unwrap_or(0);
                let lines = match sent.lines.len() {
                    1 => format!("line {line}"),
                    n => format!("{n} records from line {line} on"),
                };
                queue.push_front(sent);
                let refused = check(answer.error_code, message)
                    .map_err(|e| at(&format!("partition {partition}, {lines}"), e));
                return match refused {
                    Err(e) if e.is_retriable() => Ok(Round::Again(e)),
                    refused => refused.map(|()| Round::Good),
                };
            }
        };
        let count = sent.records.len();
        self.acknowledged.fetch_add(count as u64, Ordering::Relaxed);
        // Kafka's sequence numbers go from 2^31 - 1 back to 0.
        let sequence = self.sequences.entry(partition).or_insert(0);
        *sequence = sequence.wrapping_add(count as i32) & i32::MAX;
        if self.args.verbose {
            let at = offset.map_or("?".into(), |o| o.to_string());
            crate::say(format_args!(
                "partition {partition}, offset {at}: {count} record{}",
                if count == 1 { "" } else { "s" }
            ));
        }
        Ok(Round::Good)
    }
}

fn halve(mut all: Waiting) -> (Waiting, Waiting) {
    let middle = all.records.len() / 2;
    let right = Waiting {
        records: all.records.split_off(middle),
        lines: all.lines.split_off(middle),
        batch: None,
        unsure: false,
    };
    all.batch = None;
    (all, right)
}

fn place(partitions: &[i32], e: ClientError) -> ClientError {
    match partitions {
        [one] => at(&format!("partition {one}"), e),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_whole() {
        for count in 2..9_u64 {
            let all = Waiting {
                records: (0..count)
                    .map(|n| Record {
                        timestamp_ms: n as i64,
                        ..Record::default()
                    })
                    .collect(),
                lines: (1..=count).collect(),
                batch: Some(Bytes::new()),
                unsure: false,
            };
            let (left, right) = halve(all);
            assert!(!left.records.is_empty() && !right.records.is_empty());
            assert!(left.batch.is_none() && right.batch.is_none());
            let lines: Vec<u64> = left.lines.into_iter().chain(right.lines).collect();
            assert_eq!(lines, (1..=count).collect::<Vec<_>>());
        }
    }
}
