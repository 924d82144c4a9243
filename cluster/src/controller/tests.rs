//! The controller on a metadata group that commits when the test says so.

use std::future::Future;
use std::rc::Weak;
use std::task::{Context, Poll, Waker};

use uuid::Uuid;

use super::*;
use crate::metadata::Node;
use crate::topic_config::{AlterOp, ConfigChange, ConfigOp};
use crate::view::View;

/// Keeps commands until [`Log::commit`].
struct Log {
    controller: RefCell<Weak<Controller>>,
    entries: RefCell<Vec<Bytes>>,
    applied: Cell<usize>,
    refuse: Cell<Option<ProduceError>>,
}

impl Proposer for Log {
    fn propose(&self, command: Bytes) -> Result<Committed, ProduceError> {
        if let Some(e) = self.refuse.get() {
            return Err(e);
        }
        self.entries.borrow_mut().push(command);
        Ok(Box::pin(async { Ok(()) }))
    }
}

impl Log {
    fn commit(&self) {
        let controller = self
            .controller
            .borrow()
            .upgrade()
            .expect("the test holds it");
        let waiting: Vec<Bytes> = self.entries.borrow()[self.applied.get()..].to_vec();
        for entry in waiting {
            let index = self.applied.get() + 1;
            self.applied.set(index);
            controller
                .command_applied(RaftIndex(index as u64), &entry)
                .unwrap();
        }
    }
}

struct Fixture {
    controller: Rc<Controller>,
    log: Rc<Log>,
    view: Rc<View>,
    publisher: Pin<Box<dyn Future<Output = ()>>>,
}

fn poll<T>(f: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    f.poll(&mut Context::from_waker(Waker::noop()))
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with(Rc::new(Log {
            controller: RefCell::new(Weak::new()),
            entries: RefCell::new(Vec::new()),
            applied: Cell::new(0),
            refuse: Cell::new(None),
        }))
    }

    fn with(log: Rc<Log>) -> Fixture {
        let seed = Cell::new(1u64);
        let random = move || {
            seed.set(
                seed.get()
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1),
            );
            seed.get()
        };
        let defaults = Defaults {
            num_partitions: 2,
            replication_factor: 1,
        };
        let controller = Controller::new(NodeId(1), defaults, 64 << 20, random);
        controller.attach(log.clone());
        *log.controller.borrow_mut() = Rc::downgrade(&controller);
        let view = View::new(NodeId(1));
        let (c, v) = (controller.clone(), view.clone());
        let publisher = Box::pin(async move {
            let send =
                async |changes: Vec<Change>| changes.iter().for_each(|change| v.apply(change));
            c.publish(send).await;
        });
        Fixture {
            controller,
            log,
            view,
            publisher,
        }
    }

    /// Turns everything until the request is answered.
    fn run<T>(&mut self, request: impl Future<Output = T>) -> T {
        let mut request = Box::pin(request);
        for _ in 0..20 {
            if let Poll::Ready(answer) = poll(request.as_mut()) {
                return answer;
            }
            self.log.commit();
            assert!(poll(self.publisher.as_mut()).is_pending());
        }
        panic!("never answered");
    }

    fn joined() -> Fixture {
        let mut f = Fixture::new();
        let c = f.controller.clone();
        f.run(c.join(node())).unwrap();
        f
    }
}

fn node() -> Node {
    Node {
        id: NodeId(1),
        host: "localhost".into(),
        port: 9092,
        rack: None,
        shards: 1,
        directory: Uuid::from_u128(5),
    }
}

fn new_topic(name: &str) -> NewTopic {
    NewTopic {
        name: name.into(),
        partitions: -1,
        replication_factor: -1,
        ..NewTopic::default()
    }
}

#[test]
fn a_topic_is_known_to_the_shards_when_its_creation_is_answered() {
    let mut f = Fixture::joined();
    assert_eq!(f.view.cluster_id().map(|id| id.len()), Some(22));
    let c = f.controller.clone();
    let created = f.run(c.create_topic(new_topic("a"))).unwrap();
    let topic = f.view.topic("a").expect("published");
    assert_eq!(topic.id, created.id);
    assert_eq!((created.partitions, created.replication_factor), (2, 1));
    assert_eq!(topic.partitions.len(), 2);
    assert!(c.waiting.borrow().is_empty());
}

#[test]
fn an_answer_waits_until_every_shard_knows() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let mut request = Box::pin(c.create_topic(new_topic("a")));
    assert!(poll(request.as_mut()).is_pending());
    f.log.commit();
    assert!(poll(request.as_mut()).is_pending(), "not published yet");
    let mut settled = Box::pin(c.settled());
    assert!(poll(settled.as_mut()).is_pending());
    assert!(poll(f.publisher.as_mut()).is_pending());
    assert!(poll(request.as_mut()).is_ready());
    assert!(poll(settled.as_mut()).is_ready());
}

