//! Produce, key 0, versions 3-13 (advertised from 0; see [`crate::versions`]).
//!
//! Batches are checked on the connection's shard ([`crate::validate`]) and appended on the owner's, in place when that is the same shard, else
//! in one message per shard. A connection's requests are appended in the order in which they came; only their answers wait, and many
//! may wait at once. A batch that is too large for the journal is first written to an extent on its owner's shard (L7), and its connection waits for that. `acks=0` has no answer: an error closes the connection, so that the client learns of it.
//!
//! From version 10 on an answer names the leader that this node knows of (KIP-951); from 13 on topics go by id. A topic that isn't there is
//! not created. A client with a quota is charged by its connection, once its batches are in their logs. Transactional ids are ignored: a transactional batch is refused for its attributes.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use cluster::view::Topic;
use engine::batch::Batch;
use engine::memory::TooLarge;
use engine::ring::{Class, Gone};
use engine::rt;
use engine::types::{GroupId, ShardId, TopicId};
use raftgroup::{Acks, Appended, CommitWait, ProduceError, Produced};
use smallvec::SmallVec;

use crate::error::{ErrorCode, Malformed};
use crate::frame::{Request, finish};
use crate::groups::topic::INTERNAL;
use crate::handlers::work::Work;
use crate::limits;
use crate::refusals::Refusals;
use crate::request::{Body, ProduceCall, ShardReply, ShardRequest};
use crate::shard::Shard;
use crate::validate::{self, Refusal, Rules};

pub mod sieve;
pub mod wire;

use wire::{Details, PartAnswer, PartData, ProduceRequest, TopicData};

/// What a producer is told besides the code.
const DISK_FULL: &str =
    "The broker's disk is nearly full: nothing was written; try again when there is room.";

/// A Produce request whose batches are in their logs (or refused), on the way to its answer.
pub struct Pending {
    request: Request,
    topics: SmallVec<[TopicData; 1]>,
    parts: SmallVec<[PartData; 1]>,
    /// What an unfinished part would be told now.
    answers: SmallVec<[PartAnswer; 1]>,
    groups: SmallVec<[Option<GroupId>; 1]>,
    local: Waits,
    remote: SmallVec<[Remote; 1]>,
    timeout: Duration,
    acks: Acks,
    /// Whether the client's acks are any; else nothing is appended.
    acks_are_known: bool,
    /// For so long the client is throttled, in milliseconds; set by the connection, which charges it.
    pub throttle_ms: u32,
    /// What its parts and their answers take.
    _work: Work,
}

/// Batches in a log of this shard whose commits are awaited, by their place in the request.
type Waits = SmallVec<[(usize, CommitWait<Appended>); 1]>;

/// A message to another shard.
struct Remote {
    /// The places in the request of what it carried.
    places: SmallVec<[usize; 1]>,
    reply: Pin<Box<dyn Future<Output = Result<ShardReply, Gone>>>>,
}

