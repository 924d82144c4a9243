//! A shard's own io_uring ring, through which all its files go.
//!
//! Why not glommio's: it can't sync by the write itself (RWF_DSYNC), its buffers need a copy to become `Bytes`, and its `DmaFile` breaks when the first
//! one opened is empty. Measured, this ring also has the shorter tail: SINGLE_ISSUER, DEFER_TASKRUN and TASKRUN_FLAG, registered journal files.
//!
//! A *driver* task on the latency queue reaps completions. While journal writes are in flight it polls, yielding to the system and to the shard's other
//! task queue each time, for at most 300 µs without progress; then, and for everything that is not a journal write, it parks on the ring's eventfd.
//! On overprovisioned machines it parks at once. (A spin without `sched_yield` starves the kernel's own workers on this core.)
//!
//! Invariants: an operation's buffer, path and file live in its slot of `ops` until its completion was seen, whoever still waits for it; a ring whose
//! operations have not all completed is never closed ([`Disk::drop`] waits). The ring is used by its shard's thread alone (SINGLE_ISSUER).
//!
//! `unsafe`: pushing entries that point to memory of the slot; the eventfd's system calls.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_lite::AsyncRead;
use glommio::net::UnixStream;
use glommio::sync::{Semaphore, StaticPermit};
use io_uring::{IoUring, opcode, squeue, types};
use slab::Slab;

use crate::limits::{BLOCK_BYTES, DISK_OPS_IN_FLIGHT, JOURNAL_WRITES_IN_FLIGHT};
use crate::rt::{AlignedBuf, Queue};

/// Longest polling without progress before the driver parks.
const POLL: Duration = Duration::from_micros(300);
/// Entries of the ring: room for every operation that may be in flight.
const ENTRIES: u32 = 512;
/// Registered files: journals that a shard has open at one time; more are used unregistered.
const REGISTERED: u32 = 64;

/// See the module.
pub struct Disk {
    ring: RefCell<IoUring>,
    event: OwnedFd,
    ops: RefCell<Slab<Op>>,
    /// Journal writes in flight.
    journal: Cell<usize>,
    /// Room for the other operations, first come, first served.
    room: Rc<Semaphore>,
    /// Free slots of the registered files.
    slots: RefCell<Vec<u32>>,
    spin: bool,
    driver: RefCell<Option<Waker>>,
    /// Something was started that the parked driver should poll for.
    poked: Cell<bool>,
    started: Cell<bool>,
    ended: Cell<bool>,
}

/// An open file, perhaps registered with the ring.
pub struct Handle {
    fd: OwnedFd,
    slot: Option<u32>,
    disk: Weak<Disk>,
}

pub enum Kind {
    Read { pos: u64 },
    Write { pos: u64, durable: bool },
    Sync,
    Allocate { pos: u64, len: u64 },
    Open { flags: i32 },
}

struct Op {
    kind: Kind,
    file: Option<Rc<Handle>>,
    buf: Option<AlignedBuf>,
    path: Option<CString>,
    /// Bytes read or written so far.
    done: usize,
    state: State,
    /// Given back when the slot is freed.
    _room: Option<StaticPermit>,
}

enum State {
    Running(Option<Waker>),
    /// Nobody waits; the slot is freed at completion.
    Abandoned,
    Done(io::Result<Outcome>),
}

/// What an operation gave.
pub enum Outcome {
    Bytes(usize),
    Opened(OwnedFd),
}

/// Waits for an operation that the kernel has.
pub struct Completion {
    disk: Rc<Disk>,
    key: Option<usize>,
}

