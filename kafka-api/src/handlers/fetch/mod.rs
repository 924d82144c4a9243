//! Fetch, key 1, versions 4-18.
//!
//! One message goes to each shard that owns some of the partitions (none when that is this shard); the owner keeps the long poll and
//! answers when enough is there or time is up. Touches a fetch several shards, then each waits for its share of the minimum, and as
//! soon as one answers the others are told how much is still wanted, so that together they answer exactly when the minimum is reached.
//!
//! From version 7 on there are sessions, see [`session`]. Whoever says that it is a replica is served like any client, up to the high watermark.
//! Without transactions both isolation levels see the same. From version 13 on topics go by id.
//! A client that has used its quota up gets an empty answer, whatever was read for it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use engine::batch::whole_batches;
use engine::memory::Leases;
use engine::rt::{self, Queue};
use engine::types::{GroupId, ShardId, TopicId};
use smallvec::SmallVec;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::produce::wire::Endpoint;
use crate::handlers::work::Work;
use crate::handlers::{Answer, AnswerMemory, memory_for};
use crate::limits;
use crate::quotas::Kind;
use crate::refusals::Refusals;
use crate::request::{FetchCall, FetchQuery, FetchReply, ShardRequest};
use crate::shard::Shard;

mod owner;
pub mod session;
mod waiter;
pub mod wire;

pub use owner::serve_remote;
use session::Context;
pub use session::Sessions;
pub use waiter::Fetches;
use wire::{FetchRequest, PartAnswer};

/// Memory behind an answer's bytes, given back when they are written.
pub enum Held {
    Here {
        _memory: Leases,
    },
    There {
        _call: RemoteCall,
    },
    /// Of what an answer takes besides records.
    Answer {
        _memory: AnswerMemory,
    },
}

/// A fetch at another shard. When it is dropped, that shard is told that nobody wants it any more.
pub struct RemoteCall {
    shard: Rc<Shard>,
    owner: ShardId,
    id: u64,
    /// Nothing is kept there for this call.
    over: bool,
}

impl RemoteCall {
    /// The owner keeps nothing for this call.
    fn is_over(&mut self) {
        self.over = true;
    }
}

impl Drop for RemoteCall {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (shard, owner, call) = (self.shard.clone(), usize::from(self.owner.0), self.id);
        rt::spawn(Queue::Latency, async move {
            shard
                .rpc
                .cast(owner, ShardRequest::FetchDone { call })
                .await;
        })
        .detach();
    }
}

/// What is asked of one shard.
struct Part {
    shard: ShardId,
    places: SmallVec<[usize; 1]>,
    queries: SmallVec<[FetchQuery; 1]>,
}

