use super::*;
use crate::codec;
use engine::types::RaftIndex;
use proptest::prelude::*;
use std::fmt::Write as _;

fn stamp(id: i64, epoch: i16, first: i32, last: i32) -> Stamp {
    Stamp {
        id,
        epoch,
        first_sequence: first,
        last_sequence: last,
        timestamp: 5,
    }
}

/// The table and the log it stands for.
#[derive(Default)]
struct Driver {
    producers: Producers,
    committed: u64,
    in_flight: VecDeque<(i64, i64)>,
    next_offset: i64,
}

impl Driver {
    fn send(&mut self, s: &Stamp) -> Verdict {
        let verdict = self.producers.check(s);
        if verdict == Verdict::Append {
            let index = RaftIndex(self.committed + self.in_flight.len() as u64 + 1);
            self.producers.push(index, s, Offset(self.next_offset), 0);
            self.in_flight.push_back((s.id, self.next_offset));
            self.next_offset += i64::from(s.count());
        }
        verdict
    }

    fn commit(&mut self) {
        if let Some((id, _)) = self.in_flight.pop_front() {
            self.committed += 1;
            self.producers.apply(RaftIndex(self.committed), id);
        }
    }

    fn cut(&mut self, n: usize) {
        for _ in 0..n {
            let index = RaftIndex(self.committed + self.in_flight.len() as u64);
            if let Some((id, offset)) = self.in_flight.pop_back() {
                self.producers.take_back(index, id);
                self.next_offset = offset;
            }
        }
    }

    fn restart(&mut self) {
        self.cut(self.in_flight.len());
        let bytes = codec::encode_state(&codec::voters(&[1]), &self.producers, &[]);
        self.producers = codec::decode_state(&bytes).unwrap().producers;
    }
}

