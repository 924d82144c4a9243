//! A shard as the Kafka side sees it: what its connections and handlers share, and the answers it gives to other shards.
//!
//! [`Shard::handle`] is called by the ring task for every request of another shard (or of the side office) and never waits: what takes time goes
//! into a task of its own. [`Shard::serve_connections`] accepts. A question about a partition of this very shard is answered in place, without a
//! hop ([`Shard::ask`]).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cluster::broker_config::BrokerConfig;
use cluster::controller::Controller;
use cluster::loggers::Loggers;
use cluster::metadata::Change;
use cluster::view::{Announcement, View};
use cluster::{Refusal, Refused};
use engine::line_limit::LineLimit;
use engine::memory::{Budget, MemoryClass};
use engine::metrics::ShardMetrics;
use engine::ring::{Class, Gone, Responder, Rpc};
use engine::rt::{self, Queue};
use engine::types::{GroupId, NodeId, ShardId, shard_of};
use indexmap::IndexMap;
use raftgroup::{Group, Groups};

use crate::error::ErrorCode;
use crate::faces::Faces;
use crate::handlers::produce::wire::{Endpoint, LeaderHint};
use crate::handlers::{
    delete_records, describe_log_dirs, describe_producers, fetch, list_offsets,
    offset_for_leader_epoch, produce,
};
use crate::request::{ControllerCall, ControllerReply, ShardReply, ShardRequest};
use crate::sync::join_all;
use crate::{groups, limits, quotas};

/// A map with fixed seeds: two runs of one seed see the same (design §2).
pub(crate) type Map<K, V> = IndexMap<K, V, ahash::RandomState>;

pub(crate) fn map<K, V>() -> Map<K, V> {
    IndexMap::with_hasher(ahash::RandomState::with_seeds(5, 6, 7, 8))
}

/// How the node serves its clients.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// What DescribeConfigs shows of it, and what it goes by.
    pub broker: BrokerConfig,
    /// What consumer groups go by.
    pub groups: crate::coordinator::Settings,
    /// What it logs.
    pub loggers: Arc<Loggers>,
    /// Whether each shard is a broker of its own to clients: see [`crate::faces`].
    pub shard_direct: bool,
}

/// What a shard is put together of. `controller` is there on shard 0 alone.
pub struct Parts {
    pub id: ShardId,
    pub shards: u16,
    pub node: NodeId,
    pub rpc: Rpc<ShardRequest, ShardReply>,
    pub groups: Rc<Groups>,
    pub view: Rc<View>,
    pub budget: Rc<Budget>,
    pub metrics: Rc<ShardMetrics>,
    pub config: Rc<ServerConfig>,
    pub controller: Option<Rc<Controller>>,
    /// How full the journal is, 0 to 1; answers to producers are slowed from a half on (L6).
    pub pressure: Rc<dyn Fn() -> f32>,
    /// Told each change of the metadata once the view has it: groups of this shard are created and removed there.
    pub follower: Rc<dyn Follower>,
}

/// Follows the metadata's changes, in their order.
pub trait Follower {
    /// Ends when the change is carried out; it yields on the way.
    fn follow<'a>(&'a self, change: &'a Change) -> Pin<Box<dyn Future<Output = ()> + 'a>>;
}

/// See the module.
pub struct Shard {
    pub id: ShardId,
    pub shards: u16,
    pub node: NodeId,
    pub rpc: Rpc<ShardRequest, ShardReply>,
    pub groups: Rc<Groups>,
    pub view: Rc<View>,
    pub budget: Rc<Budget>,
    pub metrics: Rc<ShardMetrics>,
    pub config: Rc<ServerConfig>,
    pub controller: Option<Rc<Controller>>,
    pressure: Rc<dyn Fn() -> f32>,
    follower: Rc<dyn Follower>,
    /// Changes are being taken over: they come one message after the other.
    changing: Cell<bool>,
    pub(crate) fetches: fetch::Fetches,
    pub(crate) sessions: fetch::Sessions,
    /// Bytes of sessions that the budget counts.
    session_bytes: Cell<u64>,
    pub(crate) coordinators: groups::Groups,
    pub(crate) producer_ids: crate::handlers::init_producer_id::Block,
    pub(crate) connections: crate::connection::Connections,
    /// Memory of requests that are carried out.
    pub(crate) work: crate::handlers::work::Room,
    pub(crate) making: crate::handlers::auto_create::Making,
    /// Turns of very large answers.
    pub(crate) large_answers: crate::sync::Semaphore,
    /// Reads of damaged or unreadable batches, in the log.
    pub(crate) failed_reads: LineLimit,
    pub(crate) quotas: RefCell<quotas::Keeper>,
    pub(crate) admission: quotas::admission::Admission,
    news: RefCell<Map<GroupId, Announcement>>,
    telling: Cell<bool>,
}