impl Disk {
    pub fn new(spin: bool) -> io::Result<Rc<Disk>> {
        let ring = ring().map_err(super::launch::explain)?;
        // SAFETY: makes a new descriptor or fails.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(super::launch::explain(io::Error::last_os_error()));
        }
        // SAFETY: just made, nobody else has it.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let slots = match ring.submitter().register_files_sparse(REGISTERED) {
            Ok(()) => (0..REGISTERED).rev().collect(),
            Err(_) => Vec::new(), // Before Linux 5.19: files are used unregistered.
        };
        Ok(Rc::new(Disk {
            ring: RefCell::new(ring),
            event,
            ops: RefCell::new(Slab::new()),
            journal: Cell::new(0),
            room: Rc::new(Semaphore::new(DISK_OPS_IN_FLIGHT as u64)),
            slots: RefCell::new(slots),
            spin,
            driver: RefCell::new(None),
            poked: Cell::new(false),
            started: Cell::new(false),
            ended: Cell::new(false),
        }))
    }

    pub fn handle(self: &Rc<Self>, fd: OwnedFd, register: bool) -> Handle {
        let mut slot = None;
        if register && let Some(s) = self.slots.borrow_mut().pop() {
            let ring = self.ring.borrow();
            match ring.submitter().register_files_update(s, &[fd.as_raw_fd()]) {
                Ok(_) => slot = Some(s),
                Err(_) => self.slots.borrow_mut().push(s),
            }
        }
        Handle {
            fd,
            slot,
            disk: Rc::downgrade(self),
        }
    }

    /// Starts an ordinary operation when there is room for it.
    pub async fn run(
        self: &Rc<Self>,
        file: Option<Rc<Handle>>,
        kind: Kind,
        buf: Option<AlignedBuf>,
        path: Option<CString>,
    ) -> (io::Result<Outcome>, Option<AlignedBuf>) {
        let room = match self.room.acquire_static_permit(1).await {
            Ok(room) => room,
            Err(e) => return (Err(io::Error::other(e.to_string())), buf),
        };
        self.start(Op {
            kind,
            file,
            buf,
            path,
            done: 0,
            state: State::Running(None),
            _room: Some(room),
        })
        .await
    }

    /// Starts a durable write at once.
    pub fn journal_write(
        self: &Rc<Self>,
        file: Rc<Handle>,
        pos: u64,
        buf: AlignedBuf,
    ) -> Completion {
        assert!(
            self.journal.get() < JOURNAL_WRITES_IN_FLIGHT,
            "the log bounds its commits in flight"
        );
        self.journal.set(self.journal.get() + 1);
        self.start(Op {
            kind: Kind::Write { pos, durable: true },
            file: Some(file),
            buf: Some(buf),
            path: None,
            done: 0,
            state: State::Running(None),
            _room: None,
        })
    }

    /// Waits until the kernel has nothing of ours any more and ends the driver.
    pub async fn quiesce(self: Rc<Self>) {
        while self.in_flight() > 0 {
            super::sleep(Duration::from_millis(1)).await;
        }
        self.ended.set(true);
        self.poked.set(true);
        let driver = self.driver.borrow_mut().take();
        if let Some(driver) = driver {
            driver.wake();
            super::yield_now().await;
        }
    }

    fn in_flight(&self) -> usize {
        self.ops
            .borrow()
            .iter()
            .filter(|(_, op)| !matches!(op.state, State::Done(_)))
            .count()
    }

    fn start(self: &Rc<Self>, op: Op) -> Completion {
        let poll = self.spin && is_durable(&op.kind);
        let key = self.ops.borrow_mut().insert(op);
        self.push(key);
        self.submit();
        if !self.started.replace(true) {
            // It ends with `quiesce`.
            super::spawn(Queue::Latency, drive(self.clone())).detach();
        }
        if poll {
            self.poked.set(true);
        }
        let driver = self.driver.borrow_mut().take();
        if let Some(driver) = driver {
            driver.wake();
        }
        Completion {
            disk: self.clone(),
            key: Some(key),
        }
    }

    /// Puts the rest of an operation into the ring's submission queue.
    fn push(&self, key: usize) {
        let mut ops = self.ops.borrow_mut();
        let op = &mut ops[key];
        let entry = entry(op).user_data(key as u64);
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the entry points to the buffer or path in the operation's slot. Both are heap memory that stays in place when the slab moves
        // the slot, and the slot is freed in `complete` or later, after the kernel is done. The file is open: the slot holds it.
        let pushed = unsafe { ring.submission().push(&entry) };
        if pushed.is_err() {
            panic!("the ring has room for every operation that may be in flight");
        }
    }

    /// Tells the kernel. What it doesn't take now (it is short of memory, say) goes with the driver's next turn.
    fn submit(&self) {
        let ring = self.ring.borrow();
        if let Err(e) = ring.submit() {
            let later = matches!(
                e.raw_os_error(),
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM)
            );
            assert!(later, "io_uring refused valid entries: {e}");
        }
    }

    /// Runs what the kernel has deferred to us and takes the completions. The number taken.
    fn turn(&self) -> usize {
        let mut taken = 0;
        loop {
            let mut ring = self.ring.borrow_mut();
            let queue = ring.submission();
            let enter = queue.taskrun() || queue.cq_overflow() || !queue.is_empty();
            drop(queue);
            if enter {
                drop(ring);
                self.submit();
                ring = self.ring.borrow_mut();
            }
            let next = ring.completion().next();
            drop(ring);
            let Some(cqe) = next else { return taken };
            taken += 1;
            self.complete(cqe.user_data() as usize, cqe.result());
        }
    }

    fn complete(&self, key: usize, result: i32) {
        let mut ops = self.ops.borrow_mut();
        let op = &mut ops[key];
        let Some(outcome) = outcome(op, result) else {
            drop(ops);
            self.push(key); // A part of it was done; submitted by this turn.
            return;
        };
        if is_durable(&op.kind) {
            self.journal.set(self.journal.get() - 1);
        }
        match std::mem::replace(&mut op.state, State::Done(outcome)) {
            State::Running(waker) => {
                drop(ops);
                if let Some(w) = waker {
                    w.wake();
                }
            }
            State::Abandoned => {
                let op = ops.remove(key);
                drop(ops);
                drop(op); // May close files or wake who waits for room.
            }
            State::Done(_) => panic!("an operation completes once"),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The kernel may write into the buffers until every operation has completed; see the module.
        let ring = self.ring.get_mut();
        let running = |ops: &Slab<Op>| ops.iter().any(|(_, o)| !matches!(o.state, State::Done(_)));
        while running(self.ops.get_mut()) {
            if ring.submit_and_wait(1).is_err() {
                continue;
            }
            while let Some(cqe) = ring.completion().next() {
                self.ops.get_mut()[cqe.user_data() as usize].state =
                    State::Done(Ok(Outcome::Bytes(0)));
            }
        }
    }
}

