//! One shard's life: take over what the disk has, serve, drain, close.
//!
//! Order at start: log, groups (whose one-voter leaders are elected in one journal batch), rings, on shard 0 the metadata group and through it every
//! shard's view; the Kafka port opens last, when all shards have everything. Order at the end: connections drain on all shards, then logs
//! close with a checkpoint, so that no shard misses another while it still answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use cluster::controller::Defaults;
use cluster::metadata::{Metadata, Node};
use cluster::{Controller, View};
use engine::log::{LogError, RecoveredShard, ShardLog, StoreConfig};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::ring::{Frame, Port, Rpc};
use engine::rt::{self, Queue, TcpListener};
use engine::types::{GroupId, ShardId, TopicId};
use kafka_api::faces::port_of;
use kafka_api::{CREDITS, ShardReply, ShardRequest};
use kafka_api::{Parts, ServerConfig, Shard};
use raftgroup::{Group, Groups};

use crate::exit::{Exit, Fatal, advice, cannot_listen};
use crate::gate::Gate;
use crate::replicas::Replicas;
use crate::sink::Sink;

/// How often a start looks whether its groups lead.
const LOOK: Duration = Duration::from_millis(1);
/// How often a start that takes long says what it waits for. The port stays closed for groups that have no leader yet as long as in each of these times some get one.
const TELL: Duration = Duration::from_secs(5);
/// How long clients have, at the end, to take the answers to what they asked.
const DRAIN: Duration = Duration::from_secs(10);
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How long a deleted topic stays on the list of the removed, at least: its removal is durable on every shard long before.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What every shard gets from the process; crosses threads.
#[derive(Clone)]
pub struct Plan {
    pub shards: u16,
    pub node: Node,
    pub store: StoreConfig,
    pub server: ServerConfig,
    pub kafka_addr: SocketAddr,
    /// Every shard has opened its ports.
    pub serving: Gate,
    /// Shard 0 has published the metadata: views are complete.
    pub published: Gate,
    /// Somebody asked the node to stop.
    pub stop: Gate,
    /// Every shard has drained its connections.
    pub drained: Gate,
}

impl Plan {
    pub fn new(
        node: Node,
        store: StoreConfig,
        server: ServerConfig,
        kafka_addr: SocketAddr,
    ) -> Plan {
        let shards = store.shards;
        Plan {
            shards,
            node,
            store,
            server,
            kafka_addr,
            serving: Gate::new(shards, shards),
            published: Gate::new(shards, 1),
            stop: Gate::new(shards, 1),
            drained: Gate::new(shards, shards),
        }
    }
}

impl Plan {
    /// Where a shard listens by itself.
    fn direct_addr(&self, shard: ShardId) -> SocketAddr {
        let port = port_of(self.kafka_addr.port(), shard)
            .expect("the process looked whether there are so many ports");
        SocketAddr::new(self.kafka_addr.ip(), port)
    }
}

/// What one shard gets.
pub struct Own {
    pub id: ShardId,
    pub port: Port<Frame<ShardRequest, ShardReply>>,
    pub part: RecoveredShard,
}

/// Runs a shard to its end. Errors of the start end the process.
pub async fn run(plan: Plan, own: Own) {
    let id = own.id;
    let at = usize::from(id.0);
    let shard = match open(&plan, own).await {
        Ok(shard) => shard,
        Err(fatal) => fatal.end(),
    };
    // A start can take long, and may be ended as well.
    let coordinators = tokio::select! {
        biased;
        () = plan.stop.opened(at) => None,
        begun = shard.begin(&plan) => match begun {
            Ok(()) => Some(serve(&plan, &shard).await),
            Err(fatal) => fatal.end(),
        },
    };
    plan.drained.arrive();
    plan.drained.opened(at).await;
    drop(coordinators);
    if let Err(e) = shard.log.close().await {
        Fatal::new(
            Exit::Disk,
            format!("shard {at}: the last checkpoint failed: {e}"),
        )
        .end();
    }
}

