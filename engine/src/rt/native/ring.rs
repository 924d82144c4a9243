//! A shard's io_uring ring: its files, its sockets' readiness, and its sleep.
//!
//! SINGLE_ISSUER, DEFER_TASKRUN and TASKRUN_FLAG, journal files registered: measured, this has the shortest tail. A journal write is synced by itself (RWF_DSYNC) or by a sync behind it, see [`Durable`]. The kernel runs its part of
//! a completion when we enter it, and says by a flag that there is something to run; the executor looks at that flag each turn and in its spins.
//! Entries are submitted together, at the end of each turn; journal writes at once.
//!
//! Invariants: an operation's buffer, path and file live in its slot of `ops` until its completion was seen, whoever still waits for it; a ring with
//! buffers in the kernel's hands is never closed ([`Ring::quiesce`]). The ring is used by its shard's thread alone.
//!
//! Bounds: `limits::DISK_OPS_IN_FLIGHT` operations on files, more wait in line; `limits::JOURNAL_WRITES_IN_FLIGHT`; one poll per task that waits for a socket.
//!
//! `unsafe`: pushing entries that point to memory of the slot; system calls on descriptors of ours.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use slab::Slab;

use crate::limits::{BLOCK_BYTES, DISK_OPS_IN_FLIGHT, JOURNAL_WRITES_IN_FLIGHT};
use crate::memory::{Line, Share};
use crate::rt::AlignedBuf;

/// Entries of the submission queue; when it is full it is submitted.
const ENTRIES: u32 = 512;
/// Entries of the completion queue; when it is full the kernel keeps the rest.
const COMPLETIONS: u32 = 4096;
/// User data of the poll of the eventfd, and of what nobody waits for.
const EVENT: u64 = u64::MAX;
const NOBODY: u64 = u64::MAX - 1;
/// Registered files: journals that a shard has open at one time; more are used unregistered.
const REGISTERED: u32 = 64;

/// See the module.
pub struct Ring {
    ring: RefCell<IoUring>,
    event: Event,
    ops: RefCell<Slab<Op>>,
    /// Journal writes in flight.
    commits: Cell<usize>,
    /// Operations in flight that are not polls.
    at_disk: Cell<usize>,
    /// Room for operations on files, first come, first served.
    room: Rc<Line>,
    /// Free slots of the registered files.
    slots: RefCell<Vec<u32>>,
    /// Something other than a completion needs a turn.
    news: Cell<bool>,
}

/// An eventfd with which other threads wake the shard. Clones are the same one.
#[derive(Clone)]
pub struct Event(Arc<OwnedFd>);

