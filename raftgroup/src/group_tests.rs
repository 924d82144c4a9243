//! Each rule by its number; each fails when the rule is taken out.

use super::*;
use crate::memory_log::MemoryLog;
use crate::simulation::{Cluster, Replica, group_of};
use engine::batch::Batch;
use engine::batch::testing;
use raft::Storage as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2};
use raft::{GetEntriesContext, StorageError};

fn alone(learners: &[u64]) -> Replica {
    let log = MemoryLog::default();
    Replica::new(1, log, group_of(&[1], learners), RaftIndex(0), 7)
}

fn again(r: &Replica, state: codec::GroupState) -> Replica {
    Replica::new(1, r.log.crash(r.durable), state, RaftIndex(0), 8)
}

fn batch(sequence: i32) -> Batch {
    testing::batch(2, 10, Some((4, 0, sequence)))
}

fn produce(r: &mut Replica, sequence: i32) -> Result<Taken, ProduceError> {
    r.machine.produce_batch(&batch(sequence), 0, true)
}

fn of_kind(messages: &[Message], kind: MessageType) -> usize {
    messages.iter().filter(|m| m.get_msg_type() == kind).count()
}

fn message(kind: MessageType, from: u64, term: u64) -> Message {
    let mut m = Message::default();
    m.set_msg_type(kind);
    m.from = from;
    m.to = 1;
    m.term = term;
    m
}

#[test]
fn l1_hard_state_first_and_none_for_a_moved_commit() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    r.settle();
    produce(&mut r, 2).unwrap();
    r.settle();
    assert_eq!(r.log.commit(), RaftIndex(3));
    let records = r.log.records();
    assert_eq!(records.len(), 3, "one for the election, one for each batch");
    let hs = records[0].1.expect("the election is a hard state");
    assert_eq!((hs.term, hs.vote), (Term(1), 1));
    assert_eq!(records[0].2[0].kind, EntryKind::NoOp);
    assert!(records[1..].iter().all(|r| r.1.is_none()));
}

#[test]
fn l1_one_record_holds_what_one_turn_wrote() {
    let mut r = alone(&[]);
    r.settle();
    for n in 0..10 {
        produce(&mut r, 2 * n).unwrap();
    }
    r.settle();
    assert_eq!(r.log.records().len(), 2);
    assert_eq!(r.log.records()[1].2.len(), 10);
}

#[test]
fn l2_nothing_commits_before_it_is_durable() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    produce(&mut r, 2).unwrap();
    r.turn();
    produce(&mut r, 4).unwrap();
    r.turn();
    assert_eq!(r.log.commit(), RaftIndex(1));
    r.durable = Lsn(2);
    r.turn();
    assert_eq!(r.log.commit(), RaftIndex(3));
    r.durable = Lsn(3);
    r.turn();
    assert_eq!(r.log.commit(), RaftIndex(4));
}

#[test]
fn l2_an_answer_waits_for_earlier_readies_when_its_own_wrote_nothing() {
    let mut c = Cluster::new(3, 3);
    let leader = c.elect();
    let follower = leader % 3 + 1;
    produce(c.at(leader), 0).unwrap();
    let sent = c.at(leader).settle();
    let append = sent
        .into_iter()
        .find(|m| m.to == follower && m.get_msg_type() == MessageType::MsgAppend)
        .expect("an append goes out");
    let r = c.at(follower);
    r.machine.step(append.clone(), 0);
    assert!(r.turn().is_empty(), "its entry is not durable");
    let records = r.log.records().len();
    // The same once more: raft answers at once, and writes nothing.
    r.machine.step(append, 0);
    assert!(
        r.turn().is_empty(),
        "what it answers for is still not durable"
    );
    assert_eq!(r.log.records().len(), records);
    let answers = r.settle();
    assert_eq!(of_kind(&answers, MessageType::MsgAppendResponse), 2);
}

#[test]
fn l9_the_log_start_moves_when_a_trim_is_applied() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    r.settle();
    let trim = codec::encode_trim(Offset(2));
    r.machine
        .propose_service(EntryKind::TrimPrefix, trim)
        .unwrap();
    r.turn();
    assert_eq!(r.log.log_start_offset(), Offset(0));
    r.settle();
    assert_eq!(r.log.log_start_offset(), Offset(2));
    // A later one that goes back does nothing.
    let trim = codec::encode_trim(Offset(1));
    r.machine
        .propose_service(EntryKind::TrimPrefix, trim)
        .unwrap();
    r.settle();
    assert_eq!(r.log.log_start_offset(), Offset(2));
}