/// Serves clients until the node is to stop, and until they have their answers. Gives the task of the coordinators, whom other shards' clients may still ask.
async fn serve(plan: &Plan, shard: &Running) -> rt::Task<()> {
    let id = shard.kafka.id;
    let at = usize::from(id.0);
    let listener = match TcpListener::bind(plan.kafka_addr) {
        Ok(listener) => listener,
        Err(e) => cannot_listen(plan.kafka_addr, "kafka-addr", &e).end(),
    };
    let own_listener = match plan.server.shard_direct {
        true => match TcpListener::bind(plan.direct_addr(id)) {
            Ok(listener) => Some(listener),
            Err(e) => cannot_listen(plan.direct_addr(id), "shard-direct", &e).end(),
        },
        false => None,
    };
    let kafka = shard.kafka.clone();
    let accepting = rt::spawn(Queue::Latency, async move {
        let swept = kafka.clone();
        let _sweeper = rt::spawn(Queue::Background, async move { swept.sweep().await });
        let direct = async {
            if let Some(listener) = own_listener {
                kafka.serve_connections(listener, true).await;
            }
        };
        tokio::join!(kafka.serve_connections(listener, false), direct);
    });
    let coordinators = rt::spawn(
        Queue::Latency,
        kafka_api::groups::Groups::run(shard.kafka.clone()),
    );
    plan.serving.arrive();

    plan.stop.opened(at).await;
    drop(accepting);
    let gone = async {
        loop {
            // Again and again: what was accepted last joins the others only when its task runs.
            shard.kafka.close_connections();
            rt::sleep(DRAIN_LOOK).await;
            if shard.kafka.metrics.connections.get() == 0 {
                break;
            }
        }
    };
    if rt::timeout(DRAIN, gone).await.is_err() {
        tracing::warn!("shard {at}: some clients didn't take their answers in time");
    }
    coordinators
}

/// A shard that runs.
struct Running {
    kafka: Rc<Shard>,
    log: ShardLog,
    replicas: Rc<Replicas>,
    controller: Option<Rc<Controller>>,
    /// The pump, the rings, the publisher: end with this.
    tasks: std::cell::RefCell<Vec<rt::Task<()>>>,
}

async fn open(plan: &Plan, own: Own) -> Result<Running, Fatal> {
    let Own { id, port, part } = own;
    let node = plan.node.id;
    let budget = Budget::new(plan.store.memory_per_shard);
    let metrics = Rc::new(ShardMetrics::default());
    let config = Rc::new(plan.store.clone());
    let (log, restored) = ShardLog::open(config, id, part, budget.clone(), metrics.clone())
        .await
        .map_err(|e| of_the_log(&e))?;
    let view = View::new(node);
    let controller = (id == ShardId(0)).then(|| {
        let defaults = Defaults {
            num_partitions: plan.server.broker.num_partitions,
            replication_factor: plan.server.broker.default_replication_factor,
        };
        let memory_bytes = plan.store.memory_per_shard * u64::from(plan.shards);
        Controller::new(node, defaults, memory_bytes, rt::random_u64)
    });
    let sink = Sink::new(controller.clone());
    let groups = Groups::new(log.clone(), node, sink.clone());
    stop_when_the_log_fails(&log, &groups);
    let replicas = Rc::new(Replicas {
        shard: id,
        shards: plan.shards,
        node,
        groups: groups.clone(),
        view: view.clone(),
        caught_up: Default::default(),
        without_log: Default::default(),
    });
    let pressure = log.clone();
    let kafka = Shard::new(Parts {
        id,
        shards: plan.shards,
        node,
        rpc: Rpc::new(port, CREDITS),
        groups: groups.clone(),
        view,
        budget,
        metrics,
        config: Rc::new(plan.server.clone()),
        controller: controller.clone(),
        pressure: Rc::new(move || pressure.pressure()),
        follower: replicas.clone(),
    });
    sink.attach(&kafka);
    groups
        .restore(restored)
        .map_err(|e| Fatal::new(Exit::Data, format!("shard {id}: {e}")))?;
    let running = Running {
        kafka,
        log,
        replicas,
        controller,
        tasks: std::cell::RefCell::new(vec![groups.run()]),
    };
    running.serve_rings();
    Ok(running)
}

/// After a failed write nothing may be acknowledged or voted for any more; the process ends with a code of its own.
fn stop_when_the_log_fails(log: &ShardLog, groups: &Rc<Groups>) {
    let groups = groups.clone();
    log.set_on_failure(Rc::new(move |e: &LogError| {
        groups.fail();
        Fatal::new(
            Exit::Disk,
            format!("the disk failed: {e}. Nothing unwritten was acknowledged; look at the disk, then start again"),
        )
        .end();
    }));
}

/// An error of the log while it is being opened.
pub fn of_the_log(e: &LogError) -> Fatal {
    match e {
        LogError::Io { source, .. } => {
            let (exit, advice) = advice(source);
            Fatal::new(exit, format!("the log can't be opened: {e}{advice}"))
        }
        LogError::Format { .. } | LogError::Damaged { .. } => Fatal::new(Exit::Data, e.to_string()),
        _ => Fatal::new(Exit::Failure, e.to_string()),
    }
}

impl Running {
    fn keep(&self, task: rt::Task<()>) {
        self.tasks.borrow_mut().push(task);
    }

