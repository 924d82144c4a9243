//! One consumer: its share of a group's partitions, which it reads from their beginning, one fetch under way per broker, fetch sessions where the broker keeps them.
//!
//! Every record is looked at, and its batch's CRC; offsets must be dense, so a record that is lost or comes twice is seen.

use std::sync::Arc;

use crate::batch;
use crate::control::Cluster;
use crate::error::Error;
use crate::protocol::{self, FetchPartition};
use crate::wire::Reader;

/// What is read from one broker.
struct Lane {
    /// Index in the run's list, offset that is read next, whether the session must be told of it.
    partitions: Vec<(usize, i64, bool)>,
    session: i32,
    epoch: i32,
    in_flight: bool,
}

pub struct Consumer {
    cluster: Arc<Cluster>,
    lanes: Vec<Lane>,
    next_correlation: i32,
    /// For batches whose compression is taken off.
    scratch: Vec<u8>,
    /// Errors that pass are waited out.
    retry: bool,
}

/// What an answer brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    pub records: u64,
    /// Of batches, as they came.
    pub bytes: u64,
    /// A partition isn't served here for the moment.
    pub stale: bool,
}

/// Errors after which a new session is begun.
const SESSION_LOST: [i16; 2] = [70, 71];

impl Consumer {
    /// Consumer `index` of groups of `consumers` reads every partition whose number falls to it.
    pub fn new(cluster: Arc<Cluster>, index: usize, consumers: usize, retry: bool) -> Consumer {
        let member = index % consumers;
        let lane = |broker: usize| Lane {
            partitions: (member..cluster.partitions.len())
                .step_by(consumers)
                .filter(|p| cluster.partitions[*p].leader == broker)
                .map(|p| (p, 0, true))
                .collect(),
            session: 0,
            epoch: 0,
            in_flight: false,
        };
        Consumer {
            lanes: (0..cluster.brokers.len()).map(lane).collect(),
            cluster,
            next_correlation: 0,
            scratch: Vec::new(),
            retry,
        }
    }

    /// The connection to a broker is lost, and its session with it.
    pub fn lost(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        (lane.session, lane.epoch, lane.in_flight) = (0, 0, false);
    }

    /// Follows the partitions' leaders. What is under way may still bring something of the old ones.
    pub fn follow(&mut self, leaders: &[usize]) {
        let all = |l: &Lane| l.partitions.iter().map(|p| p.0).collect::<Vec<_>>();
        let stays = |(at, lane): (usize, &Lane)| all(lane).iter().all(|p| leaders[*p] == at);
        if self.lanes.iter().enumerate().all(stays) || self.lanes.iter().any(|l| l.in_flight) {
            return;
        }
        let mut partitions: Vec<(usize, i64, bool)> = Vec::new();
        for lane in &mut self.lanes {
            partitions.append(&mut lane.partitions);
            (lane.session, lane.epoch) = (0, 0);
        }
        partitions.sort_unstable();
        for (partition, offset, _) in partitions {
            let lane = &mut self.lanes[leaders[partition]];
            lane.partitions.push((partition, offset, true));
        }
    }

    /// Whether it reads from this broker at all.
    pub fn reads_from(&self, lane: usize) -> bool {
        !self.lanes[lane].partitions.is_empty()
    }

    /// Writes the next fetch to a broker, unless one is under way.
    pub fn request(&mut self, lane: usize, out: &mut Vec<u8>) {
        let (correlation, cluster) = (self.next_correlation, &self.cluster);
        let lane = &mut self.lanes[lane];
        if lane.in_flight || lane.partitions.is_empty() {
            return;
        }
        let mut topics: Vec<(&str, Vec<FetchPartition>)> = Vec::new();
        for (partition, offset, changed) in &mut lane.partitions {
            if !std::mem::take(changed) && lane.session != 0 {
                continue;
            }
            let found = &cluster.partitions[*partition];
            let name = cluster.topics[found.topic].as_str();
            if topics.last().is_none_or(|t| t.0 != name) {
                topics.push((name, Vec::new()));
            }
            let asked = FetchPartition {
                index: found.index,
                offset: *offset,
            };
            topics.last_mut().expect("one was pushed").1.push(asked);
        }
        protocol::fetch(out, correlation, lane.session, lane.epoch, &topics);
        lane.in_flight = true;
        self.next_correlation = correlation.wrapping_add(1) & i32::MAX;
    }

