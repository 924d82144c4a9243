//! Calls between participants: credits, matching of replies, and answers that never wait.
//!
//! A call takes a credit first, one per target and [`Class`], and holds it until the reply has come, even when its caller no longer waits. So a participant
//! has at most [`Credits::total`] calls of each other one to answer, and that bounds its outboxes: a reply goes into the ring when there is room and else
//! into the outbox, which [`Rpc::serve`] empties. Handlers are synchronous and never wait for room: two participants that did so in each other's full
//! rings would never wake.
//!
//! `serve` must run on every participant: it publishes what the others' tasks have sent, once per turn. It hands out at most 64 messages
//! before it lets other tasks run. Called by the dispatch of requests (`kafka-api`) and by the side office.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use slab::Slab;

use super::mesh::{Event, Port};
use crate::memory::{Line, Share};

/// Messages that `serve` handles before it yields.
const BURST: usize = 64;

/// The kinds of calls, each with credits of its own, so that long ones can't keep short ones waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Answered at once by the other shard.
    Short,
    /// Answered when something is durable or committed.
    Append,
    /// Answered when something happens, perhaps much later.
    Waiter,
}

/// Calls that may be under way at one time from one participant to one other, by class. The same for all participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    pub short: usize,
    pub append: usize,
    pub waiter: usize,
}

impl Credits {
    pub fn total(&self) -> usize {
        self.short + self.append + self.waiter
    }
}

/// What crosses a ring between two [`Rpc`]s.
pub struct Frame<Req, Rep>(Kind<Req, Rep>);

enum Kind<Req, Rep> {
    Call {
        key: usize,
        request: Req,
    },
    Cast {
        request: Req,
    },
    /// `None`: the responder was dropped.
    Reply {
        key: usize,
        reply: Option<Rep>,
    },
}

/// The other side is gone, or dropped the call unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other shard dropped the call")]
pub struct Gone;

/// Calls over a [`Port`]. Cheap to clone; stays on its thread.
pub struct Rpc<Req, Rep>(Rc<Core<Req, Rep>>);

impl<Req, Rep> Clone for Rpc<Req, Rep> {
    fn clone(&self) -> Self {
        Rpc(self.0.clone())
    }
}

struct Core<Req, Rep> {
    port: Port<Frame<Req, Rep>>,
    /// By target, then class.
    credits: Vec<[Rc<Line>; 3]>,
    calls: RefCell<Slab<Call<Rep>>>,
    /// Replies that found no room, by target.
    outboxes: Vec<RefCell<VecDeque<Frame<Req, Rep>>>>,
    outbox_bound: usize,
    hops: Cell<u64>,
}

struct Call<Rep> {
    target: usize,
    state: State<Rep>,
    _credit: Share,
}

enum State<Rep> {
    Waiting(Option<Waker>),
    /// The caller no longer waits. The credit stays taken until the reply has come.
    Forgotten,
    Answered(Option<Rep>),
}

impl<Req: Send + 'static, Rep: Send + 'static> Rpc<Req, Rep> {
    pub fn new(port: Port<Frame<Req, Rep>>, credits: Credits) -> Rpc<Req, Rep> {
        let n = port.participants();
        let lines = || [credits.short, credits.append, credits.waiter].map(|c| Line::new(c as u64));
        Rpc(Rc::new(Core {
            port,
            credits: (0..n).map(|_| lines()).collect(),
            calls: RefCell::new(Slab::new()),
            outboxes: (0..n).map(|_| RefCell::default()).collect(),
            outbox_bound: credits.total(),
            hops: Cell::new(0),
        }))
    }

    pub fn me(&self) -> usize {
        self.0.port.me()
    }

    pub fn participants(&self) -> usize {
        self.0.port.participants()
    }

    /// Takes a credit (waits for one), sends, waits for the answer. Dropping the future forgets the answer, not the request.
    pub async fn call(&self, target: usize, class: Class, request: Req) -> Result<Rep, Gone> {
        let core = &*self.0;
        let credit = core.credits[target][class as usize].take(1).await;
        let key = core.calls.borrow_mut().insert(Call {
            target,
            state: State::Waiting(None),
            _credit: credit,
        });
        let mut waiting = WaitingCall {
            core,
            key,
            sent: false,
        };
        let delivered = core
            .port
            .send(target, Frame(Kind::Call { key, request }))
            .await;
        if !delivered {
            return Err(Gone);
        }
        waiting.sent = true;
        core.count(target);
        poll_fn(|cx| {
            let mut calls = core.calls.borrow_mut();
            match &mut calls[key].state {
                State::Answered(reply) => Poll::Ready(reply.take().ok_or(Gone)),
                State::Waiting(waker) => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                State::Forgotten => panic!("a call is forgotten when its future is dropped"),
            }
        })
        .await
    }

    /// One-way; waits for room. Never call it from a handler. To a participant that is gone it does nothing.
    pub async fn cast(&self, target: usize, request: Req) {
        if self
            .0
            .port
            .send(target, Frame(Kind::Cast { request }))
            .await
        {
            self.0.count(target);
        }
    }