impl Shard {
    pub fn new(parts: Parts) -> Rc<Shard> {
        let sessions =
            fetch::Sessions::new(parts.config.broker.fetch_sessions, parts.id.0, parts.shards);
        let shapes = quotas::keeper::Shapes {
            clients: quotas::window::Shape::new(
                parts.config.broker.quota_window_num,
                parts.config.broker.quota_window_size_seconds,
            ),
            controller: quotas::window::Shape::new(
                parts.config.broker.controller_quota_window_num,
                parts.config.broker.controller_quota_window_size_seconds,
            ),
        };
        let rules = quotas::admission::Rules::new(&parts.config.broker);
        let admission = quotas::admission::Admission::new(rules);
        let keeper = quotas::Keeper::new(shapes, parts.budget.cap(MemoryClass::Cache));
        let work = crate::handlers::work::Room::new(parts.budget.clone());
        Rc::new(Shard {
            id: parts.id,
            shards: parts.shards,
            node: parts.node,
            rpc: parts.rpc,
            groups: parts.groups,
            view: parts.view,
            budget: parts.budget,
            metrics: parts.metrics,
            config: parts.config,
            controller: parts.controller,
            pressure: parts.pressure,
            follower: parts.follower,
            changing: Cell::new(false),
            fetches: fetch::Fetches::default(),
            sessions,
            session_bytes: Cell::new(0),
            coordinators: groups::Groups::default(),
            producer_ids: Default::default(),
            connections: Default::default(),
            work,
            making: Default::default(),
            large_answers: crate::sync::Semaphore::new(1),
            failed_reads: LineLimit::default(),
            quotas: RefCell::new(keeper),
            admission,
            news: RefCell::new(map()),
            telling: Cell::new(false),
        })
    }

    /// The shard of this node that owns a group.
    pub fn owner(&self, group: GroupId) -> ShardId {
        shard_of(group, self.shards)
    }

    /// Answers a request of participant `from`. Never waits.
    pub fn handle(
        self: &Rc<Self>,
        from: usize,
        request: ShardRequest,
        responder: Responder<ShardReply>,
    ) {
        match request {
            ShardRequest::FetchLess { call, min_bytes } => {
                self.fetches.less(from, call, min_bytes);
            }
            ShardRequest::FetchDone { call } => self.fetches.done(from, call),
            ShardRequest::Leaders(news) => {
                for announcement in news.iter() {
                    self.view.announce(*announcement);
                }
            }
            ShardRequest::Changes(changes) => {
                let shard = self.clone();
                rt::spawn(Queue::Latency, async move {
                    shard.take_changes(&changes).await;
                    responder.reply(ShardReply::Done);
                })
                .detach();
            }
            ShardRequest::Metrics => {
                responder.reply(ShardReply::Metrics(self.metrics.snapshot()));
            }
            ShardRequest::Produce(call) => {
                let shard = self.clone();
                // The batches enter the log here and now, in the order of the ring; only the answer waits.
                let pending = produce::append(self, call);
                rt::spawn(Queue::Latency, async move {
                    let answers = pending.settle(&shard).await;
                    responder.reply(ShardReply::Produce(answers));
                })
                .detach();
            }
            ShardRequest::PutExtent(group, batch) => {
                let shard = self.clone();
                rt::spawn(Queue::Latency, async move {
                    let body = produce::put_extent(&shard, group, batch).await;
                    responder.reply(ShardReply::PutExtent(body));
                })
                .detach();
            }
            ShardRequest::Fetch(call) => {
                let shard = self.clone();
                let waiter = self.fetches.register(from, call.id);
                rt::spawn(Queue::Latency, async move {
                    let id = call.id;
                    if let Some(reply) = fetch::serve_remote(&shard, from, call, waiter).await {
                        shard.fetches.answer(&shard, from, id, reply);
                    }
                })
                .detach();
            }
            ShardRequest::Fetched(call, reply) => self.fetches.arrived(call, *reply),
            ShardRequest::Left(ip) => self.admission.leave(ip),
            ShardRequest::Charge(charge) => {
                responder.reply(ShardReply::Throttled(self.enter(*charge)));
            }
            ShardRequest::Group(group, token, request) => {
                self.coordinators.ask(self, group, token, request);
            }
            ShardRequest::GroupAnswer(token, reply) => {
                self.coordinators.calls.arrived(token, reply);
            }
            ShardRequest::Offsets(_)
            | ShardRequest::Epochs(_)
            | ShardRequest::Trim(_)
            | ShardRequest::LogSizes(_)
            | ShardRequest::Producers(_)
            | ShardRequest::Enter(_)
            | ShardRequest::Controller(_) => {
                let shard = self.clone();
                rt::spawn(Queue::Latency, async move {
                    responder.reply(shard.answer(request).await);
                })
                .detach();
            }
        }
    }

