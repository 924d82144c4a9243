//! The producer against a broker of a few lines: what goes, when, and that no record is lost on the way.

use proptest::prelude::*;

use super::*;
use crate::control::Partition;
use crate::workload::Arrivals;

fn cluster(partitions: usize, brokers: usize) -> Cluster {
    Cluster {
        topics: vec!["t".into()],
        brokers: vec![String::new(); brokers],
        partitions: (0..partitions)
            .map(|p| Partition {
                topic: 0,
                index: p as i32,
                leader: p % brokers,
            })
            .collect(),
        cluster_id: None,
    }
}

fn workload(text: &str) -> Workload {
    Workload::parse(text).unwrap()
}

struct Bench {
    producer: Producer,
    recorder: Recorder,
    pool: Vec<u8>,
    end_ns: u64,
}

impl Bench {
    fn new(workload: &Workload, partitions: usize, brokers: usize, end_ns: u64) -> Bench {
        let schedule = (workload.load.mode == Mode::Open)
            .then(|| Schedule::new(Arrivals::Constant, workload.load.rate, 0, 1, 1, 0));
        Bench {
            producer: Producer::new(workload, &cluster(partitions, brokers), 0, schedule, None),
            recorder: Recorder::new((0, end_ns)),
            pool: vec![7; limits::PAYLOAD_POOL_BYTES + limits::MAX_RECORD_BYTES],
            end_ns,
        }
    }

    fn generate(&mut self, now_ns: u64) -> u64 {
        self.producer
            .generate(now_ns, self.end_ns, 0, &self.pool, &mut self.recorder)
    }

    /// Partition and number of records of each batch of the next request.
    fn request(&mut self, lane: usize, now_ns: u64) -> Option<Vec<(usize, usize)>> {
        let request = self.producer.next_request(lane, now_ns)?;
        Some(
            request
                .batches
                .iter()
                .map(|b| (b.partition, b.due_ns.len()))
                .collect(),
        )
    }

    fn answer(&mut self, lane: usize) {
        let request = self.producer.answered(lane).unwrap();
        self.producer.recycle(request);
    }
}

const MS: u64 = 1_000_000;

#[test]
fn without_linger_a_record_goes_at_once_and_batches_fill_while_it_waits() {
    let mut b = Bench::new(
        &workload("[load]\nrate = 1000\n[client]\nmax-in-flight = 1"),
        1,
        1,
        u64::MAX,
    );
    assert_eq!(b.generate(0), 1);
    assert_eq!(b.request(0, 0), Some(vec![(0, 1)]));
    assert_eq!(b.generate(3 * MS), 3);
    assert_eq!(
        b.request(0, 3 * MS),
        None,
        "one request in flight is the most"
    );
    b.answer(0);
    assert_eq!(
        b.request(0, 3 * MS),
        Some(vec![(0, 3)]),
        "they filled one batch"
    );
}

#[test]
fn linger_holds_a_batch_until_its_time_or_until_it_is_full() {
    let text = "[load]\nrate = 1000\n[client]\nlinger-ms = 5\nbatch-bytes = 8192";
    let mut b = Bench::new(&workload(text), 1, 1, u64::MAX);
    b.generate(0);
    assert_eq!(
        b.producer.wakes_at(0, u64::MAX),
        MS,
        "the next record comes before the linger ends"
    );
    b.generate(4 * MS);
    assert_eq!(b.request(0, 4 * MS), None);
    assert_eq!(b.request(0, 5 * MS), Some(vec![(0, 5)]));
    b.generate(5 * MS);
    b.generate(20 * MS);
    assert_eq!(
        b.request(0, 5 * MS),
        Some(vec![(0, 7)]),
        "seven fit; full, it needn't wait"
    );
}

#[test]
fn a_request_has_one_batch_of_a_partition_and_stays_under_its_size() {
    let text = "[load]\nrate = 1000\n[client]\nbatch-bytes = 1100\nmax-request-bytes = 4000";
    let mut b = Bench::new(&workload(text), 4, 1, u64::MAX);
    b.generate(9 * MS);
    assert_eq!(b.request(0, 9 * MS), Some(vec![(0, 1), (1, 1), (2, 1)]));
    assert_eq!(b.request(0, 9 * MS), Some(vec![(0, 1), (1, 1), (3, 1)]));
}

