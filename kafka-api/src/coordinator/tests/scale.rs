//! A large group settles, and does so in time that a shard can spare.

use super::*;
use crate::coordinator::requests::DeleteOffsets;

#[test]
fn five_thousand_members_settle() {
    const MEMBERS: usize = 5_000;
    let mut bench = Bench::new(Settings::default());
    let mut random = 0u128;
    let mut joined = Vec::new();
    let mut answers = |c: &mut Coordinator, event, now: Now| {
        let mut next = || {
            random += 1;
            random
        };
        c.handle(event, now, &mut next)
    };
    for token in 0..MEMBERS as u64 {
        let mut join = join("g", "");
        join.needs_known_member = false;
        let event = Event::Request(token, Request::Join(Box::new(join)));
        assert!(
            answers(&mut bench.coordinator, event, bench.now)
                .answers
                .is_empty()
        );
    }
    // Members kept coming, and then no more.
    for _ in 0..2 {
        bench.now.ms += 3_000;
        let fx = answers(&mut bench.coordinator, Event::Tick, bench.now);
        for (_, reply) in fx.answers {
            let Reply::Joined(j) = reply else {
                panic!("{reply:?}")
            };
            assert_eq!((j.error, j.generation), (ErrorCode::None, 1));
            joined.push(j);
        }
    }
    assert_eq!(joined.len(), MEMBERS);
    let leader = joined
        .iter()
        .find(|j| j.leader == j.member)
        .expect("there is a leader");
    assert_eq!(leader.members.len(), MEMBERS);
    let given: Vec<(Name, Bytes)> = leader
        .members
        .iter()
        .map(|m| {
            (
                m.member.clone(),
                Bytes::copy_from_slice(m.member.as_bytes()),
            )
        })
        .collect();
    let mut writes = Vec::new();
    for (token, j) in joined.iter().enumerate() {
        let given = if j.member == leader.member {
            given.clone()
        } else {
            Vec::new()
        };
        let request = sync_of(membership("g", &j.member, 1), given);
        let event = Event::Request(token as u64, request);
        let fx = answers(&mut bench.coordinator, event, bench.now);
        assert!(
            fx.answers
                .iter()
                .all(|(_, r)| matches!(r, Reply::Synced(_)))
        );
        writes.extend(fx.writes);
    }
    let [write] = &writes[..] else {
        panic!("{} writes", writes.len())
    };
    // One batch, which the journal takes.
    let batch = record::batch(&write.records, 0);
    assert!(batch.len() < 1 << 20, "{} bytes", batch.len());
    let fx = answers(
        &mut bench.coordinator,
        Event::Written(write.id, Ok(())),
        bench.now,
    );
    assert_eq!(fx.answers.len(), MEMBERS);
    bench.coordinator.check();
    bench.log.extend(write.records.clone());
    let mut again = bench.reloaded();
    let Reply::Described(d) = again.describe(&own("g")) else {
        panic!("it is there")
    };
    assert_eq!((d.state, d.members.len()), ("Stable", MEMBERS));
    assert!(
        d.members
            .iter()
            .all(|m| *m.assignment == *m.member.as_bytes())
    );
    bench.now.ms += 10_000;
    let fx = answers(&mut again, Event::Tick, bench.now);
    assert!(fx.answers.is_empty());
}

#[test]
fn names_that_no_record_holds_are_refused() {
    let mut bench = Bench::new(Settings::default());
    let long = "x".repeat(40_000);
    let (_, answers) = bench.ask(commit_of(membership(&long, "", -1), 0, 1));
    assert_eq!(
        answers[0].1,
        Reply::Committed(vec![ErrorCode::InvalidGroupId])
    );
    let mut join = join("g", "");
    join.instance = Some(own(&long));
    let (_, answers) = bench.ask(Request::Join(Box::new(join.clone())));
    assert!(matches!(&answers[0].1, Reply::Joined(j) if j.error == ErrorCode::InvalidRequest));
    join.instance = None;
    join.client_id = own(&"\u{e9}".repeat(16_000));
    let (_, answers) = bench.ask(Request::Join(Box::new(join)));
    assert!(matches!(&answers[0].1, Reply::Joined(j) if j.member.len() < 300));
}

/// What a group keeps of a member's protocols is bounded: every look at them would cost everybody.
#[test]
fn a_member_has_a_bounded_number_of_protocols() {
    let mut bench = Bench::new(Settings::default());
    let mut with = |count: usize| {
        let mut join = join("g", "");
        let protocols = (0..count).map(|n| (own(&n.to_string()), Bytes::new()));
        join.protocols = protocols.collect();
        let (_, answers) = bench.ask(Request::Join(Box::new(join)));
        match answers.into_iter().next() {
            Some((_, Reply::Joined(joined))) => joined.error,
            other => panic!("{other:?}"),
        }
    };
    let most = crate::limits::MEMBER_PROTOCOLS;
    assert_eq!(with(most), ErrorCode::MemberIdRequired);
    assert_eq!(with(most + 1), ErrorCode::InvalidRequest);
}

#[test]
fn an_offset_that_is_named_many_times_is_deleted_once() {
    let mut bench = Bench::new(Settings::default());
    bench.ask(commit_of(membership("g", "", -1), 0, 5));
    bench.settle(Ok(()));
    bench.ask(Request::DeleteOffsets(DeleteOffsets {
        group: own("g"),
        partitions: vec![(own("t"), 0); 1_000],
    }));
    let records = bench.writes.iter().map(|write| write.records.len());
    assert_eq!(records.sum::<usize>(), 1);
    let answers = bench.settle(Ok(()));
    let [(_, Reply::OffsetsDeleted(errors))] = answers.as_slice() else {
        panic!("{answers:?}");
    };
    assert_eq!(errors.len(), 1_000);
}
