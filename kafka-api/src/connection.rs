//! A client's connection, from accept to end, on the shard that accepted it.
//!
//! Two tasks: the reader takes frames off the socket and begins Produce requests (checked and appended in the order in which they came); the writer
//! settles them, carries out all other requests when it is their turn, and writes the answers, strictly in request order. Between them
//! is a queue of at most [`limits::REQUESTS_IN_FLIGHT`] Produce requests, and of a quarter of a class of memory at most unless it is one alone. Of all others one at a time is taken in, as by Kafka, and
//! nothing behind it before its answer is written: so what is sent behind a long poll waits in the client's socket, but for a few KiB by which is seen whether the client
//! has left. A client that doesn't read its answers holds one answer and those requests, and is cut off after [`limits::WRITE_STALL`], or sooner if others want the memory. Whoever waits for
//! something to happen gives its request's memory back first (see [`crate::handlers::dispatch`]).
//!
//! Memory: an idle connection holds no buffer. Small frames share one read buffer and are leased from the budget as soon as they are whole; a
//! larger one gets a buffer of its own, leased before it is read, very large ones piece by piece (see [`large`]). A frame that has begun must
//! be whole in time; what we wait for, memory or the answer before it, isn't taken off that time. What cannot be read closes the connection, with a line in the log.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use engine::line_limit::LineLimit;
use engine::memory::{Lease, Leases, MemoryClass, TooLarge};
use engine::rt::{self, Instant, Queue, TcpListener, TcpStream};
use slab::Slab;
use smallvec::SmallVec;
use thiserror::Error;

use crate::error::{self, ErrorCode, Malformed};
use crate::frame::{self, ClientId, Frame, Request};
use crate::handlers::{api_versions, produce};
use crate::limits;
use crate::quotas::{self, Kind};
use crate::shard::Shard;
use crate::sync::Pipe;
use crate::versions::ApiKey;

mod admit;
mod large;
mod lines;
mod throttle;
mod writing;

use large::{class_of, read_large, sift_too_large, too_large};
use lines::Lines;
use throttle::charge_produce;
use writing::write_loop;

/// The connections of a shard and its idle read buffers.
#[derive(Default)]
pub struct Connections {
    open: RefCell<Slab<Rc<Connection>>>,
    spare: RefCell<Vec<BytesMut>>,
    /// Bytes that were read behind requests that aren't answered yet.
    ahead: Cell<u64>,
    /// Refused ones that are closed a little later.
    closing: Cell<usize>,
    pub(crate) lines: Lines,
}

/// What both tasks and the sweeper know of a connection.
struct Connection {
    stream: TcpStream,
    peer: Option<SocketAddr>,
    /// It came to the shard's own listener.
    direct: bool,
    replies: Pipe<Reply>,
    /// When something last arrived or was written.
    active: Cell<Instant>,
    /// By when the frame that is arriving must be whole.
    frame_due: Cell<Option<Instant>>,
    /// The class of memory that holds a frame that isn't whole, and the bytes that it still misses; 0 when there is none.
    missing: Cell<(MemoryClass, usize)>,
    /// Its frame waits for memory: it is not the client that holds it up.
    wants_memory: Cell<bool>,
    /// By when the write under way must be done.
    write_due: Cell<Option<Instant>>,
    /// The writer is at work for the client, which may take long.
    busy: Cell<bool>,
    /// A request other than Produce was taken in, and its answer isn't written yet.
    answering: Cell<bool>,
    /// Bytes that Produce requests hold which aren't answered.
    producing: Cell<u64>,
    /// The reader waits until they hold less.
    wants_room: Cell<bool>,
    /// No more requests are read; what was read is still answered.
    draining: Cell<bool>,
    /// What was refused, in the log.
    refusals: LineLimit,
    /// It is over: whoever waits for something on its behalf stops.
    ended: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    /// Until when nothing is taken in: its client uses too much (KIP-219).
    muted_until: Cell<Option<Instant>>,
}

/// A request on its way to its answer.
enum Reply {
    Ready(Bytes),
    Produce {
        pending: Box<produce::Pending>,
        arrived: rt::Instant,
        memory: Leases,
    },
    /// Carried out when it is its turn.
    Later {
        request: Request,
        memory: Leases,
    },
}

