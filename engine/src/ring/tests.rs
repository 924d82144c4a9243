//! Rings and calls between real threads, and step by step on one.
#![allow(clippy::disallowed_methods, reason = "a participant may be any thread")]

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::thread;

use futures_lite::future::{block_on, or, poll_once, yield_now};

use super::*;

const CREDITS: Credits = Credits {
    short: 4,
    append: 2,
    waiter: 2,
};

type TestRpc = Rpc<u64, u64>;

fn rpcs(n: usize, capacity: usize) -> Vec<TestRpc> {
    Mesh::new(n, capacity)
        .into_iter()
        .map(|p| Rpc::new(p, CREDITS))
        .collect()
}

fn poll<F: Future + ?Sized>(f: &mut Pin<Box<F>>) -> Option<F::Output> {
    block_on(poll_once(f.as_mut()))
}

#[test]
fn messages_arrive_in_order_over_full_rings() {
    const N: u64 = 20_000;
    let mut ports = Mesh::new::<u64>(3, 4);
    let last = ports.pop().unwrap();
    let senders: Vec<_> = ports
        .into_iter()
        .map(|p| {
            thread::spawn(move || {
                block_on(async {
                    for i in 0..N {
                        assert!(p.send(2, i).await);
                        if i % 3 == 0 {
                            p.flush();
                        }
                    }
                    p.flush();
                });
                p
            })
        })
        .collect();
    let mut next = [0, 0];
    block_on(async {
        while next != [N, N] {
            let (from, m) = last.recv().await;
            assert_eq!(m, next[from]);
            next[from] += 1;
        }
    });
    for s in senders {
        s.join().unwrap();
    }
}

#[test]
fn senders_that_wait_for_room_stand_in_line_and_may_leave() {
    let mut ports = Mesh::new::<u64>(2, 2);
    let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
    a.try_send(1, 0).unwrap();
    a.try_send(1, 1).unwrap();
    assert_eq!(a.try_send(1, 2), Err(2));
    let mut waiting: Vec<Pin<Box<dyn Future<Output = bool>>>> = (2..6)
        .map(|i| Box::pin(a.send(1, i)) as Pin<Box<dyn Future<Output = bool>>>)
        .collect();
    assert!(waiting.iter_mut().all(|w| poll(w).is_none()));
    drop(waiting.remove(1)); // 3 leaves
    drop(waiting.remove(0)); // 2, the first, leaves
    assert_eq!(block_on(b.recv()), (0, 0));
    assert_eq!(block_on(b.recv()), (0, 1));
    assert_eq!(a.try_send(1, 9), Err(9), "nobody overtakes");
    assert!(poll(&mut waiting[1]).is_none(), "5 comes after 4");
    assert_eq!(poll(&mut waiting[0]), Some(true));
    drop(waiting.remove(0));
    assert_eq!(poll(&mut waiting[0]), Some(true));
    a.flush();
    assert_eq!((block_on(b.recv()), block_on(b.recv())), ((0, 4), (0, 5)));
}

