//! DescribeLogDirs, key 35, versions 1-5, answered by hand.
//!
//! This node has one data directory, which holds every replica (a shard that was reached directly tells its own); it is never cordoned and nothing moves to another one. A partition's size is that of its log as clients could read it, segments
//! and tail; what a partition lags behind is nothing, since it is in the log. Null asks for everything; a partition that isn't here is left out, and so is a topic without any. Total and usable
//! bytes of the filesystem come from version 4 on; usable are none once the disk is so full that records are refused.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::{BufMut, BytesMut};
use engine::log::DiskState;
use engine::ring::Class;
use engine::rt;
use engine::types::{GroupId, ShardId};
use kafka_protocol::messages::DescribeLogDirsRequest;

use crate::error::{ErrorCode, Malformed};
use crate::frame::{Request, finish};
use crate::handlers::work::Work;
use crate::handlers::{Answer, by_owner, memory_for};
use crate::limits;
use crate::request::{ShardReply, ShardRequest};
use crate::schema;
use crate::shard::Shard;
use crate::sync::join_all;
use crate::wire::Writer;

/// The newest version that the library knows; 5 has a request of the same bytes.
const KNOWN: i16 = 4;
/// Groups that are looked at before other tasks get a turn.
const SLICE: usize = 256;

/// Partitions and their sizes in bytes, by topic.
pub(crate) type Sizes = BTreeMap<Rc<str>, BTreeMap<i32, u64>>;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let asked: DescribeLogDirsRequest = schema::decode(request, request.version.min(KNOWN))?;
    let all = shard.view.partition_count() * limits::GATHERED_PARTITION_BYTES;
    if asked.topics.is_none() && !work.grow(&shard.work, all) {
        work.anew(&shard.work).await;
    }
    let mut questions: Vec<(ShardId, Option<Vec<GroupId>>)> = Vec::new();
    match &asked.topics {
        None => questions.extend((0..shard.shards).map(|s| (ShardId(s), None))),
        Some(topics) => {
            let mut wanted = Vec::new();
            for asked in topics {
                let Some(topic) = shard.view.topic(&asked.topic) else {
                    continue;
                };
                let there = asked.partitions.iter().copied();
                let there = there.filter(|p| topic.partition(*p).is_some());
                wanted.extend(there.map(|p| (0, topic.group(p), topic.group(p))));
                rt::yield_if_needed().await;
            }
            let sorted = by_owner(shard, wanted);
            questions.extend(sorted.into_iter().map(|(s, _, groups)| (s, Some(groups))));
        }
    }
    if request.direct {
        questions.retain(|(owner, _)| *owner == shard.id);
    }
    let calls = questions.into_iter().map(|(owner, groups)| {
        let shard = shard.clone();
        Box::pin(async move {
            let question = ShardRequest::LogSizes(groups);
            shard.ask(owner, Class::Short, question).await
        })
    });
    let mut sizes = Sizes::new();
    for reply in join_all(calls.collect::<Vec<_>>()).await {
        let Ok(ShardReply::LogSizes(found)) = reply else {
            continue;
        };
        for (i, (group, bytes)) in found.into_iter().enumerate() {
            if i % SLICE == SLICE - 1 {
                rt::yield_if_needed().await;
            }
            if let Some(topic) = shard.view.topic_by_id(group.topic) {
                let partitions = sizes.entry(topic.name.clone()).or_default();
                partitions.insert(group.partition, bytes);
            }
        }
    }
    let partitions = sizes.values().map(BTreeMap::len).sum::<usize>();
    let names = sizes.keys().map(|name| name.len() + 8).sum::<usize>();
    let bytes = 4_096 + names + 24 * partitions;
    let memory = memory_for(shard, bytes).await;
    let mut out = request.answer(bytes);
    let disk = shard.groups.disk();
    let directory = &shard.config.broker.data_dir;
    write_body(&mut out, request.version, directory, &sizes, disk);
    finish(&mut out, 0);
    Ok(Answer::held(out.freeze(), memory))
}

