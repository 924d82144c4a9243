//! The load as an application on librdkafka makes it: the same schedule and the same counts, with batches, connections and threads of the library.
//!
//! An acknowledgement counts when the library calls back, on a thread of its producer; what the library waits for on the way is part of what an
//! application sees. One thread of ours drives the producers, each consumer has one. Bound: what the library holds is `client.buffer-bytes`.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};

use crate::clock::Clock;
use crate::error::Error;
use crate::limits;
use crate::little::{Due, Sampler};
use crate::measure::Recorder;
use crate::poll::precise_sleep;
use crate::records::{Key, Maker, rest_of};
use crate::schedule::Schedule;
use crate::worker::{Outcome, Plan, schedule, send_interval, send_intervals};
use crate::workload::{Acks, Mode, Partitioner, Workload};

/// How long a thread may sleep before it looks at `Shared`.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same where the library has no room for more, which it doesn't tell of.
const FULL_LOOKS: Duration = Duration::from_millis(1);
/// How long the library may take to give back what is given up.
const PURGED_WITHIN: Duration = Duration::from_secs(5);

/// The library's version.
pub fn version() -> String {
    format!("librdkafka {}", rdkafka::util::get_rdkafka_version().1)
}

/// One record as the library told of it.
struct Heard {
    /// Its place in the thread's list.
    producer: usize,
    due_ns: u64,
    now_ns: u64,
    bytes: u64,
    /// Of the protocol, or below zero the library's own.
    error: i16,
}

/// What all producers of a thread have told.
#[derive(Default)]
struct Ear {
    heard: Mutex<Vec<Heard>>,
    news: Condvar,
}

/// Of one producer: it tells its thread.
struct Context {
    clock: Clock,
    producer: usize,
    ear: Arc<Ear>,
}

impl ClientContext for Context {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    /// What matters of these comes back with the records that it concerns.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult, due_ns: usize) {
        let now_ns = self.clock.now_ns();
        let (error, message) = match result {
            Ok(message) => (0, message),
            Err((error, message)) => {
                let code = error
                    .rdkafka_error_code()
                    .unwrap_or(RDKafkaErrorCode::Unknown);
                (code as i32 as i16, message)
            }
        };
        let heard = Heard {
            producer: self.producer,
            due_ns: due_ns as u64,
            now_ns,
            bytes: message.payload().map_or(0, |p| p.len() as u64),
            error,
        };
        let mut all = self
            .ear
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.push(heard);
        self.ear.news.notify_one();
    }
}

/// One producer.
struct Sending {
    library: ThreadedProducer<Context>,
    schedule: Option<Schedule>,
    maker: Maker,
    next_partition: usize,
    next_number: u64,
    cursor: usize,
    /// The next record was due while the library had no room.
    behind_broker: bool,
    /// A record that the library had no room for keeps its key and its length.
    drawn: Option<(Option<Key>, usize)>,
    /// Records that it has no answer to.
    outstanding: u64,
}

/// One thread of the load.
pub struct Session {
    plan: Plan,
    producers: Vec<Sending>,
    consumer: Option<BaseConsumer>,
    ear: Arc<Ear>,
    recorder: Recorder,
    sampler: Sampler,
    start_ns: u64,
    value: Vec<u8>,
}

fn failed(error: KafkaError) -> Error {
    Error::Broker(format!("librdkafka: {error}"))
}

fn settings(workload: &Workload, brokers: &[String]) -> ClientConfig {
    let client = &workload.client;
    let mut config = ClientConfig::new();
    let (acks, codec) = match client.acks {
        Acks::All => ("all", client.codec),
        Acks::Leader => ("1", client.codec),
    };
    config
        .set("bootstrap.servers", brokers.join(","))
        .set("client.id", "tailrace-bench")
        .set("acks", acks)
        .set("linger.ms", client.linger_ms.to_string())
        .set("batch.size", client.batch_bytes.to_string())
        .set("batch.num.messages", "1000000")
        .set(
            "message.max.bytes",
            client.max_request_bytes.max(client.batch_bytes).to_string(),
        )
        .set(
            "max.in.flight.requests.per.connection",
            client.max_in_flight.to_string(),
        )
        .set(
            "queue.buffering.max.kbytes",
            (client.buffer_bytes / 1024)
                .clamp(1, i32::MAX as usize)
                .to_string(),
        )
        .set("queue.buffering.max.messages", "10000000")
        .set("compression.codec", format!("{codec:?}").to_lowercase())
        .set("enable.idempotence", client.idempotence.to_string())
        .set("partitioner", "murmur2_random");
    if !client.retry && !client.idempotence {
        config.set("message.send.max.retries", "0");
    }
    config
}