    /// Asks a shard, which may be this one. Not for Produce and Fetch, which have ways of their own.
    pub async fn ask(
        self: &Rc<Self>,
        shard: ShardId,
        class: Class,
        request: ShardRequest,
    ) -> Result<ShardReply, Gone> {
        if shard == self.id {
            return Ok(self.answer(request).await);
        }
        self.metrics.cross_shard_hops.increment();
        self.rpc.call(usize::from(shard.0), class, request).await
    }

    async fn answer(self: &Rc<Self>, request: ShardRequest) -> ShardReply {
        match request {
            ShardRequest::Offsets(queries) => {
                ShardReply::Offsets(list_offsets::serve(self, queries).await)
            }
            ShardRequest::Epochs(queries) => {
                ShardReply::Epochs(offset_for_leader_epoch::serve(self, &queries).await)
            }
            ShardRequest::LogSizes(groups) => {
                ShardReply::LogSizes(describe_log_dirs::serve(self, groups).await)
            }
            ShardRequest::Producers(groups) => {
                ShardReply::Producers(describe_producers::serve(self, &groups).await)
            }
            ShardRequest::Trim(call) => ShardReply::Trim(delete_records::serve(self, call).await),
            ShardRequest::Controller(call) => ShardReply::Controller(self.control(call).await),
            ShardRequest::Charge(charge) => ShardReply::Throttled(self.enter(*charge)),
            ShardRequest::Enter(ip) => ShardReply::Entered(self.let_in(ip).await),
            other => unreachable!("{other:?} is not asked this way"),
        }
    }

    async fn control(&self, call: ControllerCall) -> ControllerReply {
        let not_here = || {
            Refused::new(
                Refusal::NotController,
                "The metadata group is not on this shard.",
            )
        };
        let Some(controller) = &self.controller else {
            return match call {
                ControllerCall::Create(_) => ControllerReply::Created(Err(not_here())),
                ControllerCall::Delete(_) => ControllerReply::Deleted(Err(not_here())),
                ControllerCall::Alter(_) | ControllerCall::AlterDefaults { .. } => {
                    ControllerReply::Altered(Err(not_here()))
                }
                ControllerCall::AddPartitions(_) => {
                    ControllerReply::PartitionsAdded(Err(not_here()))
                }
                ControllerCall::ProducerIds => ControllerReply::ProducerIds(Err(not_here())),
                ControllerCall::AlterQuotas(_) => ControllerReply::QuotasAltered(Err(not_here())),
            };
        };
        match call {
            ControllerCall::Create(_) if self.groups.disk().refusing => {
                ControllerReply::Created(Err(disk_is_full(self.groups.disk().free_bytes)))
            }
            ControllerCall::Create(new) => {
                ControllerReply::Created(in_time(controller.create_topic(new)).await)
            }
            ControllerCall::AddPartitions(_) if self.groups.disk().refusing => {
                ControllerReply::PartitionsAdded(Err(disk_is_full(self.groups.disk().free_bytes)))
            }
            ControllerCall::AddPartitions(new) => {
                ControllerReply::PartitionsAdded(in_time(controller.create_partitions(new)).await)
            }
            ControllerCall::Delete(which) => {
                ControllerReply::Deleted(in_time(controller.delete_topic(which)).await)
            }
            ControllerCall::Alter(alter) => {
                ControllerReply::Altered(in_time(controller.alter_topic(alter)).await)
            }
            ControllerCall::AlterDefaults {
                change,
                validate_only,
            } => {
                let altered = controller.alter_defaults(change, validate_only);
                ControllerReply::Altered(in_time(altered).await)
            }
            ControllerCall::ProducerIds => {
                ControllerReply::ProducerIds(in_time(controller.allocate_producer_ids()).await)
            }
            ControllerCall::AlterQuotas(changes) => {
                ControllerReply::QuotasAltered(in_time(controller.alter_quotas(changes)).await)
            }
        }
    }