#[test]
fn of_two_concurrent_creates_one_is_told_that_the_topic_exists() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let mut first = Box::pin(c.create_topic(new_topic("a.b")));
    let mut second = Box::pin(c.create_topic(new_topic("a.b")));
    let mut third = Box::pin(c.create_topic(new_topic("a_b")));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    assert!(poll(third.as_mut()).is_pending());
    assert!(f.run(first).is_ok());
    assert_eq!(
        f.run(second).unwrap_err().refusal,
        Refusal::TopicAlreadyExists
    );
    assert_eq!(f.run(third).unwrap_err().refusal, Refusal::InvalidTopic);
    let late = f.run(c.create_topic(new_topic("a.b"))).unwrap_err();
    assert_eq!(late.refusal, Refusal::TopicAlreadyExists);
}

#[test]
fn validation_changes_nothing() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let before = f.log.entries.borrow().len();
    let only = NewTopic {
        validate_only: true,
        ..new_topic("a")
    };
    assert_eq!(f.run(c.create_topic(only)).unwrap().partitions, 2);
    assert_eq!(f.log.entries.borrow().len(), before);
}

#[test]
fn creates_are_refused_as_kafka_does() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let base = || new_topic("t");
    let assign = |a: &[(i32, &[i32])]| NewTopic {
        assignments: a
            .iter()
            .map(|(p, nodes)| (*p, nodes.iter().map(|n| NodeId(*n)).collect()))
            .collect(),
        ..base()
    };
    let cases = [
        (
            NewTopic {
                name: "a b".into(),
                ..base()
            },
            Refusal::InvalidTopic,
        ),
        (
            NewTopic {
                partitions: 0,
                ..base()
            },
            Refusal::InvalidPartitions,
        ),
        (
            NewTopic {
                partitions: 4_097,
                ..base()
            },
            Refusal::PolicyViolation,
        ),
        (
            NewTopic {
                partitions: -2,
                ..base()
            },
            Refusal::InvalidPartitions,
        ),
        (
            NewTopic {
                partitions: 10_001,
                ..base()
            },
            Refusal::PolicyViolation,
        ),
        (
            NewTopic {
                replication_factor: 0,
                ..base()
            },
            Refusal::InvalidReplicationFactor,
        ),
        (
            NewTopic {
                replication_factor: 2,
                ..base()
            },
            Refusal::InvalidReplicationFactor,
        ),
        (
            NewTopic {
                configs: vec![("x".into(), None)],
                ..base()
            },
            Refusal::InvalidConfig,
        ),
        (
            NewTopic {
                configs: vec![("x".into(), Some("1".into()))],
                ..base()
            },
            Refusal::InvalidConfig,
        ),
        (
            NewTopic {
                partitions: 1,
                ..assign(&[(0, &[1])])
            },
            Refusal::InvalidRequest,
        ),
        (assign(&[(1, &[1])]), Refusal::InvalidReplicaAssignment),
        (assign(&[(0, &[])]), Refusal::InvalidReplicaAssignment),
        (assign(&[(0, &[1, 1])]), Refusal::InvalidReplicaAssignment),
        (assign(&[(0, &[7])]), Refusal::InvalidReplicaAssignment),
        (
            assign(&[(0, &[1]), (0, &[1])]),
            Refusal::InvalidReplicaAssignment,
        ),
    ];
    for (new, refusal) in cases {
        let shown = format!("{new:?}");
        assert_eq!(
            f.run(c.create_topic(new)).unwrap_err().refusal,
            refusal,
            "{shown}"
        );
    }
    let placed = f
        .run(c.create_topic(assign(&[(1, &[1]), (0, &[1])])))
        .unwrap();
    assert_eq!(placed.partitions, 2);
}

#[test]
fn who_wants_a_topic_that_is_there_learns_that_first() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    f.run(c.create_topic(new_topic("a.b"))).unwrap();
    let bad = |name: &str| NewTopic {
        configs: vec![("nope".into(), Some("1".into()))],
        partitions: 0,
        ..new_topic(name)
    };
    for (name, refusal) in [
        ("a.b", Refusal::TopicAlreadyExists),
        ("a_b", Refusal::InvalidTopic),
        ("b", Refusal::InvalidConfig),
    ] {
        let e = f.run(c.create_topic(bad(name))).unwrap_err();
        assert_eq!(e.refusal, refusal, "{name}");
    }
}