impl Session {
    /// Makes the clients. Nothing is sent before `run`.
    pub fn connect(plan: Plan) -> Result<Session, Error> {
        let (workload, cluster) = (&plan.workload, &plan.cluster);
        let ear = Arc::new(Ear::default());
        let partitions = cluster.partitions.len();
        let mut producers = Vec::new();
        for index in &plan.share.producers {
            let context = Context {
                clock: plan.clock,
                producer: producers.len(),
                ear: ear.clone(),
            };
            let config = settings(workload, &cluster.brokers);
            let library = ThreadedProducer::from_config_and_context(&config, context);
            producers.push(Sending {
                library: library.map_err(failed)?,
                schedule: None,
                maker: Maker::new(workload, *index),
                next_partition: index * partitions / workload.load.producers % partitions,
                next_number: (*index as u64) << 40,
                cursor: index * 8191,
                behind_broker: false,
                drawn: None,
                outstanding: 0,
            });
        }
        let consumer = match plan.share.consumers.first() {
            Some(index) => Some(reader(&plan, *index)?),
            None => None,
        };
        Ok(Session {
            producers,
            consumer,
            ear,
            recorder: Recorder::new((0, 0)),
            sampler: Sampler::new(Due::Made(0), 0, 0),
            start_ns: 0,
            value: Vec::new(),
            plan,
        })
    }

    /// Carries the load from `start_ns` to the run's end and the last answer.
    pub fn run(mut self, start_ns: u64) -> Result<Outcome, Error> {
        precise_sleep();
        self.begin(start_ns);
        let result = match self.consumer.take() {
            Some(consumer) => {
                self.produced();
                self.consume(&consumer)
            }
            None => {
                self.produce();
                self.produced();
                Ok(())
            }
        };
        if result.is_err() {
            self.plan.shared.failed.store(true, Ordering::Relaxed);
        }
        let now = self.plan.clock.now_ns();
        self.intervals(now);
        send_interval(
            &mut self.recorder,
            &mut self.sampler,
            start_ns,
            &self.plan.intervals,
            now,
        );
        result.map(|()| Outcome {
            totals: self.recorder.totals,
            samples: self.sampler.samples(),
        })
    }

    fn begin(&mut self, start_ns: u64) {
        let workload = &self.plan.workload;
        let open = workload.load.mode == Mode::Open;
        let mine = &self.plan.share.producers;
        let schedules: Vec<Schedule> = mine
            .iter()
            .map(|i| schedule(workload, *i, start_ns))
            .collect();
        self.start_ns = start_ns;
        self.recorder = Recorder::new(workload.window_ns(start_ns));
        let due = match open {
            true => Due::Scheduled(schedules.clone()),
            false => Due::Made(0),
        };
        let seed = workload.load.seed ^ self.plan.index as u64;
        self.sampler = Sampler::new(due, self.recorder.window_ns.0, seed);
        for (producer, schedule) in self.producers.iter_mut().zip(schedules) {
            producer.schedule = open.then_some(schedule);
        }
    }

    fn produced(&self) {
        self.plan.shared.producing.fetch_sub(1, Ordering::Release);
    }

    fn intervals(&mut self, now: u64) {
        send_intervals(
            &mut self.recorder,
            &mut self.sampler,
            self.start_ns,
            &self.plan.intervals,
            now,
        );
    }

    fn outstanding(&self) -> u64 {
        self.producers.iter().map(|p| p.outstanding).sum()
    }

    fn failed(&self) -> bool {
        self.plan.shared.failed.load(Ordering::Relaxed)
    }

    fn produce(&mut self) {
        let drain_ns = (self.plan.workload.time.drain_s * 1e9) as u64;
        loop {
            let now = self.plan.clock.now_ns();
            let end = self.plan.shared.end_ns.load(Ordering::Relaxed);
            self.recorder.window_ns.1 = end;
            self.take_heard(end);
            self.intervals(now);
            let sleep = self.generate(now, end);
            let scheduled = |p: &Sending| p.schedule.as_ref().is_none_or(|s| s.peek() >= end);
            let done =
                now >= end && self.outstanding() == 0 && self.producers.iter().all(scheduled);
            if done || self.failed() {
                return;
            }
            if now >= end.saturating_add(drain_ns) {
                return self.abandon(end);
            }
            let heard = self
                .ear
                .heard
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if heard.is_empty() && !sleep.is_zero() {
                drop(self.ear.news.wait_timeout(heard, sleep));
            }
        }
    }

