//! One thread of the load: its producers, its consumers, their connections, one loop that never waits for the broker alone.
//!
//! A turn: what is due is made, what may go is sent, answers are taken; then it sleeps until the next record is due or a socket is ready. The clock is
//! read when bytes have come, so what it takes to count an answer isn't in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use crate::clock::Clock;
use crate::connection::{Connection, nonsense};
use crate::consumer::Consumer;
use crate::control::Cluster;
use crate::error::Error;
use crate::limits;
use crate::little::{Due, Sampler, Samples};
use crate::measure::{Interval, Recorder, Totals};
use crate::poll::{Poll, precise_sleep};
use crate::producer::Producer;
use crate::protocol;
use crate::recovery::{Found, Recovery};
use crate::schedule::Schedule;
use crate::wire::Reader;
use crate::workload::{Mode, Workload};

/// What the threads of a run share.
#[derive(Debug)]
pub struct Shared {
    /// The first moment at which nothing is due any more. Moved forward when the run is ended early.
    pub end_ns: AtomicU64,
    /// A thread has failed: the others end.
    pub failed: AtomicBool,
    /// Threads whose producers still wait for answers.
    pub producing: AtomicU64,
    pub acknowledged: AtomicU64,
    /// Of all groups together.
    pub consumed: AtomicU64,
    /// Records and bytes read by consumers of a replay.
    pub replayed: AtomicU64,
    pub replayed_bytes: AtomicU64,
}

impl Shared {
    /// Of a run whose first `threads` threads have producers.
    pub fn new(threads: usize) -> Shared {
        Shared {
            end_ns: AtomicU64::new(u64::MAX),
            failed: AtomicBool::new(false),
            producing: AtomicU64::new(threads as u64),
            acknowledged: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            replayed_bytes: AtomicU64::new(0),
        }
    }
}

/// How long a thread may sleep before it looks at `Shared`, in nanoseconds.
const LOOK_EVERY_NS: u64 = 50_000_000;
/// The same while helpers are at work.
const RECOVERY_LOOKS_NS: u64 = 2_000_000;

/// What a thread needs to know of the run.
#[derive(Clone)]
pub struct Plan {
    pub workload: Arc<Workload>,
    pub cluster: Arc<Cluster>,
    pub clock: Clock,
    pub pool: Arc<[u8]>,
    pub shared: Arc<Shared>,
    pub intervals: Sender<Interval>,
    /// What is replayed beside the load.
    pub replay: Option<Arc<Cluster>>,
    /// Ids of all producers, if they are idempotent.
    pub ids: Arc<[(i64, i16)]>,
    /// This thread's number, what of the run is its, and the CPU it is pinned to.
    pub index: usize,
    pub share: Share,
    pub cpu: Option<usize>,
}

/// The producers and consumers of one thread, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub producers: Vec<usize>,
    pub consumers: Vec<usize>,
    pub replays: Vec<usize>,
}

impl Share {
    /// Deals the run's clients out: producers over the first threads, consumers over the reading ones, or over all where there are none.
    pub fn deal(workload: &Workload, threads: usize, reading: usize) -> Vec<Share> {
        let mut shares = vec![Share::default(); threads + reading];
        let reads = |n: usize| match reading {
            0 => n % threads,
            _ => threads + n % reading,
        };
        (0..workload.load.producers).for_each(|n| shares[n % threads].producers.push(n));
        (0..workload.consumers()).for_each(|n| shares[reads(n)].consumers.push(n));
        let replays = workload.replay.as_ref().map_or(0, |r| r.consumers);
        (0..replays).for_each(|n| shares[reads(n)].replays.push(n));
        shares
    }
}

/// A connection's place: its token is its number. None while it is lost.
struct Slot {
    owner: Owner,
    connection: Option<Connection>,
}

/// Whose connection, and to which broker.
#[derive(Clone, Copy)]
enum Owner {
    Producer(usize, usize),
    Consumer(usize, usize),
}

/// A consumer, when it begins, and whether what it reads is a replay.
struct Reading {
    consumer: Consumer,
    begin_ns: u64,
    replay: bool,
    /// It was told that it asks the wrong broker: it waits until then.
    not_before_ns: u64,
}

pub struct Worker {
    plan: Plan,
    poll: Poll,
    connections: Vec<Slot>,
    recovery: Recovery,
    producers: Vec<Producer>,
    consumers: Vec<Reading>,
    recorder: Recorder,
    sampler: Sampler,
    start_ns: u64,
    /// Its producers' part of `Shared::producing`.
    produces: bool,
}

