//! The state machine against its promises, on random commands.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::snapshot::{BEGUN_ANEW, SLICE_BYTES};
use super::*;
use crate::command::{DecodeError, Envelope};

fn topic_id(n: u8) -> TopicId {
    TopicId(Uuid::from_u128(0x1000 + u128::from(n)))
}

fn node(n: i32) -> Node {
    Node {
        id: NodeId(n),
        host: format!("host-{n}"),
        port: 9092,
        rack: (n % 2 == 0).then(|| "r".into()),
        shards: 2,
        directory: Uuid::from_u128(n as u128),
    }
}

fn placements() -> impl Strategy<Value = Vec<Placement>> {
    let one = prop::collection::vec(0..4i32, 1..4).prop_map(|nodes| Placement {
        nodes: nodes.into_iter().map(NodeId).collect(),
    });
    prop::collection::vec(one, 0..4)
}

fn configs() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-c]", "[0-9]", 0..3)
}

fn quota_change() -> impl Strategy<Value = quota::Change> {
    let name = || prop::option::of(prop::option::of("[ab]"));
    let op = (0..5usize, prop::option::of(0u32..100)).prop_map(|(key, limit)| {
        let limit = limit.map(|l| quota::Limit::from(f64::from(l)));
        (quota::Key::ALL[key], limit)
    });
    let ops = prop::collection::vec(op, 0..3);
    (name(), name(), name(), ops).prop_map(|(user, client, ip, ops)| quota::Change {
        entity: Entity { user, client, ip },
        ops,
    })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        prop::collection::vec(quota_change(), 0..4)
            .prop_map(|changes| Command::AlterQuotas { changes }),
        (configs(), prop::collection::vec("[a-c]", 0..3))
            .prop_map(|(set, unset)| Command::AlterDefaults { set, unset }),
        any::<u128>().prop_map(|id| Command::FormCluster {
            cluster_id: Uuid::from_u128(id)
        }),
        (0..4i32).prop_map(|n| Command::RegisterNode { node: node(n) }),
        (
            prop::sample::select(vec!["a", "b", "a.b", "a_b", "c"]),
            0..8u8,
            placements(),
            configs()
        )
            .prop_map(|(name, id, partitions, configs)| Command::CreateTopic {
                name: name.into(),
                topic_id: topic_id(id),
                partitions,
                configs,
            }),
        (0..8u8).prop_map(|id| Command::DeleteTopic {
            topic_id: topic_id(id)
        }),
        (0..8u8, 0..3u64, configs()).prop_map(|(id, based_on, configs)| Command::AlterConfigs {
            topic_id: topic_id(id),
            based_on,
            configs,
        }),
        (0..8u8, 0..5i32, placements()).prop_map(|(id, from, partitions)| {
            Command::CreatePartitions {
                topic_id: topic_id(id),
                from,
                partitions,
            }
        }),
        prop_oneof![1..3000i64, Just(i64::MAX), Just(0), Just(-1)].prop_map(|count| {
            Command::AllocateProducerIds {
                node: NodeId(1),
                count,
            }
        }),
        prop::collection::vec(0..8u8, 0..3).prop_map(|ids| Command::ForgetRemoved {
            topics: ids.into_iter().map(topic_id).collect(),
        }),
    ]
}

fn replay(m: &mut Metadata, first: u64, commands: &[Command]) -> Vec<Result<Outcome, Refused>> {
    commands
        .iter()
        .zip(first..)
        .map(|(c, i)| m.apply(RaftIndex(i), c.clone()))
        .collect()
}

