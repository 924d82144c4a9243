//! A shard's executor: two queues of tasks, timers, and a loop that runs what can run and else waits in the ring.
//!
//! A turn: take foreign wakes, fire timers, take the ring's completions, run a slice of tasks, hand the kernel what they asked for. Latency tasks go first; the background gets one poll in
//! [`BACKGROUND_ONE_IN`], and what is left when no latency task can run. When nothing can run, a pinned shard polls for a while, giving the system the core each time,
//! then it sleeps in the ring until a completion, a timer or a foreign wake. An overprovisioned one sleeps at once, and so does every shard while operations on
//! files are in flight: sleeping in the ring itself costs less than polling saves, and a spin, even with `sched_yield`, can starve the kernel's
//! workers that complete a synced write on this core (measured: 4 ms a commit against 79 µs).
//!
//! Invariants: a woken task is in a queue exactly once until it is polled (`Header::scheduled`); the shard never sleeps while a queue holds a task; a foreign wake is either
//! found before the shard sleeps or writes its eventfd ([`Remote`]). Futures are dropped by the loop alone, never within another's poll.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crossbeam_queue::SegQueue;
use slab::Slab;

use super::helpers::Helpers;
use super::ring::Ring;
use super::{SHARD, now, shard};
use crate::line_limit::LineLimit;
use crate::rt::{Queue, nanoseconds};

/// Polls, and time, before the loop looks at timers, the ring and foreign wakes again. The time is also how long a task may go on before
/// `yield_if_needed` yields.
const SLICE_POLLS: usize = 32;
const SLICE: Duration = Duration::from_micros(100);
/// The background's part of the polls while the latency queue is busy.
const BACKGROUND_ONE_IN: u32 = 16;
/// How long an idle, pinned shard polls before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

pub struct Shard {
    tasks: RefCell<Slab<Slot>>,
    ready: [RefCell<VecDeque<Arc<Header>>>; 2],
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    timer_ids: Cell<u64>,
    /// Futures of cancelled tasks, for the loop to drop.
    cancelled: RefCell<Vec<Boxed>>,
    slice_begun: Cell<u64>,
    polls: Cell<u32>,
    spin: bool,
    remote: Arc<Remote>,
    pub ring: Rc<Ring>,
    pub helpers: RefCell<Option<Helpers>>,
    /// Files that wait for a descriptor, in the log.
    pub no_descriptor: LineLimit,
}

struct Slot {
    header: Arc<Header>,
    waker: Waker,
    /// Absent while it is polled.
    future: Option<Boxed>,
}

/// The part of a task that its wakers share.
struct Header {
    key: usize,
    queue: Queue,
    scheduled: AtomicBool,
    remote: Arc<Remote>,
}

/// What other threads see of a shard.
struct Remote {
    woken: SegQueue<Arc<Header>>,
    /// The shard is about to sleep, or does. Who wakes a task pushes it first and looks here then; the shard says so first and looks for tasks then; SeqCst
    /// fences between the two.
    sleeping: AtomicBool,
    event: super::ring::Event,
}

impl Remote {
    fn push(&self, header: Arc<Header>) {
        self.woken.push(header);
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            self.event.signal();
        }
    }
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.enqueue();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Always a swap: that it was scheduled already is enough only because the poll that is to come reads this very write.
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.clone().enqueue();
        }
    }
}

impl Header {
    fn enqueue(self: Arc<Self>) {
        let mut header = Some(self);
        // Absent on other threads, and at the very end of a shard's own.
        let _ = SHARD.try_with(|shard| {
            if let Ok(shard) = shard.try_borrow()
                && let Some(shard) = &*shard
                && let Some(h) = header.take_if(|h| Arc::ptr_eq(&h.remote, &shard.remote))
            {
                shard.ready[h.queue as usize].borrow_mut().push_back(h);
            }
        });
        if let Some(h) = header {
            let remote = h.remote.clone();
            remote.push(h);
        }
    }
}