    /// Asks the controller, wherever it is.
    pub async fn ask_controller(self: &Rc<Self>, call: ControllerCall) -> Option<ControllerReply> {
        match self
            .ask(ShardId(0), Class::Append, ShardRequest::Controller(call))
            .await
        {
            Ok(ShardReply::Controller(reply)) => Some(reply),
            _ => None,
        }
    }

    /// Hands changes of the metadata to every shard of this node; ends when all have them. Shard 0 calls it for its controller.
    pub async fn publish(self: &Rc<Self>, changes: Vec<Change>) {
        let changes: Arc<[Change]> = changes.into();
        self.take_changes(&changes).await;
        let mut calls = Vec::new();
        for shard in 0..usize::from(self.shards) {
            if shard != usize::from(self.id.0) {
                let request = ShardRequest::Changes(changes.clone());
                calls.push(Box::pin(self.rpc.call(shard, Class::Short, request)));
            }
        }
        // A shard that is gone is ending the process; the others still count.
        join_all(calls).await;
    }

    /// Other tasks have turns while a change of many partitions is taken over; the next message of changes comes only when this one is answered.
    async fn take_changes(self: &Rc<Self>, changes: &[Change]) {
        assert!(
            !self.changing.replace(true),
            "changes are taken over in their order"
        );
        for change in changes {
            let deleted = match change {
                Change::TopicDeleted(removed) => self.view.topic_by_id(removed.id),
                _ => None,
            };
            self.view.apply(change);
            self.follower.follow(change).await;
            if let Some(topic) = deleted {
                self.coordinators.topic_deleted(self, &topic.name);
            }
        }
        self.changing.set(false);
    }

    /// Takes note of a leader and tells the other shards, a batch at a time. Never waits; the newest word on a group counts.
    pub fn announce(self: &Rc<Self>, announcement: Announcement) {
        self.view.announce(announcement);
        if self.shards == 1 {
            return;
        }
        self.news
            .borrow_mut()
            .insert(announcement.group, announcement);
        if self.telling.replace(true) {
            return;
        }
        let shard = self.clone();
        rt::spawn(Queue::Latency, async move {
            loop {
                let news: Arc<[Announcement]> =
                    shard.news.borrow_mut().drain(..).map(|(_, a)| a).collect();
                if news.is_empty() {
                    break;
                }
                for other in 0..usize::from(shard.shards) {
                    if other != usize::from(shard.id.0) {
                        let request = ShardRequest::Leaders(news.clone());
                        shard.rpc.cast(other, request).await;
                    }
                }
            }
            shard.telling.set(false);
        })
        .detach();
    }

    /// Has the budget count the memory that fetch sessions take now.
    pub(crate) fn count_sessions(&self) {
        let now = self.sessions.bytes();
        let before = self.session_bytes.replace(now);
        if now == before {
            return;
        }
        let memory = self.budget.meter(MemoryClass::Cache);
        if now > before {
            memory.add(now - before);
        } else {
            memory.sub(before - now);
        }
    }

    /// How long an answer to a producer is held back, if at all (L6).
    pub(crate) fn slow_down(&self) -> Option<Duration> {
        let delay = answer_delay((self.pressure)());
        (!delay.is_zero()).then_some(delay)
    }

    /// The group, if this shard leads it; else what to tell the client.
    pub(crate) fn led(&self, id: GroupId) -> Result<Rc<Group>, ErrorCode> {
        match self.groups.get(id) {
            Some(group) if group.is_leader() => Ok(group),
            Some(_) => Err(ErrorCode::NotLeaderOrFollower),
            None if self.view.is_removed(id.topic) => Err(ErrorCode::UnknownTopicOrPartition),
            None => Err(ErrorCode::NotLeaderOrFollower),
        }
    }

    /// Who leads a group, for clients that came to the wrong node.
    pub(crate) fn leader_hint(&self, group: GroupId) -> Option<LeaderHint> {
        let leader = self.view.leader(group)?;
        Some(LeaderHint {
            node: self.faces().of(leader.node?, group),
            epoch: leader.epoch().0,
        })
    }

