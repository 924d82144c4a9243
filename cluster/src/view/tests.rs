use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::command::{Command, Placement};
use crate::metadata::{Metadata, Removed};

const NODE: NodeId = NodeId(1);

fn id(n: u128) -> TopicId {
    TopicId(Uuid::from_u128(n))
}

fn created(n: u128, name: &str, partitions: usize) -> Change {
    Change::TopicCreated(metadata::Topic {
        id: id(n),
        name: name.into(),
        partitions: (0..partitions)
            .map(|p| Partition {
                replicas: vec![Replica {
                    node: NODE,
                    id: ReplicaId(10 + p as u64),
                }],
            })
            .collect(),
        configs: BTreeMap::new(),
        config_version: 0,
    })
}

fn leads(n: u128, node: Option<i32>, term: u64) -> Announcement {
    Announcement {
        group: GroupId {
            topic: id(n),
            partition: 0,
        },
        node: node.map(NodeId),
        term: Term(term),
    }
}

fn leader(view: &View, n: u128) -> Option<(Option<i32>, u64)> {
    let group = leads(n, None, 0).group;
    view.leader(group).map(|l| (l.node.map(|n| n.0), l.term.0))
}

#[test]
fn the_highest_term_wins_in_any_order() {
    let view = View::new(NODE);
    view.apply(&created(7, "a", 1));
    assert_eq!(leader(&view, 7), None);
    view.announce(leads(7, Some(2), 5));
    view.announce(leads(7, Some(1), 4));
    assert_eq!(leader(&view, 7), Some((Some(2), 5)));
    view.announce(leads(7, None, 6));
    assert_eq!(leader(&view, 7), Some((None, 6)));
    view.announce(leads(7, Some(1), 6));
    view.announce(leads(7, Some(1), 6));
    assert_eq!(leader(&view, 7), Some((Some(1), 6)));
    view.announce(leads(7, None, 6));
    assert_eq!(leader(&view, 7), Some((None, 6)), "this node stepped down");
}

#[test]
fn an_announcement_may_come_before_its_topic() {
    let view = View::new(NODE);
    view.announce(leads(7, Some(1), 3));
    view.apply(&created(7, "a", 1));
    assert_eq!(leader(&view, 7), Some((Some(1), 3)));
    assert!(view.state.borrow().early.is_empty());
    // Of partitions that come later, too.
    let group = GroupId {
        topic: id(7),
        partition: 1,
    };
    view.announce(Announcement {
        group,
        node: Some(NODE),
        term: Term(2),
    });
    view.apply(&Change::PartitionsAdded {
        topic: id(7),
        from: 1,
        partitions: vec![Partition { replicas: vec![] }],
    });
    assert_eq!(view.leader(group).map(|l| l.term), Some(Term(2)));
    assert_eq!(leader(&view, 7), Some((Some(1), 3)), "kept");
}

#[test]
fn a_removed_topic_keeps_nothing() {
    let view = View::new(NODE);
    view.apply(&created(7, "a", 1));
    assert_eq!(view.local_replicas().len(), 1);
    view.apply(&Change::TopicDeleted(Removed {
        id: id(7),
        at: RaftIndex(3),
    }));
    assert!(view.topic("a").is_none() && view.topic_by_id(id(7)).is_none());
    view.announce(leads(7, Some(1), 9));
    assert!(view.state.borrow().early.is_empty());
    assert!(view.is_removed(id(7)));
    assert!(!view.is_removed(id(8)), "unknown is not removed");
}

#[test]
fn a_name_can_come_back_with_another_id() {
    let view = View::new(NODE);
    view.apply(&created(7, "a", 1));
    view.apply(&Change::TopicDeleted(Removed {
        id: id(7),
        at: RaftIndex(3),
    }));
    view.apply(&created(8, "a", 2));
    assert_eq!(view.topic("a").map(|t| t.id), Some(id(8)));
    assert_eq!(view.topics().len(), 1);
}

proptest! {
    #[test]
    fn a_page_of_topics_is_that_part_of_all(names in prop::collection::btree_set(0u32..500, 0..200), from in 0u32..500, count in 0usize..90) {
        let view = View::new(NODE);
        for n in &names {
            view.apply(&created(u128::from(*n) + 1, &format!("t{n:03}"), 1));
        }
        let from = format!("t{from:03}");
        let all = view.topics();
        let wanted: Vec<_> = all.iter().filter(|t| *t.name >= *from).take(count).map(|t| t.id).collect();
        let found: Vec<_> = view.topics_from(&from, count).iter().map(|t| t.id).collect();
        prop_assert_eq!(found, wanted);
    }

    /// However the changes come, one by one or as an image in between, the copy is the same.
    #[test]
    fn changes_and_images_agree(
        steps in prop::collection::vec((0..7u8, 0..5u128, 1..4usize, any::<bool>()), 0..40),
    ) {
        let mut m = Metadata::default();
        let one_by_one = View::new(NODE);
        let with_images = View::new(NODE);
        for ((what, n, partitions, image), i) in steps.into_iter().zip(1..) {
            let placements = vec![Placement { nodes: vec![NODE] }; partitions];
            let command = match what {
                0 | 1 => Command::CreateTopic {
                    name: format!("t{}", n % 3),
                    topic_id: id(n),
                    partitions: placements,
                    configs: BTreeMap::new(),
                },
                2 => Command::DeleteTopic { topic_id: id(n) },
                3 => Command::AlterConfigs {
                    topic_id: id(n),
                    based_on: 0,
                    configs: BTreeMap::from([("retention.ms".into(), n.to_string())]),
                },
                4 => Command::CreatePartitions {
                    topic_id: id(n),
                    from: m.topic_by_id(id(n)).map_or(0, |t| t.partitions.len() as i32),
                    partitions: placements,
                },
                5 => Command::AlterDefaults {
                    set: BTreeMap::from([("segment.ms".into(), (n + 1).to_string()), ("retention.ms".into(), "77".into())]),
                    unset: if n == 0 { vec!["segment.ms".into()] } else { Vec::new() },
                },
                _ => Command::ForgetRemoved { topics: vec![id(n)] },
            };
            if let Ok(outcome) = m.apply(RaftIndex(i), command) {
                let change = outcome.change.expect("these all change something");
                one_by_one.apply(&change);
                let news = if image { Change::Reset(Box::new(m.image())) } else { change };
                with_images.apply(&news);
            }
            for view in [&one_by_one, &with_images] {
                prop_assert_eq!(view.topics().len(), m.topics().count());
                for t in m.topics() {
                    let copy = view.topic(&t.name).expect("a topic of the metadata");
                    prop_assert_eq!(copy.id, t.id);
                    prop_assert_eq!(&copy.partitions, &t.partitions);
                    prop_assert_eq!(&*copy.overrides, &t.configs);
                    prop_assert_eq!(&*copy.config, &TopicConfig::in_force(&t.configs, m.defaults()));
                    prop_assert_eq!(copy.leaders.borrow().len(), t.partitions.len());
                }
                prop_assert!(m.removed().all(|r| view.is_removed(r.id)));
            }
        }
    }
}