#[test]
fn g1_nothing_is_sent_or_told_before_the_term_is_durable() {
    let mut r = alone(&[2]);
    assert!(r.turn().is_empty(), "an append to the learner would go out");
    assert_eq!(r.machine.node.raft.state, StateRole::Leader);
    assert!(!r.machine.is_leader());
    assert_eq!(produce(&mut r, 0), Err(ProduceError::NotLeader));
    assert!(r.leaderships.is_empty());
    let sent = r.settle();
    assert_eq!(of_kind(&sent, MessageType::MsgAppend), 1);
    assert_eq!(r.leaderships, [(Term(1), Some(ReplicaId(1)))]);
    assert!(r.machine.is_leader());
    // Later entries of a durable term go to followers and journal at the same time.
    let mut probe = message(MessageType::MsgAppendResponse, 2, 1);
    probe.index = 1;
    r.machine.step(probe, 0);
    r.turn();
    produce(&mut r, 0).unwrap();
    assert_eq!(of_kind(&r.turn(), MessageType::MsgAppend), 1);
}

#[test]
fn g1_a_sole_voter_does_not_campaign_while_something_is_unpersisted() {
    let mut r = alone(&[2]);
    r.settle();
    produce(&mut r, 0).unwrap();
    r.turn();
    // Its learner has heard of a later term: it steps down, its entry not durable.
    r.machine
        .step(message(MessageType::MsgAppendResponse, 2, 5), 0);
    r.turn();
    assert_eq!(r.machine.node.raft.state, StateRole::Follower);
    r.settle();
    assert!(r.machine.serves());
    assert_eq!(r.machine.term(), Term(6));
}

#[test]
fn g2_bytes_pass_uncopied_from_the_proposal_to_the_log() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    let unstable = r.machine.node.raft.raft_log.unstable.entries[0]
        .data
        .as_ptr();
    r.settle();
    let stored = r.log.bytes(RaftIndex(2)).expect("it is in memory");
    assert_eq!(stored.as_ptr(), unstable);
    let header = Batch::check(stored)
        .expect("a stamped batch is valid")
        .header;
    assert_eq!(header.base_offset, Offset(0));
    assert_eq!(header.leader_epoch, LeaderEpoch(1));
}

#[test]
fn g2_a_refused_proposal_moves_nothing() {
    let mut c = Cluster::new(3, 4);
    let leader = c.elect();
    let r = c.at(leader);
    produce(r, 0).unwrap();
    let before = r.machine.state().next_offset();
    r.machine.node.transfer_leader(leader % 3 + 1);
    assert_eq!(produce(r, 2), Err(ProduceError::NotLeader));
    assert_eq!(r.machine.state().next_offset(), before);
    r.machine.node.raft.lead_transferee = None;
    assert_eq!(produce(r, 2).map(|t| t.base_offset), Ok(before));
}

#[test]
fn g2_forwarded_proposals_are_dropped() {
    let mut c = Cluster::new(3, 4);
    let leader = c.elect();
    let last = c.at(leader).log.last_index();
    let mut m = message(MessageType::MsgPropose, leader % 3 + 1, 0);
    m.to = leader;
    let e = RaftEntry {
        index: 1,
        context: storage::context_of(EntryKind::Batch),
        data: batch(0).bytes,
        ..RaftEntry::default()
    };
    m.set_entries(vec![e].into());
    c.at(leader).machine.step(m, 0);
    c.exchange(&[]);
    assert_eq!(c.at(leader).log.last_index(), last);
}

#[test]
#[should_panic(expected = "G2")]
fn g2_a_follower_asserts_the_base_offset() {
    let mut c = Cluster::new(3, 4);
    let leader = c.elect();
    produce(c.at(leader), 0).unwrap();
    for mut m in c.at(leader).settle() {
        for e in m.mut_entries().iter_mut() {
            let wrong = Batch::check(e.data.clone()).expect("a batch");
            e.data = wrong.stamped(Offset(5), LeaderEpoch(1));
        }
        c.deliver(m);
    }
}

#[test]
fn entries_that_are_not_what_they_say_are_dropped() {
    let mut r = Replica::new(
        1,
        MemoryLog::default(),
        group_of(&[1, 2], &[]),
        RaftIndex(0),
        1,
    );
    for (context, data) in [
        (&[9u8][..], &b"an unknown kind"[..]),
        (&[EntryKind::Batch as u8], b"no batch"),
        (&[EntryKind::TrimPrefix as u8], b"short"),
        (&[], b"an empty entry with data"),
        (&[EntryKind::NoOp as u8], b""),
    ] {
        let mut m = message(MessageType::MsgAppend, 2, 3);
        let mut e = RaftEntry::default();
        (e.index, e.term) = (1, 3);
        e.context = Bytes::copy_from_slice(context);
        e.data = Bytes::copy_from_slice(data);
        m.set_entries(vec![e].into());
        r.machine.step(m, 0);
        r.settle();
        assert_eq!(r.machine.term(), Term(0), "{context:?}");
    }
}