#[test]
fn the_schedule_does_not_wait_for_a_broker_that_is_silent() {
    let text = "[load]\nrate = 1000\n[client]\nbuffer-bytes = 10000\nmax-in-flight = 1";
    let mut b = Bench::new(&workload(text), 1, 1, 1_000 * MS);
    let mut made = 0;
    for now in 0..500 {
        made += b.generate(now * MS);
        b.request(0, now * MS);
    }
    assert!(
        (9..=11).contains(&made),
        "the buffer bounds what is made: {made}"
    );
    b.answer(0);
    b.generate(500 * MS);
    assert_eq!(b.recorder.totals.held_back, 1);
    let mut due = Vec::new();
    b.producer.abandon(1_000 * MS, |d| due.push(d));
    due.sort_unstable();
    let expected: Vec<u64> = (1..1_000).map(|n| n * MS).collect();
    assert_eq!(
        due, expected,
        "every record keeps its scheduled moment, made or not"
    );
}

#[test]
fn one_at_a_time_waits_for_the_answer() {
    let mut b = Bench::new(
        &workload("[load]\nmode = \"one-at-a-time\""),
        3,
        1,
        100 * MS,
    );
    assert_eq!(b.generate(5), 1);
    assert_eq!(b.generate(6), 0);
    assert_eq!(b.request(0, 6), Some(vec![(0, 1)]));
    assert_eq!(b.generate(7), 0);
    b.answer(0);
    assert_eq!(b.generate(8), 1);
    assert_eq!(b.request(0, 8), Some(vec![(1, 1)]));
    b.answer(0);
    assert_eq!(b.generate(100 * MS), 0, "the end is the end");
    assert!(b.producer.is_done(100 * MS));
}

#[test]
fn flat_out_sends_full_batches_and_stops_making_when_nothing_may_go() {
    let text = "[load]\nmode = \"flat-out\"\n[client]\nbatch-bytes = 4096\nmax-request-bytes = 8500\nmax-in-flight = 2";
    let mut b = Bench::new(&workload(text), 3, 1, 1_000 * MS);
    for now in 0..2 {
        assert!(b.generate(now) > 0);
        let request = b.request(0, now).unwrap();
        let full = request.iter().all(|r| r.1 == 3);
        assert!(request.len() == 2 && full, "{request:?}");
    }
    assert_eq!(b.request(0, 2), None, "two are in flight");
    assert_eq!(b.generate(2), 0);
    b.answer(0);
    let before = b.producer.next_number;
    b.generate(1_000 * MS);
    assert_eq!(b.producer.next_number, before, "the end is the end");
    while b.request(0, 3).is_some() {
        b.answer(0);
    }
    let open = b.producer.open.iter().flatten().count();
    b.producer.finish();
    assert_eq!(
        b.request(0, 4).is_some(),
        open > 0,
        "at the end an open batch goes"
    );
    while let Some(request) = b.producer.answered(0) {
        b.producer.recycle(request);
    }
    assert!(b.producer.is_done(1_000 * MS));
}

#[test]
fn sticky_fills_one_partition_round_robin_all() {
    let text = "[load]\nrate = 1000\n[client]\nlinger-ms = 100\npartitioner = ";
    for (name, expected) in [
        ("\"sticky\"", vec![(0, 6)]),
        ("\"round-robin\"", vec![(0, 2), (1, 2), (2, 2)]),
    ] {
        let mut b = Bench::new(&workload(&format!("{text}{name}")), 3, 1, u64::MAX);
        b.generate(5 * MS);
        assert_eq!(b.request(0, 200 * MS), Some(expected));
    }
}

/// What lies in a partition, and the sequence number that it takes next.
#[derive(Clone, Default)]
struct Taken {
    due_ns: Vec<u64>,
    next: i32,
}