/// Why a connection ends.
#[derive(Debug, Error)]
enum End {
    #[error("the client left")]
    Left,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{error}; client id {client}")]
    Malformed { error: Malformed, client: ClientId },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("it sends more ahead of its answers than there is memory for")]
    TooFarAhead,
    #[error("a batch sent with acks=0 was refused")]
    Unacknowledged,
}

impl From<Malformed> for End {
    fn from(error: Malformed) -> End {
        End::Malformed {
            error,
            client: ClientId::default(),
        }
    }
}

impl Shard {
    /// Looks after connections and quotas for ever.
    pub async fn sweep(self: &Rc<Self>) {
        let mut next = rt::now() + limits::SWEEP;
        loop {
            rt::sleep(limits::LAST_WORD).await;
            self.connections.lines.tell_the_rest();
            if rt::now() < next {
                continue;
            }
            next = rt::now() + limits::SWEEP;
            let waiting =
                [MemoryClass::Fetch, MemoryClass::Answers].map(|class| self.budget.waiting(class));
            let pressed = waiting != [0, 0] || self.large_answers.waiting() > 0;
            self.connections.sweep(self.idle(), pressed);
            self.sweep_quotas();
        }
    }

    /// Accepts connections for ever. `direct`: the listener is this shard's own, not the node's.
    pub async fn serve_connections(self: &Rc<Self>, listener: TcpListener, direct: bool) {
        let most = most_connections(self.shards);
        let (too_many, not_accepted) = (LineLimit::default(), LineLimit::default());
        let turned_away = LineLimit::default();
        loop {
            let stream = match listener.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    // The system is out of descriptors, most likely: others must end first.
                    if let Some(kept_back) = not_accepted.pass(rt::now()) {
                        tracing::warn!(%error, kept_back, "a connection could not be accepted");
                    }
                    rt::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let open = self.connections.open.borrow().len();
            if open + self.connections.closing.get() >= most {
                if let Some(kept_back) = too_many.pass(rt::now()) {
                    tracing::warn!(
                        kept_back,
                        most,
                        "a connection was refused: there are too many (their number follows from `ulimit -n`)"
                    );
                }
                stream.shutdown();
            } else {
                let limited = self.limits_connections();
                let ip = if limited {
                    self.admit(&stream, &turned_away).await
                } else {
                    None
                };
                if !limited || ip.is_some() {
                    // In the books from here on: what has been accepted counts before its task runs.
                    let entry = Entry::new(self.clone(), stream, ip, direct);
                    rt::spawn(Queue::Latency, serve(entry)).detach();
                }
            }
            rt::yield_if_needed().await;
        }
    }

    /// Ends all connections as soon as what they have asked is answered; long polls are answered now. Their number reaches 0 when all have ended.
    pub fn close_connections(&self) {
        self.fetches.hurry();
        self.coordinators.calls.hurry();
        for (_, connection) in self.connections.open.borrow().iter() {
            connection.drain();
        }
    }

    fn idle(&self) -> Duration {
        let ms = self.config.broker.connections_max_idle_ms;
        u64::try_from(ms).map_or(limits::IDLE, Duration::from_millis)
    }
}

/// Connections of a shard: what descriptors files leave them.
fn most_connections(shards: u16) -> usize {
    let division = engine::descriptors::divide(rt::descriptors(), shards);
    division.map_or(0, |d| d.connections.min(limits::CONNECTIONS))
}

impl Connections {
    /// Ends connections that are past a deadline.
    fn sweep(&self, idle: Duration, pressed: bool) {
        let now = rt::now();
        // Deadlines of writes are set for when nobody waits.
        let write_now = if pressed {
            now + (limits::WRITE_STALL - limits::WRITE_STALL_PRESSED)
        } else {
            now
        };
        for (_, c) in self.open.borrow().iter() {
            let due = |at: &Cell<Option<Instant>>, now| at.get().is_some_and(|at| at <= now);
            let why = if due(&c.frame_due, now) {
                "its request did not arrive in time"
            } else if due(&c.write_due, write_now) {
                "it does not read its answers"
            } else if !c.busy.get() && c.active.get() + idle <= now {
                "it was idle"
            } else {
                continue;
            };
            if let Some(kept_back) = self.lines.end(now) {
                tracing::info!(peer = %c.name(), why, kept_back, "a connection is closed");
            }
            c.end();
        }
    }