#[test]
fn g5_the_election_timeout_is_ours_after_every_change() {
    let mut c = Cluster::new(3, 5);
    for _ in 0..300 {
        c.calm(1, &[]);
        for r in &c.replicas {
            let raft = &r.machine.node.raft;
            assert_eq!(
                (raft.term, raft.state),
                (r.machine.drawn.0, r.machine.drawn.1)
            );
            assert_eq!(raft.randomized_election_timeout(), r.machine.drawn.2);
        }
    }
}

#[test]
fn g6_raft_gets_headers_for_itself_and_bytes_for_followers() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    r.settle();
    let storage = r.machine.node.store();
    let for_itself = storage
        .entries(1, 3, None, GetEntriesContext::empty(false))
        .unwrap();
    assert!(for_itself.iter().all(|e| e.data.is_empty()));
    assert_eq!(for_itself[1].term, 1);
    let for_others = storage
        .entries(1, 3, None, GetEntriesContext::empty(true))
        .unwrap();
    assert_eq!(for_others[1].data, r.log.bytes(RaftIndex(2)).unwrap());
    r.log.write_out(RaftIndex(2));
    let gone = storage.entries(1, 3, None, GetEntriesContext::empty(true));
    let later = raft::Error::Store(StorageError::LogTemporarilyUnavailable);
    assert_eq!(gone.unwrap_err(), later);
    assert_eq!(storage.take_wanted().len(), 1);
}

#[test]
fn g6_fetched_entries_are_checked_against_the_log() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    r.settle();
    r.log.write_out(RaftIndex(2));
    let storage = r.machine.node.store();
    let mut entries = r.log.entries();
    entries[1].term = Term(9);
    // What was read belongs to an earlier life of index 2.
    for (brought, there) in [(entries, false), (r.log.entries(), true)] {
        storage.put_fetched(&brought);
        let got = storage.entries(2, 3, None, GetEntriesContext::empty(true));
        assert_eq!(got.is_ok(), there);
    }
}

#[test]
fn g6_a_lagging_follower_gets_what_only_the_disk_has() {
    let mut c = Cluster::new(3, 6);
    let leader = c.elect();
    let behind = leader % 3 + 1;
    for n in 0..20 {
        produce(c.at(leader), 2 * n).unwrap();
        c.exchange(&[behind]);
    }
    let commit = c.at(leader).log.commit();
    c.at(leader).log.write_out(commit);
    c.calm(20, &[]);
    let leader = c.leader().expect("somebody leads");
    assert_eq!(c.at(behind).log.entries(), c.at(leader).log.entries());
    assert!(c.at(behind).log.commit() >= commit);
}

#[test]
fn g6_a_commit_does_not_wait_for_the_leaders_own_disk() {
    let mut c = Cluster::new(3, 6);
    let leader = c.elect();
    c.exchange(&[]);
    produce(c.at(leader), 0).unwrap();
    let index = c.at(leader).machine.state().last().0;
    let sent = c.at(leader).turn();
    sent.into_iter().for_each(|m| c.deliver(m));
    let mut answers = Vec::new();
    for id in (1..=3).filter(|i| *i != leader) {
        answers.extend(c.at(id).settle());
    }
    answers.into_iter().for_each(|m| c.deliver(m));
    c.at(leader).turn();
    let r = c.at(leader);
    assert!(r.durable < r.log.newest());
    assert_eq!(r.machine.commit(), index, "a quorum has synced it");
    assert!(
        r.machine.applied() < index,
        "raft gives it out when it is durable here"
    );
}

#[test]
fn g8_a_replica_that_was_cut_off_does_not_raise_the_term() {
    let mut c = Cluster::new(3, 8);
    let leader = c.elect();
    let term = c.at(leader).machine.term();
    let lone = leader % 3 + 1;
    c.calm(200, &[lone]);
    assert_eq!(c.at(lone).machine.term(), term, "pre-vote");
    c.calm(20, &[]);
    assert_eq!(c.leader(), Some(leader));
    assert_eq!(c.at(leader).machine.term(), term);
}