/// What a thread hands over at its end.
pub struct Outcome {
    pub totals: Totals,
    pub samples: Samples,
}

impl Worker {
    /// Opens the connections. Nothing is sent before `run`.
    pub fn connect(plan: Plan) -> Result<Worker, Error> {
        let poll = Poll::new().map_err(Error::io("epoll"))?;
        let (load, brokers) = (&plan.workload.load, plan.cluster.brokers.len());
        let retry = plan.workload.client.retry;
        let mut connections = Vec::new();
        let mut consumers = Vec::new();
        let mut open = |owner, broker: usize| -> Result<(), Error> {
            let connection =
                Connection::open(&plan.cluster.brokers[broker], connections.len(), &poll)?;
            connections.push(Slot {
                owner,
                connection: Some(connection),
            });
            Ok(())
        };
        for producer in 0..plan.share.producers.len() {
            for broker in 0..brokers {
                open(Owner::Producer(producer, broker), broker)?;
            }
        }
        let live = plan.share.consumers.iter().map(|index| Reading {
            consumer: Consumer::new(plan.cluster.clone(), *index, load.consumers, retry),
            begin_ns: (load.consumers_begin_s * 1e9) as u64,
            replay: false,
            not_before_ns: 0,
        });
        let old = plan.workload.replay.as_ref().zip(plan.replay.as_ref());
        let old = old.into_iter().flat_map(|(replay, cluster)| {
            plan.share.replays.iter().map(|index| Reading {
                consumer: Consumer::new(cluster.clone(), *index, replay.consumers, retry),
                begin_ns: (replay.begin_s * 1e9) as u64,
                replay: true,
                not_before_ns: 0,
            })
        });
        for reading in live.chain(old) {
            // What moves may move to any of them.
            for broker in (0..brokers).filter(|b| retry || reading.consumer.reads_from(*b)) {
                open(Owner::Consumer(consumers.len(), broker), broker)?;
            }
            consumers.push(reading);
        }
        Ok(Worker {
            poll,
            connections,
            recovery: Recovery::new(plan.cluster.clone()),
            producers: Vec::new(),
            consumers,
            recorder: Recorder::new((0, 0)),
            sampler: Sampler::new(Due::Made(0), 0, 0),
            start_ns: 0,
            produces: true,
            plan,
        })
    }

    /// Carries the load from `start_ns` to the run's end and the last answer.
    pub fn run(mut self, start_ns: u64) -> Result<Outcome, Error> {
        let result = self.pin().and_then(|()| {
            precise_sleep();
            self.begin(start_ns);
            self.turns()
        });
        if result.is_err() {
            self.plan.shared.failed.store(true, Ordering::Relaxed);
        }
        self.produced();
        result.map(|()| Outcome {
            totals: self.recorder.totals,
            samples: self.sampler.samples(),
        })
    }

    fn pin(&self) -> Result<(), Error> {
        match self.plan.cpu {
            Some(cpu) if !core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) => Err(
                Error::Usage(format!("this process may not run on CPU {cpu}")),
            ),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, start_ns: u64) {
        let Plan {
            workload, cluster, ..
        } = &self.plan;
        let load = &workload.load;
        let mine = &self.plan.share.producers;
        let schedule = |i: &usize| schedule(workload, *i, start_ns);
        let due = match load.mode {
            Mode::Open => Due::Scheduled(mine.iter().map(schedule).collect()),
            _ => Due::Made(0),
        };
        self.start_ns = start_ns;
        self.recorder = Recorder::new(workload.window_ns(start_ns));
        self.sampler = Sampler::new(
            due,
            self.recorder.window_ns.0,
            load.seed ^ self.plan.index as u64,
        );
        let open = load.mode == Mode::Open;
        self.producers = mine
            .iter()
            .map(|i| {
                let id = self.plan.ids.get(*i).copied();
                Producer::new(workload, cluster, *i, open.then(|| schedule(i)), id)
            })
            .collect();
        for reading in &mut self.consumers {
            reading.begin_ns += start_ns;
        }
    }