    /// Gives the library what is due; how long nothing more is.
    fn generate(&mut self, now: u64, end: u64) -> Duration {
        let mode = self.plan.workload.load.mode;
        let mut wake = now + LOOK_EVERY.as_nanos() as u64;
        for index in 0..self.producers.len() {
            for count in 0..=limits::RECORDS_PER_TURN {
                let producer = &self.producers[index];
                let due = match &producer.schedule {
                    Some(schedule) => schedule.peek(),
                    None => now,
                };
                let waits = mode == Mode::OneAtATime && producer.outstanding > 0;
                if due > now || due >= end || waits {
                    wake = wake.min(if waits || due >= end { wake } else { due });
                    break;
                }
                if count == limits::RECORDS_PER_TURN {
                    wake = now;
                    break;
                }
                if !self.send(index, due, now) {
                    wake = wake.min(now + FULL_LOOKS.as_nanos() as u64);
                    break;
                }
            }
        }
        Duration::from_nanos(wake.saturating_sub(self.plan.clock.now_ns()))
    }

    /// Gives the library one record; false if it has no room.
    fn send(&mut self, index: usize, due: u64, now: u64) -> bool {
        let Plan {
            workload,
            cluster,
            pool,
            ..
        } = &self.plan;
        let producer = &mut self.producers[index];
        let maker = &mut producer.maker;
        let (key, rest) = producer
            .drawn
            .unwrap_or_else(|| (maker.key(), rest_of(maker.size())));
        producer.cursor = (producer.cursor + 4099) % limits::PAYLOAD_POOL_BYTES;
        self.value.clear();
        self.value.extend_from_slice(&due.to_be_bytes());
        self.value
            .extend_from_slice(&producer.next_number.to_be_bytes());
        self.value
            .extend_from_slice(&pool[producer.cursor..producer.cursor + rest]);
        let partition = &cluster.partitions[producer.next_partition];
        let topic = &cluster.topics[partition.topic];
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, due as usize)
            .payload(&self.value);
        match &key {
            Some(key) => record = record.key(key),
            // Left to itself the library is sticky.
            None if workload.client.partitioner == Partitioner::Sticky => {}
            None => record = record.partition(partition.index),
        }
        match producer.library.send(record) {
            Ok(()) => {}
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                producer.drawn = Some((key, rest));
                producer.behind_broker = true;
                return false;
            }
            // It isn't taken at all, e.g. too large: as if it was refused at once.
            Err((error, _)) => {
                let code = error
                    .rdkafka_error_code()
                    .unwrap_or(RDKafkaErrorCode::Unknown);
                let heard = Heard {
                    producer: index,
                    due_ns: due,
                    now_ns: now,
                    bytes: 0,
                    error: code as i32 as i16,
                };
                self.ear
                    .heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(heard);
            }
        }
        match &mut producer.schedule {
            Some(schedule) => {
                schedule.take();
                self.recorder.made(due, now, producer.behind_broker);
                // What is caught up with is on time again.
                producer.behind_broker &= schedule.peek() <= now;
            }
            None => {
                self.sampler.look(now, self.recorder.window_ns.1);
                self.sampler.made(1);
            }
        }
        producer.drawn = None;
        producer.next_number += 1;
        producer.next_partition = (producer.next_partition + 1) % cluster.partitions.len();
        producer.outstanding += 1;
        true
    }

    fn take_heard(&mut self, end: u64) {
        let mut heard = std::mem::take(
            &mut *self
                .ear
                .heard
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        // Several producers tell on threads of their own.
        heard.sort_by_key(|h| h.now_ns);
        let mut acknowledged = 0;
        for h in heard {
            self.sampler.look(h.now_ns, end);
            self.sampler.completed(1);
            self.producers[h.producer].outstanding -= 1;
            match h.error {
                0 => {
                    self.recorder.acknowledged(h.due_ns, h.now_ns);
                    self.recorder.acknowledged_bytes(h.bytes, h.now_ns);
                    acknowledged += 1;
                }
                code if given_up(code) => self.recorder.unfinished(h.due_ns, h.now_ns),
                code => self.recorder.refused(h.due_ns, h.now_ns, code),
            }
        }
        self.plan
            .shared
            .acknowledged
            .fetch_add(acknowledged, Ordering::Relaxed);
    }

    /// Gives up what has no answer, and what was due and never made.
    fn abandon(&mut self, end: u64) {
        for producer in &self.producers {
            producer
                .library
                .purge(PurgeConfig::default().queue().inflight());
        }
        let until = std::time::Instant::now() + PURGED_WITHIN;
        while self.outstanding() > 0 && std::time::Instant::now() < until {
            std::thread::sleep(FULL_LOOKS);
            self.take_heard(end);
        }
        let now = self.plan.clock.now_ns();
        for schedule in self
            .producers
            .iter_mut()
            .filter_map(|p| p.schedule.as_mut())
        {
            while schedule.peek() < end {
                self.recorder.unfinished(schedule.take(), now);
            }
        }
    }

    fn consume(&mut self, consumer: &BaseConsumer) -> Result<(), Error> {
        let Plan {
            workload,
            shared,
            clock,
            ..
        } = self.plan.clone();
        let drain_ns = (workload.time.drain_s * 1e9) as u64;
        let begin = self.start_ns + (workload.load.consumers_begin_s * 1e9) as u64;
        let groups = workload.load.consumer_groups as u64;
        loop {
            let now = clock.now_ns();
            let end = shared.end_ns.load(Ordering::Relaxed);
            self.recorder.window_ns.1 = end;
            self.intervals(now);
            let read = shared.consumed.load(Ordering::Relaxed);
            let whole = shared.producing.load(Ordering::Acquire) == 0
                && read >= shared.acknowledged.load(Ordering::Relaxed) * groups;
            let done = now >= end && whole || now >= end.saturating_add(drain_ns);
            if done || self.failed() {
                return Ok(());
            }
            if now < begin {
                std::thread::sleep(LOOK_EVERY.min(Duration::from_nanos(begin - now)));
                continue;
            }
            // What is there is taken before the next look around.
            let mut wait = LOOK_EVERY;
            for _ in 0..limits::RECORDS_PER_TURN {
                let Some(message) = consumer.poll(wait) else {
                    break;
                };
                wait = Duration::ZERO;
                let now = clock.now_ns();
                let message = match message {
                    Ok(message) => message,
                    Err(KafkaError::PartitionEOF(_)) => continue,
                    Err(_) if workload.client.retry => continue,
                    Err(error) => return Err(failed(error)),
                };
                let due = message.payload().and_then(|p| p.first_chunk::<8>());
                let due =
                    due.ok_or_else(|| Error::Broker("a record that this run didn't send".into()))?;
                self.recorder.consumed(u64::from_be_bytes(*due), now);
                shared.consumed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Records that the run took back from the library, or that it gave up by itself for want of an answer.
fn given_up(code: i16) -> bool {
    let code = i32::from(code);
    [
        RDKafkaErrorCode::PurgeQueue,
        RDKafkaErrorCode::PurgeInflight,
        RDKafkaErrorCode::MessageTimedOut,
    ]
    .into_iter()
    .any(|c| c as i32 == code)
}

/// A consumer of its share of a group's partitions, from their beginning.
fn reader(plan: &Plan, index: usize) -> Result<BaseConsumer, Error> {
    let (workload, cluster) = (&plan.workload, &plan.cluster);
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", cluster.brokers.join(","))
        .set("client.id", "tailrace-bench")
        .set("group.id", "tailrace-bench")
        .set("enable.auto.commit", "false")
        .set("check.crcs", "true")
        .set("fetch.wait.max.ms", limits::FETCH_WAIT_MS.to_string());
    let consumer: BaseConsumer = config.create().map_err(failed)?;
    let consumers = workload.load.consumers;
    let mine = (index % consumers..cluster.partitions.len()).step_by(consumers);
    let mine: HashMap<(String, i32), Offset> = mine
        .map(|p| &cluster.partitions[p])
        .map(|p| {
            (
                (cluster.topics[p.topic].clone(), p.index),
                Offset::Beginning,
            )
        })
        .collect();
    let list = TopicPartitionList::from_topic_map(&mine).map_err(failed)?;
    consumer.assign(&list).map_err(failed)?;
    Ok(consumer)
}