#[test]
fn the_golden_table() {
    let table = include_str!("../testdata/producers.txt");
    let mut driver = Driver::default();
    let mut failures = String::new();
    for (n, line) in table.lines().enumerate() {
        let line = line.split('#').next().unwrap().trim();
        let (order, expected) = line.split_once("->").unwrap_or((line, ""));
        let words: Vec<&str> = order.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["commit"] => driver.commit(),
            ["restart"] => driver.restart(),
            ["cut", count] => driver.cut(count.parse().unwrap()),
            ["expire", now] => {
                driver.producers.expire(now.parse().unwrap());
            }
            ["send", epoch, range, id @ ..] => {
                let (first, last) = range.split_once("..").unwrap();
                let id = id
                    .first()
                    .map_or(7, |i| i.strip_prefix("id=").unwrap().parse().unwrap());
                let offset = driver.next_offset;
                let answer = match driver.send(&stamp(
                    id,
                    epoch.parse().unwrap(),
                    first.parse().unwrap(),
                    last.parse().unwrap(),
                )) {
                    Verdict::Append => format!("append {offset}"),
                    Verdict::Repeat {
                        base_offset,
                        pending,
                        timestamp,
                    } => {
                        assert_eq!(timestamp, 5);
                        let pending = if pending.is_some() { " pending" } else { "" };
                        format!("repeat {base_offset}{pending}")
                    }
                    Verdict::Refuse(why) => format!("{why:?}"),
                };
                if answer != expected.trim() {
                    writeln!(failures, "line {}: {line}, but got {answer}", n + 1).unwrap();
                }
            }
            other => panic!("line {}: {other:?}", n + 1),
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn a_repeat_waits_for_its_own_entry() {
    let mut d = Driver::default();
    d.send(&stamp(1, 0, 0, 0));
    d.send(&stamp(2, 0, 0, 0));
    d.send(&stamp(1, 0, 1, 1));
    let Verdict::Repeat { pending, .. } = d.send(&stamp(1, 0, 1, 1)) else {
        panic!("a repeat");
    };
    assert_eq!(pending, Some(RaftIndex(3)));
}

#[test]
fn those_that_wrote_longest_ago_are_forgotten_first() {
    let mut d = Driver {
        producers: Producers::new(32),
        ..Driver::default()
    };
    for id in 0..32 {
        d.send(&stamp(id, 0, 0, 0));
        d.commit();
    }
    // Number 0 writes again, so 1 and 2 are the oldest: a sixteenth of 32.
    d.send(&stamp(0, 0, 1, 1));
    d.commit();
    d.send(&stamp(100, 0, 0, 0));
    assert_eq!(d.producers.table.len(), 31);
    let known = |id| d.producers.table.contains_key(&id);
    assert!(known(0) && known(3) && known(100));
    assert!(!known(1) && !known(2));
}

#[test]
fn producers_in_flight_are_never_forgotten() {
    let mut d = Driver {
        producers: Producers::new(4),
        ..Driver::default()
    };
    for id in 0..100 {
        d.send(&stamp(id, 0, 0, 0));
    }
    assert_eq!(d.producers.table.len(), 100);
    d.producers.expire(i64::MAX);
    for _ in 0..100 {
        d.commit();
    }
    d.send(&stamp(1000, 0, 0, 0));
    assert!(d.producers.table.len() <= 100);
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        id: i64,
        epoch: i16,
        first: i32,
        len: i32,
    },
    Commit,
    Cut(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Sequences near the wrap, few ids and epochs: so that repeats, gaps and bumps are all frequent.
    let near = prop_oneof![0i32..6, (i32::MAX - 3)..=i32::MAX];
    let send = (0i64..3, 0i16..3, near, 0i32..3).prop_map(|(id, epoch, first, len)| Step::Send {
        id,
        epoch,
        first,
        len,
    });
    let step = prop_oneof![
        8 => send,
        3 => Just(Step::Commit),
        1 => (1usize..4).prop_map(Step::Cut),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..120)
}

/// One accepted batch of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Written {
    stamp: (i64, i16, i32, i32),
    offset: i64,
}

proptest! {
    /// The rules once more, by history: the log is a list, and every answer follows from the list alone.
    #[test]
    fn answers_follow_from_the_log(steps in steps()) {
        let mut d = Driver::default();
        let mut log: Vec<Written> = Vec::new();
        for step in steps {
            match step {
                Step::Commit => d.commit(),
                Step::Cut(n) => {
                    d.cut(n);
                    log.truncate((d.committed as usize) + d.in_flight.len());
                }
                Step::Restart => {
                    d.restart();
                    log.truncate(d.committed as usize);
                }
                Step::Send { id, epoch, first, len } => {
                    let s = stamp(id, epoch, first, add_sequence(first, len));
                    let key = (s.id, s.epoch, s.first_sequence, s.last_sequence);
                    let own: Vec<_> = log.iter().filter(|w| w.stamp.0 == id).collect();
                    let offset = d.next_offset;
                    match d.send(&s) {
                        Verdict::Append => {
                            if let Some(last) = own.last() {
                                let (_, e, _, l) = last.stamp;
                                prop_assert!(epoch > e && first == 0
                                    || epoch == e && first == add_sequence(l, 1));
                            }
                            log.push(Written { stamp: key, offset });
                        }
                        Verdict::Repeat { base_offset, pending, .. } => {
                            let at = log.iter().rposition(|w| w.stamp == key).unwrap();
                            prop_assert_eq!(log[at].offset, base_offset.0);
                            let in_flight = at >= d.committed as usize;
                            prop_assert_eq!(pending, in_flight.then_some(RaftIndex(at as u64 + 1)));
                        }
                        Verdict::Refuse(ProduceError::InvalidProducerEpoch) => {
                            prop_assert!(own.last().unwrap().stamp.1 > epoch);
                        }
                        Verdict::Refuse(ProduceError::DuplicateSequence) => {
                            // Every sequence of it is in the log, under this epoch.
                            for n in 0..=len {
                                let q = add_sequence(first, n);
                                let found = own.iter().any(|w| w.stamp.1 == epoch
                                    && distance(w.stamp.2, q) <= distance(w.stamp.2, w.stamp.3));
                                prop_assert!(found, "{} was never written", q);
                            }
                        }
                        Verdict::Refuse(_) => {
                            let last = own.last().unwrap().stamp;
                            prop_assert!(epoch >= last.1);
                            // Nothing of the last five is refused.
                            let recent = own.iter().rev().take(5);
                            prop_assert!(last.1 != epoch || !recent.into_iter().any(|w| w.stamp == key));
                        }
                    }
                }
            }
        }
    }

    /// Taking back is exact: what is left is what a replay of the remaining log builds.
    #[test]
    fn cutting_off_equals_rebuilding(steps in steps()) {
        let mut d = Driver::default();
        let mut log: Vec<(Stamp, i64)> = Vec::new();
        for step in steps {
            match step {
                Step::Commit => d.commit(),
                Step::Cut(n) => {
                    d.cut(n);
                    log.truncate(d.committed as usize + d.in_flight.len());
                }
                Step::Restart => {}
                Step::Send { id, epoch, first, len } => {
                    let s = stamp(id, epoch, first, add_sequence(first, len));
                    let offset = d.next_offset;
                    if d.send(&s) == Verdict::Append {
                        log.push((s, offset));
                    }
                }
            }
        }
        let mut rebuilt = Producers::default();
        for (n, (s, offset)) in log.iter().enumerate() {
            rebuilt.push(RaftIndex(n as u64 + 1), s, Offset(*offset), 0);
        }
        for (n, (s, _)) in log.iter().take(d.committed as usize).enumerate() {
            rebuilt.apply(RaftIndex(n as u64 + 1), s.id);
        }
        for (id, p) in &rebuilt.table {
            let q = &d.producers.table[id];
            prop_assert_eq!(&p.committed, &q.committed);
            prop_assert_eq!(&p.pending, &q.pending);
        }
        prop_assert_eq!(rebuilt.table.len(), d.producers.table.len());
    }
}

#[test]
fn active_producers_are_told_by_their_last_batch() {
    let mut producers = Producers::new(10);
    let stamp = |id, first, last| Stamp {
        id,
        epoch: 2,
        first_sequence: first,
        last_sequence: last,
        timestamp: i64::from(last),
    };
    producers.push(RaftIndex(1), &stamp(9, 0, 3), Offset(0), 0);
    producers.push(RaftIndex(2), &stamp(4, 0, 0), Offset(4), 0);
    producers.apply(RaftIndex(1), 9);
    producers.push(RaftIndex(3), &stamp(9, 4, 5), Offset(5), 0);
    let told: Vec<_> = producers
        .active()
        .iter()
        .map(|p| (p.id, p.epoch, p.last_sequence, p.last_timestamp))
        .collect();
    assert_eq!(told, [(4, 2, 0, 0), (9, 2, 5, 5)]);
}

/// L8: a checkpoint has them encoded in one step, however many there are.
#[test]
fn l8_all_that_a_group_remembers_is_encoded_soon() {
    let all = limits::PRODUCERS_PER_GROUP as i64;
    let mut producers = Producers::default();
    let (mut index, mut offset) = (0, 0);
    for sequence in 0..limits::BATCHES_REMEMBERED as i32 {
        for id in 0..all {
            // In an order of their own.
            let id = id * 1_619 % all;
            index += 1;
            producers.push(
                RaftIndex(index),
                &stamp(id, 0, sequence, sequence),
                Offset(offset),
                0,
            );
            producers.apply(RaftIndex(index), id);
            offset += 1;
        }
    }
    let mut least = std::time::Duration::MAX;
    for _ in 0..30 {
        let began = engine::rt::now();
        let front = codec::encode_front(&codec::voters(&[1]), &producers, 0);
        least = least.min(began.elapsed());
        assert!(
            front.len() > 4_096 * 5 * BATCH_BYTES && front.len() <= 64 + producers.encoded_bytes()
        );
    }
    // About 140 µs. Others may have this core meanwhile: the least of many counts, and has room for slower machines.
    println!("{all} producers are encoded in {least:?}");
    assert!(least < std::time::Duration::from_micros(400), "{least:?}");
}
