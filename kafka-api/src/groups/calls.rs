//! Questions to coordinators, from the shard of a connection to the shard of a partition and back.
//!
//! A JoinGroup may wait for minutes, and thousands of them at once. So a question is cast, not called: it holds no credit while it waits, and the
//! answer is cast back. A connection asks one thing at a time, which bounds both. Answers that wait for room in a ring lie in a queue of which one
//! task takes care. Whoever asks may go away: its answer is dropped when it comes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::rt::{self, Queue};
use engine::types::{GroupId, ShardId};

use super::topic;
use crate::coordinator::{Name, Reply, Request, Token};
use crate::error::ErrorCode;
use crate::limits;
use crate::request::ShardRequest;
use crate::shard::{Map, Shard, map};
use crate::sync::join_all;

/// Bits of a token that number the question; those above are the shard that asks.
const CALL_BITS: u32 = 48;

/// A shard's questions, and its answers to others.
pub struct Calls {
    next: Cell<u64>,
    waiting: RefCell<Map<Token, Waiting>>,
    answers: RefCell<VecDeque<(Token, Reply)>>,
    sending: Cell<bool>,
}

#[derive(Default)]
struct Waiting {
    reply: Option<Reply>,
    waker: Option<Waker>,
    /// It may take minutes: at the end of the process it isn't waited for.
    long: bool,
}

impl Default for Calls {
    fn default() -> Calls {
        Calls {
            next: Cell::new(0),
            waiting: RefCell::new(map()),
            answers: RefCell::default(),
            sending: Cell::new(false),
        }
    }
}

/// The shard that asked.
fn asker(token: Token) -> ShardId {
    ShardId((token >> CALL_BITS) as u16)
}

/// How many of the first of these are asked for together: until one comes again, since what a request names many times is told as often.
pub(crate) fn run_of_others(groups: &[Name]) -> usize {
    let mut seen = std::collections::BTreeSet::new();
    let some = groups.iter().take(limits::COORDINATORS_AT_A_TIME);
    some.take_while(|group| seen.insert(*group)).count()
}

/// Leaves the list when its question is answered or given up.
struct Question<'a> {
    calls: &'a Calls,
    token: Token,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.calls.waiting.borrow_mut().swap_remove(&self.token);
    }
}

impl Shard {
    /// Asks the coordinator of a group; every failure is an answer too.
    pub(crate) async fn ask_coordinator(self: &Rc<Self>, group: &Name, request: Request) -> Reply {
        match topic::local_partition(self, group) {
            Some(partition) => self.ask_partition(partition, request).await,
            None => Reply::Refused(ErrorCode::NotCoordinator),
        }
    }

    /// Asks the coordinators of these groups, all at once: answers in their order. [`run_of_others`] says of how many.
    pub(crate) async fn ask_coordinators(
        self: &Rc<Self>,
        groups: &[Name],
        question: impl Fn(&Name) -> Request,
    ) -> Vec<Reply> {
        let asked = groups
            .iter()
            .map(|group| Box::pin(self.ask_coordinator(group, question(group))));
        join_all(asked.collect()).await
    }

    /// Asks the coordinator of a partition of this node. Other tasks may have a turn afterwards: one of this shard answers here and now, and a request may ask a hundred thousand times.
    pub(crate) async fn ask_partition(self: &Rc<Self>, id: GroupId, request: Request) -> Reply {
        let calls = &self.coordinators.calls;
        let number = calls.next.get();
        calls.next.set((number + 1) % (1 << CALL_BITS));
        let token = u64::from(self.id.0) << CALL_BITS | number;
        let long = matches!(request, Request::Join(_) | Request::Sync(_));
        let question = Question { calls, token };
        let waiting = Waiting {
            long,
            ..Waiting::default()
        };
        calls.waiting.borrow_mut().insert(token, waiting);
        let owner = self.owner(id);
        if owner == self.id {
            self.coordinators.ask(self, id, token, request);
        } else {
            self.metrics.cross_shard_hops.increment();
            let request = ShardRequest::Group(id, token, request);
            self.rpc.cast(usize::from(owner.0), request).await;
        }
        let answered = poll_fn(|cx| {
            let mut waiting = question.calls.waiting.borrow_mut();
            let mine = waiting
                .get_mut(&token)
                .expect("a question stays until it is dropped");
            match mine.reply.take() {
                Some(reply) => Poll::Ready(reply),
                None => {
                    mine.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        });
        if long {
            // The group's own deadlines end it.
            return answered.await;
        }
        let answered = rt::timeout(limits::COORDINATOR_WAIT, answered).await;
        rt::yield_if_needed().await;
        answered.unwrap_or(Reply::Refused(ErrorCode::CoordinatorNotAvailable))
    }
}

impl Calls {
    /// Hands an answer to whoever asked, on this shard or another.
    pub(crate) fn answer(&self, shard: &Rc<Shard>, token: Token, reply: Reply) {
        if asker(token) == shard.id {
            return self.arrived(token, reply);
        }
        self.answers.borrow_mut().push_back((token, reply));
        if self.sending.replace(true) {
            return;
        }
        let shard = shard.clone();
        rt::spawn(Queue::Latency, async move {
            let calls = &shard.coordinators.calls;
            loop {
                let next = calls.answers.borrow_mut().pop_front();
                let Some((token, reply)) = next else {
                    break;
                };
                let target = usize::from(asker(token).0);
                let answer = ShardRequest::GroupAnswer(token, reply);
                shard.rpc.cast(target, answer).await;
            }
            calls.sending.set(false);
        })
        .detach();
    }

    /// An answer came.
    pub(crate) fn arrived(&self, token: Token, reply: Reply) {
        let mut waiting = self.waiting.borrow_mut();
        let Some(mine) = waiting.get_mut(&token) else {
            return;
        };
        if mine.reply.is_none() {
            mine.reply = Some(reply);
        }
        let waker = mine.waker.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The process ends: who waits for others to join is told to come to another node, or later.
    pub(crate) fn hurry(&self) {
        let long: Vec<Token> = self
            .waiting
            .borrow()
            .iter()
            .filter(|(_, w)| w.long)
            .map(|(token, _)| *token)
            .collect();
        for token in long {
            self.arrived(token, Reply::Refused(ErrorCode::NotCoordinator));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::own;

    #[test]
    fn who_comes_again_is_not_asked_together_with_itself() {
        let names = |n: &[usize]| n.iter().map(|n| own(&n.to_string())).collect::<Vec<_>>();
        assert_eq!(run_of_others(&names(&[1, 2, 3])), 3);
        assert_eq!(run_of_others(&names(&[1, 2, 1, 3])), 2);
        assert_eq!(run_of_others(&names(&[1, 1])), 1);
        let many: Vec<usize> = (0..1_000).collect();
        let most = limits::COORDINATORS_AT_A_TIME;
        assert_eq!(run_of_others(&names(&many)), most);
    }
}
