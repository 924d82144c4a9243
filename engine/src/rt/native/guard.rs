//! Against tasks that sleep with the shard although they could run.
//!
//! glommio 0.9 looks whether it should preempt before it has run anything: if something that wakes nobody (the preemption timer, or the eventfd of a
//! foreign wake whose task was already found) comes up just then, it takes the shard for idle and parks it, with tasks in its queues, until the next
//! event. Between two pinned shards that hop back and forth this happens once in some thousand hops. The one thing that bounds such a sleep is a timer.
//!
//! The guard is a task that keeps one armed: soon after the last poll of any task, and then in intervals that double, up to [`LONGEST`]. So what was left
//! lying is taken up after about as long as the shard has been quiet, and an idle shard wakes up twenty times a second.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use glommio::timer::Timer;

const SHORTEST: Duration = Duration::from_micros(250);
const LONGEST: Duration = Duration::from_millis(50);

/// What the guard and the watched tasks of a shard share.
#[derive(Default)]
pub struct Activity {
    /// A watched task was polled since the guard looked.
    seen: Cell<bool>,
    /// The guard, while its timer is a long one.
    resting: RefCell<Option<Waker>>,
}

impl Activity {
    fn note(&self) {
        if !self.seen.replace(true) {
            let guard = self.resting.borrow_mut().take();
            if let Some(guard) = guard {
                guard.wake();
            }
        }
    }
}

/// A task whose polls the guard knows of.
pub struct Watched<F> {
    activity: Rc<Activity>,
    // Boxed: pinned without unsafe code, and glommio's task stays small.
    future: Pin<Box<F>>,
}

impl<F: Future> Watched<F> {
    pub fn new(activity: Rc<Activity>, future: F) -> Watched<F> {
        Watched {
            activity,
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.activity.note();
        self.future.as_mut().poll(cx)
    }
}

/// The guard. Runs for ever.
pub async fn guard(activity: Rc<Activity>) {
    let mut interval = SHORTEST;
    loop {
        let mut timer = Timer::new(interval);
        let rests = interval > SHORTEST;
        std::future::poll_fn(|cx| {
            if rests {
                if activity.seen.get() {
                    return Poll::Ready(());
                }
                *activity.resting.borrow_mut() = Some(cx.waker().clone());
            }
            Pin::new(&mut timer).poll(cx).map(|_| ())
        })
        .await;
        interval = if activity.seen.replace(false) {
            SHORTEST
        } else {
            (interval * 2).min(LONGEST)
        };
    }
}
