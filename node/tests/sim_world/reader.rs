//! Reading: one partition at one time, some records, or all of it after a start.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Buf;
use engine::rt;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::RecordBatchDecoder;

use super::known::{Id, Outside, Place, TOPICS, places};
use super::wire::{Connection, Gone};
use super::{chance, connect, draw, pause};

/// A fetch of one partition, in a version that is drawn.
pub struct Fetch {
    pub place: Place,
    pub from: i64,
    pub version: i16,
    pub max_bytes: i32,
    pub max_wait_ms: i32,
}

/// What was read of a partition.
pub struct Piece {
    pub records: Vec<(i64, Id)>,
    pub high_watermark: i64,
    pub log_start: i64,
}

impl Fetch {
    pub fn drawn(place: Place, from: i64) -> Fetch {
        Fetch {
            place,
            from,
            version: 4 + draw(15) as i16,
            max_bytes: 1 + draw(1 << draw(19)) as i32,
            max_wait_ms: draw(1 << draw(12)) as i32,
        }
    }

    pub fn request(&self, outside: &Outside) -> FetchRequest {
        let (topic, partition) = self.place;
        let partition = FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(self.from)
            .with_partition_max_bytes(self.max_bytes);
        let topic = if self.version >= 13 {
            let id = outside.topics[topic].id.get().expect("it is there");
            FetchTopic::default().with_topic_id(id)
        } else {
            let name = StrBytes::from_static_str(TOPICS[topic].0);
            FetchTopic::default().with_topic(name.into())
        };
        FetchRequest::default()
            .with_max_wait_ms(self.max_wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(self.max_bytes)
            .with_topics(vec![topic.with_partitions(vec![partition])])
    }

    /// Takes the answer apart; what was read is where it is for good. `None`: not now.
    pub fn read(&self, outside: &Outside, response: FetchResponse) -> Option<Piece> {
        let place = self.place;
        assert_eq!(response.error_code, 0, "{place:?}");
        let mut parts = response.responses.into_iter().flat_map(|t| t.partitions);
        let part = parts.next().expect("the partition that was asked for");
        match part.error_code {
            0 => {}
            3 | 5 | 6 | 78 | 100 => return None,
            code => panic!("{place:?} from {}: {code}", self.from),
        }
        let mut records = Vec::new();
        let mut bytes = part.records.unwrap_or_default();
        let mut next = None;
        while bytes.has_remaining() {
            let batch = RecordBatchDecoder::decode(&mut bytes).expect("a sound batch");
            for record in batch.records {
                let at = next.replace(record.offset + 1).unwrap_or(record.offset);
                assert_eq!(record.offset, at, "{place:?}: offsets are dense");
                assert!(
                    at < part.high_watermark,
                    "{place:?}: only what is committed is read"
                );
                let id = Id::of(&record.value.expect("every record has a value"));
                outside.log(place).is_at(place, at, id);
                records.push((at, id));
            }
        }
        if let Some((first, _)) = records.first() {
            assert!(
                *first <= self.from,
                "{place:?}: a read from {} begins at {first}",
                self.from
            );
        }
        records.retain(|(offset, _)| *offset >= self.from);
        outside.count(|c| c.fetched += records.len() as u64);
        Some(Piece {
            records,
            high_watermark: part.high_watermark,
            log_start: part.log_start_offset,
        })
    }
}

pub async fn fetch(
    outside: &Outside,
    c: &mut Connection,
    f: &Fetch,
) -> Result<Option<Piece>, Gone> {
    let response = c.call(f.version, &f.request(outside)).await?;
    Ok(f.read(outside, response))
}

/// Everything that a partition holds.
pub async fn all(
    outside: &Outside,
    c: &mut Connection,
    place: Place,
) -> Result<BTreeMap<i64, Id>, Gone> {
    let mut found = BTreeMap::new();
    let began = rt::now();
    loop {
        let mut f = Fetch::drawn(place, found.len() as i64);
        f.max_bytes = f.max_bytes.max(1_000);
        f.max_wait_ms = 0;
        let waited = began.elapsed().as_secs();
        assert!(waited < 120, "{place:?} can't be read after a start");
        let Some(piece) = fetch(outside, c, &f).await? else {
            rt::sleep(std::time::Duration::from_millis(1)).await;
            continue;
        };
        assert!(
            piece.log_start <= 0,
            "{place:?}: nobody moved the log's start"
        );
        found.extend(piece.records);
        if found.len() as i64 >= piece.high_watermark {
            return Ok(found);
        }
    }
}

/// Somebody who jumps about and now and then follows the tail.
pub async fn reader(outside: Rc<Outside>, rounds: u64) {
    let mut connection = None;
    let mut last = None;
    for _ in 0..rounds {
        if outside.stopping.get() {
            return;
        }
        let Some(c) = connection.as_mut() else {
            connection = connect(&outside).await;
            continue;
        };
        let there: Vec<Place> = places()
            .filter(|p| outside.topics[p.0].there.get())
            .collect();
        if !there.is_empty() {
            let (place, from) = last.take().unwrap_or_else(|| {
                let place = there[draw(there.len() as u64) as usize];
                let end = outside.log(place).known_end();
                (place, draw(end as u64 + 1) as i64)
            });
            let f = Fetch::drawn(place, from);
            match fetch(&outside, c, &f).await {
                Err(Gone) => connection = None,
                Ok(None) => {}
                Ok(Some(piece)) if chance(3) => {
                    last = Some((place, piece.records.last().map_or(from, |r| r.0 + 1)));
                }
                Ok(Some(_)) => {}
            }
        }
        pause().await;
    }
}