#[test]
fn g8_a_leader_without_a_quorum_steps_down() {
    let mut c = Cluster::new(3, 8);
    let leader = c.elect();
    c.calm(60, &[leader]);
    assert!(!c.at(leader).machine.is_leader(), "check-quorum");
    let new = c.leader().expect("the others have elected one");
    assert_ne!(new, leader);
}

#[test]
fn g8_a_configuration_change_is_applied_by_all_and_survives_a_restart() {
    let mut c = Cluster::new(3, 8);
    let leader = c.elect();
    let mut one = ConfChangeSingle::default();
    one.set_change_type(ConfChangeType::RemoveNode);
    one.node_id = leader % 3 + 1;
    let mut two = ConfChangeSingle::default();
    two.set_change_type(ConfChangeType::AddLearnerNode);
    two.node_id = 9;
    let mut change = ConfChangeV2::default();
    change.set_changes(vec![one, two].into());
    c.at(leader).machine.propose_change(&change, 0).unwrap();
    c.calm(20, &[]);
    let other = (leader + 1) % 3 + 1;
    c.restart(other, None);
    c.calm(20, &[]);
    for id in [leader, other] {
        let conf = c.at(id).machine.conf();
        assert_eq!(conf.voters.len(), 2, "{conf:?}");
        assert_eq!(conf.learners, [9]);
        assert!(
            conf.voters_outgoing.is_empty(),
            "the joint configuration was left"
        );
    }
}

#[test]
fn g10_a_repeat_waits_for_the_commit_of_the_first() {
    let mut r = alone(&[]);
    r.settle();
    let first = produce(&mut r, 0).unwrap();
    r.turn();
    let repeat = produce(&mut r, 0).unwrap();
    assert_eq!(repeat, first, "same offset, same entry to wait for");
    r.settle();
    let late = produce(&mut r, 0).unwrap();
    assert_eq!(late.base_offset, first.base_offset);
    assert_eq!(late.pending, None);
    assert_eq!(r.log.last_index(), RaftIndex(2));
}

#[test]
fn g10_l10_a_cut_tail_takes_offsets_and_sequences_back() {
    let mut c = Cluster::new(3, 10);
    let old = c.elect();
    produce(c.at(old), 0).unwrap();
    c.exchange(&[]);
    // Cut off, it takes two more batches; the others elect another leader, which takes one of them.
    produce(c.at(old), 2).unwrap();
    produce(c.at(old), 4).unwrap();
    c.calm(60, &[old]);
    let new = c.leader().expect("the others have elected one");
    assert_eq!(produce(c.at(new), 4), Err(ProduceError::OutOfOrderSequence));
    assert_eq!(produce(c.at(new), 2).unwrap().base_offset, Offset(2));
    c.calm(30, &[]);
    let r = c.at(old);
    assert_eq!(r.machine.state().next_offset(), Offset(4));
    let stamp = Stamp::of(&batch(4).header).unwrap();
    assert_eq!(r.machine.state().producers.check(&stamp), Verdict::Append);
    assert_eq!(r.machine.state().uncommitted_bytes(), 0);
}

#[test]
fn g10_the_overlay_covers_the_log_after_a_restart() {
    let mut r = alone(&[]);
    r.settle();
    let first = produce(&mut r, 0).unwrap();
    r.turn();
    r.durable = r.log.newest();
    // Durable, but the replica did not get round to hearing of it.
    let mut r = again(&r, group_of(&[1], &[]));
    r.settle();
    let repeat = produce(&mut r, 0).unwrap();
    assert_eq!(repeat.base_offset, first.base_offset);
}

#[test]
fn replaying_over_a_newer_state_changes_nothing() {
    let mut r = alone(&[]);
    r.settle();
    for n in 0..3 {
        produce(&mut r, 2 * n).unwrap();
    }
    r.settle();
    let encode =
        |r: &Replica| codec::encode_state(r.machine.conf(), &r.machine.state().producers, &[]);
    let before = encode(&r);
    let mut r = again(&r, codec::decode_state(&before).unwrap());
    r.settle();
    assert_eq!(encode(&r), before);
}

#[test]
fn g11_a_restart_raises_the_term_and_serves_after_its_own_entry() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    r.settle();
    let mut r = again(&r, group_of(&[1], &[]));
    r.turn();
    assert!(!r.machine.serves());
    r.settle();
    assert!(r.machine.serves());
    assert_eq!(r.machine.leader_epoch(), LeaderEpoch(2));
    assert_eq!(r.log.entries().last().unwrap().term, Term(2));
}