    fn serve_rings(&self) {
        let kafka = self.kafka.clone();
        self.keep(rt::spawn(Queue::Latency, async move {
            let rpc = kafka.rpc.clone();
            rpc.serve(|from, request, responder| {
                if matches!(request, ShardRequest::Metrics) {
                    gauge(&kafka);
                }
                kafka.handle(from, request, responder);
            })
            .await;
        }));
    }

    /// Until clients can be served.
    async fn begin(&self, plan: &Plan) -> Result<(), Fatal> {
        if let Some(controller) = self.controller.clone() {
            self.found(plan, controller).await?;
        }
        self.until_ready(plan).await;
        Ok(())
    }

    /// Shard 0: the metadata group, and through it everybody's views.
    async fn found(&self, plan: &Plan, controller: Rc<Controller>) -> Result<(), Fatal> {
        let groups = &self.kafka.groups;
        let first = Metadata::FIRST_REPLICA;
        let metadata: Rc<Group> = match groups.get(GroupId::METADATA) {
            Some(group) => group,
            None => groups
                .create(first, GroupId::METADATA, &[first])
                .map_err(|e| Fatal::new(Exit::Failure, format!("the metadata group: {e}")))?,
        };
        let elected = async {
            while !metadata.serves() {
                rt::sleep(LOOK).await;
            }
        };
        let mut elected = Box::pin(elected);
        while rt::timeout(TELL, elected.as_mut()).await.is_err() {
            tracing::info!(
                "the start waits for the metadata group's election: {}",
                self.progress()
            );
        }
        drop(elected);
        controller.attach(metadata);
        let (publisher, kafka) = (controller.clone(), self.kafka.clone());
        self.keep(rt::spawn(Queue::Latency, async move {
            publisher
                .publish(async |changes| kafka.publish(changes).await)
                .await;
        }));
        controller
            .join(plan.node.clone())
            .await
            .map_err(|e| Fatal::new(Exit::Failure, format!("can't join the cluster: {e}")))?;
        controller.settled().await;
        plan.published.arrive();
        self.keep(rt::spawn(Queue::Background, forget_removed(controller)));
        Ok(())
    }

    /// Until this shard knows everything and its groups lead.
    async fn until_ready(&self, plan: &Plan) {
        plan.published.opened(usize::from(self.kafka.id.0)).await;
        self.replicas.name_strays();
        let groups = &self.kafka.groups;
        let lead = async {
            while groups.led() < groups.len() {
                rt::sleep(LOOK).await;
            }
        };
        let mut lead = pin!(lead);
        let mut before = groups.led();
        while rt::timeout(TELL, lead.as_mut()).await.is_err() {
            if groups.led() == before {
                tracing::warn!(
                    "clients are served, though not all partitions have leaders: {}",
                    self.progress()
                );
                return;
            }
            before = groups.led();
            tracing::info!("the start waits for leaders: {}", self.progress());
        }
    }

    /// How far the elections of a start are, and what may hold them up.
    fn progress(&self) -> String {
        let (groups, m) = (&self.kafka.groups, &self.kafka.metrics);
        format!(
            "shard {}: {} of {} partitions lead; {} of {} KiB of the journal are in use, {} checkpoints made room in it",
            self.kafka.id,
            groups.led(),
            groups.len(),
            m.journal_live_bytes.get() >> 10,
            m.journal_size_bytes.get() >> 10,
            m.checkpoints.get()
        )
    }
}

/// Numbers that are looked up when somebody asks for them.
fn gauge(kafka: &Shard) {
    let m = &kafka.metrics;
    m.groups.set(kafka.groups.len() as u64);
    m.groups_led.set(kafka.groups.led() as u64);
    m.memory_used_bytes.set(kafka.budget.used_total());
    let disk = kafka.groups.disk();
    m.disk_free_bytes.set(disk.free_bytes);
    m.disk_full.set(u64::from(disk.refusing));
    m.memory_budget_bytes.set(kafka.budget.total());
}

/// Takes deleted topics off the list of the removed once that list can't matter any more.
async fn forget_removed(controller: Rc<Controller>) {
    let mut before: BTreeSet<TopicId> = BTreeSet::new();
    loop {
        rt::sleep(FORGET_AFTER).await;
        let now: BTreeSet<TopicId> = controller.read(|m| m.removed().map(|r| r.id).collect());
        let old: Vec<TopicId> = now.intersection(&before).copied().collect();
        before = now;
        if let Err(e) = controller.forget_removed(old).await {
            tracing::debug!("deleted topics stay on the list for now: {e}");
        }
    }
}

/// For the compiler: what crosses threads may.
const _: fn() = || {
    fn sendable<T: Send>() {}
    sendable::<Plan>();
    sendable::<Own>();
};
