//! All the rings of a process: who can send to whom, and how a participant sleeps until something comes.
//!
//! A participant's messages become visible when it flushes, once per turn of its loop: [`Port::recv`] flushes before it waits, [`Port::send`] before it waits
//! for room. A consumer that finds nothing polls on for a bounded number of turns of its executor (`rt::spin_polls`, counted from the last message in or out)
//! before it arms its doorbell and sleeps; a producer rings only an armed doorbell.
//!
//! Bounds: each ring holds `capacity` messages; senders that wait for room in one ring stand in line, at most as many as there are tasks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;

use super::spsc::{Consumer, Doorbell, Producer, ring};
use super::sync::{Arc, AtomicBool, Ordering, fence};

/// Makes the rings of a process.
pub struct Mesh(());

impl Mesh {
    /// A port for each participant, with rings of `capacity` messages between every two of them, and from each to itself.
    #[allow(clippy::new_ret_no_self, reason = "the ports are the mesh")]
    pub fn new<M: Send>(participants: usize, capacity: usize) -> Vec<Port<M>> {
        let members: Vec<Member> = (0..participants)
            .map(|_| Member {
                bell: CachePadded::new(Doorbell::new()),
                gone: AtomicBool::new(false),
            })
            .collect();
        let members = Arc::new(members);
        let mut ports: Vec<Port<M>> = (0..participants)
            .map(|me| Port::new(me, members.clone()))
            .collect();
        for to in 0..participants {
            for from in 0..participants {
                let (producer, consumer) = ring(capacity);
                ports[from].out.push(Out {
                    producer,
                    line: RefCell::default(),
                    wanted: Cell::new(false),
                    published: Cell::new(false),
                });
                ports[to].from.push(consumer);
            }
        }
        ports
    }
}

/// What the others see of a participant.
struct Member {
    bell: CachePadded<Doorbell>,
    gone: AtomicBool,
}

/// One participant's end of all its rings. `Send`, so that it can be carried to its thread; not `Sync`.
pub struct Port<M> {
    me: usize,
    members: Arc<Vec<Member>>,
    out: Vec<Out<M>>,
    from: Vec<Consumer<M>>,
    /// The ring that is looked at first: they take turns.
    next: Cell<usize>,
    polls_left: Cell<u32>,
    /// Who receives here: woken to flush.
    receiver: RefCell<Option<Waker>>,
    /// Participants whose going has been reported.
    reported: Vec<Cell<bool>>,
    tickets: Cell<u64>,
}

struct Out<M> {
    producer: Producer<M>,
    /// Tasks that wait for room. The first of them has armed the ring's bell.
    line: RefCell<VecDeque<(u64, Waker)>>,
    /// The receiver of this port wants to know of room here.
    wanted: Cell<bool>,
    /// Published in this flush, the bell not yet rung.
    published: Cell<bool>,
}

/// What came over the rings.
pub(crate) enum Event<M> {
    Message(usize, M),
    /// A participant is gone and everything it sent has been delivered.
    Gone(usize),
    /// There is room in a ring for which [`Port::want_room`] was called.
    Room,
}

impl<M: Send> Port<M> {
    fn new(me: usize, members: Arc<Vec<Member>>) -> Port<M> {
        Port {
            me,
            reported: members.iter().map(|_| Cell::new(false)).collect(),
            members,
            out: Vec::new(),
            from: Vec::new(),
            next: Cell::new(0),
            polls_left: Cell::new(0),
            receiver: RefCell::new(None),
            tickets: Cell::new(0),
        }
    }

    pub fn me(&self) -> usize {
        self.me
    }

    pub fn participants(&self) -> usize {
        self.out.len()
    }

    /// Gives the message back when there is no room. It goes out with the next flush, which whoever receives on this port is woken to do.
    pub fn try_send(&self, to: usize, message: M) -> Result<(), M> {
        if !self.out[to].line.borrow().is_empty() {
            return Err(message); // Those who wait come first.
        }
        self.push(to, message)
    }

    /// Waits for room. A message to a participant that is gone is dropped; false says so.
    pub fn send(&self, to: usize, message: M) -> impl Future<Output = bool> {
        Sending {
            port: self,
            to,
            message: Some(message),
            ticket: None,
        }
    }

    /// Publishes what was sent since the last flush and wakes the consumers that sleep.
    pub fn flush(&self) {
        let mut published = false;
        for out in &self.out {
            if out.producer.is_dirty() {
                out.producer.publish();
                out.published.set(true);
                published = true;
            }
        }
        if !published {
            return;
        }
        self.polls_left.set(polls());
        fence(Ordering::SeqCst); // See `Doorbell`.
        for (out, member) in self.out.iter().zip(self.members.iter()) {
            if out.published.replace(false) {
                member.bell.ring();
            }
        }
    }

    /// The next message. Flushes first. Cancel-safe.
    pub async fn recv(&self) -> (usize, M) {
        loop {
            if let Event::Message(from, m) = poll_fn(|cx| self.poll_event(cx)).await {
                return (from, m);
            }
        }
    }

    /// Asks for an [`Event::Room`] when the ring to `to` has room.
    pub(crate) fn want_room(&self, to: usize) {
        self.out[to].wanted.set(true);
    }