impl Handle {
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// A second descriptor of the same open file.
    pub fn second(&self) -> io::Result<std::fs::File> {
        self.fd.try_clone().map(Into::into)
    }

    /// The file's length in bytes.
    pub fn len(&self) -> io::Result<u64> {
        // SAFETY: all-zero is a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: writes one stat, which is ours.
        if unsafe { libc::fstat(self.fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stat.st_size as u64)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let (Some(slot), Some(disk)) = (self.slot, self.disk.upgrade())
            && let Ok(ring) = disk.ring.try_borrow()
            && ring.submitter().register_files_update(slot, &[-1]).is_ok()
        {
            disk.slots.borrow_mut().push(slot);
        }
    }
}

impl Future for Completion {
    type Output = (io::Result<Outcome>, Option<AlignedBuf>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self
            .key
            .expect("a completion is not polled again after it was ready");
        let mut ops = self.disk.ops.borrow_mut();
        if let State::Running(waker) = &mut ops[key].state {
            match waker {
                Some(w) => w.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let op = ops.remove(key);
        drop(ops);
        self.key = None;
        match op.state {
            State::Done(result) => Poll::Ready((result, op.buf)),
            _ => panic!("an operation that is waited for is running or done"),
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut ops = self.disk.ops.borrow_mut();
        if matches!(ops[key].state, State::Done(_)) {
            let op = ops.remove(key);
            drop(ops);
            drop(op);
        } else {
            ops[key].state = State::Abandoned;
        }
    }
}

fn is_durable(kind: &Kind) -> bool {
    matches!(kind, Kind::Write { durable: true, .. })
}

/// A ring with the flags that measured best, or without those that an older kernel doesn't know.
fn ring() -> io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(ENTRIES);
    match best {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().build(ENTRIES),
        other => other,
    }
}

fn entry(op: &mut Op) -> squeue::Entry {
    let done = op.done;
    let rest = |buf: &mut Option<AlignedBuf>| {
        let buf = buf.as_mut().expect("reads and writes have a buffer");
        // SAFETY: `done` is at most the buffer's length.
        let start = unsafe { buf.as_mut_ptr().add(done) };
        (start, (buf.len() - done) as u32)
    };
    let fd = op.file.as_ref().map_or(-1, |f| f.fd());
    let slot = op.file.as_ref().and_then(|f| f.slot);
    match &op.kind {
        Kind::Read { pos } => {
            let (start, len) = rest(&mut op.buf);
            let offset = pos + done as u64;
            match slot {
                Some(s) => opcode::Read::new(types::Fixed(s), start, len)
                    .offset(offset)
                    .build(),
                None => opcode::Read::new(types::Fd(fd), start, len)
                    .offset(offset)
                    .build(),
            }
        }
        Kind::Write { pos, durable } => {
            let (start, len) = rest(&mut op.buf);
            let offset = pos + done as u64;
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            match slot {
                Some(s) => opcode::Write::new(types::Fixed(s), start, len)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                None => opcode::Write::new(types::Fd(fd), start, len)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
            }
        }
        Kind::Sync => opcode::Fsync::new(types::Fd(fd))
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
        Kind::Allocate { pos, len } => opcode::Fallocate::new(types::Fd(fd), *len)
            .offset(*pos)
            .build(),
        Kind::Open { flags } => {
            let path = op.path.as_ref().expect("an open has a path").as_ptr();
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path)
                .flags(*flags)
                .mode(0o644)
                .build()
        }
    }
}

/// What a completion means for its operation. `None`: a part is done, the rest is to be pushed.
fn outcome(op: &mut Op, result: i32) -> Option<io::Result<Outcome>> {
    if result < 0 {
        let e = io::Error::from_raw_os_error(-result);
        // A read that the kernel put off asks for nothing but another try; a write or sync that failed is never tried again.
        if matches!(op.kind, Kind::Read { .. }) && matches!(-result, libc::EAGAIN | libc::EINTR) {
            return None;
        }
        return Some(Err(e));
    }
    let n = result as usize;
    let wanted = op.buf.as_ref().map_or(0, |b| b.len());
    match op.kind {
        Kind::Read { .. } => {
            op.done += n;
            let ended = n == 0 || op.done >= wanted || !op.done.is_multiple_of(BLOCK_BYTES);
            ended.then_some(Ok(Outcome::Bytes(op.done)))
        }
        Kind::Write { .. } => {
            op.done += n;
            if n == 0 || (op.done < wanted && !op.done.is_multiple_of(BLOCK_BYTES)) {
                return Some(Err(io::ErrorKind::WriteZero.into()));
            }
            (op.done >= wanted).then_some(Ok(Outcome::Bytes(op.done)))
        }
        Kind::Open { .. } => {
            // SAFETY: the kernel has just opened it for us; nobody else has it.
            Some(Ok(Outcome::Opened(unsafe { OwnedFd::from_raw_fd(result) })))
        }
        Kind::Sync | Kind::Allocate { .. } => Some(Ok(Outcome::Bytes(0))),
    }
}

/// Reaps completions until the shard ends.
async fn drive(disk: Rc<Disk>) {
    let mut progress = super::now();
    while !disk.ended.get() {
        if disk.turn() > 0 || disk.poked.replace(false) {
            progress = super::now();
        }
        if disk.spin && disk.journal.get() > 0 && progress.elapsed() < POLL {
            std::thread::yield_now();
            glommio::executor().yield_task_queue_now().await;
        } else if disk.ops.borrow().is_empty() {
            std::future::poll_fn(|cx| {
                if disk.ops.borrow().is_empty() && !disk.ended.get() {
                    *disk.driver.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            })
            .await;
        } else {
            park(&disk).await;
        }
    }
}

/// Waits until the ring's eventfd is signalled or the driver is poked.
async fn park(disk: &Rc<Disk>) {
    let mut count = [0u8; 8];
    // SAFETY: reads eight bytes into a buffer of ours. It fails when there is no signal, which is as well.
    unsafe { libc::read(disk.event.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    // What completed before the signal was cleared; what completes after this signals again.
    if disk.turn() > 0 {
        disk.poked.set(true);
        return;
    }
    let Ok(event) = disk.event.try_clone() else {
        super::sleep(Duration::from_millis(1)).await; // Out of descriptors: look again soon.
        return;
    };
    // glommio polls only what it takes for a socket. Its poll completes when the eventfd is readable; the read that follows
    // says ENOTSOCK, which means ready.
    // SAFETY: the descriptor is ours and handed over.
    let mut socket = unsafe { UnixStream::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(event)) };
    std::future::poll_fn(|cx| {
        if disk.poked.get() {
            return Poll::Ready(());
        }
        *disk.driver.borrow_mut() = Some(cx.waker().clone());
        Pin::new(&mut socket).poll_read(cx, &mut []).map(|_| ())
    })
    .await;
    *disk.driver.borrow_mut() = None;
}