    fn turns(&mut self) -> Result<(), Error> {
        let drain_ns = (self.plan.workload.time.drain_s * 1e9) as u64;
        let spin_ns = self.plan.workload.client.spin_us * 1_000;
        loop {
            let now = self.plan.clock.now_ns();
            let end = self.plan.shared.end_ns.load(Ordering::Relaxed);
            self.recorder.window_ns.1 = end;
            self.intervals(now);
            self.recover(now)?;
            self.produce(now, end)?;
            self.consume(now)?;
            if self.is_done(now, end) || self.plan.shared.failed.load(Ordering::Relaxed) {
                break;
            }
            if now >= end.saturating_add(drain_ns) {
                self.abandon(now, end);
                break;
            }
            let mut wake = now + LOOK_EVERY_NS;
            for producer in &mut self.producers {
                wake = wake.min(producer.wakes_at(now, end));
            }
            for reading in &self.consumers {
                let next = reading.begin_ns.max(reading.not_before_ns);
                if next > now {
                    wake = wake.min(next);
                }
            }
            if !self.recovery.is_idle() {
                wake = wake.min(now + RECOVERY_LOOKS_NS);
            }
            let sleep = wake.saturating_sub(self.plan.clock.now_ns());
            self.poll
                .wait(sleep.saturating_sub(spin_ns))
                .map_err(Error::io("epoll"))?;
            for index in 0..self.poll.ready() {
                let event = self.poll.event(index);
                if event.readable {
                    let read = self.read(event.token);
                    self.survive(event.token, read)?;
                }
                if let Some(connection) = &mut self.connections[event.token].connection {
                    let flushed = connection.flush(&self.poll);
                    self.survive(event.token, flushed)?;
                }
            }
        }
        let now = self.plan.clock.now_ns();
        self.sampler.look(now, self.recorder.window_ns.1);
        self.intervals(now);
        let (recorder, sampler) = (&mut self.recorder, &mut self.sampler);
        send_interval(recorder, sampler, self.start_ns, &self.plan.intervals, now);
        Ok(())
    }

    fn produce(&mut self, now: u64, end: u64) -> Result<(), Error> {
        let Plan {
            cluster,
            workload,
            pool,
            clock,
            ..
        } = &self.plan;
        for producer in &mut self.producers {
            let made = producer.generate(now, end, clock.wall_ms, pool, &mut self.recorder);
            if made > 0 && workload.load.mode != Mode::Open {
                self.sampler.look(now, end);
                self.sampler.made(made);
            }
            if now >= end {
                producer.finish();
            }
        }
        let (acks, codec) = (workload.client.acks.wire(), workload.client.codec);
        let mut lost = Vec::new();
        for (token, slot) in self.connections.iter_mut().enumerate() {
            let (Owner::Producer(producer, lane), Some(connection)) =
                (slot.owner, &mut slot.connection)
            else {
                continue;
            };
            let mut wrote = false;
            while let Some(request) = self.producers[producer].next_request(lane, now) {
                let topic_of = |b: &crate::batch::Batch| cluster.partitions[b.partition].topic;
                let same =
                    |a: &crate::batch::Batch, b: &crate::batch::Batch| topic_of(a) == topic_of(b);
                let topics = request.batches.chunk_by(same).count();
                let mut frame = protocol::Produce::begin(
                    &mut connection.out,
                    request.correlation,
                    acks,
                    topics,
                );
                for batches in request.batches.chunk_by_mut(same) {
                    frame.topic(&cluster.topics[topic_of(&batches[0])], batches.len());
                    for batch in batches {
                        let index = cluster.partitions[batch.partition].index;
                        frame.partition(index, batch.seal(codec));
                    }
                }
                frame.end();
                self.recorder.totals.requests += 1;
                self.recorder.totals.batches += request.batches.len() as u64;
                wrote = true;
            }
            if wrote && let Err(error) = connection.flush(&self.poll) {
                lost.push((token, error));
            }
        }
        lost.into_iter()
            .try_for_each(|(token, error)| self.survive(token, Err(error)))
    }

    fn consume(&mut self, now: u64) -> Result<(), Error> {
        let mut lost = Vec::new();
        for (token, slot) in self.connections.iter_mut().enumerate() {
            let (Owner::Consumer(consumer, lane), Some(connection)) =
                (slot.owner, &mut slot.connection)
            else {
                continue;
            };
            let reading = &mut self.consumers[consumer];
            if reading.begin_ns.max(reading.not_before_ns) > now {
                continue;
            }
            let before = connection.out.len();
            reading.consumer.request(lane, &mut connection.out);
            if connection.out.len() > before
                && let Err(error) = connection.flush(&self.poll)
            {
                lost.push((token, error));
            }
        }
        lost.into_iter()
            .try_for_each(|(token, error)| self.survive(token, Err(error)))
    }