pub async fn handle(
    shard: &Rc<Shard>,
    request: &mut Request,
    memory: &mut Leases,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let mut fetch = FetchRequest::read(request)?;
    let by_id = request.version >= 13;
    let context = match shard.sessions.begin(&mut fetch, by_id, rt::now()) {
        Ok(context) => context,
        Err(error) => {
            shard.count_sessions();
            let pieces = wire::write(request, error, 0, &[], &[], Vec::new(), &[]);
            return Ok(Answer::pieces(pieces).telling([error.code()]));
        }
    };
    if !matches!(context, Context::Incremental(_)) {
        fetch.without_repeats(&rt::yield_if_needed).await;
    }
    // Nothing of the frame is held while it waits.
    fetch.own();
    request.let_go();
    memory.clear();
    let (mut answers, parts) = resolve(shard, request, &fetch).await;
    let max_bytes = (fetch.max_bytes.max(0) as usize)
        .min(limits::FETCH_BYTES)
        .min(shard.config.broker.fetch_max_bytes.max(0) as usize);
    let limit = if shard.has_quotas(Kind::Fetched) {
        shard.quota(Kind::Fetched, &request.client_id)
    } else {
        None
    };
    // More than that at once would be too much however long the client was silent.
    let max_bytes = limit.map_or(max_bytes, |limit| {
        let most = shard.quotas.borrow().clients().most_at_once(limit);
        max_bytes.min(most as usize)
    });
    let min_bytes = (fetch.min_bytes.max(0) as usize).min(max_bytes);
    let refused = answers.iter().any(|a| !a.error.is_none());
    let polling = shard.fetches.polls(shard, fetch.parts.len());
    let max_wait_ms = if refused || parts.is_empty() || polling.is_none() {
        0
    } else {
        let most = limits::FETCH_WAIT.as_millis() as u32;
        (fetch.max_wait_ms.max(0) as u32).min(most)
    };
    if max_wait_ms > 0 {
        // It may wait for long; its partitions are counted among those of long polls.
        work.let_go();
    }
    let several = parts.len() > 1;
    let share = min_bytes.div_ceil(parts.len().max(1));
    let mut calls = SmallVec::<[Call; 1]>::new();
    for part in parts {
        let call = FetchCall {
            id: shard.fetches.next_id(),
            queries: part.queries,
            max_bytes,
            min_bytes: share,
            max_wait_ms,
            alone: !several,
        };
        calls.push(begin(shard, part.shard, part.places, call));
    }
    let mut held = Vec::new();
    let mut missing = min_bytes;
    while !calls.is_empty() {
        let (at, reply) = poll_fn(|cx| {
            for (at, call) in calls.iter_mut().enumerate() {
                if let Poll::Ready(reply) = call.reply.as_mut().poll(cx) {
                    return Poll::Ready((at, reply));
                }
            }
            Poll::Pending
        })
        .await;
        let call = calls.swap_remove(at);
        let bytes = fill(&mut answers, &call.places, reply, &mut held);
        if calls.is_empty() {
            break;
        }
        let failed = call.places.iter().any(|p| !answers[*p].error.is_none());
        missing = if failed {
            0
        } else {
            missing.saturating_sub(bytes)
        };
        for other in &calls {
            tell(shard, other, missing).await;
        }
    }
    drop(polling);
    if several {
        let most = fetch.parts.iter().map(|p| p.max_bytes.max(0) as usize);
        trim(&mut answers, most, max_bytes);
    }
    if limit.is_some() {
        let bytes = wire::size(request, &fetch, &answers) as f64;
        let throttle_ms = shard.charge(Kind::Fetched, &request.client_id, bytes).await;
        if throttle_ms > 0 {
            return Ok(throttled(shard, request, &context, throttle_ms));
        }
    }
    let session = match &context {
        Context::Alone => 0,
        Context::Full => {
            let (sessions, now) = (&shard.sessions, rt::now());
            sessions.create(&fetch, by_id, &answers, now, rt::random_u64)
        }
        Context::Incremental(session) => {
            session.tell(&mut fetch, &mut answers);
            session.id()
        }
    };
    shard.count_sessions();
    let endpoints = hints(shard, request, &fetch, &mut answers);
    let mut refusals = Refusals::default();
    answers.iter().for_each(|a| refusals.note(a.error.code()));
    let besides = wire::overhead_bytes(fetch.parts.len());
    if besides > limits::UNLEASED_PARTITIONS_BYTES {
        let memory = memory_for(shard, besides).await;
        held.push(Held::Answer { _memory: memory });
    }
    let pieces = wire::write(
        request,
        ErrorCode::None,
        session,
        &fetch.topics,
        &fetch.parts,
        answers,
        &endpoints,
    );
    Ok(Answer {
        pieces,
        held,
        refusals,
        throttle_ms: 0,
    })
}

/// What a client gets that has fetched too much: nothing, for so long. What was read goes back, and its session wasn't told anything.
fn throttled(shard: &Shard, request: &Request, context: &Context, throttle_ms: u32) -> Answer {
    let session = match context {
        Context::Alone | Context::Full => 0,
        Context::Incremental(session) => session.id(),
    };
    shard.count_sessions();
    let pieces = wire::write(request, ErrorCode::None, session, &[], &[], Vec::new(), &[]);
    Answer {
        throttle_ms,
        ..Answer::pieces(pieces)
    }
}

/// Tells clients that came to the wrong node, or with an old epoch, who leads; where the other nodes are reached.
fn hints(
    shard: &Rc<Shard>,
    request: &Request,
    fetch: &FetchRequest,
    answers: &mut [PartAnswer],
) -> Vec<Endpoint> {
    let misled = |a: &PartAnswer| {
        matches!(
            a.error,
            ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch
        )
    };
    if !answers.iter().any(misled) {
        return Vec::new();
    }
    let mut elsewhere = Vec::new();
    let mut place = 0;
    for topic in &fetch.topics {
        let id = if request.version >= 13 {
            Some(TopicId(topic.id))
        } else {
            shard.view.topic(&topic.name).map(|t| t.id)
        };
        let places = place..place + topic.parts;
        place += topic.parts;
        for (part, answer) in fetch.parts[places.clone()].iter().zip(&mut answers[places]) {
            let partition = part.index;
            if misled(answer)
                && let Some(topic) = id
                && let Some(hint) = shard.leader_hint(GroupId { topic, partition })
            {
                if !shard.faces().is_own(hint.node) {
                    elsewhere.push(hint.node);
                }
                answer.leader = Some(hint);
            }
        }
    }
    shard.endpoints(elsewhere.into_iter())
}