proptest! {
    /// A snapshot anywhere in the log, then the rest: the same state and the same answers as the whole log.
    #[test]
    fn snapshot_and_replay_agree(commands in prop::collection::vec(command(), 0..60), cut in 0..60usize) {
        let cut = cut.min(commands.len());
        let mut whole = Metadata::default();
        replay(&mut whole, 1, &commands[..cut]);
        let mut resumed = Metadata::restore(&whole.snapshot()).expect("own snapshot");
        prop_assert_eq!(&resumed, &whole);
        let first = cut as u64 + 1;
        let a = replay(&mut whole, first, &commands[cut..]);
        let b = replay(&mut resumed, first, &commands[cut..]);
        prop_assert_eq!(a, b);
        prop_assert_eq!(&resumed, &whole);
        prop_assert_eq!(resumed.snapshot(), whole.snapshot());
    }

    /// L8: put together in slices, with changes in between, it is the same.
    #[test]
    fn l8_a_snapshot_in_slices_is_the_same(commands in prop::collection::vec(command(), 0..60), cut in 0..60usize, topics in 0..300u128, wide in 0..3_000usize, limited in 0..1_000usize) {
        let cut = cut.min(commands.len());
        let mut m = Metadata::default();
        replay(&mut m, 1, &commands[..cut]);
        let mut draft = SnapshotDraft::default();
        prop_assert!(!m.prepare_snapshot(&mut draft));
        replay(&mut m, cut as u64 + 1, &commands[cut..]);
        let many: Vec<Command> = (0..topics).map(|n| Command::CreateTopic {
            name: format!("{n}-{}", "x".repeat(100)),
            topic_id: TopicId(Uuid::from_u128(n)),
            partitions: vec![Placement { nodes: vec![NodeId(1)] }; 3],
            configs: BTreeMap::new(),
        }).collect();
        let first = commands.len() as u64 + 1;
        replay(&mut m, first, &many);
        // One with many partitions, many that are gone, many with quotas: none of them goes in one step.
        let wide = Command::CreateTopic {
            name: "wide".into(),
            topic_id: TopicId(Uuid::from_u128(1 << 70)),
            partitions: vec![Placement { nodes: vec![NodeId(1)] }; wide],
            configs: BTreeMap::new(),
        };
        let gone = (0..topics / 2).map(|n| Command::DeleteTopic { topic_id: TopicId(Uuid::from_u128(n)) });
        let changes = (0..limited).map(|n| quota::Change {
            entity: Entity { user: Some(Some(format!("{n}-{}", "y".repeat(50)))), ..Entity::default() },
            ops: vec![(quota::Key::ProducerByteRate, Some(1.0.into()))],
        });
        let more: Vec<Command> = gone.chain([wide, Command::AlterQuotas { changes: changes.collect() }]).collect();
        replay(&mut m, first + many.len() as u64, &more);
        while !m.prepare_snapshot(&mut draft) {}
        prop_assert!(draft.is_whole());
        let pieces = m.finish_snapshot(&mut draft);
        prop_assert!(pieces.iter().all(|p| p.len() < 2 * SLICE_BYTES));
        prop_assert_eq!(pieces.concat(), m.snapshot());
    }

    /// L8: what changes again and again is made in one step at last.
    #[test]
    fn a_snapshot_is_not_begun_for_ever(changes in 0..10u64) {
        let mut m = Metadata::default();
        let mut draft = SnapshotDraft::default();
        let mut slices = 0;
        for i in 1..=changes {
            let _ = m.apply(RaftIndex(i), Command::RegisterNode { node: node(i as i32) });
            if m.prepare_snapshot(&mut draft) {
                break;
            }
            slices += 1;
        }
        prop_assert!(slices <= u64::from(BEGUN_ANEW) + 1);
        prop_assert_eq!(m.finish_snapshot(&mut draft).concat(), m.snapshot());
    }

    /// G3: replica ids are given once, also those of topics long deleted; producer ids too; what is refused changes nothing.
    #[test]
    fn nothing_is_given_twice(commands in prop::collection::vec(command(), 0..60)) {
        let mut m = Metadata::default();
        let mut replicas = BTreeSet::from([Metadata::FIRST_REPLICA]);
        let mut producer_ids = 0i64;
        for (command, i) in commands.into_iter().zip(1..) {
            let before = m.clone();
            match m.apply(RaftIndex(i), command) {
                Err(_) => {
                    let unchanged = Metadata { applied: before.applied, ..m.clone() };
                    prop_assert_eq!(unchanged, before);
                }
                Ok(Outcome { answer: Answer::ProducerIds { first, count }, .. }) => {
                    prop_assert!(first >= producer_ids && count > 0);
                    producer_ids = first + count;
                }
                Ok(Outcome { change: Some(Change::TopicCreated(t)), .. }) => {
                    for r in t.partitions.iter().flat_map(|p| &p.replicas) {
                        prop_assert!(replicas.insert(r.id), "{} twice", r.id);
                    }
                }
                Ok(Outcome { change: Some(Change::PartitionsAdded { partitions, .. }), .. }) => {
                    for r in partitions.iter().flat_map(|p| &p.replicas) {
                        prop_assert!(replicas.insert(r.id), "{} twice", r.id);
                    }
                }
                Ok(_) => {}
            }
            let keys: BTreeSet<_> = m.topics().map(|t| topic_name::collision_key(&t.name).into_owned()).collect();
            prop_assert_eq!(keys.len(), m.topics().count(), "names collide");
            for t in m.topics() {
                prop_assert_eq!(m.topic(&t.name).map(|found| found.id), Some(t.id));
                prop_assert!(m.removed().all(|r| r.id != t.id));
            }
        }
    }

    #[test]
    fn commands_read_back(command in command(), proposer: u64, ticket: u64) {
        let envelope = Envelope { proposer, ticket, command };
        prop_assert_eq!(Envelope::decode(&envelope.encode()), Ok(envelope));
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), versioned: bool) {
        if versioned && !bytes.is_empty() {
            bytes[0] = crate::command::VERSION;
        }
        let _ = Envelope::decode(&bytes);
        if let Ok(m) = Metadata::restore(&bytes) {
            let _ = m.image();
        }
    }

    #[test]
    fn flipped_snapshots_never_panic(commands in prop::collection::vec(command(), 0..30), at: prop::sample::Index, bit in 0..8u8) {
        let mut m = Metadata::default();
        replay(&mut m, 1, &commands);
        let mut bytes = m.snapshot().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(mut m) = Metadata::restore(&bytes) {
            m.applied = RaftIndex(0);
            replay(&mut m, 1, &commands);
        }
    }
}

