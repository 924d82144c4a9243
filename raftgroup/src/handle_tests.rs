//! What happens to those who wait when a leader steps down, on a real log.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make and remove their own directories"
)]

use std::cell::RefCell;
use std::time::Duration;

use engine::batch::testing;
use engine::log::{ShardLog, StoreConfig, recover};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt::{self, Launch};
use engine::types::{NodeId, ShardId};
use raft::eraftpb::{Message, MessageType};

use super::*;
use crate::groups::Groups;

#[derive(Default)]
struct Sink(RefCell<Vec<(Term, Option<ReplicaId>)>>);

impl GroupSink for Sink {
    fn leader_changed(&self, _group: GroupId, term: Term, leader: Option<ReplicaId>) {
        self.0.borrow_mut().push((term, leader));
    }
    fn command_applied(&self, _: GroupId, _: RaftIndex, _: Term, _: Bytes) {}
    fn snapshot_state(&self, _: GroupId) -> Vec<Bytes> {
        Vec::new()
    }
    fn restore_state(&self, _: GroupId, _: Bytes) {}
}

async fn check(dir: std::path::PathBuf) {
    let cfg = StoreConfig {
        data_dir: dir,
        journal_dir: None,
        shards: 1,
        memory_per_shard: 256 << 20,
    };
    let part = recover(&cfg).await.expect("sound").shards.remove(0);
    let budget = Budget::new(cfg.memory_per_shard);
    let metrics = Rc::new(ShardMetrics::default());
    let (log, _) = ShardLog::open(Rc::new(cfg), ShardId(0), part, budget, metrics)
        .await
        .expect("it opens");
    let sink = Rc::new(Sink::default());
    let groups = Groups::new(log, NodeId(1), sink.clone());
    groups.run().detach();
    let id = ReplicaId(1);
    let g = groups.create(id, GroupId::METADATA, &[id]).expect("new");
    while !g.serves() {
        rt::sleep(Duration::from_millis(1)).await;
    }

    let send = |sequence| {
        let batch = testing::batch(1, 9, Some((5, 0, sequence)));
        match g.produce(batch, Acks::All, 0) {
            Ok(Produced::Wait(wait)) => wait,
            other => panic!("it waits, {other:?}"),
        }
    };
    let committed = send(0);
    rt::sleep(Duration::from_millis(50)).await;
    let in_flight = send(1);
    let command = g.propose_command(Bytes::from("c")).expect("it leads");
    // Somebody is in a later term.
    let mut m = Message::default();
    m.set_msg_type(MessageType::MsgHeartbeat);
    (m.from, m.to, m.term) = (2, 1, 7);
    g.machine().step(m, 0);
    assert!(!g.is_leader());
    assert!(matches!(
        g.produce(testing::batch(1, 9, None), Acks::All, 0),
        Err(ProduceError::NotLeader)
    ));
    let again =
        |id, sequence| g.produce(testing::batch(1, 9, Some((id, 0, sequence))), Acks::All, 0);
    // The first of two that are in flight together, of a producer that the group knows and of one that it doesn't.
    assert!(matches!(again(5, 2), Err(ProduceError::NotLeader)));
    assert!(matches!(again(6, 0), Err(ProduceError::NotLeader)));
    assert_eq!(committed.await.map(|a| a.base_offset), Ok(Offset(0)));
    assert_eq!(in_flight.await, Err(ProduceError::NotLeader));
    assert_eq!(command.await, Err(ProduceError::NotLeader));
    // It is the only voter: it leads again, in a term above, and what was in flight is there once.
    while !g.serves() {
        rt::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(g.term(), Term(8));
    let batch = testing::batch(1, 9, Some((5, 0, 1)));
    let Ok(Produced::Done(repeat)) = g.produce(batch, Acks::All, 0) else {
        panic!("it committed with the new term");
    };
    assert_eq!(repeat.base_offset, Offset(1));
    // G10: the second comes when there is a leader, and goes the way of the first; then both are sent again.
    for (id, first) in [(5, 2), (6, 0)] {
        let behind = again(id, first + 1);
        assert!(matches!(behind, Err(ProduceError::NotLeader)), "{behind:?}");
        for sequence in [first, first + 1] {
            let taken = again(id, sequence);
            assert!(matches!(taken, Ok(Produced::Wait(_))), "{taken:?}");
        }
    }
    let told = sink.0.borrow();
    let (first, last) = (told.first().copied(), told.last().copied());
    assert_eq!(first, Some((Term(1), Some(id))));
    assert_eq!(last, Some((Term(8), Some(id))));
    assert!(told.len() > 2, "and that it did not lead in between");
}

#[test]
fn a_deposed_leader_says_so_to_those_who_wait() {
    let dir = std::env::temp_dir().join(format!("tailrace-handle-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory for the test");
    let l = Launch {
        shards: 1,
        overprovisioned: true,
        cpus: None,
        seed: Some(1),
    };
    let inside = dir.clone();
    rt::launch(l, move |_| {
        let dir = inside.clone();
        async move {
            let limit = Duration::from_secs(20);
            rt::timeout(limit, check(dir))
                .await
                .expect("it ends in time");
        }
    })
    .expect("the shard runs");
    let _ = std::fs::remove_dir_all(&dir);
}
