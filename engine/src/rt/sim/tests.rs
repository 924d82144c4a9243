//! The simulation itself: that it repeats, and that what it says it does happens.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::rt::{self, AlignedBuf, OpenOptions};

fn filled(blocks: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(blocks * 4096);
    buf.fill(byte);
    buf
}

const WRITING: OpenOptions = OpenOptions {
    create: true,
    create_new: false,
    truncate: false,
    write: true,
};

/// Something of everything.
async fn busy_life() -> Vec<u64> {
    let log = Rc::new(RefCell::new(Vec::new()));
    rt::fs::create_dir_all(Path::new("/data/x")).await.unwrap();
    let j = rt::JournalFile::open(Path::new("/data/j"), 64 << 10)
        .await
        .unwrap();
    let l = rt::TcpListener::bind("127.0.0.1:9092".parse().unwrap()).unwrap();
    let server = rt::spawn(Queue::Latency, async move {
        let s = l.accept().await.unwrap();
        let mut buf = [0; 100];
        let mut sum = 0;
        loop {
            match s.read(&mut buf).await.unwrap() {
                0 => break sum,
                n => sum += n,
            }
        }
    });
    let tasks: Vec<_> = (0..5u64)
        .map(|i| {
            let log = log.clone();
            rt::spawn(Queue::Background, async move {
                for _ in 0..5 {
                    rt::sleep(Duration::from_micros(rt::random_u64() % 500)).await;
                    log.borrow_mut().push(i);
                    rt::yield_if_needed().await;
                }
            })
        })
        .collect();
    let c = rt::TcpStream::connect("127.0.0.1:9092".parse().unwrap())
        .await
        .unwrap();
    for i in 0..8u64 {
        let writes: Vec<_> = (0..4)
            .map(|k| j.write((i * 4 + k) % 16 * 4096, filled(1, i as u8)))
            .collect();
        c.write_all_vectored(&[vec![1; 300].into(), vec![2; 5].into()])
            .await
            .unwrap();
        for w in writes {
            w.await.unwrap();
        }
    }
    drop(c);
    assert_eq!(server.await, 8 * 305);
    for t in tasks {
        t.await;
    }
    Rc::into_inner(log).unwrap().into_inner()
}

#[test]
fn two_runs_of_a_seed_take_the_same_steps() {
    let run = |seed| {
        let w = World::new(seed, SimConfig::default());
        let order = w.run(busy_life).done().unwrap();
        (order, w.trace(), w.faults(), w.now())
    };
    assert_eq!(run(1), run(1));
    let (a, b) = (run(1), run(2));
    assert!(a.0 != b.0 && a.1 != b.1);
    assert!((0..20).any(|s| run(s).2.reordered > 0));
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_spares_no_other_write() {
    let mut all = Faults::default();
    for seed in 0..200 {
        let w = World::new(seed, SimConfig::default());
        let end = w.run(|| async {
            let f = rt::File::open(Path::new("/f"), WRITING).await.unwrap();
            f.write_at(0, filled(4, 1)).await.unwrap();
            f.sync().await.unwrap();
            rt::fs::sync_dir(Path::new("/")).await.unwrap();
            f.write_at(2 * 4096, filled(4, 2)).await.unwrap();
            World::current().stop(Stop::PowerCut);
            rt::yield_now().await;
            unreachable!("nobody runs any more");
        });
        assert_eq!(end, Outcome::Stopped(Stop::PowerCut));
        let bytes = w.read_file(Path::new("/f")).expect("its name was synced");
        assert!(bytes.len() == 4 * 4096 || bytes.len() == 6 * 4096);
        assert!(bytes[..8192].iter().all(|b| *b == 1));
        for sector in bytes[8192..4 * 4096].chunks(512) {
            assert!(sector.iter().all(|b| *b == sector[0]) && (sector[0] == 1 || sector[0] == 2));
        }
        let f = w.faults();
        assert_eq!(f.power_cuts, 1);
        all.writes_kept += f.writes_kept;
        all.writes_lost += f.writes_lost;
        all.writes_torn += f.writes_torn;
    }
    assert!(
        all.writes_kept > 20 && all.writes_lost > 20 && all.writes_torn > 20,
        "{all:?}"
    );
}

#[test]
fn a_kill_loses_nothing_that_was_written() {
    for seed in 0..20 {
        let w = World::new(seed, SimConfig::default());
        w.run(|| async {
            let f = rt::File::open(Path::new("/f"), WRITING).await.unwrap();
            f.write_at(0, filled(4, 1)).await.unwrap();
            World::current().stop(Stop::Kill);
            rt::yield_now().await;
        });
        assert_eq!(w.read_file(Path::new("/f")), Some(vec![1; 4 * 4096]));
    }
}

#[test]
fn completed_journal_writes_outlive_a_power_cut_and_those_in_flight_may_not() {
    let (mut lost, mut in_flight) = (0, 0);
    for seed in 0..100 {
        let w = World::new(seed, SimConfig::default());
        let completed: Rc<RefCell<Vec<u64>>> = Rc::default();
        let c = completed.clone();
        w.configure(|f| f.stop_at_op = Some((20 + seed % 40, Stop::PowerCut)));
        let end = w.run(move || async move {
            let j = rt::JournalFile::open(Path::new("/j"), 1 << 20)
                .await
                .unwrap();
            let mut flying = std::collections::VecDeque::new();
            for i in 0..200u64 {
                if flying.len() == 3 {
                    let (n, write): (u64, rt::JournalWrite) = flying.pop_front().unwrap();
                    write.await.unwrap();
                    c.borrow_mut().push(n);
                }
                flying.push_back((i, j.write(i * 4096, filled(1, i as u8 + 1))));
            }
        });
        assert_eq!(end, Outcome::Stopped(Stop::PowerCut));
        let bytes = w.read_file(Path::new("/j")).unwrap();
        for n in completed.borrow().iter() {
            let at = *n as usize * 4096;
            assert!(
                bytes[at..at + 4096].iter().all(|b| *b == *n as u8 + 1),
                "seed {seed}: write {n}"
            );
        }
        in_flight += w.faults().journal_writes_in_flight;
        lost += w.faults().writes_lost;
    }
    assert!(lost > 10 && in_flight > 50);
}

#[test]
fn unsynced_names_may_be_taken_back_and_synced_ones_stay() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..50 {
        let w = World::new(seed, SimConfig::default());
        w.put_file(Path::new("/d/old"), b"x");
        w.run(|| async {
            rt::fs::rename(Path::new("/d/old"), Path::new("/d/new"))
                .await
                .unwrap();
            World::current().stop(Stop::PowerCut);
            rt::yield_now().await;
        });
        match w.files()[..] {
            [ref f] if f == Path::new("/d/old") => old += 1,
            [ref f] if f == Path::new("/d/new") => new += 1,
            ref other => panic!("{other:?}"),
        }
        w.run(|| async {
            rt::fs::create_dir_all(Path::new("/d/e")).await.unwrap();
            rt::fs::sync_dir(Path::new("/d")).await.unwrap();
            rt::File::open(Path::new("/d/e/f"), WRITING).await.unwrap();
            rt::fs::sync_dir(Path::new("/d/e")).await.unwrap();
        });
        w.stop(Stop::PowerCut);
        assert!(w.files().contains(&Path::new("/d/e/f").to_path_buf()));
    }
    assert!(old > 5 && new > 5);
}