    /// Cuts off the connection whose frame is the farthest from being whole of those with memory of the class, if it got nothing for a while. One that
    /// misses `missing` bytes wants the memory; if it has none yet, it may be the farther one itself. So that frames which never end, or hold memory and wait for more,
    /// can't keep others out. Those whose clients don't send come first.
    fn shed(&self, class: MemoryClass, missing: usize, has_none: bool) {
        let now = rt::now();
        let open = self.open.borrow();
        let worst = open
            .iter()
            .map(|(_, c)| c)
            .filter(|c| {
                let (of, misses) = c.missing.get();
                let farther = misses > missing || has_none && misses > 0;
                of == class && farther && c.active.get() + limits::STALLED <= now
            })
            .max_by_key(|c| (!c.wants_memory.get(), c.missing.get().1));
        if let Some(c) = worst {
            if let Some(kept_back) = self.lines.end(now) {
                tracing::warn!(peer = %c.name(), missing = c.missing.get().1, kept_back, "a connection is closed: its request arrives too slowly for the memory there is");
            }
            c.missing.set((class, 0));
            c.end();
        }
    }

    fn buffer(&self) -> BytesMut {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    fn give_back(&self, buffer: BytesMut) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < limits::SPARE_BUFFERS {
            spare.push(buffer);
        }
    }
}

impl Connection {
    fn end(&self) {
        self.ended.set(true);
        self.stream.shutdown();
        self.replies.close();
        self.wake_reader();
    }