impl Shard {
    pub fn new(spin: bool) -> io::Result<Rc<Shard>> {
        let event = super::ring::Event::new()?;
        let ring = Ring::new(&event)?;
        Ok(Rc::new(Shard {
            tasks: RefCell::new(Slab::new()),
            ready: Default::default(),
            timers: RefCell::default(),
            timer_ids: Cell::new(0),
            cancelled: RefCell::default(),
            slice_begun: Cell::new(0),
            polls: Cell::new(0),
            spin,
            remote: Arc::new(Remote {
                woken: SegQueue::new(),
                sleeping: AtomicBool::new(false),
                event,
            }),
            ring,
            helpers: RefCell::new(None),
            no_descriptor: LineLimit::default(),
        }))
    }

    pub fn spins(&self) -> bool {
        self.spin
    }

    /// Runs the shard until `main` ends, then drops its other tasks and waits for what the kernel has.
    pub fn run(self: &Rc<Self>, main: impl Future<Output = ()> + 'static) {
        let main = spawn(Queue::Latency, main);
        loop {
            self.take_foreign_wakes();
            self.fire_timers();
            self.ring.turn();
            self.run_slice();
            if main.join.value.take().is_some() {
                break;
            }
            // What the tasks asked for goes to the kernel at once, whoever else can run; much is done by then.
            let asked = self.ring.submit_pending();
            if self.has_ready() || asked && self.ring.turn() > 0 {
                continue;
            }
            self.idle();
        }
        drop(main);
        self.drop_tasks();
        self.ring.quiesce();
    }

    fn take_foreign_wakes(&self) {
        while let Some(h) = self.remote.woken.pop() {
            self.ready[h.queue as usize].borrow_mut().push_back(h);
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let at = now().0;
        loop {
            let mut timers = self.timers.borrow_mut();
            let due = match timers.first_entry() {
                Some(e) if e.key().0 <= at => e.remove(),
                _ => return,
            };
            drop(timers);
            due.wake();
        }
    }

    /// Ends after [`SLICE`], also if tasks can still run: what came in meanwhile, and what was asked of the kernel, must not wait for all of them.
    fn run_slice(&self) {
        self.slice_begun.set(now().0);
        for _ in 0..SLICE_POLLS {
            let Some(header) = self.next() else { break };
            self.poll(&header);
            let cancelled = self.cancelled.take();
            drop(cancelled);
            if self.slice_is_over() {
                break;
            }
        }
    }

    fn slice_is_over(&self) -> bool {
        now().0.saturating_sub(self.slice_begun.get()) >= nanoseconds(SLICE)
    }

    fn next(&self) -> Option<Arc<Header>> {
        let [latency, background] = &self.ready;
        let polls = self.polls.get().wrapping_add(1);
        self.polls.set(polls);
        if polls.is_multiple_of(BACKGROUND_ONE_IN)
            && let Some(h) = background.borrow_mut().pop_front()
        {
            return Some(h);
        }
        let first = latency.borrow_mut().pop_front();
        first.or_else(|| background.borrow_mut().pop_front())
    }

    fn poll(&self, header: &Arc<Header>) {
        let mut tasks = self.tasks.borrow_mut();
        let Some(slot) = tasks
            .get_mut(header.key)
            .filter(|s| Arc::ptr_eq(&s.header, header))
        else {
            return; // It has ended, or was cancelled.
        };
        // Acquires what was written before the last wake; wakes from here on schedule it again.
        header.scheduled.swap(false, Ordering::AcqRel);
        let Some(mut future) = slot.future.take() else {
            return;
        };
        let waker = slot.waker.clone();
        drop(tasks);
        let ended = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks
            .get_mut(header.key)
            .filter(|s| Arc::ptr_eq(&s.header, header));
        match slot {
            Some(slot) if !ended => {
                slot.future = Some(future);
                return;
            }
            Some(_) => drop(tasks.remove(header.key)),
            None => {} // Cancelled while it ran.
        }
        drop(tasks);
        drop(future);
    }

    fn has_ready(&self) -> bool {
        self.ready.iter().any(|q| !q.borrow().is_empty())
    }

    fn idle(&self) {
        let begun = now();
        loop {
            if !self.spin || self.ring.is_at_the_disk() || begun.elapsed() >= SPIN {
                break;
            }
            std::thread::yield_now();
            if !self.remote.woken.is_empty() || self.ring.has_news() || self.timer_is_due() {
                return;
            }
        }
        self.remote.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // See `Remote`.
        if self.remote.woken.is_empty() {
            let next = self.timers.borrow().keys().next().map(|k| k.0);
            let left = next.map(|at| Duration::from_nanos(at.saturating_sub(now().0)));
            self.ring.wait(left);
        }
        self.remote.sleeping.store(false, Ordering::Relaxed);
    }

    fn timer_is_due(&self) -> bool {
        let timers = self.timers.borrow();
        timers.keys().next().is_some_and(|k| k.0 <= now().0)
    }

    fn drop_tasks(&self) {
        loop {
            let keys: Vec<usize> = self.tasks.borrow().iter().map(|(k, _)| k).collect();
            let cancelled = self.cancelled.take();
            if keys.is_empty() && cancelled.is_empty() {
                break;
            }
            drop(cancelled);
            for key in keys {
                let slot = self.tasks.borrow_mut().try_remove(key);
                drop(slot);
            }
        }
        let timers = self.timers.take();
        drop(timers);
    }

    fn cancel(&self, header: &Arc<Header>) {
        let mut tasks = self.tasks.borrow_mut();
        if tasks
            .get(header.key)
            .is_some_and(|s| Arc::ptr_eq(&s.header, header))
        {
            let slot = tasks.remove(header.key);
            if let Some(future) = slot.future {
                self.cancelled.borrow_mut().push(future);
                // So that a shard that is about to sleep drops it first.
                self.ring.note_news();
            }
        }
    }
}

struct Join<T> {
    value: Cell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

pub struct Task<T> {
    join: Rc<Join<T>>,
    header: Arc<Header>,
    detached: bool,
}

impl<T: 'static> Task<T> {
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(v) = self.join.value.take() {
            return Poll::Ready(v);
        }
        *self.join.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        let shard = SHARD.try_with(|s| s.try_borrow().ok().and_then(|s| s.clone()));
        if let Ok(Some(shard)) = shard
            && Arc::ptr_eq(&shard.remote, &self.header.remote)
        {
            shard.cancel(&self.header);
        }
    }
}

