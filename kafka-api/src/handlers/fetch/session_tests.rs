//! Sessions step by step, their room, and any history against a naive model.

use std::time::Duration;

use engine::rt::Instant;
use proptest::prelude::*;

use super::*;

fn topic(name: &'static str, parts: usize) -> FetchTopic {
    FetchTopic {
        name: StrBytes::from_static_str(name),
        id: Uuid::nil(),
        parts,
    }
}

fn part(index: i32, offset: i64) -> FetchPart {
    FetchPart {
        index,
        current_leader_epoch: -1,
        fetch_offset: offset,
        last_fetched_epoch: -1,
        max_bytes: 100,
    }
}

fn request(id: i32, epoch: i32, parts: &[(i32, i64)], forgotten: &[i32]) -> FetchRequest {
    let topics = if parts.is_empty() {
        SmallVec::new()
    } else {
        SmallVec::from_vec(vec![topic("t", parts.len())])
    };
    FetchRequest {
        replica_id: -1,
        max_wait_ms: 0,
        min_bytes: 0,
        max_bytes: 1000,
        session_id: id,
        session_epoch: epoch,
        topics,
        parts: parts.iter().map(|(p, o)| part(*p, *o)).collect(),
        forgotten: vec![(topic("t", 0), forgotten.to_vec())],
    }
}

fn answer(high_watermark: i64, records: &'static [u8]) -> PartAnswer {
    let records = Some(Bytes::from_static(records)).filter(|r| !r.is_empty());
    PartAnswer {
        high_watermark,
        log_start_offset: 0,
        records: records.into_iter().collect(),
        ..PartAnswer::error(ErrorCode::None)
    }
}

fn at(seconds: u64) -> Instant {
    Instant(0) + Duration::from_secs(seconds)
}

fn sessions(slots: i32) -> Sessions {
    Sessions::new(slots, 0, 1)
}

fn create(s: &Sessions, parts: i32, now: Instant) -> i32 {
    let parts: Vec<_> = (0..parts).map(|p| (p, 0)).collect();
    let mut fetch = request(0, 0, &parts, &[]);
    assert!(matches!(s.begin(&mut fetch, false, now), Ok(Context::Full)));
    let answers = vec![answer(0, b""); fetch.parts.len()];
    s.create(&fetch, false, &answers, now, || {
        now.0 / 1_000 + fetch.parts.len() as u64
    })
}

/// Goes on with a session; the partitions that were asked of the logs, in order, and those that are told.
fn step(
    s: &Sessions,
    mut fetch: FetchRequest,
    give: impl Fn(i32) -> PartAnswer,
) -> Result<(Vec<i32>, Vec<i32>), ErrorCode> {
    let context = s.begin(&mut fetch, false, at(1))?;
    let asked: Vec<i32> = fetch.parts.iter().map(|p| p.index).collect();
    let mut answers: Vec<_> = asked.iter().map(|p| give(*p)).collect();
    if let Context::Incremental(session) = context {
        session.tell(&mut fetch, &mut answers);
    }
    assert_eq!(
        fetch.topics.iter().map(|t| t.parts).sum::<usize>(),
        fetch.parts.len()
    );
    Ok((asked, fetch.parts.iter().map(|p| p.index).collect()))
}

#[test]
fn only_what_changed_is_told() {
    let s = sessions(10);
    let id = create(&s, 3, at(0));
    assert!(id > 0);
    let still = |_| answer(0, b"");
    assert_eq!(
        step(&s, request(id, 1, &[], &[]), still),
        Ok((vec![0, 1, 2], vec![]))
    );
    // Records are told, and send their partition to the end.
    let data = |p| {
        if p == 0 {
            answer(5, b"x")
        } else {
            answer(0, b"")
        }
    };
    assert_eq!(
        step(&s, request(id, 2, &[], &[]), data),
        Ok((vec![0, 1, 2], vec![0]))
    );
    let moved = |p| {
        answer(
            if p == 2 {
                7
            } else if p == 0 {
                5
            } else {
                0
            },
            b"",
        )
    };
    assert_eq!(
        step(&s, request(id, 3, &[], &[]), moved),
        Ok((vec![1, 2, 0], vec![2]))
    );
    // An error is told each time, and its end.
    let failed = |p| {
        if p == 1 {
            PartAnswer::error(ErrorCode::OffsetOutOfRange)
        } else {
            moved(p)
        }
    };
    assert_eq!(
        step(&s, request(id, 4, &[], &[]), failed),
        Ok((vec![1, 2, 0], vec![1]))
    );
    assert_eq!(
        step(&s, request(id, 5, &[], &[]), failed),
        Ok((vec![1, 2, 0], vec![1]))
    );
    assert_eq!(
        step(&s, request(id, 6, &[], &[]), moved),
        Ok((vec![1, 2, 0], vec![1]))
    );
    assert_eq!(
        step(&s, request(id, 7, &[], &[]), moved),
        Ok((vec![1, 2, 0], vec![]))
    );
    // New partitions go to the end and are told; known ones keep their place; forgotten ones go.
    let (new, gone) = (&[(9, 0), (2, 3)], &[0]);
    assert_eq!(
        step(&s, request(id, 8, new, gone), moved),
        Ok((vec![1, 2, 9], vec![9]))
    );
    assert_eq!(s.partitions.get(), 3);
}