    /// Like `recv`, with everything that can happen. One task at a time.
    pub(crate) fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event<M>> {
        self.flush();
        if let Some(event) = self.take() {
            return Poll::Ready(event);
        }
        let keep = self
            .receiver
            .borrow()
            .as_ref()
            .is_some_and(|w| w.will_wake(cx.waker()));
        if !keep {
            *self.receiver.borrow_mut() = Some(cx.waker().clone());
        }
        if let Some(left) = self.polls_left.get().checked_sub(1) {
            self.polls_left.set(left);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        for out in self.out.iter().filter(|o| o.wanted.get()) {
            out.producer.room().arm_again();
        }
        let bell = &self.members[self.me].bell;
        bell.arm(cx.waker());
        match self.take() {
            Some(event) => {
                bell.disarm();
                Poll::Ready(event)
            }
            None => Poll::Pending,
        }
    }

    /// Wakes who receives on this port, so that it flushes after the tasks that run now.
    pub(crate) fn poke(&self) {
        if let Some(w) = self.receiver.borrow().as_ref() {
            w.wake_by_ref();
        }
    }

    /// Like `try_send`, ahead of those who wait for room: for answers, which others may wait for.
    pub(crate) fn push(&self, to: usize, message: M) -> Result<(), M> {
        let first = !self.out[to].producer.is_dirty();
        self.out[to].producer.push(message)?;
        if first {
            self.poke();
        }
        Ok(())
    }

    fn take(&self) -> Option<Event<M>> {
        let n = self.from.len();
        for i in 0..n {
            let from = (self.next.get() + i) % n;
            // Before the ring is looked at, so that nothing sent before the going is missed.
            let gone =
                !self.reported[from].get() && self.members[from].gone.load(Ordering::Acquire);
            let message = self.from[from].pop();
            if self.from[from].tell_room() {
                self.members[from].bell.ring(); // Its receiver may want to know, too.
            }
            if let Some(m) = message {
                self.next.set(from + 1);
                self.polls_left.set(polls());
                return Some(Event::Message(from, m));
            }
            if gone {
                self.reported[from].set(true);
                return Some(Event::Gone(from));
            }
        }
        for out in &self.out {
            if out.wanted.get() && out.producer.has_room() {
                out.wanted.set(false);
                return Some(Event::Room);
            }
        }
        None
    }

    fn is_gone(&self, to: usize) -> bool {
        self.members[to].gone.load(Ordering::Acquire)
    }
}

impl<M> Drop for Port<M> {
    fn drop(&mut self) {
        for out in &self.out {
            out.producer.publish();
        }
        // Release: what was published comes before.
        self.members[self.me].gone.store(true, Ordering::Release);
        self.from.clear(); // Tells those who wait for room in a ring to us.
        fence(Ordering::SeqCst);
        for member in self.members.iter() {
            member.bell.ring();
        }
    }
}

fn polls() -> u32 {
    crate::rt::spin_polls()
}

struct Sending<'a, M> {
    port: &'a Port<M>,
    to: usize,
    message: Option<M>,
    ticket: Option<u64>,
}

// The message is moved out when it is sent and never pinned.
impl<M> Unpin for Sending<'_, M> {}

impl<M: Send> Future for Sending<'_, M> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let out = &self.port.out[self.to];
        let first = match (out.line.borrow().front(), self.ticket) {
            (None, _) => true,
            (Some((first, _)), mine) => mine == Some(*first),
        };
        if first {
            loop {
                if self.port.is_gone(self.to) {
                    self.message = None;
                    return Poll::Ready(false);
                }
                let message = self
                    .message
                    .take()
                    .expect("a future is not polled after it was ready");
                let Err(message) = self.port.push(self.to, message) else {
                    return Poll::Ready(true); // Dropping this lets the next in line go on.
                };
                self.message = Some(message);
                self.port.flush(); // Or the consumer would see no reason to make room.
                out.producer.room().arm(cx.waker());
                if !out.producer.has_room() && !self.port.is_gone(self.to) {
                    break;
                }
                // It stays armed: the receiver of this port may want to know of room, too.
            }
        }
        let mut line = out.line.borrow_mut();
        match self.ticket {
            Some(mine) => {
                let place = line.iter_mut().find(|(t, _)| *t == mine);
                place.expect("a place is kept until its owner leaves").1 = cx.waker().clone();
            }
            None => {
                let ticket = self.port.tickets.get();
                self.port.tickets.set(ticket + 1);
                line.push_back((ticket, cx.waker().clone()));
                drop(line);
                self.ticket = Some(ticket);
            }
        }
        Poll::Pending
    }
}

impl<M> Drop for Sending<'_, M> {
    fn drop(&mut self) {
        let Some(mine) = self.ticket else { return };
        let mut line = self.port.out[self.to].line.borrow_mut();
        line.retain(|(t, _)| *t != mine);
        // It may have been woken in this one's stead, or be the first now.
        let next = line.front().map(|(_, w)| w.clone());
        drop(line);
        if let Some(next) = next {
            next.wake();
        }
    }
}
