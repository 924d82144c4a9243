//! The instrument against the null responder, as its own check does it, in seconds: a stall shows in the whole curve, an overloaded generator is
//! said to be one, a run that is ended early leaves what it measured.

#![allow(
    clippy::disallowed_methods,
    reason = "the test drives threads of its own"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::null::{NullResponder, Stall};
use bench::run::{Options, measure};
use bench::self_check::{self, SelfCheck};
use bench::workload::{Mode, Workload};

fn workload(rate: f64, length_s: f64) -> Workload {
    let mut workload = Workload::default();
    workload.load.rate = rate;
    workload.load.producers = 2;
    workload.time.warm_up_s = 0.2;
    workload.time.length_s = length_s;
    workload
}

fn options(responder: &NullResponder, workload: Workload) -> Options {
    Options {
        bootstrap: responder.address(),
        workload,
        quiet: true,
        ..Options::default()
    }
}

/// Fails when latency counts from the sending, or when the schedule waits for the broker.
#[test]
fn a_stall_is_charged_to_every_record_that_it_delayed() {
    let check = SelfCheck {
        length_s: 3.0,
        stall_every_s: 2.0,
        quiet: true,
        ..SelfCheck::default()
    };
    let outcome = self_check::run(&check, &AtomicBool::new(false)).unwrap();
    for (q, expected, found) in &outcome.curve {
        assert!(
            *found > expected - 10_000.0,
            "quantile {q}: {found} µs where stalls make {expected}"
        );
    }
    assert!(outcome.curve[0].1 > 50_000.0, "p99 has something to show");
    assert!(outcome.stalled.little.holds, "{:?}", outcome.stalled.little);
}

#[test]
fn what_was_due_and_is_not_answered_counts_with_its_wait() {
    // It stalls for longer than the run waits.
    let stall = Stall {
        first: Duration::from_millis(700),
        length: Duration::from_secs(20),
        every: Duration::from_secs(60),
    };
    let responder = NullResponder::start("127.0.0.1:0", Some(stall), None).unwrap();
    let mut w = workload(1_000.0, 1.0);
    w.time.drain_s = 0.5;
    let result = measure(&options(&responder, w), &AtomicBool::new(false)).unwrap();
    assert!(
        !result.valid && result.problems[0].contains("never answered"),
        "{:?}",
        result.problems
    );
    assert_eq!(result.produce.count, 1_000, "none is left out");
    assert!(
        (200..=800).contains(&result.unfinished),
        "{}",
        result.unfinished
    );
    // One was due every millisecond, and all of them are counted until the half second after the last.
    let tenth = result.unfinished as f64 * 1000.0 - 10_000.0 + 500_000.0;
    assert!(
        result.produce.p99 > tenth - 20_000.0,
        "{} where the tenth waited {tenth}",
        result.produce.p99
    );
    assert!(result.little.holds, "{:?}", result.little);
}

#[test]
fn a_generator_that_falls_behind_says_so() {
    let responder = NullResponder::start("127.0.0.1:0", None, None).unwrap();
    let mut w = workload(40_000_000.0, 0.5);
    w.load.record_bytes = 16;
    w.client.buffer_bytes = 2 << 30;
    w.time.warm_up_s = 0.0;
    w.time.drain_s = 0.2;
    let result = measure(&options(&responder, w), &AtomicBool::new(false)).unwrap();
    assert!(
        result.generator.fell_behind && !result.valid,
        "{:?}",
        result.generator
    );
    assert!(
        result.problems.iter().any(|p| p.contains("fell behind")),
        "{:?}",
        result.problems
    );
}

#[test]
fn an_early_end_leaves_what_was_measured() {
    let responder = NullResponder::start("127.0.0.1:0", None, None).unwrap();
    let stop = AtomicBool::new(false);
    let options = options(&responder, workload(1_000.0, 60.0));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1_200));
            stop.store(true, Ordering::Relaxed);
        });
        measure(&options, &stop).unwrap()
    });
    assert!(result.interrupted);
    assert!((0.5..5.0).contains(&result.window_s), "{}", result.window_s);
    let expected = result.window_s * 1_000.0;
    assert!(
        (result.produce.count as f64 - expected).abs() < 3.0,
        "{} of {expected}",
        result.produce.count
    );
    assert!(result.little.holds, "{:?}", result.little);
}

#[test]
fn closed_loops_obey_the_law_too() {
    let responder = NullResponder::start("127.0.0.1:0", None, None).unwrap();
    for mode in [Mode::OneAtATime, Mode::FlatOut] {
        let mut w = workload(1.0, 1.0);
        w.load.mode = mode;
        w.client.threads = 2;
        let result = measure(&options(&responder, w), &AtomicBool::new(false)).unwrap();
        assert!(result.valid, "{mode:?}: {:?}", result.problems);
        assert!(result.produce.count > 100 && result.unfinished == 0);
        if mode == Mode::OneAtATime {
            assert!(
                (result.little.in_flight - 2.0).abs() < 0.4,
                "two producers, a record each: {:?}",
                result.little
            );
        }
    }
}

#[test]
fn a_broker_that_is_not_there_is_an_error() {
    let options = Options {
        bootstrap: "127.0.0.1:1".into(),
        ..Options::default()
    };
    assert!(matches!(
        measure(&options, &AtomicBool::new(false)),
        Err(bench::Error::Broker(_))
    ));
}