#[test]
fn what_no_topic_could_take_is_told_before_that_the_topic_is_missing() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    for (name, value, refusal) in [
        ("nope", Some("x"), Refusal::InvalidConfig),
        ("nope", None, Refusal::InvalidRequest),
        ("nope", Some("1"), Refusal::UnknownTopicOrPartition),
        ("a b", Some("x"), Refusal::InvalidTopic),
        ("a b", Some("1"), Refusal::InvalidTopic),
    ] {
        let alter = AlterTopic {
            name: name.into(),
            change: ConfigChange::Steps(vec![ConfigOp {
                name: "retention.ms".into(),
                op: AlterOp::Set,
                value: value.map(Into::into),
            }]),
            validate_only: true,
        };
        let e = f.run(c.alter_topic(alter)).unwrap_err();
        assert_eq!(e.refusal, refusal, "{name} {value:?}");
    }
}

#[test]
fn topics_go_by_name_and_by_id() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let id = f.run(c.create_topic(new_topic("a"))).unwrap().id;
    let gone = f.run(c.delete_topic(TopicRef::Id(id))).unwrap();
    assert_eq!(gone, ("a".to_string(), id));
    assert!(f.view.topic("a").is_none());
    assert!(f.view.is_removed(id));
    let again = f.run(c.delete_topic(TopicRef::Id(id))).unwrap_err();
    assert_eq!(again.refusal, Refusal::UnknownTopicId);
    let by_name = f
        .run(c.delete_topic(TopicRef::Name("a".into())))
        .unwrap_err();
    assert_eq!(by_name.refusal, Refusal::UnknownTopicOrPartition);
    f.run(c.forget_removed(vec![id])).unwrap();
    assert!(!f.view.is_removed(id));
}

#[test]
fn concurrent_alters_both_count() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    f.run(c.create_topic(new_topic("a"))).unwrap();
    let alter = |name: &str, value: &str| AlterTopic {
        name: "a".into(),
        change: ConfigChange::Steps(vec![ConfigOp {
            name: name.into(),
            op: AlterOp::Set,
            value: Some(value.into()),
        }]),
        validate_only: false,
    };
    let mut one = Box::pin(c.alter_topic(alter("retention.ms", "7")));
    let mut two = Box::pin(c.alter_topic(alter("segment.ms", "8")));
    assert!(poll(one.as_mut()).is_pending());
    assert!(poll(two.as_mut()).is_pending());
    f.run(one).unwrap();
    f.run(two).unwrap();
    let config = f.view.topic("a").unwrap().config.clone();
    assert_eq!((config.retention_ms, config.segment_ms), (7, 8));
    let bad = f.run(c.alter_topic(alter("segment.ms", "0"))).unwrap_err();
    assert_eq!(bad.refusal, Refusal::InvalidConfig);
}

#[test]
fn partitions_only_grow() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    f.run(c.create_topic(new_topic("a"))).unwrap();
    let more = |count| NewPartitions {
        name: "a".into(),
        count,
        assignments: None,
        validate_only: false,
    };
    assert_eq!(
        f.run(c.create_partitions(more(2))).unwrap_err().refusal,
        Refusal::InvalidPartitions
    );
    f.run(c.create_partitions(more(5))).unwrap();
    assert_eq!(f.view.topic("a").unwrap().partitions.len(), 5);
}

#[test]
fn producer_ids_never_repeat_over_restarts() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let first = f.run(c.allocate_producer_ids()).unwrap();
    assert!(!c.prepare_snapshot() && c.prepare_snapshot());
    let snapshot = c.snapshot().concat();
    let second = f.run(c.allocate_producer_ids()).unwrap();
    assert_eq!(second.first, first.first + first.count);

    let mut g = Fixture::new();
    g.controller.restore(&snapshot).unwrap();
    let tail = f.log.entries.borrow().last().cloned().unwrap();
    let at = f.log.applied.get();
    g.log.entries.borrow_mut().resize(at, Bytes::new());
    g.log.applied.set(at);
    g.controller
        .command_applied(RaftIndex(at as u64), &tail)
        .unwrap();
    let c = g.controller.clone();
    let third = g.run(c.allocate_producer_ids()).unwrap();
    assert_eq!(third.first, second.first + second.count);
    assert_eq!(g.view.cluster_id(), f.view.cluster_id());
}

#[test]
fn a_dropped_request_leaves_nothing_and_may_still_happen() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let mut request = Box::pin(c.create_topic(new_topic("a")));
    assert!(poll(request.as_mut()).is_pending());
    drop(request);
    assert!(c.waiting.borrow().is_empty());
    f.log.commit();
    assert!(poll(f.publisher.as_mut()).is_pending());
    assert!(f.view.topic("a").is_some());
}

#[test]
fn what_the_group_refuses_is_told() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    f.log.refuse.set(Some(ProduceError::NotLeader));
    let e = f.run(c.create_topic(new_topic("a"))).unwrap_err();
    assert_eq!(e.refusal, Refusal::NotController);
    f.log.refuse.set(Some(ProduceError::Overloaded));
    let e = f.run(c.create_topic(new_topic("a"))).unwrap_err();
    assert_eq!(e.refusal, Refusal::RequestTimedOut);
}