#[test]
fn exits_deadlocks_and_failures_are_told() {
    let w = World::new(1, SimConfig::default());
    assert_eq!(w.run(|| async { rt::exit(7) }), Outcome::<()>::Exited(7));
    assert_eq!(w.run(std::future::pending::<()>), Outcome::Stuck);
    w.configure(|c| c.fail_op = Some(w.faults().disk_ops + 3));
    let failed = w.run(|| async {
        let f = rt::File::open(Path::new("/f"), WRITING).await.unwrap();
        f.write_at(0, filled(1, 1)).await.unwrap();
        f.write_at(0, filled(1, 2)).await.is_err()
    });
    assert_eq!(failed, Outcome::Done(true));
    let l = Launch {
        shards: 2,
        overprovisioned: false,
        cpus: None,
        seed: None,
    };
    let end = w.enter(|| {
        rt::launch(l.clone(), |id| async move {
            if id.0 == 1 {
                rt::exit(3);
            }
            std::future::pending::<()>().await;
        })
    });
    assert!(matches!(end, Outcome::Exited(3)));
    assert!(matches!(
        w.enter(|| rt::launch(l, |_| async {})),
        Outcome::Done(Ok(()))
    ));
}

#[test]
fn a_flipped_bit_is_read_back_flipped_after_a_power_cut_too() {
    let w = World::new(1, SimConfig::default());
    w.put_file(Path::new("/f"), &[0; 5000]);
    assert!(!w.flip_bit(Path::new("/f"), 5000 * 8) && !w.flip_bit(Path::new("/g"), 0));
    assert!(w.flip_bit(Path::new("/f"), 4100 * 8 + 3));
    w.stop(Stop::PowerCut);
    let mut want = vec![0; 5000];
    want[4100] = 8;
    assert_eq!(w.read_file(Path::new("/f")), Some(want));
    assert_eq!(w.faults().flipped_bits, 1);
}

#[test]
fn time_passes_only_in_the_simulation() {
    let w = World::new(1, SimConfig::default());
    let (a, b) = w
        .run(|| async {
            let begun = (rt::now(), rt::wall_clock_ms());
            rt::sleep(Duration::from_secs(86_400)).await;
            World::current().jump_wall_clock(-1000);
            (begun.0.elapsed(), rt::wall_clock_ms() - begun.1)
        })
        .done()
        .unwrap();
    assert!(a >= Duration::from_secs(86_400) && a < Duration::from_secs(86_401));
    assert!((86_398_000..=86_399_100).contains(&b), "{b}");
}