impl Event {
    pub fn new() -> io::Result<Event> {
        // SAFETY: makes a new descriptor or fails.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(super::launch::explain(io::Error::last_os_error()));
        }
        // SAFETY: just made, nobody else has it.
        Ok(Event(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: reads eight bytes of ours. It fails only when the count is full, and then the event is signalled anyway.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: writes eight bytes into a buffer of ours. It fails when there is no signal, which is as well.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// An open file, perhaps registered with the ring.
pub struct Handle {
    fd: OwnedFd,
    slot: Option<u32>,
    /// How its journal writes become durable.
    durable: Durable,
    ring: Weak<Ring>,
}

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Not by itself.
    No,
    /// With RWF_DSYNC: for disks that need no flush, or write through on request (FUA).
    WithIt,
    /// By a sync behind it. A flush that belongs to a write is made by a kernel worker on the core where the disk's interrupts arrive, and waits there for
    /// whoever computes (docs/measured.md); one that is asked for by itself is made by a worker of this ring, on this shard's core.
    Behind,
    /// The same, and the bytes are written.
    Syncing,
}

pub enum Kind {
    Read {
        pos: u64,
    },
    Write {
        pos: u64,
        durable: Durable,
    },
    Sync,
    Allocate {
        pos: u64,
        len: u64,
    },
    Open {
        flags: i32,
    },
    /// Waits until a descriptor is ready for `events` (poll(2)).
    Poll {
        events: u32,
    },
}

struct Op {
    kind: Kind,
    file: Option<Rc<dyn AsFd>>,
    /// The file's slot among the registered ones.
    slot: Option<u32>,
    buf: Option<AlignedBuf>,
    path: Option<CString>,
    /// Bytes read or written so far.
    done: usize,
    state: State,
    /// Given back when the slot is freed.
    _room: Option<Share>,
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
    ring: Rc<Ring>,
    key: Option<usize>,
}

impl Ring {
    pub fn new(event: &Event) -> io::Result<Rc<Ring>> {
        let ring = make_ring().map_err(super::launch::explain)?;
        let slots = match ring.submitter().register_files_sparse(REGISTERED) {
            Ok(()) => (0..REGISTERED).rev().collect(),
            Err(_) => Vec::new(), // Before Linux 5.19: files are used unregistered.
        };
        let ring = Ring {
            ring: RefCell::new(ring),
            event: event.clone(),
            ops: RefCell::new(Slab::new()),
            commits: Cell::new(0),
            at_disk: Cell::new(0),
            room: Line::new(DISK_OPS_IN_FLIGHT as u64),
            slots: RefCell::new(slots),
            news: Cell::new(false),
        };
        ring.arm_event();
        Ok(Rc::new(ring))
    }

    pub fn handle(self: &Rc<Self>, fd: OwnedFd) -> Handle {
        self.journal_handle(fd, Durable::No)
    }

    /// A file for [`Ring::journal_write`], registered if there is room.
    pub fn journal_handle(self: &Rc<Self>, fd: OwnedFd, durable: Durable) -> Handle {
        let mut slot = None;
        if durable != Durable::No
            && let Some(s) = self.slots.borrow_mut().pop()
        {
            let ring = self.ring.borrow();
            match ring.submitter().register_files_update(s, &[fd.as_raw_fd()]) {
                Ok(_) => slot = Some(s),
                Err(_) => self.slots.borrow_mut().push(s),
            }
        }
        Handle {
            fd,
            slot,
            durable,
            ring: Rc::downgrade(self),
        }
    }

    /// Starts an operation on a file when there is room for it.
    pub async fn run(
        self: &Rc<Self>,
        file: Option<Rc<Handle>>,
        kind: Kind,
        buf: Option<AlignedBuf>,
        path: Option<CString>,
    ) -> (io::Result<Outcome>, Option<AlignedBuf>) {
        let room = self.room.take(1).await;
        let slot = file.as_ref().and_then(|f| f.slot);
        self.start(Op {
            kind,
            file: file.map(|f| f as Rc<dyn AsFd>),
            slot,
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
            self.commits.get() < JOURNAL_WRITES_IN_FLIGHT,
            "the log bounds its commits in flight"
        );
        self.commits.set(self.commits.get() + 1);
        assert!(
            file.durable != Durable::No,
            "journal writes go to a journal's handle"
        );
        let (slot, durable) = (file.slot, file.durable);
        let completion = self.start(Op {
            kind: Kind::Write { pos, durable },
            file: Some(file),
            slot,
            buf: Some(buf),
            path: None,
            done: 0,
            state: State::Running(None),
            _room: None,
        });
        self.submit();
        completion
    }

    /// Waits until the descriptor is ready. Dropping the future takes the poll back.
    pub async fn ready(self: &Rc<Self>, fd: Rc<dyn AsFd>, events: i16) -> io::Result<()> {
        let polled = self.start(Op {
            kind: Kind::Poll {
                events: events as u32,
            },
            file: Some(fd),
            slot: None,
            buf: None,
            path: None,
            done: 0,
            state: State::Running(None),
            _room: None,
        });
        polled.await.0.map(|_| ())
    }

    /// Whether operations on files are in flight.
    pub fn is_at_the_disk(&self) -> bool {
        self.at_disk.get() > 0
    }

    /// Whether `turn` would find something.
    pub fn has_news(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let queue = ring.submission();
        self.news.get() || queue.taskrun() || queue.cq_overflow() || {
            drop(queue);
            !ring.completion().is_empty()
        }
    }

    /// Makes the next look at the ring find something to do.
    pub fn note_news(&self) {
        self.news.set(true);
    }

    /// Runs what the kernel has deferred to us and takes the completions. The number taken.
    pub fn turn(&self) -> usize {
        self.news.set(false);
        let mut taken = 0;
        loop {
            let mut ring = self.ring.borrow_mut();
            let queue = ring.submission();
            let enter = queue.taskrun() || queue.cq_overflow();
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
            match cqe.user_data() {
                NOBODY => {}
                EVENT => {
                    self.event.clear();
                    self.arm_event();
                }
                key => self.complete(key as usize, cqe.result()),
            }
        }
    }

    /// Submits what was pushed, if anything. True if there was something.
    pub fn submit_pending(&self) -> bool {
        let pending = !self.ring.borrow_mut().submission().is_empty();
        if pending {
            self.submit();
        }
        pending
    }

    /// Submits what was pushed and sleeps until a completion, or for so long.
    pub fn wait(&self, longest: Option<Duration>) {
        if self.news.get() || longest == Some(Duration::ZERO) {
            return;
        }
        let ring = self.ring.borrow();
        let result = match longest {
            None => ring.submitter().submit_and_wait(1),
            Some(d) => {
                let d = types::Timespec::from(d);
                ring.submitter()
                    .submit_with_args(1, &types::SubmitArgs::new().timespec(&d))
            }
        };
        if let Err(e) = result {
            let expected = matches!(
                e.raw_os_error(),
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
            );
            assert!(expected, "io_uring could not wait: {e}");
        }
    }

    /// Blocks until the kernel has no memory of ours any more. At the end of a shard.
    pub fn quiesce(&self) {
        while self.at_disk.get() > 0 {
            if self.turn() == 0 {
                self.wait(None);
            }
        }
    }

    fn arm_event(&self) {
        let fd = types::Fd(self.event.0.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32)
            .build()
            .user_data(EVENT);
        // SAFETY: a poll has no memory; the eventfd lives as long as the ring.
        unsafe { self.push_entry(&entry) };
    }

    fn start(self: &Rc<Self>, op: Op) -> Completion {
        if is_at_disk(&op.kind) {
            self.at_disk.set(self.at_disk.get() + 1);
        }
        let key = self.ops.borrow_mut().insert(op);
        self.push(key);
        Completion {
            ring: self.clone(),
            key: Some(key),
        }
    }

    /// Puts the rest of an operation into the ring's submission queue.
    fn push(&self, key: usize) {
        let mut ops = self.ops.borrow_mut();
        let entry = entry(&mut ops[key]).user_data(key as u64);
        drop(ops);
        // SAFETY: the entry points to the buffer or path in the operation's slot. Both are heap memory that stays in place when the slab moves
        // the slot, and the slot is freed in `complete` or later, after the kernel is done. The file is open: the slot holds it.
        unsafe { self.push_entry(&entry) };
    }

    /// # Safety
    /// What the entry points to lives until its completion has been taken.
    unsafe fn push_entry(&self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the caller's.
            let pushed = unsafe { self.ring.borrow_mut().submission().push(entry) };
            if pushed.is_ok() {
                return;
            }
            self.submit();
            if self.ring.borrow_mut().submission().is_full() {
                self.turn(); // The kernel takes no more before we take some.
            }
        }
    }

    /// Tells the kernel. What it doesn't take now (it is short of memory, say) goes with the next turn.
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

    fn complete(&self, key: usize, result: i32) {
        let mut ops = self.ops.borrow_mut();
        let op = &mut ops[key];
        let Some(outcome) = outcome(op, result) else {
            drop(ops);
            self.push(key); // A part of it was done.
            self.submit();
            return;
        };
        if is_durable(&op.kind) {
            self.commits.set(self.commits.get() - 1);
        }
        if is_at_disk(&op.kind) {
            self.at_disk.set(self.at_disk.get() - 1);
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

impl Drop for Ring {
    fn drop(&mut self) {
        self.quiesce();
    }
}

impl Handle {
    /// A second descriptor of the same open file.
    pub fn second(&self) -> io::Result<std::fs::File> {
        self.fd.try_clone().map(Into::into)
    }

    /// The file's length in bytes. The inode of an open file is in memory: this doesn't block.
    pub fn len(&self) -> io::Result<u64> {
        status(&self.fd).map(|s| s.st_size as u64)
    }
}

/// fstat.
pub fn status(fd: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: all-zero is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes one stat, which is ours.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat)
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let (Some(slot), Some(ring)) = (self.slot, self.ring.upgrade())
            && let Ok(uring) = ring.ring.try_borrow()
            && uring.submitter().register_files_update(slot, &[-1]).is_ok()
        {
            ring.slots.borrow_mut().push(slot);
        }
    }
}

impl Future for Completion {
    type Output = (io::Result<Outcome>, Option<AlignedBuf>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self
            .key
            .expect("a completion is not polled again after it was ready");
        let mut ops = self.ring.ops.borrow_mut();
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
        let mut ops = self.ring.ops.borrow_mut();
        let op = &mut ops[key];
        if matches!(op.state, State::Done(_)) {
            let op = ops.remove(key);
            drop(ops);
            drop(op);
            return;
        }
        op.state = State::Abandoned;
        let polls = matches!(op.kind, Kind::Poll { .. });
        drop(ops);
        if polls {
            let entry = opcode::AsyncCancel::new(key as u64)
                .build()
                .user_data(NOBODY);
            // SAFETY: a cancellation has no memory.
            unsafe { self.ring.push_entry(&entry) };
        }
    }
}

/// Polls may be left behind when a ring is closed: they have no memory of ours.
fn is_at_disk(kind: &Kind) -> bool {
    !matches!(kind, Kind::Poll { .. })
}

fn is_durable(kind: &Kind) -> bool {
    matches!(kind, Kind::Write { durable, .. } if *durable != Durable::No)
}

/// A ring with the flags that measured best, or without those that an older kernel doesn't know.
fn make_ring() -> io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(ENTRIES);
    match best {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES)
        }
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
    let fd = op.file.as_ref().map_or(-1, |f| f.as_fd().as_raw_fd());
    let slot = op.slot;
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
        Kind::Write {
            durable: Durable::Syncing,
            ..
        } => sync(fd, slot),
        Kind::Write { pos, durable } => {
            let (start, len) = rest(&mut op.buf);
            let offset = pos + done as u64;
            let flags = match durable {
                Durable::WithIt => libc::RWF_DSYNC,
                _ => 0,
            };
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
        Kind::Sync => sync(fd, None),
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
        Kind::Poll { events } => opcode::PollAdd::new(types::Fd(fd), *events).build(),
    }
}

fn sync(fd: i32, slot: Option<u32>) -> squeue::Entry {
    let entry = match slot {
        Some(s) => opcode::Fsync::new(types::Fixed(s)),
        None => opcode::Fsync::new(types::Fd(fd)),
    };
    entry.flags(types::FsyncFlags::DATASYNC).build()
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
    match &mut op.kind {
        Kind::Read { .. } => {
            op.done += n;
            let ended = n == 0 || op.done >= wanted || !op.done.is_multiple_of(BLOCK_BYTES);
            ended.then_some(Ok(Outcome::Bytes(op.done)))
        }
        Kind::Write {
            durable: Durable::Syncing,
            ..
        } => Some(Ok(Outcome::Bytes(op.done))),
        Kind::Write { durable, .. } => {
            op.done += n;
            if n == 0 || (op.done < wanted && !op.done.is_multiple_of(BLOCK_BYTES)) {
                return Some(Err(io::ErrorKind::WriteZero.into()));
            }
            if op.done < wanted {
                return None;
            }
            if *durable == Durable::Behind {
                *durable = Durable::Syncing;
                return None;
            }
            Some(Ok(Outcome::Bytes(op.done)))
        }
        Kind::Open { .. } => {
            // SAFETY: the kernel has just opened it for us; nobody else has it.
            Some(Ok(Outcome::Opened(unsafe { OwnedFd::from_raw_fd(result) })))
        }
        Kind::Sync | Kind::Allocate { .. } | Kind::Poll { .. } => Some(Ok(Outcome::Bytes(0))),
    }
}