    /// Reads an answer; calls `record` with the due moment of each record.
    pub fn answer(
        &mut self,
        lane: usize,
        body: &[u8],
        mut record: impl FnMut(u64),
    ) -> Result<Got, Error> {
        let (cluster, scratch) = (&self.cluster, &mut self.scratch);
        let lane = &mut self.lanes[lane];
        let wrong = |what: &str| Error::Broker(format!("a fetch: {what}"));
        if !std::mem::take(&mut lane.in_flight) {
            return Err(wrong("an answer that nothing asked for"));
        }
        let mut got = Got::default();
        let mut problem = None;
        let partitions = &mut lane.partitions;
        let mut hint = 0;
        let head = protocol::read_fetch(&mut Reader(body), |topic, index, error, records| {
            let is_it = |p: &(usize, i64, bool)| {
                let found = &cluster.partitions[p.0];
                found.index == index && cluster.topics[found.topic] == topic
            };
            let slot = match partitions.get(hint) {
                Some(p) if is_it(p) => Some(hint),
                _ => partitions.iter().position(is_it),
            };
            let Some(slot) = slot else {
                problem = Some(format!("partition {topic}-{index}, which wasn't asked for"));
                return;
            };
            hint = slot + 1;
            if error != 0 && self.retry && protocol::passes(error) {
                got.stale = true;
                return;
            }
            if error != 0 {
                problem = Some(format!("{topic}-{index}: {}", protocol::error_name(error)));
                return;
            }
            let (_, offset, changed) = &mut partitions[slot];
            let mut expected = *offset;
            let mut dense = true;
            got.bytes += records.len() as u64;
            let walked = batch::walk(records, *offset, scratch, |at, due| {
                dense &= at == expected;
                expected = at.saturating_add(1);
                got.records += 1;
                record(due);
            });
            match walked {
                Ok(next) if dense && next == expected => {
                    *changed |= next != *offset;
                    *offset = next;
                }
                Ok(_) => {
                    problem = Some(format!(
                        "{topic}-{index}: offsets aren't dense from {offset} on"
                    ))
                }
                Err(what) => problem = Some(format!("{topic}-{index}: {what}")),
            }
        });
        let head = head.map_err(|_| wrong("an answer that isn't the protocol"))?;
        if let Some(problem) = problem {
            return Err(wrong(&problem));
        }
        if SESSION_LOST.contains(&head.error) {
            (lane.session, lane.epoch) = (0, 0);
        } else if head.error != 0 {
            return Err(wrong(&protocol::error_name(head.error)));
        } else {
            lane.session = head.session;
            // 0 asks for a new session, so the count goes on at 1.
            lane.epoch = match head.session {
                0 => 0,
                _ => (lane.epoch.wrapping_add(1) & i32::MAX).max(1),
            };
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::codec::Codec;
    use crate::control::Partition;
    use bytes::{Buf, Bytes};
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
    use kafka_protocol::messages::{FetchRequest, FetchResponse, RequestHeader, TopicName};
    use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

    fn cluster() -> Arc<Cluster> {
        Arc::new(Cluster {
            topics: vec!["t".into()],
            brokers: vec![String::new()],
            partitions: (0..2)
                .map(|index| Partition {
                    topic: 0,
                    index,
                    leader: 0,
                })
                .collect(),
            cluster_id: None,
        })
    }

    fn asked(consumer: &mut Consumer) -> (i32, i32, Vec<(i32, i64)>) {
        let mut out = Vec::new();
        consumer.request(0, &mut out);
        let mut bytes = Bytes::from(out);
        bytes.advance(4);
        RequestHeader::decode(&mut bytes, 1).unwrap();
        let f = FetchRequest::decode(&mut bytes, protocol::FETCH.1).unwrap();
        let partitions = f
            .topics
            .iter()
            .flat_map(|t| &t.partitions)
            .map(|p| (p.partition, p.fetch_offset))
            .collect();
        (f.session_id, f.session_epoch, partitions)
    }

    fn answer(session: i32, error: i16, partitions: &[(i32, i64, usize)]) -> Vec<u8> {
        let data = |(index, base, count): &(i32, i64, usize)| {
            let mut batch = Batch::default();
            batch.begin(0);
            for n in 0..*count {
                batch.push(n as u64, 0, 0, None, &[]);
            }
            let mut bytes = batch.seal(Codec::None).to_vec();
            bytes[..8].copy_from_slice(&base.to_be_bytes());
            PartitionData::default()
                .with_partition_index(*index)
                .with_records(Some(bytes.into()))
        };
        let topic = FetchableTopicResponse::default()
            .with_topic(TopicName(StrBytes::from_static_str("t")))
            .with_partitions(partitions.iter().map(data).collect());
        let body = FetchResponse::default()
            .with_session_id(session)
            .with_error_code(error)
            .with_responses(vec![topic]);
        let mut out = Vec::new();
        body.encode(&mut out, protocol::FETCH.1).unwrap();
        out
    }

    #[test]
    fn without_a_session_everything_is_asked_each_time() {
        let mut consumer = Consumer::new(cluster(), 0, 1, false);
        assert_eq!(asked(&mut consumer), (0, 0, vec![(0, 0), (1, 0)]));
        assert_eq!(
            consumer
                .answer(0, &answer(0, 0, &[(1, 0, 3)]), |_| {})
                .unwrap()
                .records,
            3
        );
        assert_eq!(asked(&mut consumer), (0, 0, vec![(0, 0), (1, 3)]));
    }

    #[test]
    fn a_session_is_told_of_what_changed_and_begun_again_when_it_is_lost() {
        let mut consumer = Consumer::new(cluster(), 0, 1, false);
        asked(&mut consumer);
        consumer
            .answer(0, &answer(77, 0, &[(1, 0, 3)]), |_| {})
            .unwrap();
        assert_eq!(asked(&mut consumer), (77, 1, vec![(1, 3)]));
        consumer.answer(0, &answer(77, 0, &[]), |_| {}).unwrap();
        assert_eq!(asked(&mut consumer), (77, 2, vec![]));
        consumer.answer(0, &answer(0, 70, &[]), |_| {}).unwrap();
        assert_eq!(asked(&mut consumer), (0, 0, vec![(0, 0), (1, 3)]));
    }

    #[test]
    fn every_group_reads_everything_once() {
        let partitions = |index| {
            let mut consumer = Consumer::new(cluster(), index, 2, false);
            asked(&mut consumer).2
        };
        assert_eq!(partitions(0), [(0, 0)]);
        assert_eq!(partitions(1), [(1, 0)]);
        assert_eq!(
            (partitions(2), partitions(3)),
            (partitions(0), partitions(1))
        );
    }

    #[test]
    fn lost_and_doubled_records_are_seen() {
        for base in [1, 4] {
            let mut consumer = Consumer::new(cluster(), 0, 1, false);
            asked(&mut consumer);
            assert!(
                consumer
                    .answer(0, &answer(0, 0, &[(0, base, 2)]), |_| {})
                    .is_err()
            );
        }
        let mut consumer = Consumer::new(cluster(), 0, 1, false);
        asked(&mut consumer);
        consumer
            .answer(0, &answer(0, 0, &[(0, 0, 2)]), |_| {})
            .unwrap();
        asked(&mut consumer);
        let mut seen = 0;
        consumer
            .answer(0, &answer(0, 0, &[(0, 0, 3)]), |_| seen += 1)
            .unwrap();
        assert_eq!(
            seen, 1,
            "of a batch that is sent again only what is new counts"
        );
    }

    #[test]
    fn an_answer_that_nothing_asked_for_is_refused() {
        let mut consumer = Consumer::new(cluster(), 0, 1, false);
        assert!(consumer.answer(0, &answer(0, 0, &[]), |_| {}).is_err());
    }
}