/// Finds the owner of each part. What is refused at once has its error; the rest is NOT_LEADER_OR_FOLLOWER's successor to be filled in.
async fn resolve(
    shard: &Rc<Shard>,
    request: &Request,
    fetch: &FetchRequest,
) -> (Vec<PartAnswer>, SmallVec<[Part; 1]>) {
    let mut answers = Vec::with_capacity(fetch.parts.len());
    let mut by_shard = SmallVec::<[Part; 1]>::new();
    let mut place = 0;
    for topic in &fetch.topics {
        let (found, missing) = if request.version >= 13 {
            (
                shard.view.topic_by_id(TopicId(topic.id)),
                ErrorCode::UnknownTopicId,
            )
        } else {
            (
                shard.view.topic(&topic.name),
                ErrorCode::UnknownTopicOrPartition,
            )
        };
        for part in &fetch.parts[place..place + topic.parts] {
            let error = match &found {
                None => missing,
                Some(topic) => match topic.partition(part.index) {
                    None => ErrorCode::UnknownTopicOrPartition,
                    Some(p) if p.replicas.iter().any(|r| r.node == shard.node) => {
                        let group = topic.group(part.index);
                        let query = FetchQuery {
                            group,
                            offset: part.fetch_offset,
                            // Unlike elsewhere, every negative one says nothing.
                            current_leader_epoch: part.current_leader_epoch.max(-1),
                            last_fetched_epoch: part.last_fetched_epoch,
                            max_bytes: part.max_bytes.max(0) as usize,
                        };
                        add(&mut by_shard, shard.owner(group), place, query);
                        ErrorCode::None
                    }
                    Some(_) => ErrorCode::NotLeaderOrFollower,
                },
            };
            answers.push(PartAnswer::error(error));
            place += 1;
            if place % limits::FETCH_SLICE == 0 {
                rt::yield_if_needed().await;
            }
        }
    }
    (answers, by_shard)
}

fn add(by_shard: &mut SmallVec<[Part; 1]>, owner: ShardId, place: usize, query: FetchQuery) {
    let at = by_shard
        .iter()
        .position(|p| p.shard == owner)
        .unwrap_or_else(|| {
            by_shard.push(Part {
                shard: owner,
                places: SmallVec::new(),
                queries: SmallVec::new(),
            });
            by_shard.len() - 1
        });
    by_shard[at].places.push(place);
    by_shard[at].queries.push(query);
}

/// A call under way.
struct Call {
    owner: ShardId,
    id: u64,
    places: SmallVec<[usize; 1]>,
    reply: Pin<Box<dyn Future<Output = Reply>>>,
}

/// What a call gave: the parts, none if its shard is gone, and the memory behind them.
type Reply = (Option<SmallVec<[PartAnswer; 1]>>, Option<Held>);

fn begin(shard: &Rc<Shard>, owner: ShardId, places: SmallVec<[usize; 1]>, call: FetchCall) -> Call {
    let id = call.id;
    let shard = shard.clone();
    let me = usize::from(shard.id.0);
    let reply: Pin<Box<dyn Future<Output = Reply>>> = if owner == shard.id {
        let waiter = shard.fetches.register(me, id);
        let registered = Registered {
            shard: shard.clone(),
            id,
        };
        Box::pin(async move {
            let _registered = registered;
            let (parts, memory) = owner::serve(&shard, &call, &waiter).await;
            (Some(parts), memory.map(|m| Held::Here { _memory: m }))
        })
    } else {
        let mut guard = RemoteCall {
            shard: shard.clone(),
            owner,
            id,
            over: false,
        };
        Box::pin(async move {
            shard.metrics.cross_shard_hops.increment();
            let wait = Duration::from_millis(call.max_wait_ms.into()) + limits::FETCH_ANSWER_WAIT;
            let question = shard.fetches.ask(id);
            // Cast, not called: a long poll holds no credit, so that others don't wait behind it.
            let target = usize::from(owner.0);
            shard.rpc.cast(target, ShardRequest::Fetch(call)).await;
            match rt::timeout(wait, question.answered()).await {
                Ok(FetchReply { parts, leased }) => {
                    if !leased {
                        guard.is_over();
                    }
                    (Some(parts), leased.then_some(Held::There { _call: guard }))
                }
                // The guard tells the owner, if it is still there.
                Err(rt::Elapsed) => (None, None),
            }
        })
    };
    Call {
        owner,
        id,
        places,
        reply,
    }
}