pub(crate) fn write_body(
    out: &mut BytesMut,
    version: i16,
    directory: &str,
    sizes: &Sizes,
    disk: DiskState,
) {
    let flexible = version >= 2;
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    out.put_i32(0);
    if version >= 3 {
        out.put_i16(ErrorCode::None.code());
    }
    out.put_array(1, flexible);
    out.put_i16(ErrorCode::None.code());
    out.put_str(directory, flexible);
    out.put_array(sizes.len(), flexible);
    for (name, partitions) in sizes {
        out.put_str(name, flexible);
        out.put_array(partitions.len(), flexible);
        for (partition, size) in partitions {
            out.put_i32(*partition);
            out.put_i64(bytes(*size));
            // What it lags behind, and whether it moves here from another directory.
            out.put_i64(0);
            out.put_u8(0);
            out.put_no_tags(flexible);
        }
        out.put_no_tags(flexible);
    }
    if version >= 4 {
        out.put_i64(bytes(disk.total_bytes));
        out.put_i64(bytes(usable(disk)));
    }
    if version >= 5 {
        out.put_u8(0);
    }
    out.put_no_tags(flexible);
    out.put_no_tags(flexible);
}

/// What can still be written: nothing, once the disk is so full that records are refused.
fn usable(disk: DiskState) -> u64 {
    match disk.refusing {
        true => 0,
        false => disk.free_bytes,
    }
}

/// Sizes of these groups of this shard, or of all but the metadata's.
pub async fn serve(shard: &Shard, groups: Option<Vec<GroupId>>) -> Vec<(GroupId, u64)> {
    let ids = groups.unwrap_or_else(|| shard.groups.ids());
    let mut sizes = Vec::with_capacity(ids.len());
    for (i, id) in ids.into_iter().enumerate() {
        if i % SLICE == SLICE - 1 {
            rt::yield_if_needed().await;
        }
        if id != GroupId::METADATA
            && let Some(group) = shard.groups.get(id)
        {
            sizes.push((id, group.log().size_bytes()));
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Buf;
    use kafka_protocol::messages::DescribeLogDirsResponse;
    use kafka_protocol::protocol::Decodable;

    #[test]
    fn a_disk_that_refuses_records_has_nothing_usable() {
        let disk = |refusing| DiskState {
            free_bytes: 7,
            total_bytes: 9,
            refusing,
        };
        assert_eq!((usable(disk(false)), usable(disk(true))), (7, 0));
    }

    #[test]
    fn answers_are_read_by_the_library() {
        let disk = DiskState {
            free_bytes: 7,
            total_bytes: 9,
            refusing: false,
        };
        let sizes = Sizes::from([("t".into(), BTreeMap::from([(0, 5), (3, 1 << 40)]))]);
        for version in 1..=5 {
            let mut out = BytesMut::new();
            write_body(&mut out, version, "/data", &sizes, disk);
            let mut bytes = out.freeze();
            if version == 5 {
                // Between the usable bytes and the tags of the one directory and of the answer.
                let at = bytes.len() - 3;
                assert_eq!(bytes[at..], [0, 0, 0]);
                bytes = [&bytes[..at], &bytes[at + 1..]].concat().into();
            }
            let got = DescribeLogDirsResponse::decode(&mut bytes, version.min(KNOWN)).unwrap();
            assert!(!bytes.has_remaining(), "version {version}");
            let directory = &got.results[0];
            assert_eq!(&*directory.log_dir, "/data");
            let parts = &directory.topics[0].partitions;
            assert_eq!(parts[1].partition_size, 1 << 40);
            assert_eq!(parts[1].partition_index, 3);
            if version >= 4 {
                assert_eq!((directory.total_bytes, directory.usable_bytes), (9, 7));
            }
        }
    }
}