/// Reads and checks a request and appends its batches. Awaited by the connection before it reads the next request, so that order is kept.
/// Of one that was `too_large` there are no records any more ([`sieve`]): it is only answered.
pub async fn begin(
    shard: &Rc<Shard>,
    mut request: Request,
    too_large: Option<TooLarge>,
) -> Result<Pending, Malformed> {
    let work = Work::begin(&shard.work, &mut request).await?;
    let ProduceRequest {
        acks,
        timeout_ms,
        topics,
        mut parts,
        ..
    } = ProduceRequest::read(&request)?;
    let count = parts.len();
    let mut pending = Pending {
        request,
        topics,
        answers: SmallVec::with_capacity(count),
        groups: SmallVec::from_elem(None, count),
        parts: SmallVec::new(),
        local: SmallVec::new(),
        remote: SmallVec::new(),
        timeout: Duration::from_millis(timeout_ms.max(0) as u64).min(limits::PRODUCE_WAIT),
        acks: match acks {
            0 => Acks::None,
            1 => Acks::Leader,
            _ => Acks::All,
        },
        acks_are_known: (-1..=1).contains(&acks),
        throttle_ms: 0,
        _work: work,
    };
    let mut calls: SmallVec<[Call; 1]> = SmallVec::new();
    let mut at = 0;
    for t in 0..pending.topics.len() {
        let topic = find_topic(shard, &pending.request, &pending.topics[t]);
        for place in at..at + pending.topics[t].parts {
            let part = &mut parts[place];
            let records = part.records.take();
            let answer = match (&topic, too_large) {
                (Ok(topic), Some(too_large)) => larger_than_memory(topic, part.index, too_large),
                (Ok(topic), None) => {
                    let index = part.index;
                    begin_part(
                        shard,
                        &mut pending,
                        &mut calls,
                        topic,
                        index,
                        place,
                        records,
                    )
                    .await
                }
                (Err(code), _) => PartAnswer::error(*code),
            };
            pending.answers.push(answer);
            // What is refused is refused here and now, and there may be a hundred thousand.
            if place % limits::FETCH_SLICE == limits::FETCH_SLICE - 1 {
                rt::yield_if_needed().await;
            }
        }
        at += pending.topics[t].parts;
    }
    pending.parts = parts;
    for call in calls {
        send(shard, &mut pending, call).await;
    }
    Ok(pending)
}

/// What goes to one other shard.
struct Call {
    shard: ShardId,
    places: SmallVec<[usize; 1]>,
    parts: SmallVec<[(GroupId, Body); 1]>,
}

fn find_topic(shard: &Shard, request: &Request, topic: &TopicData) -> Result<Rc<Topic>, ErrorCode> {
    let found = if request.version >= 13 {
        shard
            .view
            .topic_by_id(TopicId(topic.id))
            .ok_or(ErrorCode::UnknownTopicId)?
    } else {
        shard
            .view
            .topic(&topic.name)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?
    };
    if INTERNAL.contains(&&*found.name) {
        return Err(ErrorCode::InvalidTopic);
    }
    Ok(found)
}

/// The answer for a batch that never got into memory.
fn larger_than_memory(topic: &Topic, index: i32, TooLarge { asked, cap }: TooLarge) -> PartAnswer {
    if topic.partition(index).is_none() {
        return PartAnswer::error(ErrorCode::UnknownTopicOrPartition);
    }
    refused(Refusal {
        code: ErrorCode::MessageTooLarge,
        message: format!(
            "The request is {asked} bytes, and a shard of this broker takes {cap}: send smaller batches, or give the broker more memory for each shard (`memory`, `shards`)."
        )
        .into(),
        records: Vec::new(),
    })
}