    /// Runs for ever: hands requests to `handler` and answers to their callers. The handler gets the sender's number; it may answer at once or keep the
    /// [`Responder`]. One task per participant.
    pub async fn serve(&self, mut handler: impl FnMut(usize, Req, Responder<Rep>)) {
        let mut burst = 0;
        loop {
            self.0.empty_outboxes();
            match poll_fn(|cx| self.0.port.poll_event(cx)).await {
                Event::Message(from, Frame(Kind::Call { key, request })) => {
                    handler(from, request, self.responder(from, Some(key)));
                }
                Event::Message(from, Frame(Kind::Cast { request })) => {
                    handler(from, request, self.responder(from, None));
                }
                Event::Message(_, Frame(Kind::Reply { key, reply })) => self.0.answered(key, reply),
                Event::Gone(who) => self.0.gone(who),
                Event::Room => {}
            }
            burst += 1;
            if burst == BURST {
                burst = 0;
                self.0.port.flush();
                futures_lite::future::yield_now().await;
            }
        }
    }

    /// Calls and casts that this participant has sent to others (not to itself).
    pub fn hops(&self) -> u64 {
        self.0.hops.get()
    }

    /// Calls under way, those that nobody waits for any more included.
    pub fn pending(&self) -> usize {
        self.0.calls.borrow().len()
    }

    fn responder(&self, from: usize, key: Option<usize>) -> Responder<Rep> {
        Responder {
            core: self.0.clone(),
            from,
            key,
        }
    }
}

impl<Req: Send, Rep: Send> Core<Req, Rep> {
    fn count(&self, target: usize) {
        if target != self.port.me() {
            self.hops.set(self.hops.get() + 1);
        }
    }

    fn answered(&self, key: usize, reply: Option<Rep>) {
        let mut calls = self.calls.borrow_mut();
        match std::mem::replace(&mut calls[key].state, State::Answered(reply)) {
            State::Waiting(waker) => {
                drop(calls);
                if let Some(w) = waker {
                    w.wake();
                }
            }
            State::Forgotten => {
                let call = calls.remove(key);
                drop(calls);
                drop(call); // Gives the credit to whoever waits for it.
            }
            State::Answered(_) => panic!("a call is answered once"),
        }
    }

    /// Nobody will answer the calls to `who`.
    fn gone(&self, who: usize) {
        self.outboxes[who].borrow_mut().clear();
        let open: Vec<usize> = self
            .calls
            .borrow()
            .iter()
            .filter(|(_, c)| c.target == who && !matches!(c.state, State::Answered(_)))
            .map(|(key, _)| key)
            .collect();
        for key in open {
            self.answered(key, None);
        }
    }

    fn empty_outboxes(&self) {
        for (to, outbox) in self.outboxes.iter().enumerate() {
            let mut outbox = outbox.borrow_mut();
            while let Some(frame) = outbox.pop_front() {
                if let Err(frame) = self.port.push(to, frame) {
                    outbox.push_front(frame);
                    self.port.want_room(to);
                    break;
                }
            }
        }
    }
}

/// Where replies go, whatever the requests are.
trait Outbox<Rep> {
    fn reply(&self, to: usize, key: usize, reply: Option<Rep>);
}

impl<Req: Send, Rep: Send> Outbox<Rep> for Core<Req, Rep> {
    fn reply(&self, to: usize, key: usize, reply: Option<Rep>) {
        let mut outbox = self.outboxes[to].borrow_mut();
        let mut frame = Frame(Kind::Reply { key, reply });
        if outbox.is_empty() {
            match self.port.push(to, frame) {
                Ok(()) => return,
                Err(f) => frame = f,
            }
        }
        assert!(
            outbox.len() < self.outbox_bound,
            "no more calls are answered than there were credits for"
        );
        outbox.push_back(frame);
        self.port.want_room(to);
        self.port.poke();
    }
}

/// A call whose future lives.
struct WaitingCall<'a, Req: Send, Rep: Send> {
    core: &'a Core<Req, Rep>,
    key: usize,
    sent: bool,
}

impl<Req: Send, Rep: Send> Drop for WaitingCall<'_, Req, Rep> {
    fn drop(&mut self) {
        let mut calls = self.core.calls.borrow_mut();
        let answered = matches!(calls[self.key].state, State::Answered(_));
        if answered || !self.sent {
            let call = calls.remove(self.key);
            drop(calls);
            drop(call);
        } else {
            calls[self.key].state = State::Forgotten;
        }
    }
}

/// Where the answer to one call goes. Dropped without an answer, the caller gets [`Gone`].
pub struct Responder<Rep> {
    core: Rc<dyn Outbox<Rep>>,
    from: usize,
    /// `None` for a cast, or when it was used.
    key: Option<usize>,
}

impl<Rep> Responder<Rep> {
    /// Never waits. The answer to a cast is dropped.
    pub fn reply(mut self, reply: Rep) {
        if let Some(key) = self.key.take() {
            self.core.reply(self.from, key, Some(reply));
        }
    }

    /// Whether somebody waits for an answer: false for a cast.
    pub fn is_call(&self) -> bool {
        self.key.is_some()
    }
}

impl<Rep> Drop for Responder<Rep> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.core.reply(self.from, key, None);
        }
    }
}