#[test]
fn g11_a_new_leader_does_not_serve_before_its_no_op_commits() {
    // Votes arrive, appends don't.
    let mut c = Cluster::new(3, 12);
    let mut elected = None;
    for _ in 0..200 {
        for r in c.replicas.iter_mut() {
            r.machine.tick(0);
        }
        let mut messages = Vec::new();
        for r in c.replicas.iter_mut() {
            messages.extend(r.settle());
        }
        for m in messages {
            if m.get_msg_type() != MessageType::MsgAppend {
                c.deliver(m);
            }
        }
        elected = c.replicas.iter().position(|r| r.machine.is_leader());
        if elected.is_some() {
            break;
        }
    }
    let leader = elected.expect("votes were exchanged") as u64 + 1;
    c.at(leader).settle();
    assert!(c.at(leader).machine.is_leader());
    assert!(!c.at(leader).machine.serves());
    c.calm(10, &[]);
    assert!(c.leader().is_some());
}

#[test]
fn g11_terms_that_are_no_epoch_are_refused() {
    let mut r = Replica::new(
        1,
        MemoryLog::default(),
        group_of(&[1, 2], &[]),
        RaftIndex(0),
        1,
    );
    for kind in [
        MessageType::MsgHeartbeat,
        MessageType::MsgRequestVote,
        MessageType::MsgAppend,
    ] {
        r.machine.step(message(kind, 2, TERM_MAX + 1), 0);
        r.settle();
        assert_eq!(r.machine.term(), Term(0));
    }
    r.machine
        .step(message(MessageType::MsgHeartbeat, 2, TERM_MAX), 0);
    r.settle();
    assert_eq!(r.machine.leader_epoch(), LeaderEpoch(i32::MAX));
    for _ in 0..500 {
        r.machine.tick(0);
        assert_eq!(of_kind(&r.settle(), MessageType::MsgRequestPreVote), 0);
    }
    assert_eq!(r.machine.term().0, TERM_MAX, "no election above it");

    let log = MemoryLog::default();
    let hs = HardState {
        term: Term(TERM_MAX),
        ..HardState::default()
    };
    log.append(Some(hs), &[]);
    let mut r = Replica::new(1, log, group_of(&[1], &[]), RaftIndex(0), 1);
    r.settle();
    assert!(!r.machine.is_leader());
}

#[test]
fn a_full_group_refuses_and_recovers() {
    let mut r = alone(&[]);
    r.settle();
    let big = testing::batch(1, 9 << 20, None);
    let mut taken = 0;
    while r.machine.produce_batch(&big, 0, true).is_ok() {
        taken += 1;
        r.turn();
    }
    assert_eq!(taken, 8, "64 MiB");
    let refused = r.machine.produce_batch(&big, 0, true);
    assert_eq!(refused, Err(ProduceError::Overloaded));
    let refused = produce(&mut r, 0);
    assert_eq!(refused, Err(ProduceError::Overloaded));
    r.settle();
    assert_eq!(r.machine.state().uncommitted_bytes(), 0);
    assert!(produce(&mut r, 0).is_ok());
    let full = r.machine.produce_batch(&batch(2), 0, false);
    assert_eq!(full, Err(ProduceError::Overloaded));
}

#[test]
fn l13_a_damaged_batch_keeps_its_place() {
    let mut r = alone(&[]);
    r.settle();
    produce(&mut r, 0).unwrap();
    produce(&mut r, 2).unwrap();
    r.settle();
    let log = r.log.crash(r.durable);
    log.damage(RaftIndex(2));
    let mut r = Replica::new(1, log, group_of(&[1], &[]), RaftIndex(0), 1);
    r.settle();
    assert!(r.machine.serves());
    assert_eq!(r.machine.state().high_watermark(), Offset(4));
    assert_eq!(produce(&mut r, 4).unwrap().base_offset, Offset(4));
}

#[test]
fn commands_come_in_order_and_once_per_life() {
    let mut r = alone(&[]);
    r.settle();
    for c in ["a", "b", "c"] {
        r.machine
            .propose_service(EntryKind::Command, Bytes::from(c))
            .unwrap();
    }
    r.turn();
    assert!(r.commands.is_empty());
    r.settle();
    let data = |r: &Replica| -> Vec<Bytes> { r.commands.iter().map(|c| c.1.clone()).collect() };
    assert_eq!(data(&r), ["a", "b", "c"]);
    let mut r = again(&r, group_of(&[1], &[]));
    r.settle();
    assert_eq!(data(&r), ["a", "b", "c"]);
}
