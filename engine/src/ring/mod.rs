//! Message rings between the shards of a process and, on top of them, calls with credits.
use std::marker::PhantomData;

/// Makes the rings of a process.
pub struct Mesh(());

/// One participant's end of all its rings. `Send`, so that it can be carried to its thread; not `Sync`.
pub struct Port<M> {
    _m: PhantomData<std::cell::Cell<M>>,
}

impl Mesh {
    /// One SPSC ring for each ordered pair; `capacity` messages each.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<M: Send>(participants: usize, capacity: usize) -> Vec<Port<M>> {
        let _ = (participants, capacity);
        todo!()
    }
}

impl<M: Send> Port<M> {
    pub fn me(&self) -> usize {
        todo!()
    }
    pub fn participants(&self) -> usize {
        todo!()
    }
    pub fn try_send(&self, to: usize, m: M) -> Result<(), M> {
        let _ = (to, m);
        todo!()
    }
    /// Waits for room. A message to a participant that is gone is dropped.
    pub async fn send(&self, to: usize, m: M) {
        let _ = (to, m);
        todo!()
    }
    /// Publishes what was sent since the last flush and wakes the consumers that sleep.
    pub fn flush(&self) {
        todo!()
    }
    pub async fn recv(&self) -> (usize, M) {
        todo!()
    }
}

/// The kinds of calls, each with credits of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Answered at once by the other shard.
    Short,
    /// Answered when something is durable or committed.
    Append,
    /// Answered when something happens, perhaps much later.
    Waiter,
}

/// Calls that may be under way at one time, for each other participant and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    pub short: usize,
    pub append: usize,
    pub waiter: usize,
}

/// What crosses a ring between two [`Rpc`]s.
pub struct Frame<Req, Rep> {
    _m: PhantomData<(Req, Rep)>,
}

/// The other side went away or dropped the call unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other shard dropped the call")]
pub struct Gone;

/// Calls over a [`Port`]. Cheap to clone; stays on its thread.
pub struct Rpc<Req, Rep> {
    _m: PhantomData<std::rc::Rc<(Req, Rep)>>,
}

impl<Req, Rep> Clone for Rpc<Req, Rep> {
    fn clone(&self) -> Self {
        Rpc { _m: PhantomData }
    }
}

/// Where the answer to one call goes. Dropped without an answer, the caller gets [`Gone`].
pub struct Responder<Rep> {
    _m: PhantomData<std::rc::Rc<Rep>>,
}

impl<Req: Send + 'static, Rep: Send + 'static> Rpc<Req, Rep> {
    pub fn new(port: Port<Frame<Req, Rep>>, credits: Credits) -> Rpc<Req, Rep> {
        let _ = (port, credits);
        todo!()
    }
    pub fn me(&self) -> usize {
        todo!()
    }
    pub fn participants(&self) -> usize {
        todo!()
    }
    /// Takes a credit (waits for one), sends, waits for the answer. Dropping the future forgets the answer.
    pub async fn call(&self, target: usize, class: Class, req: Req) -> Result<Rep, Gone> {
        let _ = (target, class, req);
        todo!()
    }
    /// One-way; waits for room. Never call it from a handler.
    pub async fn cast(&self, target: usize, req: Req) {
        let _ = (target, req);
        todo!()
    }
    /// Runs for ever: hands requests to `handler` (synchronous) and answers to their callers.
    pub async fn serve(&self, handler: impl FnMut(usize, Req, Responder<Rep>)) {
        let _ = handler;
        todo!()
    }
    /// Requests that this participant has sent to others.
    pub fn hops(&self) -> u64 {
        todo!()
    }
}

impl<Rep> Responder<Rep> {
    /// Never waits. A reply to a cast is dropped.
    pub fn reply(self, rep: Rep) {
        let _ = rep;
        todo!()
    }
}