#[test]
fn snapshots_of_older_versions_are_read() {
    let mut m = Metadata::default();
    let cluster_id = Uuid::from_u128(7);
    let form = Command::FormCluster { cluster_id };
    m.apply(RaftIndex(1), form).unwrap();
    // Without defaults, and then without quotas, it differs by its version and their number at its end.
    let mut old = m.snapshot().to_vec();
    for version in [2, 1] {
        old[0] = version;
        assert_eq!(old.pop(), Some(0));
        assert_eq!(Metadata::restore(&old).as_ref(), Ok(&m));
    }
}

#[test]
fn entities_with_quotas_are_bounded() {
    let mut m = Metadata::default();
    let change = |n: usize, limit: Option<f64>| quota::Change {
        entity: Entity {
            user: Some(Some(n.to_string())),
            ..Entity::default()
        },
        ops: vec![(quota::Key::ProducerByteRate, limit.map(Into::into))],
    };
    let apply = |m: &mut Metadata, at: u64, changes: Vec<quota::Change>| {
        m.apply(RaftIndex(at), Command::AlterQuotas { changes })
    };
    let all = (0..limits::QUOTA_ENTITIES).map(|n| change(n, Some(1.0)));
    apply(&mut m, 1, all.collect()).unwrap();
    let one_more = vec![change(limits::QUOTA_ENTITIES, Some(1.0))];
    let refused = apply(&mut m, 2, one_more.clone()).unwrap_err();
    assert_eq!(refused.refusal, Refusal::PolicyViolation);
    apply(&mut m, 3, vec![change(0, None), change(1, Some(2.0))]).unwrap();
    apply(&mut m, 4, one_more).unwrap();
    assert_eq!(m.quotas().len(), limits::QUOTA_ENTITIES);
}

#[test]
fn a_newer_format_is_told_apart_from_damage() {
    let newer = crate::command::VERSION + 1;
    assert_eq!(
        Envelope::decode(&[newer, 1, 2]),
        Err(DecodeError::Newer(newer))
    );
    assert_eq!(Envelope::decode(&[]), Err(DecodeError::Empty));
    assert!(matches!(
        Metadata::restore(&[1, 255]),
        Err(DecodeError::Damaged(_))
    ));
}

#[test]
fn a_deleted_topic_is_remembered_until_its_replicas_are_gone() {
    let mut m = Metadata::default();
    let create = |name: &str, id| Command::CreateTopic {
        name: name.into(),
        topic_id: topic_id(id),
        partitions: vec![Placement {
            nodes: vec![NodeId(1)],
        }],
        configs: BTreeMap::new(),
    };
    m.apply(RaftIndex(1), create("a", 1)).unwrap();
    assert_eq!(m.hosted(NodeId(1)), 1);
    m.apply(
        RaftIndex(2),
        Command::DeleteTopic {
            topic_id: topic_id(1),
        },
    )
    .unwrap();
    assert_eq!(m.hosted(NodeId(1)), 0);
    assert_eq!(m.removed().count(), 1);
    let id_again = m.apply(RaftIndex(3), create("a", 1)).unwrap_err();
    assert_eq!(id_again.refusal, Refusal::UnknownServerError);
    m.apply(RaftIndex(4), create("a", 2)).unwrap();
    let forget = Command::ForgetRemoved {
        topics: vec![topic_id(1)],
    };
    m.apply(RaftIndex(5), forget).unwrap();
    assert_eq!(m.removed().count(), 0);
    assert_eq!(
        m.topic("a").map(|t| t.partitions[0].replicas[0].id),
        Some(ReplicaId(3))
    );
}