/// A call of this shard to itself, in the books while it waits.
struct Registered {
    shard: Rc<Shard>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let me = usize::from(self.shard.id.0);
        self.shard.fetches.done(me, self.id);
    }
}

/// Tells a call that it needs only `min_bytes` more.
async fn tell(shard: &Rc<Shard>, call: &Call, min_bytes: usize) {
    let me = usize::from(shard.id.0);
    if call.owner == shard.id {
        shard.fetches.less(me, call.id, min_bytes);
    } else {
        let request = ShardRequest::FetchLess {
            call: call.id,
            min_bytes,
        };
        shard.rpc.cast(usize::from(call.owner.0), request).await;
    }
}

/// Takes over what a call gave; the bytes of it.
fn fill(
    answers: &mut [PartAnswer],
    places: &[usize],
    (parts, memory): Reply,
    held: &mut Vec<Held>,
) -> usize {
    held.extend(memory);
    let parts = parts.unwrap_or_default();
    if parts.len() != places.len() {
        for place in places {
            answers[*place] = PartAnswer::error(ErrorCode::KafkaStorageError);
        }
        return 0;
    }
    let mut bytes = 0;
    for (place, part) in places.iter().zip(parts) {
        bytes += part.record_bytes();
        answers[*place] = part;
    }
    bytes
}

/// Cuts what several shards gave to `max_bytes` together, whole batches in the client's order; the first batch stays whatever its size. Each shard let its first partition with data
/// go beyond what is asked for of it (`most`); of the whole answer only the first may.
fn trim(answers: &mut [PartAnswer], most: impl Iterator<Item = usize>, max_bytes: usize) {
    let mut total = 0usize;
    for (answer, most) in answers.iter_mut().zip(most) {
        let limit = if total == 0 {
            max_bytes
        } else {
            max_bytes.min(total.saturating_add(most))
        };
        let bytes = answer.record_bytes();
        if total + bytes <= limit {
            total += bytes;
            continue;
        }
        let mut kept = SmallVec::<[Bytes; 2]>::new();
        'pieces: for piece in answer.records.drain(..) {
            let mut end = 0;
            for (header, _) in whole_batches(&piece) {
                if total > 0 && total + header.total_bytes > limit {
                    kept.push(piece.slice(..end));
                    break 'pieces;
                }
                total += header.total_bytes;
                end += header.total_bytes;
            }
            kept.push(piece.slice(..end));
        }
        kept.retain(|p| !p.is_empty());
        answer.records = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::batch::testing::batch;

    fn part(records: &[Bytes]) -> PartAnswer {
        PartAnswer {
            records: records.iter().cloned().collect(),
            ..PartAnswer::error(ErrorCode::None)
        }
    }

    #[test]
    fn what_several_shards_gave_is_cut_at_batches() {
        let b = batch(1, 39, None).bytes;
        assert_eq!(b.len(), 100);
        let two = Bytes::from([&b[..], &b[..]].concat());
        let mut all = [
            part(&[two.clone(), b.clone()]),
            part(&[]),
            part(std::slice::from_ref(&b)),
        ];
        trim(&mut all, [1000; 3].into_iter(), 250);
        let sizes: Vec<_> = all.iter().map(PartAnswer::record_bytes).collect();
        assert_eq!(sizes, [200, 0, 0]);
        // The first batch stays, whatever the limit.
        let mut all = [part(&[]), part(&[two]), part(std::slice::from_ref(&b))];
        trim(&mut all, [1000; 3].into_iter(), 10);
        let sizes: Vec<_> = all.iter().map(PartAnswer::record_bytes).collect();
        assert_eq!(sizes, [0, 100, 0]);
        // Behind the first partition with data a partition's own limit binds as well.
        let two = Bytes::from([&b[..], &b[..]].concat());
        let mut all = [part(std::slice::from_ref(&two)), part(&[two]), part(&[b])];
        trim(&mut all, [1, 150, 99].into_iter(), 1000);
        let sizes: Vec<_> = all.iter().map(PartAnswer::record_bytes).collect();
        assert_eq!(sizes, [200, 100, 0]);
    }
}