/// Checks one partition's batch and appends it, or puts it into the message to its shard. The answer is the one so far.
async fn begin_part(
    shard: &Rc<Shard>,
    pending: &mut Pending,
    calls: &mut SmallVec<[Call; 1]>,
    topic: &Topic,
    index: i32,
    place: usize,
    records: Option<Bytes>,
) -> PartAnswer {
    let Some(partition) = topic.partition(index) else {
        return PartAnswer::error(ErrorCode::UnknownTopicOrPartition);
    };
    let group = topic.group(index);
    pending.groups[place] = Some(group);
    let zstd = pending.request.version >= 7;
    if !pending.acks_are_known {
        // What isn't there or is no batch at all is told first, as Kafka does.
        return match validate::shape(records, zstd) {
            Ok(()) => PartAnswer::error(ErrorCode::InvalidRequiredAcks),
            Err(refusal) => refused(refusal),
        };
    }
    if !partition.replicas.iter().any(|r| r.node == shard.node) {
        return PartAnswer::error(ErrorCode::NotLeaderOrFollower);
    }
    let in_sync = i32::try_from(partition.replicas.len()).unwrap_or(i32::MAX);
    if pending.acks == Acks::All && topic.config.min_insync_replicas > in_sync {
        return PartAnswer::error(ErrorCode::NotEnoughReplicas);
    }
    let rules = Rules {
        config: &topic.config,
        budget: &shard.budget,
        now_ms: rt::wall_clock_ms(),
        zstd,
        keys: false,
    };
    let batch = match validate::check(records, rules, &async || rt::yield_if_needed().await).await {
        Ok(batch) => batch,
        Err(refusal) => return refused(refusal),
    };
    let owner = shard.owner(group);
    let body = if batch.bytes.len() > shard.groups.shard_log().largest_in_journal() {
        match ask_for_extent(shard, owner, group, batch).await {
            Ok(body) => body,
            Err(code) => return PartAnswer::error(code),
        }
    } else {
        Body::Whole(batch)
    };
    if owner != shard.id {
        let call = match calls.iter_mut().position(|c| c.shard == owner) {
            Some(at) => &mut calls[at],
            None => {
                calls.push(Call {
                    shard: owner,
                    places: SmallVec::new(),
                    parts: SmallVec::new(),
                });
                calls.last_mut().expect("one was just pushed")
            }
        };
        call.places.push(place);
        call.parts.push((group, body));
        return PartAnswer::error(ErrorCode::RequestTimedOut);
    }
    match append_one(shard, group, body, pending.acks) {
        Ok(wait) => {
            pending.local.push((place, wait));
            PartAnswer::error(ErrorCode::RequestTimedOut)
        }
        Err(answer) => answer,
    }
}

async fn ask_for_extent(
    shard: &Rc<Shard>,
    owner: ShardId,
    group: GroupId,
    batch: Batch,
) -> Result<Body, ErrorCode> {
    if owner == shard.id {
        return put_extent(shard, group, batch).await;
    }
    shard.metrics.cross_shard_hops.increment();
    let request = ShardRequest::PutExtent(group, batch);
    let reply = shard
        .rpc
        .call(usize::from(owner.0), Class::Append, request)
        .await;
    match reply {
        Ok(ShardReply::PutExtent(body)) => body,
        _ => Err(ErrorCode::KafkaStorageError),
    }
}

/// Writes a batch to an extent of this shard's partition. One that was taken before stays as it is: producing it again only tells where it lies.
pub async fn put_extent(shard: &Shard, id: GroupId, batch: Batch) -> Result<Body, ErrorCode> {
    let group = shard.led(id)?;
    match group.put_extent(&batch, rt::wall_clock_ms()).await {
        Ok(Some(extent)) => Ok(Body::Extent(Box::new(extent))),
        Ok(None) => Ok(Body::Whole(batch)),
        Err(e) => Err(code(e)),
    }
}

fn refused(refusal: Refusal) -> PartAnswer {
    PartAnswer {
        details: Some(Box::new(Details {
            message: Some(refusal.message),
            records: refusal.records,
            leader: None,
        })),
        ..PartAnswer::error(refusal.code)
    }
}