    /// A lost connection is made again, if the workload is to survive that; any other error ends the run.
    fn survive(&mut self, token: usize, result: Result<(), Error>) -> Result<(), Error> {
        let lost = matches!(result, Err(Error::Lost(_)));
        if !lost || !self.plan.workload.client.retry {
            return result;
        }
        let now = self.plan.clock.now_ns();
        let slot = &mut self.connections[token];
        // Closing the socket takes it out of the poll.
        slot.connection = None;
        let broker = match slot.owner {
            Owner::Producer(producer, lane) => {
                self.recorder.totals.retried += self.producers[producer].lost(lane, now);
                lane
            }
            Owner::Consumer(consumer, lane) => {
                self.consumers[consumer].consumer.lost(lane);
                lane
            }
        };
        self.recovery.lost(token, broker, now);
        Ok(())
    }

    /// Takes what helpers have found.
    fn recover(&mut self, now: u64) -> Result<(), Error> {
        if self.recovery.is_idle() {
            return Ok(());
        }
        while let Some(found) = self.recovery.look(now)? {
            match found {
                Found::Connection(token, Some(stream)) => {
                    let slot = &mut self.connections[token];
                    let (Owner::Producer(_, broker) | Owner::Consumer(_, broker)) = slot.owner;
                    let address = &self.plan.cluster.brokers[broker];
                    let connection = Connection::on(stream, address, token, &self.poll)?;
                    slot.connection = Some(connection);
                    if let Owner::Producer(producer, lane) = slot.owner {
                        self.producers[producer].found(lane);
                    }
                }
                Found::Leaders(Some(leaders)) => {
                    self.producers.iter_mut().for_each(|p| p.follow(&leaders));
                    // What is replayed lies in topics of its own; it doesn't follow.
                    let live = self.consumers.iter_mut().filter(|r| !r.replay);
                    live.for_each(|r| r.consumer.follow(&leaders));
                }
                Found::Connection(_, None) | Found::Leaders(None) => {}
            }
        }
        Ok(())
    }