    /// Where the named brokers are reached.
    pub(crate) fn endpoints(&self, hints: impl Iterator<Item = i32>) -> Vec<Endpoint> {
        let faces = self.faces();
        let mut found: Vec<Endpoint> = Vec::new();
        for id in hints {
            if found.iter().all(|e| e.node != id) {
                found.extend(faces.endpoint(id));
            }
        }
        found
    }

    /// What clients take for brokers, now.
    pub(crate) fn faces(&self) -> Faces {
        let direct = self.config.shard_direct;
        Faces::new(self.view.brokers(), direct, self.node, self.shards)
    }
}

/// L6: how long an answer to a producer waits while the journal is so full (0 to 1; above 1 when more waits than fits). Nothing up to half, from there on
/// in proportion, so that producers get slower as it fills and never meet a cliff.
fn answer_delay(pressure: f32) -> Duration {
    let over = (pressure - limits::SLOW_ABOVE_PRESSURE) / (1.0 - limits::SLOW_ABOVE_PRESSURE);
    // What is no number slows nobody.
    if over > 0.0 {
        let most = limits::SLOWEST_ANSWER.as_micros() as f32;
        Duration::from_micros((over.min(1.0) * most) as u64)
    } else {
        Duration::ZERO
    }
}

/// Checks the leader epoch that a client believes in.
pub(crate) fn check_epoch(group: &Group, current_leader_epoch: i32) -> Result<(), ErrorCode> {
    compare_epochs(current_leader_epoch, group.leader_epoch().0)
}

/// -1 doesn't say; every other number that is none of an epoch is an old one.
fn compare_epochs(believed: i32, leads: i32) -> Result<(), ErrorCode> {
    if believed == -1 {
        return Ok(());
    }
    match believed.cmp(&leads) {
        std::cmp::Ordering::Less => Err(ErrorCode::FencedLeaderEpoch),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(ErrorCode::UnknownLeaderEpoch),
    }
}

fn disk_is_full(free_bytes: u64) -> Refused {
    Refused::new(
        Refusal::StorageError,
        format!(
            "The broker's disk is nearly full ({} MiB are free): no topic or partition can be created until there is room.",
            free_bytes >> 20
        ),
    )
}

async fn in_time<T>(work: impl Future<Output = Result<T, Refused>>) -> Result<T, Refused> {
    match rt::timeout(limits::CONTROLLER_WAIT, work).await {
        Ok(result) => result,
        Err(rt::Elapsed) => Err(Refused::new(
            Refusal::RequestTimedOut,
            "The change was not committed in time; it may still be.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_old_or_right_or_not_known_yet() {
        for (believed, want) in [
            (-1, Ok(())),
            (-2, Err(ErrorCode::FencedLeaderEpoch)),
            (i32::MIN, Err(ErrorCode::FencedLeaderEpoch)),
            (3, Err(ErrorCode::FencedLeaderEpoch)),
            (4, Ok(())),
            (5, Err(ErrorCode::UnknownLeaderEpoch)),
        ] {
            assert_eq!(compare_epochs(believed, 4), want, "{believed}");
        }
    }

    #[test]
    fn l6_producers_are_slowed_from_half_full_on_and_never_meet_a_cliff() {
        const STEPS: u32 = 1000;
        let at = |n: u32| answer_delay(n as f32 / STEPS as f32);
        assert!((0..=STEPS / 2).all(|n| at(n).is_zero()), "up to half");
        let largest_step = limits::SLOWEST_ANSWER * 3 / STEPS;
        for n in STEPS / 2..STEPS {
            assert!(at(n + 1) > at(n), "it rises at {n}");
            assert!(at(n + 1) - at(n) < largest_step, "a cliff at {n}");
        }
        assert_eq!(at(STEPS), limits::SLOWEST_ANSWER);
        // More waits than fits; and nonsense is no reason to wait.
        assert_eq!(answer_delay(7.5), limits::SLOWEST_ANSWER);
        assert_eq!(answer_delay(f32::INFINITY), limits::SLOWEST_ANSWER);
        assert_eq!(answer_delay(f32::NAN), Duration::ZERO);
        assert_eq!(answer_delay(-1.0), Duration::ZERO);
        // Before batches are refused, callers have long been as slow as they get.
        let refused = answer_delay(raftgroup::limits::REFUSE_PRESSURE);
        assert!(refused > limits::SLOWEST_ANSWER * 9 / 10);
    }
}
