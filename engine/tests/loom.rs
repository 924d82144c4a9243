//! The rings under loom: every interleaving (up to a bound on preemptions) of two threads that send, sleep and wake.
//!
//!     RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p engine --test loom --release
//!
//! The crate itself is empty under that cfg; the rings' files are taken in here.
#![cfg(loom)]

use loom::future::block_on;
use loom::thread;

/// What the rings ask of the runtime.
mod rt {
    pub fn spin_polls() -> u32 {
        0
    }
}

#[allow(dead_code, unused_imports)]
#[path = "../src/ring"]
mod ring {
    pub mod mesh;
    pub mod spsc;
    pub mod sync;
}

use ring::mesh::Mesh;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(3);
    b.check(f);
}

#[test]
fn a_sleeping_consumer_is_woken() {
    model(|| {
        let mut ports = Mesh::new::<u32>(2, 2);
        let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
        let t = thread::spawn(move || {
            a.try_send(1, 7).unwrap();
            a.flush();
            a
        });
        assert_eq!(block_on(b.recv()), (0, 7));
        t.join().unwrap();
    });
}

#[test]
fn a_producer_that_waits_for_room_is_woken() {
    model(|| {
        let mut ports = Mesh::new::<u32>(2, 1);
        let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
        let t = thread::spawn(move || {
            block_on(async {
                assert!(a.send(1, 1).await);
                assert!(a.send(1, 2).await);
            });
            a.flush();
            a
        });
        assert_eq!(block_on(b.recv()), (0, 1));
        assert_eq!(block_on(b.recv()), (0, 2));
        t.join().unwrap();
    });
}

#[test]
fn who_waits_for_room_learns_that_the_other_is_gone() {
    model(|| {
        let mut ports = Mesh::new::<u32>(2, 1);
        let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
        let t = thread::spawn(move || drop(b));
        block_on(async {
            // Sent into the ring or not: the last one can't hang.
            a.send(1, 1).await;
            a.send(1, 2).await;
            a.send(1, 3).await;
        });
        t.join().unwrap();
    });
}

#[test]
fn a_request_and_its_answer() {
    model(|| {
        let mut ports = Mesh::new::<u32>(2, 1);
        let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
        let t = thread::spawn(move || {
            let (from, n) = block_on(b.recv());
            b.try_send(from, n + 1).unwrap();
            b.flush();
            b
        });
        a.try_send(1, 1).unwrap();
        assert_eq!(block_on(a.recv()), (1, 2));
        t.join().unwrap();
    });
}

#[test]
fn a_receiver_that_wants_room_is_told() {
    use ring::mesh::Event;
    use std::future::poll_fn;
    model(|| {
        let mut ports = Mesh::new::<u32>(2, 1);
        let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
        a.try_send(1, 1).unwrap();
        a.flush();
        let t = thread::spawn(move || {
            assert_eq!(block_on(b.recv()), (0, 1));
            // To find nothing is what tells of room.
            assert_eq!(block_on(b.recv()), (0, 2));
        });
        a.want_room(1);
        let room = block_on(poll_fn(|cx| a.poll_event(cx)));
        assert!(matches!(room, Event::Room));
        a.try_send(1, 2).unwrap();
        a.flush();
        t.join().unwrap();
    });
}