    fn read(&mut self, token: usize) -> Result<(), Error> {
        let slot = &mut self.connections[token];
        let Some(connection) = &mut slot.connection else {
            return Ok(());
        };
        let retry = self.plan.workload.client.retry;
        loop {
            let more = connection.fill()?;
            let now = self.plan.clock.now_ns();
            while let Some((correlation, body)) = connection.frame()? {
                let body = connection.body(body);
                match slot.owner {
                    Owner::Producer(producer, lane) => {
                        let producer = &mut self.producers[producer];
                        let acknowledged = answered(
                            producer,
                            lane,
                            correlation,
                            body,
                            &self.plan.cluster,
                            now,
                            &mut self.recorder,
                            &mut self.sampler,
                            retry.then_some(&mut self.recovery),
                        )?;
                        self.plan
                            .shared
                            .acknowledged
                            .fetch_add(acknowledged, Ordering::Relaxed);
                    }
                    Owner::Consumer(consumer, lane) => {
                        let (recorder, shared) = (&mut self.recorder, &self.plan.shared);
                        let reading = &mut self.consumers[consumer];
                        if reading.replay {
                            let got = reading.consumer.answer(lane, body, |_| {})?;
                            shared.replayed.fetch_add(got.records, Ordering::Relaxed);
                            shared
                                .replayed_bytes
                                .fetch_add(got.bytes, Ordering::Relaxed);
                        } else {
                            let count = |due| recorder.consumed(due, now);
                            let got = reading.consumer.answer(lane, body, count)?;
                            shared.consumed.fetch_add(got.records, Ordering::Relaxed);
                            if got.stale {
                                reading.not_before_ns = now + limits::RETRY_AFTER_NS;
                                self.recovery.stale(now);
                            }
                        }
                    }
                }
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Its producers have all their answers.
    fn produced(&mut self) {
        if std::mem::take(&mut self.produces) {
            self.plan.shared.producing.fetch_sub(1, Ordering::Release);
        }
    }

    fn is_done(&mut self, now: u64, end: u64) -> bool {
        if now < end || !self.producers.iter().all(|p| p.is_done(end)) {
            return false;
        }
        self.produced();
        let (shared, groups) = (&self.plan.shared, self.plan.workload.load.consumer_groups);
        self.consumers.iter().all(|r| r.replay)
            || shared.producing.load(Ordering::Acquire) == 0
                && shared.consumed.load(Ordering::Relaxed)
                    >= shared.acknowledged.load(Ordering::Relaxed) * groups as u64
    }

    fn abandon(&mut self, now: u64, end: u64) {
        for producer in &mut self.producers {
            producer.abandon(end, |due| self.recorder.unfinished(due, now));
        }
    }

    fn intervals(&mut self, now: u64) {
        let (recorder, sampler) = (&mut self.recorder, &mut self.sampler);
        send_intervals(recorder, sampler, self.start_ns, &self.plan.intervals, now);
    }
}

/// The schedule of producer `index` of a load that begins at `start_ns`.
pub fn schedule(workload: &Workload, index: usize, start_ns: u64) -> Schedule {
    let load = &workload.load;
    let producers = load.producers;
    let whole_ns = ((workload.time.warm_up_s + workload.time.length_s) * 1e9) as u64;
    let constant = Schedule::new(
        load.arrivals,
        load.rate,
        index,
        producers,
        load.seed,
        start_ns,
    );
    match load.ramp_to {
        Some(end) => constant.ramped(end, producers, whole_ns),
        None => constant,
    }
}

/// Sends every interval that has ended.
pub fn send_intervals(
    recorder: &mut Recorder,
    sampler: &mut Sampler,
    start_ns: u64,
    to: &Sender<Interval>,
    now: u64,
) {
    while now >= start_ns + (recorder.interval.index + 1) * limits::INTERVAL_NS {
        send_interval(recorder, sampler, start_ns, to, now);
    }
}

/// Sends the interval as it is, and begins the next.
pub fn send_interval(
    recorder: &mut Recorder,
    sampler: &mut Sampler,
    start_ns: u64,
    to: &Sender<Interval>,
    now: u64,
) {
    sampler.look(now, recorder.window_ns.1);
    let next = Interval::new(recorder.interval.index + 1);
    let mut interval = std::mem::replace(&mut recorder.interval, next);
    let begun = start_ns + interval.index * limits::INTERVAL_NS;
    interval.length_ns = now.saturating_sub(begun).clamp(1, limits::INTERVAL_NS);
    // What is due at the end itself isn't sent any more.
    let last = recorder.window_ns.1.saturating_sub(1);
    interval.in_flight = sampler.in_flight(now.min(last));
    // Nobody listens any more only when the run has failed.
    let _ = to.send(interval);
}

/// Takes the answer to a producer's oldest request; how many records it acknowledges.
#[allow(
    clippy::too_many_arguments,
    reason = "the parts of a thread, borrowed apart"
)]
fn answered(
    producer: &mut Producer,
    lane: usize,
    correlation: i32,
    body: &[u8],
    cluster: &Cluster,
    now: u64,
    recorder: &mut Recorder,
    sampler: &mut Sampler,
    mut recovery: Option<&mut Recovery>,
) -> Result<u64, Error> {
    let mut request = producer
        .answered(lane)
        .ok_or_else(|| nonsense("to no request"))?;
    if request.correlation != correlation {
        return Err(nonsense("out of order"));
    }
    sampler.look(now, recorder.window_ns.1);
    let (mut acknowledged, mut left, mut hint) = (0, request.batches.len(), 0);
    let batches = &mut request.batches;
    // Places of batches that are to be sent again, each with its partition.
    let mut again: Vec<(usize, usize)> = Vec::new();
    let read = protocol::read_produce(&mut Reader(body), |topic, index, error| {
        let is_it = |b: &crate::batch::Batch| {
            cluster
                .partitions
                .get(b.partition)
                .is_some_and(|p| p.index == index && cluster.topics[p.topic] == topic)
        };
        let slot = match batches.get(hint) {
            Some(batch) if is_it(batch) => Some(hint),
            _ => batches.iter().position(is_it),
        };
        let Some(slot) = slot else { return };
        hint = slot + 1;
        let batch = &mut batches[slot];
        left -= 1;
        let partition = std::mem::replace(&mut batch.partition, usize::MAX); // answered
        if let Some(recovery) = &mut recovery
            && protocol::passes(error)
        {
            recovery.stale(now);
            again.push((slot, partition));
            return;
        }
        sampler.completed(batch.due_ns.len() as u64);
        let done = error == 0 || error == protocol::DUPLICATE && recovery.is_some();
        for due in &batch.due_ns {
            match done {
                true => recorder.acknowledged(*due, now),
                false => recorder.refused(*due, now, error),
            }
        }
        if done {
            acknowledged += batch.due_ns.len() as u64;
            recorder.acknowledged_bytes(batch.value_bytes, now);
        }
    });
    if read.is_err() || left > 0 {
        return Err(nonsense("to a produce request"));
    }
    recorder.totals.retried += again.len() as u64;
    // From behind, so that places stay what they are.
    again.sort_unstable();
    for (slot, partition) in again.into_iter().rev() {
        let mut batch = request.batches.remove(slot);
        batch.partition = partition;
        producer.again(batch, now);
    }
    producer.recycle(request);
    Ok(acknowledged)
}