proptest! {
    /// A broker that refuses for a while, loses connections and answers, and moves leaders: with retries and idempotence every record is taken once,
    /// in its partition's order.
    #[test]
    fn through_all_trouble_every_record_is_taken_once(
        linger in 0u64..10, in_flight in 1usize..6, partitions in 1usize..6, trouble in prop::collection::vec(0u8..12, 20..200)
    ) {
        let text = format!("[load]\nrate = 2000\nrecord-bytes = 500\n[client]\nlinger-ms = {linger}\nbatch-bytes = 2500\nmax-in-flight = {in_flight}\n\
             idempotence = true\nretry = true");
        let (end, brokers) = (200 * MS, 2);
        let mut b = Bench::new(&workload(&text), partitions, brokers, end);
        b.producer.id = Some((9, 0));
        b.producer.sequences = vec![0; partitions];
        let mut leaders = b.producer.leaders.clone();
        let mut taken = vec![Taken::default(); partitions];
        let (mut now, mut turn) = (0, 0);
        while !b.producer.is_done(end) {
            prop_assert!(turn < 20_000, "it ends");
            let trouble = *trouble.get(turn % 300).unwrap_or(&0);
            b.generate(now);
            if now >= end { b.producer.finish(); }
            for lane in 0..brokers {
                while b.producer.next_request(lane, now).is_some() {}
                if b.producer.lanes[lane].in_flight.is_empty() || trouble == 1 { continue; }
                // The broker takes it, whether or not it then manages to say so.
                let request = b.producer.lanes[lane].in_flight.front().unwrap();
                let mut verdicts = Vec::new();
                for batch in &request.batches {
                    let (_, _, sequence) = batch.ids.unwrap();
                    let log = &mut taken[batch.partition];
                    let led = leaders[batch.partition] == lane;
                    verdicts.push(if led && trouble != 2 && sequence == log.next {
                        log.next += batch.due_ns.len() as i32;
                        log.due_ns.extend_from_slice(&batch.due_ns);
                        true
                    } else {
                        led && trouble != 2 && sequence < log.next
                    });
                }
                if trouble == 3 {
                    b.producer.lost(lane, now);
                    b.producer.found(lane);
                    continue;
                }
                let mut request = b.producer.answered(lane).unwrap();
                for slot in (0..verdicts.len()).rev().filter(|s| !verdicts[*s]) {
                    let batch = request.batches.remove(slot);
                    b.producer.again(batch, now);
                }
                b.producer.recycle(request);
            }
            if trouble == 4 {
                leaders.iter_mut().for_each(|l| *l = 1 - *l);
            }
            if trouble == 5 || turn % 20 == 0 {
                b.producer.follow(&leaders);
            }
            now += MS;
            turn += 1;
        }
        prop_assert_eq!((b.producer.held_bytes, b.producer.unsent_bytes), (0, 0));
        prop_assert!(taken.iter().all(|t| t.due_ns.windows(2).all(|w| w[0] < w[1])), "in order");
        let mut all: Vec<u64> = taken.iter().flat_map(|t| t.due_ns.clone()).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..400).map(|n| n * MS / 2).collect::<Vec<_>>());
    }

    /// Whatever the settings and whenever the broker answers: every record due is sent once, in its partition's order, and counted out again.
    #[test]
    fn every_record_is_sent_once(
        linger in 0u64..20, batch in 1usize..9000, request in 1usize..20000, in_flight in 1usize..4, partitions in 1usize..6,
        brokers in 1usize..3, sticky: bool, answers in prop::collection::vec(any::<bool>(), 1..50)
    ) {
        let text = format!(
            "[load]\nrate = 2000\nrecord-bytes = 500\n[client]\nlinger-ms = {linger}\nbatch-bytes = {batch}\nmax-request-bytes = {request}\n\
             max-in-flight = {in_flight}\nbuffer-bytes = 40000\npartitioner = \"{}\"", if sticky { "sticky" } else { "round-robin" });
        let end = 200 * MS;
        let mut b = Bench::new(&workload(&text), partitions, brokers, end);
        let mut sent = vec![Vec::new(); partitions];
        let mut now = 0;
        let mut turn = 0;
        while !b.producer.is_done(end) {
            prop_assert!(turn < 5_000, "it ends");
            b.generate(now);
            if now >= end { b.producer.finish(); }
            for lane in 0..brokers {
                while let Some(request) = b.producer.next_request(lane, now) {
                    for batch in &request.batches {
                        prop_assert_eq!(batch.partition % brokers, lane);
                        sent[batch.partition].extend_from_slice(&batch.due_ns);
                    }
                }
                if (answers[turn % answers.len()] || turn > 1_000) && !b.producer.lanes[lane].in_flight.is_empty() { b.answer(lane); }
            }
            prop_assert!(b.producer.held_bytes <= 40_000 + 600 + HEADER_BYTES);
            now += MS / 2;
            turn += 1;
        }
        prop_assert_eq!((b.producer.held_bytes, b.producer.unsent_bytes), (0, 0));
        prop_assert!(sent.iter().all(|p| p.windows(2).all(|w| w[0] < w[1])), "in order");
        let mut all: Vec<u64> = sent.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..400).map(|n| n * MS / 2).collect::<Vec<_>>());
    }
}