/// Sends a message and sees it off: it ends when the message is in the ring, so that what follows is behind it.
async fn send(shard: &Rc<Shard>, pending: &mut Pending, call: Call) {
    let target = usize::from(call.shard.0);
    shard.metrics.cross_shard_hops.increment();
    let request = ShardRequest::Produce(ProduceCall {
        parts: call.parts,
        acks: pending.acks,
        timeout_ms: pending.timeout.as_millis() as u32,
    });
    let rpc = shard.rpc.clone();
    let mut reply: Pin<Box<dyn Future<Output = Result<ShardReply, Gone>>>> =
        Box::pin(async move { rpc.call(target, Class::Append, request).await });
    let answered = poll_fn(|cx| {
        // Only this very poll can have sent something in between.
        let sent = shard.rpc.hops();
        match reply.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending if shard.rpc.hops() != sent => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    match answered {
        Some(reply) => fill(&mut pending.answers, &call.places, reply),
        None => pending.remote.push(Remote {
            places: call.places,
            reply,
        }),
    }
}

fn fill(answers: &mut [PartAnswer], places: &[usize], reply: Result<ShardReply, Gone>) {
    match reply {
        Ok(ShardReply::Produce(got)) if got.len() == places.len() => {
            for (place, answer) in places.iter().zip(got) {
                answers[*place] = answer;
            }
        }
        _ => {
            for place in places {
                answers[*place] = PartAnswer::error(ErrorCode::KafkaStorageError);
            }
        }
    }
}

/// Puts a batch into a log of this shard. An `Err` is an answer that needs no waiting, a good one as well.
fn append_one(
    shard: &Shard,
    id: GroupId,
    body: Body,
    acks: Acks,
) -> Result<CommitWait<Appended>, PartAnswer> {
    let group = shard.led(id).map_err(PartAnswer::error)?;
    let now_ms = rt::wall_clock_ms();
    let produced = match body {
        Body::Whole(batch) => group.produce(batch, acks, now_ms),
        Body::Extent(extent) => group.produce_extent(*extent, acks, now_ms),
    };
    match produced {
        Ok(Produced::Wait(wait)) => Ok(wait),
        Ok(Produced::Done(appended)) => Err(answer(appended)),
        Err(e) => Err(failed(e)),
    }
}

fn failed(e: ProduceError) -> PartAnswer {
    let mut answer = PartAnswer::error(code(e));
    if e == ProduceError::DiskFull {
        answer.details.get_or_insert_default().message = Some(DISK_FULL.into());
    }
    answer
}

fn answer(appended: Appended) -> PartAnswer {
    PartAnswer {
        error: ErrorCode::None,
        base_offset: appended.base_offset.0,
        log_append_time_ms: appended.log_append_time_ms,
        log_start_offset: appended.log_start_offset.0,
        details: None,
    }
}

fn code(e: ProduceError) -> ErrorCode {
    match e {
        ProduceError::NotLeader | ProduceError::Removed => ErrorCode::NotLeaderOrFollower,
        ProduceError::OutOfOrderSequence => ErrorCode::OutOfOrderSequenceNumber,
        ProduceError::InvalidProducerEpoch => ErrorCode::InvalidProducerEpoch,
        ProduceError::DuplicateSequence => ErrorCode::DuplicateSequenceNumber,
        ProduceError::UnknownProducer => ErrorCode::UnknownProducerId,
        ProduceError::OffsetOutOfRange => ErrorCode::OffsetOutOfRange,
        ProduceError::TooLarge => ErrorCode::MessageTooLarge,
        // Retriable, and nothing was appended: the client tries the same again a little later.
        ProduceError::Overloaded => ErrorCode::RequestTimedOut,
        // The one code that means the disk. Java, librdkafka, franz-go and the others refresh their metadata and try the same batch again, knowing that it wasn't
        // written; the alternatives either say "maybe written" (REQUEST_TIMED_OUT) or mean replicas.
        ProduceError::DiskFull | ProduceError::Storage => ErrorCode::KafkaStorageError,
    }
}

async fn settle_local(waits: &mut Waits, answers: &mut [PartAnswer]) {
    // Popped only when it has ended: the time may be up while one is awaited.
    while let Some((place, wait)) = waits.last_mut() {
        answers[*place] = match wait.await {
            Ok(appended) => answer(appended),
            Err(e) => PartAnswer::error(code(e)),
        };
        waits.pop();
    }
}

/// Another shard's batches in this shard's logs.
pub struct Appending {
    answers: SmallVec<[PartAnswer; 1]>,
    waits: Waits,
    timeout: Duration,
}

/// Appends what another shard sent. Never waits.
pub fn append(shard: &Shard, call: ProduceCall) -> Appending {
    let mut appending = Appending {
        answers: SmallVec::with_capacity(call.parts.len()),
        waits: SmallVec::new(),
        timeout: Duration::from_millis(u64::from(call.timeout_ms)),
    };
    for (place, (group, body)) in call.parts.into_iter().enumerate() {
        let answer = match append_one(shard, group, body, call.acks) {
            Ok(wait) => {
                appending.waits.push((place, wait));
                PartAnswer::error(ErrorCode::RequestTimedOut)
            }
            Err(answer) => answer,
        };
        appending.answers.push(answer);
    }
    appending
}

impl Appending {
    /// Waits for the commits, until the request's time is up.
    pub async fn settle(mut self, shard: &Shard) -> SmallVec<[PartAnswer; 1]> {
        if !self.waits.is_empty() {
            let settled = settle_local(&mut self.waits, &mut self.answers);
            let _ = rt::timeout(self.timeout, settled).await;
        }
        if let Some(delay) = shard.slow_down() {
            rt::sleep(delay).await;
        }
        self.answers
    }
}

impl Pending {
    /// Whether the client expects an answer.
    pub fn is_answered(&self) -> bool {
        self.acks != Acks::None
    }

    /// Waits for everything that is still awaited. May be dropped and begun again.
    pub async fn settle(&mut self) {
        settle_local(&mut self.local, &mut self.answers).await;
        while let Some(remote) = self.remote.last_mut() {
            let reply = remote.reply.as_mut().await;
            fill(&mut self.answers, &remote.places, reply);
            self.remote.pop();
        }
    }

    /// [`Pending::settle`], at the longest for the request's own timeout.
    pub async fn settle_in_time(&mut self) {
        let timeout = self.timeout;
        let _ = rt::timeout(timeout, self.settle()).await;
    }

    /// Whether some batch was refused or failed.
    pub fn failed(&self) -> bool {
        self.answers.iter().any(|a| !a.error.is_none())
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    /// What is refused, as things stand.
    pub fn refusals(&self) -> Refusals {
        let mut refusals = Refusals::default();
        for answer in self.answers.iter().filter(|a| !a.error.is_none()) {
            let details = answer.details.as_ref();
            refusals.tell(answer.error.code(), details.and_then(|d| d.message.clone()));
        }
        refusals
    }

    /// The answer, as things stand.
    pub fn encode(mut self, shard: &Shard) -> Bytes {
        let mut leaders = SmallVec::<[i32; 4]>::new();
        for (answer, group) in self.answers.iter_mut().zip(&self.groups) {
            // The code came with version 4; older clients, who give up on one that they don't know, get Kafka's own substitute.
            if answer.error == ErrorCode::KafkaStorageError && self.request.version < 4 {
                answer.error = ErrorCode::NotLeaderOrFollower;
            }
            if answer.error == ErrorCode::NotLeaderOrFollower
                && let Some(hint) = group.and_then(|g| shard.leader_hint(g))
                && !shard.faces().is_own(hint.node)
            {
                leaders.push(hint.node);
                answer.details.get_or_insert_default().leader = Some(hint);
            }
        }
        let endpoints = if leaders.is_empty() {
            Vec::new()
        } else {
            shard.endpoints(leaders.into_iter())
        };
        let mut out = wire::write(
            &self.request,
            &self.topics,
            &self.parts,
            &self.answers,
            &endpoints,
            self.throttle_ms,
        );
        finish(&mut out, 0);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world::World;

    #[test]
    fn what_memory_does_not_hold_is_answered_as_too_large_and_says_what_to_do() {
        let topic = World::default().view.topic("orders").unwrap();
        let by = TooLarge {
            asked: 20_000_000,
            cap: 13_421_772,
        };
        let answer = larger_than_memory(&topic, 2, by);
        assert_eq!(answer.error, ErrorCode::MessageTooLarge);
        let why = answer.details.unwrap().message.unwrap();
        for said in ["20000000", "13421772", "smaller batches", "memory"] {
            assert!(why.contains(said), "{why}");
        }
        let nowhere = larger_than_memory(&topic, 3, by);
        assert_eq!(nowhere.error, ErrorCode::UnknownTopicOrPartition);
    }
}