#[test]
fn epochs_ids_and_kinds_are_checked() {
    let s = sessions(10);
    let id = create(&s, 1, at(0));
    let still = |_| answer(0, b"");
    let wrong = |epoch| step(&s, request(id, epoch, &[], &[]), still);
    assert_eq!(wrong(2), Err(ErrorCode::InvalidFetchSessionEpoch));
    assert_eq!(wrong(-5), Err(ErrorCode::InvalidFetchSessionEpoch));
    assert!(wrong(1).is_ok());
    assert_eq!(wrong(1), Err(ErrorCode::InvalidFetchSessionEpoch));
    let unknown = step(&s, request(id + 1, 1, &[], &[]), still);
    assert_eq!(unknown, Err(ErrorCode::FetchSessionIdNotFound));
    let by_id = s.begin(&mut request(id, 2, &[], &[]), true, at(1));
    assert_eq!(by_id.unwrap_err(), ErrorCode::FetchSessionTopicIdError);
    // To read nothing ends it, and so does a full request.
    assert_eq!(
        step(&s, request(id, 2, &[], &[0]), still),
        Ok((vec![], vec![]))
    );
    assert!(s.is_empty());
    for epoch in [0, -1] {
        let id = create(&s, 1, at(0));
        let context = s.begin(&mut request(id, epoch, &[(1, 0)], &[]), false, at(1));
        assert!(matches!(
            (epoch, context.unwrap()),
            (0, Context::Full) | (-1, Context::Alone)
        ));
        assert!(s.is_empty());
    }
    assert_eq!(s.bytes(), 0);
    assert_eq!(next_epoch(i32::MAX), 1);
}

#[test]
fn room_is_made_as_kafka_does() {
    let s = sessions(2);
    let (small, large) = (create(&s, 2, at(0)), create(&s, 5, at(10)));
    // Both are young and in use.
    assert_eq!(create(&s, 100, at(20)), 0);
    // The one used longest ago, once that is long enough.
    s.begin(&mut request(small, 1, &[], &[]), false, at(100))
        .unwrap();
    let third = create(&s, 1, at(131));
    assert!(third > 0 && !s.known.borrow().contains_key(&large));
    // In use, but old enough: it makes room for one that isn't smaller.
    assert_eq!(create(&s, 1, at(140)), 0);
    assert!(create(&s, 2, at(140)) > 0);
    assert!(!s.known.borrow().contains_key(&small));
    assert_eq!(Sessions::new(0, 0, 1).slots, 0);
    assert_eq!(create(&sessions(0), 1, at(0)), 0);
}

#[test]
fn partitions_are_bounded_too() {
    let s = sessions(10);
    let most = limits::SESSION_PARTITIONS as i32;
    assert_eq!(create(&s, most + 1, at(0)), 0);
    let id = create(&s, most, at(0));
    assert_eq!(create(&s, 1, at(1)), 0);
    let more = step(&s, request(id, 1, &[(most, 0)], &[]), |_| answer(0, b""));
    assert_eq!(more, Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(s.partitions.get(), 0);
}

#[test]
fn ids_tell_the_shards() {
    for shard in 0..3 {
        let s = Sessions::new(1000, shard, 3);
        for _ in 0..100 {
            let id = create(&s, 1, at(0));
            assert!(id > 0 && id % 3 == i32::from(shard), "{id}");
        }
        let big = s.new_id(|| u64::MAX);
        assert!(big > 0 && big % 3 == i32::from(shard));
    }
}

/// One request of a history: partitions to read, to forget, and those that have records.
type Step = (Vec<i32>, Vec<i32>, Vec<i32>);

proptest! {
    #[test]
    fn any_history_is_as_in_the_model(steps in proptest::collection::vec(
        (proptest::collection::vec(0..6i32, 0..4), proptest::collection::vec(0..6i32, 0..3), proptest::collection::vec(0..6i32, 0..3)),
        1..20,
    )) {
        let steps: Vec<Step> = steps;
        let s = sessions(4);
        let mut id = 0;
        let mut epoch = 0;
        // The model: partitions in their order, and who was told of.
        let mut order: Vec<(i32, bool)> = Vec::new();
        for (read, forget, data) in steps {
            let parts: Vec<_> = read.iter().map(|p| (*p, 0)).collect();
            let give = |p: i32| if data.contains(&p) { answer(0, b"x") } else { answer(0, b"") };
            if id == 0 {
                let mut fetch = request(0, 0, &parts, &[]);
                let full = s.begin(&mut fetch, false, at(1)).unwrap();
                prop_assert!(matches!(full, Context::Full));
                let answers: Vec<_> = fetch.parts.iter().map(|p| give(p.index)).collect();
                id = s.create(&fetch, false, &answers, at(1), || 7);
                epoch = 1;
                order.clear();
                for p in read {
                    if !order.iter().any(|o| o.0 == p) {
                        order.push((p, true));
                    }
                }
                continue;
            }
            for p in &read {
                if !order.iter().any(|o| o.0 == *p) {
                    order.push((*p, false));
                }
            }
            order.retain(|o| !forget.contains(&o.0));
            let asked: Vec<i32> = order.iter().map(|o| o.0).collect();
            let told: Vec<i32> = order.iter().filter(|o| !o.1 || data.contains(&o.0)).map(|o| o.0).collect();
            let got = step(&s, request(id, epoch, &parts, &forget), give);
            prop_assert_eq!(got, Ok((asked, told)));
            epoch += 1;
            for o in &mut order {
                o.1 = true;
            }
            let (mut front, mut back) = (Vec::new(), Vec::new());
            for o in order {
                if data.contains(&o.0) { back.push(o) } else { front.push(o) }
            }
            order = front;
            order.extend(back);
            prop_assert_eq!(s.partitions.get(), order.len());
            if order.is_empty() {
                id = 0;
            }
        }
    }
}
