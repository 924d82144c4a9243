//! The simulated executor: one thread, every runnable task as likely as every other to go next, and a clock that moves when it must.
//!
//! A poll takes a fraction of a microsecond of simulated time. When nobody can run, time jumps to the next timer; when there is none, the process is stuck.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{Ended, Exit, Inner, Stop, current};
use crate::rt::{Queue, nanoseconds};

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
pub struct Executor {
    tasks: RefCell<BTreeMap<u64, Rc<Entry>>>,
    ready: RefCell<Vec<u64>>,
    /// Filled by wakers, which may be anywhere.
    woken: Arc<Mutex<Vec<u64>>>,
    timers: RefCell<BTreeMap<(u64, u64), Event>>,
    /// Futures of cancelled tasks, to be dropped outside every poll.
    cancelled: RefCell<Vec<Boxed>>,
    next: Cell<u64>,
}

struct Entry {
    future: RefCell<Option<Boxed>>,
    waker: Waker,
    queued: Cell<bool>,
    cancelled: Cell<bool>,
}

/// What happens at a time.
pub enum Event {
    Wake(Waker),
    /// A write completes.
    Written(u64),
    Stop(Stop),
}

struct TaskWaker {
    id: u64,
    woken: Arc<Mutex<Vec<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().expect("no waker panics").push(self.id);
    }
}

/// Runs a process until its main future ends or something ends it.
pub fn run<F, Fut>(world: &Rc<Inner>, main: F) -> Result<Fut::Output, Ended>
where
    F: FnOnce() -> Fut,
    Fut: Future + 'static,
    Fut::Output: 'static,
{
    let mut main = spawn(Queue::Latency, main());
    let mut steps = 0u64;
    loop {
        if let Some(how) = world.stopped.get() {
            return Err(Ended::Stopped(how));
        }
        if let Some(v) = main.join.value.take() {
            return Ok(v);
        }
        match catch_unwind(AssertUnwindSafe(|| step(world))) {
            Ok(true) => {}
            Ok(false) => return Err(Ended::Stuck),
            Err(panic) => match panic.downcast::<Exit>() {
                Ok(exit) => {
                    main.detached = true;
                    return Err(Ended::Exited(exit.0));
                }
                Err(other) => resume_unwind(other),
            },
        }
        steps += 1;
        let bound = world.config.borrow().max_steps;
        assert!(
            steps < bound,
            "the simulated process did not end in {bound} steps"
        );
    }
}

/// One poll or one jump of the clock. False when nothing will ever happen.
fn step(world: &Rc<Inner>) -> bool {
    let ex = &world.executor;
    drop(ex.cancelled.take());
    ex.fire_due(world);
    ex.collect();
    let id = {
        let mut ready = ex.ready.borrow_mut();
        if ready.is_empty() {
            drop(ready);
            let next = ex.timers.borrow().keys().next().copied();
            let Some((at, _)) = next else { return false };
            world.clock_ns.set(world.clock_ns.get().max(at));
            return true;
        }
        let pick = world.draw(ready.len() as u64) as usize;
        ready.swap_remove(pick)
    };
    let Some(entry) = ex.tasks.borrow().get(&id).cloned() else {
        return true;
    };
    entry.queued.set(false);
    let future = entry.future.borrow_mut().take();
    let Some(mut future) = future else {
        return true;
    };
    world
        .clock_ns
        .set(world.clock_ns.get() + 100 + world.draw(400));
    world.mix(id);
    world.mix(world.clock_ns.get());
    let done = future
        .as_mut()
        .poll(&mut Context::from_waker(&entry.waker))
        .is_ready();
    if done || entry.cancelled.get() {
        ex.tasks.borrow_mut().remove(&id);
    } else {
        *entry.future.borrow_mut() = Some(future);
    }
    true
}