#[test]
fn a_slow_publisher_gets_an_image_instead_of_a_pile() {
    let mut f = Fixture::joined();
    let registered = |port| Command::RegisterNode {
        node: Node { port, ..node() },
    };
    for i in 0..limits::CHANGES_WAITING as u64 + 10 {
        let envelope = Envelope {
            proposer: 0,
            ticket: 0,
            command: registered((i % 1000) as u16),
        };
        let at = RaftIndex(f.log.applied.get() as u64 + 1);
        f.log.applied.set(at.0 as usize);
        f.log.entries.borrow_mut().push(envelope.encode());
        f.controller
            .command_applied(at, &envelope.encode())
            .unwrap();
        assert!(f.controller.outbox.borrow().changes.len() <= limits::CHANGES_WAITING);
    }
    assert!(poll(f.publisher.as_mut()).is_pending());
    let last = (limits::CHANGES_WAITING + 9) % 1000;
    assert_eq!(usize::from(f.view.brokers()[0].port), last);
}

#[test]
fn quotas_are_in_force_when_they_are_answered_and_after_a_restart() {
    use crate::quota::{Change as Alter, Entity, Key};
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let change = |client: String, limit: Option<f64>| Alter {
        entity: Entity {
            client: Some(Some(client)),
            ..Entity::default()
        },
        ops: vec![(Key::ConsumerByteRate, limit.map(Into::into))],
    };
    // More names than one command takes.
    let before = f.log.applied.get();
    let name = |n: usize| format!("{n}-{}", "x".repeat(1_000));
    let many = (0..200).map(|n| change(name(n), Some(n as f64))).collect();
    f.run(c.alter_quotas(many)).unwrap();
    assert!(f.log.applied.get() - before > 2);
    let limit = |view: &View, n: usize| {
        let (quotas, client) = (view.quotas(), name(n));
        quotas
            .limit(Key::ConsumerByteRate, "anyone", &client)
            .map(|(limit, _)| limit)
    };
    assert_eq!(limit(&f.view, 199), Some(199.0));
    f.run(c.alter_quotas(vec![change(name(199), None)]))
        .unwrap();
    assert_eq!(limit(&f.view, 199), None);

    let mut g = Fixture::new();
    g.controller.restore(&c.snapshot().concat()).unwrap();
    assert!(poll(g.publisher.as_mut()).is_pending());
    assert_eq!(limit(&g.view, 198), Some(198.0));
    assert_eq!(limit(&g.view, 199), None);
    assert_eq!(g.view.quotas(), f.view.quotas());
}

#[test]
fn defaults_of_topics_reach_all_and_survive() {
    let mut f = Fixture::joined();
    let c = f.controller.clone();
    let steps = |ops: &[(&str, AlterOp, Option<&str>)]| {
        let op = |(name, op, value): &(&str, AlterOp, Option<&str>)| ConfigOp {
            name: name.to_string(),
            op: *op,
            value: value.map(Into::into),
        };
        ConfigChange::Steps(ops.iter().map(op).collect())
    };
    use AlterOp::{Delete, Set};
    let two = [
        ("retention.ms", Set, Some("5")),
        ("segment.ms", Set, Some("6")),
    ];
    f.run(c.alter_defaults(steps(&two), true)).unwrap();
    assert!(f.view.defaults().is_empty(), "only validated");
    f.run(c.alter_defaults(steps(&two), false)).unwrap();
    assert_eq!(f.view.defaults().len(), 2);
    let bad = [
        ("retention.ms", Set, Some("7")),
        ("segment.ms", Set, Some("x")),
    ];
    let refused = f.run(c.alter_defaults(steps(&bad), false)).unwrap_err();
    assert_eq!(refused.refusal, Refusal::InvalidConfig);
    let before = f.log.applied.get();
    f.run(c.alter_defaults(steps(&two), false)).unwrap();
    assert_eq!(
        f.log.applied.get(),
        before,
        "what changes nothing isn't proposed"
    );
    f.run(c.alter_defaults(steps(&[("segment.ms", Delete, None)]), false))
        .unwrap();
    let left = BTreeMap::from([("retention.ms".to_string(), "5".to_string())]);
    assert_eq!(*f.view.defaults(), left);

    let mut g = Fixture::new();
    g.controller.restore(&c.snapshot().concat()).unwrap();
    assert!(poll(g.publisher.as_mut()).is_pending());
    assert_eq!(*g.view.defaults(), left);
    let none = ConfigChange::Replace(Vec::new());
    f.run(c.alter_defaults(none, false)).unwrap();
    assert!(f.view.defaults().is_empty());
}