#[test]
fn calls_are_answered_by_their_key() {
    let n = 3;
    let handles: Vec<_> = rpcs(n, 8)
        .into_iter()
        .map(CanGo)
        .map(|rpc| {
            thread::spawn(move || {
                let rpc = rpc;
                let rpc = rpc.0;
                let me = rpc.me() as u64;
                let done = Rc::new(Cell::new(0));
                let calls = async {
                    for i in 0..2000u64 {
                        let target = (i as usize) % n;
                        let class = [Class::Short, Class::Append, Class::Waiter][(i % 3) as usize];
                        let answer = rpc.call(target, class, i).await.unwrap();
                        assert_eq!(answer, i * 1000 + target as u64);
                    }
                    assert_eq!(rpc.pending(), 0);
                    for target in 0..n {
                        rpc.cast(target, u64::MAX).await;
                    }
                    pending::<()>().await;
                };
                let d = done.clone();
                let serving = rpc.serve(move |_, req, responder| {
                    if req == u64::MAX {
                        assert!(!responder.is_call());
                        d.set(d.get() + 1);
                    } else {
                        responder.reply(req * 1000 + me);
                    }
                });
                let ended = poll_fn(|_| {
                    if done.get() == n {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                });
                block_on(or(or(calls, serving), ended));
                assert!(rpc.hops() > 1000);
            })
        })
        .collect();
    for h in handles {
        h.join().unwrap();
    }
}

/// An `Rpc` that was not used yet goes to its thread.
struct CanGo(TestRpc);
// SAFETY: there is one handle, and nothing of it was handed out.
unsafe impl Send for CanGo {}

/// Runs both sides until neither changes anything.
fn turn(sides: &mut [Pin<Box<dyn Future<Output = ()> + '_>>]) {
    for _ in 0..50 {
        for s in sides.iter_mut() {
            assert!(poll(s).is_none());
        }
    }
}

#[test]
fn a_dropped_call_keeps_its_credit_until_the_answer_comes() {
    let mut all = rpcs(2, 8);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let kept: Rc<RefCell<Vec<Responder<u64>>>> = Rc::default();
    let k = kept.clone();
    let mut sides: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![
        Box::pin(a.serve(|_, _, _| {})),
        Box::pin(b.serve(move |_, _, r| k.borrow_mut().push(r))),
    ];
    let mut calls: Vec<_> = (0..3)
        .map(|i| Box::pin(a.call(1, Class::Append, i)))
        .collect();
    for c in &mut calls {
        assert!(poll(c).is_none());
    }
    turn(&mut sides);
    assert_eq!(kept.borrow().len(), 2, "two credits");
    drop(calls.remove(0));
    turn(&mut sides);
    assert_eq!((kept.borrow().len(), a.pending()), (2, 2));
    kept.borrow_mut().remove(0).reply(7);
    turn(&mut sides);
    assert!(poll(&mut calls[1]).is_none());
    turn(&mut sides);
    assert_eq!(kept.borrow().len(), 2, "the third has its credit");
    // A responder that is dropped answers Gone; the other one its value.
    kept.borrow_mut().remove(0);
    kept.borrow_mut().remove(0).reply(9);
    turn(&mut sides);
    assert_eq!(poll(&mut calls[0]), Some(Err(Gone)));
    assert_eq!(poll(&mut calls[1]), Some(Ok(9)));
    drop(calls);
    assert_eq!(a.pending(), 0);
}

#[test]
fn a_call_that_was_not_sent_yet_leaves_no_trace() {
    let mut all = rpcs(2, 1);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let mut first = Box::pin(a.call(1, Class::Short, 1));
    let mut second = Box::pin(a.call(1, Class::Short, 2));
    assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
    drop(second);
    assert_eq!((a.pending(), a.hops()), (1, 1));
    let mut sides: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![
        Box::pin(a.serve(|_, _, _| {})),
        Box::pin(b.serve(|_, req, r| r.reply(req + 1))),
    ];
    turn(&mut sides);
    assert_eq!(poll(&mut first), Some(Ok(2)));
}

#[test]
fn replies_wait_in_the_outbox_while_the_ring_is_full() {
    let mut all = rpcs(2, 1);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let kept: Rc<RefCell<Vec<Responder<u64>>>> = Rc::default();
    let k = kept.clone();
    let mut serving = Box::pin(b.serve(move |_, _, r| k.borrow_mut().push(r)));
    let mut a_serves = Box::pin(a.serve(|_, _, _| {}));
    let mut calls: Vec<_> = (0..4)
        .map(|i| Box::pin(a.call(1, Class::Short, i)))
        .collect();
    for _ in 0..10 {
        for c in &mut calls {
            assert!(poll(c).is_none());
        }
        assert!(poll(&mut a_serves).is_none());
        assert!(poll(&mut serving).is_none());
    }
    let all: Vec<_> = kept.borrow_mut().drain(..).collect();
    assert_eq!(all.len(), 4);
    for (i, r) in all.into_iter().enumerate() {
        r.reply(i as u64 * 10);
    }
    for _ in 0..10 {
        assert!(poll(&mut serving).is_none());
        assert!(poll(&mut a_serves).is_none());
    }
    for (i, c) in calls.iter_mut().enumerate() {
        assert_eq!(poll(c), Some(Ok(i as u64 * 10)));
    }
}

#[test]
fn calls_to_a_participant_that_goes_end() {
    let mut all = rpcs(2, 8);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let mut open = Box::pin(a.call(1, Class::Waiter, 1));
    let mut serving = Box::pin(a.serve(|_, _, _| {}));
    assert!(poll(&mut open).is_none() && poll(&mut serving).is_none());
    drop(b);
    assert!(poll(&mut serving).is_none());
    assert_eq!(poll(&mut open), Some(Err(Gone)));
    assert_eq!(block_on(a.call(1, Class::Waiter, 1)), Err(Gone));
    block_on(a.cast(1, 1));
}

#[test]
fn a_sender_that_waits_for_room_learns_that_nobody_is_there() {
    let mut ports = Mesh::new::<u64>(2, 1);
    let (b, a) = (ports.pop().unwrap(), ports.pop().unwrap());
    a.try_send(1, 1).unwrap();
    let t = thread::spawn(move || {
        block_on(async {
            for _ in 0..10 {
                yield_now().await;
            }
        });
        drop(b);
    });
    let sent = block_on(async { pin!(a.send(1, 2)).await });
    assert!(!sent || a.try_send(1, 3).is_err());
    t.join().unwrap();
    assert!(!block_on(a.send(1, 4)));
}