impl Executor {
    fn id(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    pub fn at(&self, at: u64, event: Event) -> (u64, u64) {
        let key = (at, self.id());
        self.timers.borrow_mut().insert(key, event);
        key
    }

    fn fire_due(&self, world: &Rc<Inner>) {
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.first_entry() {
                    Some(e) if e.key().0 <= world.clock_ns.get() => e.remove(),
                    _ => return,
                }
            };
            match due {
                Event::Wake(w) => w.wake(),
                Event::Written(op) => super::file::written(world, op),
                Event::Stop(how) => {
                    world.stopped.set(Some(how));
                    return;
                }
            }
        }
    }

    fn collect(&self) {
        let woken = std::mem::take(&mut *self.woken.lock().expect("no waker panics"));
        let tasks = self.tasks.borrow();
        for id in woken {
            if let Some(t) = tasks.get(&id)
                && !t.queued.replace(true)
            {
                self.ready.borrow_mut().push(id);
            }
        }
    }

    /// Drops every task and timer. Nothing that their drops do has an effect.
    pub fn clear(&self) {
        loop {
            let tasks = self.tasks.take();
            let timers = self.timers.take();
            let cancelled = self.cancelled.take();
            if tasks.is_empty() && timers.is_empty() && cancelled.is_empty() {
                break;
            }
            for (_, entry) in tasks {
                let future = entry.future.borrow_mut().take();
                drop(future);
            }
        }
        self.ready.borrow_mut().clear();
        self.woken.lock().expect("no waker panics").clear();
    }
}

struct Join<T> {
    value: Cell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

pub struct Task<T> {
    id: u64,
    join: Rc<Join<T>>,
    world: Rc<Inner>,
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
        let ex = &self.world.executor;
        let Ok(mut tasks) = ex.tasks.try_borrow_mut() else {
            return;
        };
        if let Some(entry) = tasks.remove(&self.id) {
            entry.cancelled.set(true);
            // Absent while it runs: then the executor drops it after the poll.
            if let Some(future) = entry.future.borrow_mut().take() {
                ex.cancelled.borrow_mut().push(future);
            }
        }
    }
}

pub fn spawn<T: 'static>(_: Queue, f: impl Future<Output = T> + 'static) -> Task<T> {
    let world = current();
    let join = Rc::new(Join {
        value: Cell::new(None),
        waker: RefCell::new(None),
    });
    let id = world.executor.id();
    if !world.is_stopped() {
        let ex = &world.executor;
        let ended = join.clone();
        let future = Box::pin(async move {
            let v = f.await;
            ended.value.set(Some(v));
            if let Some(w) = ended.waker.take() {
                w.wake();
            }
        });
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            woken: ex.woken.clone(),
        }));
        let entry = Entry {
            future: RefCell::new(Some(future)),
            waker,
            queued: Cell::new(true),
            cancelled: Cell::new(false),
        };
        ex.tasks.borrow_mut().insert(id, Rc::new(entry));
        ex.ready.borrow_mut().push(id);
    }
    Task {
        id,
        join,
        world,
        detached: false,
    }
}

pub async fn yield_if_needed() {
    let world = current();
    let one_in = u64::from(world.config.borrow().yield_one_in.max(1));
    if world.draw(one_in) == 0 {
        super::yield_now().await;
    }
}

pub fn sleep(d: Duration) -> Sleep {
    let world = current();
    Sleep {
        at: world.clock_ns.get().saturating_add(nanoseconds(d)),
        key: None,
        world,
    }
}

pub struct Sleep {
    world: Rc<Inner>,
    at: u64,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.world.clock_ns.get() >= self.at {
            return Poll::Ready(());
        }
        if !self.world.is_stopped() {
            let key = self
                .world
                .executor
                .at(self.at, Event::Wake(cx.waker().clone()));
            self.key = Some(key);
        }
        Poll::Pending
    }
}

impl Sleep {
    fn cancel(&mut self) {
        if let Some(key) = self.key.take()
            && let Ok(mut timers) = self.world.executor.timers.try_borrow_mut()
        {
            timers.remove(&key);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
