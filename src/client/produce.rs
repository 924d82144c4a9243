//! `tailrace produce`: one record per line of standard input, idempotently.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kafka_protocol::messages::InitProducerIdRequest;
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

use super::cluster::{Cluster, topic_name};
use super::records::{Producer, Record, encode};
use super::{ClientError, check};
use crate::cli::{AcksArg, ProduceArgs};
use crate::exit::Fatal;

/// The last version of Produce that names topics rather than numbering them.
const PRODUCE_BY_NAME: i16 = 12;
/// A batch is sent when its records reach this many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// How long a started batch waits for more lines.
const LINGER: Duration = Duration::from_millis(20);
/// Longest line, in bytes.
const LINE_BYTES: usize = 100 << 20;

pub fn run(args: ProduceArgs) -> Result<(), Fatal> {
    produce(&args)?;
    Ok(())
}

struct Sender<'a> {
    args: &'a ProduceArgs,
    cluster: Cluster,
    topic: MetadataResponseTopic,
    producer: Option<(i64, i16)>,
    /// The next sequence number by partition.
    sequences: BTreeMap<i32, i32>,
    /// Where records without a key go next.
    turn: usize,
    sent: u64,
}

fn produce(args: &ProduceArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&args.broker)?;
    let topic = cluster.topic(&args.topic, true)?;
    let count = topic.partitions.len() as i32;
    if let Some(p) = args.partition.filter(|p| !(0..count).contains(p)) {
        return Err(ClientError::Usage(format!(
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
    let mut sender = Sender {
        args,
        cluster,
        topic,
        producer,
        sequences: BTreeMap::new(),
        turn: 0,
        sent: 0,
    };
    let headers: Vec<(Bytes, Option<Bytes>)> = super::topics::pairs(&args.headers)?
        .into_iter()
        .map(|(k, v)| (Bytes::from(k), Some(Bytes::from(v))))
        .collect();
    let lines = read_lines();
    let mut waiting: BTreeMap<i32, Vec<Record>> = BTreeMap::new();
    let (mut records, mut bytes) = (0, 0);
    loop {
        let line = if records == 0 {
            lines.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            lines.recv_timeout(LINGER)
        };
        let ended = matches!(line, Err(RecvTimeoutError::Disconnected));
        if let Ok(line) = line {
            let line = line?;
            bytes += line.len();
            records += 1;
            let mut record = record_of(line, args)?;
            record.headers.clone_from(&headers);
            let partition = sender.partition_for(&record);
            waiting.entry(partition).or_default().push(record);
            if records < args.batch_records.max(1) && bytes < BATCH_BYTES {
                continue;
            }
        }
        for (partition, records) in std::mem::take(&mut waiting) {
            sender.send(partition, &records)?;
        }
        (records, bytes) = (0, 0);
        sender.turn += 1;
        if ended {
            break;
        }
    }
    eprintln!(
        "{} record{} sent",
        sender.sent,
        if sender.sent == 1 { "" } else { "s" }
    );
    Ok(())
}

/// Lines come from a thread of their own, so that a batch can be sent while the next line isn't there yet.
fn read_lines() -> Receiver<Result<Bytes, ClientError>> {
    let (to, from) = sync_channel(1024);
    std::thread::spawn(move || {
        let mut input = BufReader::with_capacity(1 << 20, std::io::stdin().lock());
        loop {
            let mut line = Vec::new();
            let read =
                std::io::Read::take(&mut input, LINE_BYTES as u64 + 1).read_until(b'\n', &mut line);
            let message = match read {
                Ok(0) => return,
                Ok(_) if line.len() > LINE_BYTES => Err(ClientError::Usage(format!(
                    "a line is longer than {LINE_BYTES} bytes"
                ))),
                Ok(_) => {
                    if line.last() == Some(&b'\n') {
                        line.pop();
                    }
                    Ok(Bytes::from(line))
                }
                Err(e) => Err(ClientError::Usage(format!(
                    "can't read standard input: {e}"
                ))),
            };
            let failed = message.is_err();
            if to.send(message).is_err() || failed {
                return;
            }
        }
    });
    from
}

fn record_of(line: Bytes, args: &ProduceArgs) -> Result<Record, ClientError> {
    let or_null = |b: Bytes| match &args.null {
        Some(null) if b == null.as_bytes() => None,
        _ => Some(b),
    };
    let (key, value) = match &args.key_separator {
        None => (None, or_null(line)),
        Some(separator) => {
            let sep = separator.as_bytes();
            let at = line
                .windows(sep.len().max(1))
                .position(|w| w == sep)
                .ok_or_else(|| {
                    ClientError::Usage(format!(
                        "a line has no '{separator}' to part key and value: {}",
                        String::from_utf8_lossy(&line[..line.len().min(80)])
                    ))
                })?;
            (
                or_null(line.slice(..at)),
                or_null(line.slice(at + sep.len()..)),
            )
        }
    };
    Ok(Record {
        offset: 0,
        timestamp_ms: now_ms(),
        key,
        value,
        headers: Vec::new(),
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Sender<'_> {
    fn partition_for(&self, record: &Record) -> i32 {
        let count = self.topic.partitions.len();
        match (self.args.partition, &record.key) {
            (Some(p), _) => p,
            (None, Some(key)) => ((murmur2(key) & 0x7FFF_FFFF) as usize % count) as i32,
            (None, None) => (self.turn % count) as i32,
        }
    }

    fn send(&mut self, partition: i32, records: &[Record]) -> Result<(), ClientError> {
        let sequence = self.sequences.entry(partition).or_insert(0);
        let producer = self
            .producer
            .map_or(Producer::NONE, |(id, epoch)| Producer {
                id,
                epoch,
                sequence: *sequence,
            });
        // Kafka's sequence numbers go from 2^31 - 1 back to 0.
        *sequence = sequence.wrapping_add(records.len() as i32) & i32::MAX;
        let batch = encode(records, self.args.codec, producer)?;
        let args = self.args;
        let timeout_ms = self.cluster.timeout_ms();
        let request = ProduceRequest::default()
            .with_acks(match args.acks {
                AcksArg::All => -1,
                AcksArg::Leader => 1,
                AcksArg::None => 0,
            })
            .with_timeout_ms(timeout_ms)
            .with_topic_data(vec![
                TopicProduceData::default()
                    .with_name(topic_name(&args.topic))
                    .with_partition_data(vec![
                        PartitionProduceData::default()
                            .with_index(partition)
                            .with_records(Some(batch)),
                    ]),
            ]);
        let topic = &mut self.topic;
        // Without ids a second attempt could write the records twice, so then only refusals are tried again.
        let (mut first, idempotent) = (true, self.producer.is_some());
        let offset = self.cluster.retry(|cluster| {
            if !std::mem::take(&mut first) {
                *topic = cluster.topic(&args.topic, true)?;
            }
            let leader = topic
                .partitions
                .iter()
                .find(|p| p.partition_index == partition)
                .map(|p| p.leader_id.0)
                .ok_or_else(|| ClientError::refused(3, None))?;
            let connection = cluster.broker(leader)?;
            if args.acks == AcksArg::None {
                connection.send(&request, PRODUCE_BY_NAME)?;
                return Ok(None);
            }
            let answer = match connection.call(&request, PRODUCE_BY_NAME) {
                Err(ClientError::Connection(e)) if !idempotent => {
                    return Err(ClientError::Protocol(format!(
                        "{e}; the last batch may be written or not"
                    )));
                }
                answer => answer?,
            };
            let result = answer
                .responses
                .first()
                .and_then(|t| t.partition_responses.first())
                .ok_or_else(|| ClientError::Protocol("the answer has no partition".into()))?;
            let message = result.error_message.as_deref().or_else(|| {
                result
                    .record_errors
                    .first()
                    .and_then(|e| e.batch_index_error_message.as_deref())
            });
            check(result.error_code, message)?;
            Ok(Some(result.base_offset))
        })?;
        self.sent += records.len() as u64;
        if args.verbose {
            let at = offset.map_or("?".into(), |o| o.to_string());
            eprintln!(
                "partition {partition}, offset {at}: {} records",
                records.len()
            );
        }
        Ok(())
    }
}

/// The hash with which Kafka's own producer picks partitions: MurmurHash2, 32 bits, its seed fixed.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5BD1_E995;
    let mut h = 0x9747_B28C ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("4 bytes")).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that Kafka's Utils.murmur2 gives.
    #[test]
    fn keys_hash_as_in_kafka() {
        assert_eq!(murmur2(b"21") as i32, -973_932_308);
        assert_eq!(murmur2(b"foobar") as i32, -790_332_482);
        assert_eq!(murmur2(b"a-little-bit-long-string") as i32, -985_981_536);
        assert_eq!(murmur2(b"abc") as i32, 479_470_107);
    }
}