    fn wake_reader(&self) {
        let waker = self.reader.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for something on behalf of a request that isn't whole or taken in yet, unless the connection ends or drains meanwhile.
    async fn while_reading<F: Future>(&self, wait: F) -> Result<F::Output, End> {
        let mut wait = pin!(wait);
        poll_fn(|cx| {
            if self.ended.get() || self.draining.get() {
                return Poll::Ready(Err(End::Left));
            }
            if let Poll::Ready(output) = wait.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            *self.reader.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The same with time that the client isn't charged for.
    async fn off_the_clock<F: Future>(&self, wait: F) -> F::Output {
        let (due, began) = (self.frame_due.take(), rt::now());
        let output = wait.await;
        let waited = rt::now().saturating_duration_since(began);
        self.frame_due.set(due.map(|due| due + waited));
        output
    }

    /// Waits until `done`; whatever changes it wakes the reader.
    async fn until(&self, done: impl Fn(&Connection) -> bool) -> Result<(), End> {
        let done = poll_fn(|_| match done(self) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        self.off_the_clock(self.while_reading(done)).await
    }

    /// Waits until the answer ahead is written or bytes are there, and says whether it is the bytes.
    async fn answered_or_readable(&self) -> Result<bool, End> {
        let mut readable = pin!(self.stream.readable());
        let either = poll_fn(|cx| {
            if !self.answering.get() {
                return Poll::Ready(Ok(false));
            }
            readable
                .as_mut()
                .poll(cx)
                .map(|result| result.map(|()| true))
        });
        Ok(self.while_reading(either).await??)
    }

    /// A request's answer is written.
    fn is_free(&self) {
        if self.answering.replace(false) {
            self.wake_reader();
        }
    }

    fn drain(&self) {
        self.draining.set(true);
        self.wake_reader();
    }

    /// Waits for bytes; false when no more shall be read.
    async fn readable(&self) -> io::Result<bool> {
        let mut readable = pin!(self.stream.readable());
        poll_fn(|cx| {
            if self.draining.get() {
                return Poll::Ready(Ok(false));
            }
            if let Poll::Ready(result) = readable.as_mut().poll(cx) {
                return Poll::Ready(result.map(|()| true));
            }
            *self.reader.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn name(&self) -> String {
        self.peer
            .map_or_else(|| "unknown".to_string(), |p| p.to_string())
    }
}

/// Leaves the shard's books when the connection's task ends, however it ends.
struct Entry {
    shard: Rc<Shard>,
    connection: Rc<Connection>,
    key: usize,
    /// Its address, if it was let in with that.
    ip: Option<IpAddr>,
}

impl Entry {
    fn new(shard: Rc<Shard>, stream: TcpStream, ip: Option<IpAddr>, direct: bool) -> Entry {
        let connection = Rc::new(Connection {
            peer: stream.peer_addr().ok(),
            direct,
            stream,
            replies: Pipe::new(limits::REQUESTS_IN_FLIGHT),
            active: Cell::new(rt::now()),
            frame_due: Cell::new(None),
            missing: Cell::new((MemoryClass::PartialFrames, 0)),
            wants_memory: Cell::new(false),
            write_due: Cell::new(None),
            busy: Cell::new(false),
            answering: Cell::new(false),
            producing: Cell::new(0),
            wants_room: Cell::new(false),
            draining: Cell::new(false),
            refusals: LineLimit::default(),
            ended: Cell::new(false),
            reader: RefCell::default(),
            muted_until: Cell::new(None),
        });
        let (key, open) = {
            let mut open = shard.connections.open.borrow_mut();
            (open.insert(connection.clone()), open.len())
        };
        shard.metrics.connections.set(open as u64);
        let memory = shard.budget.meter(MemoryClass::Cache);
        memory.add(limits::CONNECTION_BYTES);
        Entry {
            shard,
            connection,
            key,
            ip,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shard.connections.open.borrow_mut().remove(self.key);
        let memory = self.shard.budget.meter(MemoryClass::Cache);
        memory.sub(limits::CONNECTION_BYTES);
        self.connection.end();
        if let Some(ip) = self.ip {
            self.shard.left(ip);
        }
        let open = self.shard.connections.open.borrow().len();
        self.shard.metrics.connections.set(open as u64);
    }
}

async fn serve(entry: Entry) {
    let (shard, connection) = (entry.shard.clone(), entry.connection.clone());
    let writer = rt::spawn(Queue::Latency, {
        let (shard, connection) = (shard.clone(), connection.clone());
        async move {
            let end = write_loop(&shard, &connection).await;
            // The reader learns of it from the socket.
            connection.end();
            report(&shard, &connection, end);
        }
    });
    let end = match read_loop(&shard, &connection).await {
        // What was taken in is still answered.
        Err(End::Left) if connection.draining.get() && !connection.ended.get() => Ok(()),
        end => end,
    };
    connection.frame_due.set(None);
    connection.replies.close();
    if end.is_ok() {
        writer.await;
    } else {
        // A client that is gone, or not to be trusted, is owed no more answers: long polls end here.
        drop(writer);
    }
    report(&shard, &connection, end);
    let lines = &shard.connections.lines;
    if let Some((kept_back, of_all)) = lines.refusals_at_end(&connection.refusals, rt::now()) {
        tracing::warn!(peer = %connection.name(), kept_back, of_all, "more requests of a connection were refused");
    }
}

fn report(shard: &Shard, connection: &Connection, end: Result<(), End>) {
    match end {
        Ok(()) | Err(End::Left | End::Io(_)) => {}
        Err(why) => {
            if matches!(why, End::Malformed { .. }) {
                shard.metrics.malformed_requests.increment();
            }
            if let Some(kept_back) = shard.connections.lines.end(rt::now()) {
                tracing::warn!(peer = %connection.name(), %why, kept_back, "a connection is closed");
            }
        }
    }
}

/// Reads frames until the connection ends.
async fn read_loop(shard: &Rc<Shard>, connection: &Connection) -> Result<(), End> {
    let mut buffer = BytesMut::new();
    let mut chunk = limits::READ_MIN_BYTES;
    // The last read got all that it had room for.
    let mut full = false;
    let most = usize::try_from(shard.config.broker.socket_request_max_bytes)
        .unwrap_or(limits::FRAME_BYTES);
    loop {
        while let Some(prefix) = buffer.first_chunk::<4>() {
            if connection.answering.get() {
                wait_for_the_answer(shard, connection, &mut buffer).await?;
                chunk = limits::READ_MIN_BYTES;
                continue;
            }
            if connection.muted_until.get().is_some() && !connection.readable_again().await {
                return Ok(());
            }
            let length = frame::frame_length(*prefix, most)?;
            if connection.producing.get() > 0 {
                let class = match 4 + length > limits::OWN_BUFFER_BYTES {
                    true => class_of(shard, length),
                    false => MemoryClass::Requests,
                };
                let share = shard.budget.cap(class) / limits::SHARE_OF_REQUESTS;
                let room = share.saturating_sub(length as u64);
                let fits = |c: &Connection| c.producing.get() <= room;
                connection.wants_room.set(true);
                connection.until(fits).await?;
                connection.wants_room.set(false);
            }
            let mut too_large_by = None;
            let (frame, memory) = if buffer.len() >= 4 + length {
                buffer.advance(4);
                let frame = buffer.split_to(length).freeze();
                connection.frame_due.set(None);
                let lease = lease(shard, MemoryClass::Requests, length);
                let lease = connection.while_reading(lease).await??;
                (frame, SmallVec::from_iter([lease]))
            } else if 4 + length > limits::OWN_BUFFER_BYTES {
                buffer.advance(4);
                let begun = buffer.split();
                too_large_by = too_large(shard, length);
                // In a box of its own, like everything that an idle connection doesn't need.
                match too_large_by {
                    Some(by) => {
                        let sifted = Box::pin(sift_too_large(shard, connection, begun, by));
                        connection.while_reading(sifted).await??
                    }
                    None => {
                        let large = Box::pin(read_large(shard, connection, begun, length));
                        connection.while_reading(large).await??
                    }
                }
            } else {
                break;
            };
            connection.frame_due.set(None);
            take_frame(shard, connection, frame, memory, too_large_by).await?;
        }
        if full {
            // There is more, most likely: reading finds out sooner than waiting.
            rt::yield_if_needed().await;
        } else if buffer.is_empty() {
            shard.connections.give_back(std::mem::take(&mut buffer));
            connection.frame_due.set(None);
            if !connection.readable().await? {
                return Ok(());
            }
            buffer = shard.connections.buffer();
        } else {
            if connection.frame_due.get().is_none() {
                let due = rt::now() + limits::PARTIAL_FRAME;
                connection.frame_due.set(Some(due));
            }
            if !connection.readable().await? {
                return Ok(());
            }
        }
        // It may have been muted while there was nothing to read.
        if connection.muted_until.get().is_some() && !connection.readable_again().await {
            return Ok(());
        }
        let n = read_some(shard, connection, &mut buffer, chunk)?;
        full = n == chunk;
        // The next read's room follows what clients send.
        if full {
            chunk = (2 * chunk).min(limits::READ_MAX_BYTES);
        } else if n < chunk / 4 {
            chunk = (chunk / 2).max(limits::READ_MIN_BYTES);
        }
    }
}

/// Waits until the request ahead is answered. What comes meanwhile is looked at only for the client's end of the connection; there is a bound on what is kept of it.
async fn wait_for_the_answer(
    shard: &Shard,
    connection: &Connection,
    buffer: &mut BytesMut,
) -> Result<(), End> {
    connection.frame_due.set(None);
    if buffer.len() <= limits::READ_AHEAD_BYTES {
        // Not with the room that it was read into.
        *buffer = BytesMut::from(&buffer[..]);
    } else {
        // Most answers come soon: producers ask for other things in between.
        let soon = connection.until(|c| !c.answering.get());
        if let Ok(answered) = rt::timeout(limits::LEASE_PATIENCE, soon).await {
            return answered;
        }
    }
    let _kept = Ahead::keep(shard, buffer.capacity())?;
    while connection.answering.get() {
        if buffer.len() >= limits::READ_AHEAD_BYTES {
            connection.until(|c| !c.answering.get()).await?;
        } else if connection.answered_or_readable().await? {
            read_some(shard, connection, buffer, limits::READ_AHEAD_BYTES)?;
        }
    }
    Ok(())
}

/// Bytes of requests that came with one whose answer is awaited: counted, and bounded for all connections together.
struct Ahead<'a> {
    shard: &'a Shard,
    bytes: u64,
}

impl<'a> Ahead<'a> {
    fn keep(shard: &'a Shard, bytes: usize) -> Result<Ahead<'a>, End> {
        let bytes = match bytes <= limits::READ_AHEAD_BYTES {
            true => 0,
            false => bytes as u64,
        };
        let ahead = &shard.connections.ahead;
        let all = shard.budget.cap(MemoryClass::Cache) / 4;
        if bytes > 0 && ahead.get() + bytes > all {
            return Err(End::TooFarAhead);
        }
        ahead.set(ahead.get() + bytes);
        shard.budget.meter(MemoryClass::Cache).add(bytes);
        Ok(Ahead { shard, bytes })
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        let ahead = &self.shard.connections.ahead;
        ahead.set(ahead.get() - self.bytes);
        self.shard.budget.meter(MemoryClass::Cache).sub(self.bytes);
    }
}

/// Reads what is there, at most `room` bytes, to the end of `buffer`. 0 when there was nothing after all.
fn read_some(
    shard: &Shard,
    connection: &Connection,
    buffer: &mut BytesMut,
    room: usize,
) -> Result<usize, End> {
    let have = buffer.len();
    buffer.resize(have + room, 0);
    let result = connection.stream.try_read(&mut buffer[have..]);
    let n = match result {
        Ok(n) => n,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            buffer.truncate(have);
            return Ok(0);
        }
        Err(e) => return Err(e.into()),
    };
    buffer.truncate(have + n);
    if n == 0 {
        return Err(End::Left);
    }
    connection.active.set(rt::now());
    shard.metrics.bytes_in.add(n as u64);
    Ok(n)
}

async fn lease(shard: &Shard, class: MemoryClass, bytes: usize) -> Result<Lease, TooLarge> {
    match shard.budget.try_take(class, bytes as u64) {
        Some(lease) => Ok(lease),
        None => shard.budget.take(class, bytes as u64).await,
    }
}

/// Puts a request into the queue; a Produce request is checked and appended first, or refused if it was too large to be kept.
async fn take_frame(
    shard: &Rc<Shard>,
    connection: &Connection,
    frame: Bytes,
    memory: Leases,
    too_large: Option<TooLarge>,
) -> Result<(), End> {
    if !connection.replies.room().await {
        return Err(End::Left);
    }
    shard.metrics.requests.increment();
    let arrived = rt::now();
    let request = match frame::parse(frame)? {
        Frame::UnknownApiVersions { correlation_id } => {
            let answer = api_versions::unknown_version(correlation_id);
            let code = ErrorCode::UnsupportedVersion.code();
            shard.metrics.refusals.add(error::name(code), 1);
            connection.replies.push(Reply::Ready(answer));
            return Ok(());
        }
        Frame::Request(request) => Request {
            peer: connection.peer,
            direct: connection.direct,
            ..request
        },
    };
    if request.api.key != ApiKey::Produce {
        connection.answering.set(true);
        connection.replies.push(Reply::Later { request, memory });
        return Ok(());
    }
    let client = request.client_id.clone();
    // What came is charged, also what wasn't kept.
    let bytes = too_large.map_or(request.body.left(), |by| by.asked as usize);
    let measured = shard.has_quotas(Kind::Produced) || shard.has_quotas(Kind::Time);
    let (began, spent_ns) = if measured {
        Box::pin(quotas::timed(produce::begin(shard, request, too_large))).await
    } else {
        (Box::pin(produce::begin(shard, request, too_large)).await, 0)
    };
    let mut pending = began.map_err(|error| End::Malformed {
        error,
        client: client.clone(),
    })?;
    if measured {
        let throttle_ms = Box::pin(charge_produce(shard, &client, bytes, &pending, spent_ns)).await;
        pending.throttle_ms = throttle_ms;
        // Here and now: what is behind this request in the socket is read when its time has come.
        if throttle_ms > 0 {
            connection.mute(throttle_ms);
        }
    }
    let bytes = bytes_of(&memory);
    connection.producing.set(connection.producing.get() + bytes);
    connection.replies.push(Reply::Produce {
        pending: Box::new(pending),
        arrived,
        memory,
    });
    Ok(())
}

fn bytes_of(leases: &Leases) -> u64 {
    leases.iter().map(Lease::bytes).sum()
}