pub fn spawn<T: 'static>(queue: Queue, f: impl Future<Output = T> + 'static) -> Task<T> {
    let shard = shard();
    let join = Rc::new(Join {
        value: Cell::new(None),
        waker: RefCell::new(None),
    });
    let ended = join.clone();
    let future: Boxed = Box::pin(async move {
        let v = f.await;
        ended.value.set(Some(v));
        let waker = ended.waker.take();
        if let Some(w) = waker {
            w.wake();
        }
    });
    let mut tasks = shard.tasks.borrow_mut();
    let entry = tasks.vacant_entry();
    let header = Arc::new(Header {
        key: entry.key(),
        queue,
        scheduled: AtomicBool::new(true),
        remote: shard.remote.clone(),
    });
    entry.insert(Slot {
        header: header.clone(),
        waker: Waker::from(header.clone()),
        future: Some(future),
    });
    drop(tasks);
    shard.ready[queue as usize]
        .borrow_mut()
        .push_back(header.clone());
    Task {
        join,
        header,
        detached: false,
    }
}

pub async fn yield_if_needed() {
    if shard().slice_is_over() {
        super::yield_now().await;
    }
}

pub fn sleep(d: Duration) -> Sleep {
    Sleep {
        at: now().0.saturating_add(nanoseconds(d)),
        key: None,
    }
}

pub struct Sleep {
    at: u64,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now().0 >= self.at {
            self.cancel();
            return Poll::Ready(());
        }
        let shard = shard();
        let at = self.at;
        let key = *self.key.get_or_insert_with(|| {
            let id = shard.timer_ids.get();
            shard.timer_ids.set(id + 1);
            (at, id)
        });
        let old = shard.timers.borrow_mut().insert(key, cx.waker().clone());
        drop(old);
        Poll::Pending
    }
}

impl Sleep {
    fn cancel(&mut self) {
        let Some(key) = self.key.take() else { return };
        let shard = SHARD.try_with(|s| s.try_borrow().ok().and_then(|s| s.clone()));
        if let Ok(Some(shard)) = shard {
            let old = shard.timers.borrow_mut().remove(&key);
            drop(old);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
