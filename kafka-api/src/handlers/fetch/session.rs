//! Fetch sessions (KIP-227): what a client reads is remembered, so that it names only what changes and is told only what changed.
//!
//! A session is a list of partitions in the order in which they share an answer's bytes; one that gave records goes to its end. An incremental answer names a partition that has records, an
//! error, a place where logs parted, or another high watermark or log start than it was told of last. The epoch counts a session's requests, so that none is taken twice.
//!
//! A shard keeps the sessions of its own connections, at most its part of [`cluster::broker_config::BrokerConfig::fetch_sessions`] and of [`limits::SESSION_PARTITIONS`]; ids tell the shards
//! apart, so that a client that comes back to another shard is told FETCH_SESSION_ID_NOT_FOUND, and begins anew, and never meets another's session. Kafka's rules say who makes room: a session that wasn't used for
//! [`limits::SESSION_KEPT`], the one used longest ago first; else the smallest of those that are older than that, if the new one is at least as large. Where there is no room the answer has no
//! session, which clients take as it is.
//!
//! Pure but for the memory that is counted: time and random numbers come from the caller, [`super::handle`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use engine::rt::Instant;
use kafka_protocol::protocol::StrBytes;
use smallvec::SmallVec;
use uuid::Uuid;

use super::wire::{FetchPart, FetchRequest, FetchTopic, PartAnswer};
use crate::error::ErrorCode;
use crate::limits;
use crate::shard::{Map, map};

/// Epoch of a full request that may begin a session.
const INITIAL: i32 = 0;
/// Epoch of a full request that ends one, or wants none.
const FINAL: i32 = -1;

/// A topic as the session's requests name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Topic {
    Name(StrBytes),
    Id(Uuid),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    topic: Topic,
    partition: i32,
}

/// A partition as it was asked for last, and what was told of it last.
#[derive(Debug)]
struct Remembered {
    /// Its place: the order of a session's partitions.
    place: u64,
    part: FetchPart,
    high_watermark: i64,
    log_start_offset: i64,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    id: i32,
    /// Whether its topics go by id.
    ids: bool,
    created: Instant,
    used: Cell<Instant>,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    epoch: i32,
    next_place: u64,
    parts: Map<Key, Remembered>,
    order: BTreeMap<u64, Key>,
}

/// How a request is to be answered.
#[derive(Debug)]
pub enum Context {
    /// All of it, and no session.
    Alone,
    /// All of it, and a session if there is room.
    Full,
    /// What changed. The request holds all of the session's partitions now.
    Incremental(Rc<Session>),
}

/// The sessions of a shard.
pub struct Sessions {
    known: RefCell<Map<i32, Rc<Session>>>,
    /// Of all sessions.
    partitions: Cell<usize>,
    slots: usize,
    /// Ids leave this remainder when divided by the number of shards.
    shard: i32,
    shards: i32,
}

fn key(by_id: bool, topic: &FetchTopic, partition: i32) -> Key {
    let topic = if by_id {
        Topic::Id(topic.id)
    } else {
        Topic::Name(topic.name.clone())
    };
    Key { topic, partition }
}

impl Key {
    /// The same with a name of its own: that of a request would keep the whole frame in memory.
    fn owned(self) -> Key {
        match self.topic {
            Topic::Name(name) => Key {
                topic: Topic::Name(StrBytes::from_string(name.to_string())),
                ..self
            },
            Topic::Id(_) => self,
        }
    }
}

impl State {
    fn put(&mut self, key: Key, part: FetchPart, told: Option<&PartAnswer>) {
        if let Some(known) = self.parts.get_mut(&key) {
            known.part = part;
            return;
        }
        let key = key.owned();
        let place = self.next_place;
        self.next_place += 1;
        self.order.insert(place, key.clone());
        let remembered = Remembered {
            place,
            part,
            high_watermark: told.map_or(-1, |a| a.high_watermark),
            log_start_offset: told.map_or(-1, |a| a.log_start_offset),
        };
        self.parts.insert(key, remembered);
    }

    fn forget(&mut self, key: &Key) {
        if let Some(gone) = self.parts.swap_remove(key) {
            self.order.remove(&gone.place);
        }
    }

    /// Everything that the session reads, in its order, as one request.
    fn write_into(&self, fetch: &mut FetchRequest) {
        fetch.topics.clear();
        fetch.parts.clear();
        let mut last: Option<&Topic> = None;
        for key in self.order.values() {
            if last != Some(&key.topic) {
                let (name, id) = match &key.topic {
                    Topic::Name(name) => (name.clone(), Uuid::nil()),
                    Topic::Id(id) => (StrBytes::default(), *id),
                };
                fetch.topics.push(FetchTopic { name, id, parts: 0 });
                last = Some(&key.topic);
            }
            let topic = fetch.topics.last_mut().expect("one was just pushed");
            topic.parts += 1;
            let remembered = self.parts.get(key).expect("what has a place is there");
            fetch.parts.push(remembered.part);
        }
    }

    /// Whether the answer for a partition is to be told; takes note of it.
    fn tells(&mut self, key: &Key, answer: &PartAnswer) -> bool {
        let next_place = self.next_place;
        // Forgotten by another request while this one waited.
        let Some(known) = self.parts.get_mut(key) else {
            return true;
        };
        let moved = known.high_watermark != answer.high_watermark
            || known.log_start_offset != answer.log_start_offset;
        let failed = !answer.error.is_none();
        known.log_start_offset = answer.log_start_offset;
        // An error is told every time, and its end too.
        known.high_watermark = if failed { -1 } else { answer.high_watermark };
        let has_records = answer.records.iter().any(|r: &Bytes| !r.is_empty());
        if has_records {
            let key = self
                .order
                .remove(&known.place)
                .expect("what is there has a place");
            known.place = next_place;
            self.order.insert(next_place, key);
            self.next_place += 1;
        }
        moved || failed || has_records || answer.diverging.is_some()
    }
}

impl Session {
    pub fn id(&self) -> i32 {
        self.id
    }

    fn len(&self) -> usize {
        self.state.borrow().parts.len()
    }

    /// Leaves of an incremental answer what is to be told.
    pub fn tell(&self, fetch: &mut FetchRequest, answers: &mut Vec<PartAnswer>) {
        let state = &mut *self.state.borrow_mut();
        let mut parts = SmallVec::new();
        let mut kept = Vec::new();
        let mut all = fetch.parts.drain(..).zip(answers.drain(..));
        for topic in &mut fetch.topics {
            let before = parts.len();
            for (part, answer) in all.by_ref().take(topic.parts) {
                if state.tells(&key(self.ids, topic, part.index), &answer) {
                    parts.push(part);
                    kept.push(answer);
                }
            }
            topic.parts = parts.len() - before;
        }
        drop(all);
        fetch.topics.retain(|t| t.parts > 0);
        fetch.parts = parts;
        *answers = kept;
    }
}

impl Sessions {
    /// For shard `shard` of `shards`, which together keep `slots` sessions.
    pub fn new(slots: i32, shard: u16, shards: u16) -> Sessions {
        let slots = usize::try_from(slots).unwrap_or(0);
        Sessions {
            known: RefCell::new(map()),
            partitions: Cell::new(0),
            slots: slots.div_ceil(usize::from(shards)),
            shard: i32::from(shard),
            shards: i32::from(shards),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that they stand for.
    pub fn bytes(&self) -> u64 {
        (self.partitions.get() * limits::SESSION_PARTITION_BYTES) as u64
    }

    fn remove(&self, id: i32) {
        if let Some(gone) = self.known.borrow_mut().swap_remove(&id) {
            self.partitions.set(self.partitions.get() - gone.len());
        }
    }

    /// Looks at a request: how it is to be answered. An incremental one is made whole.
    pub fn begin(
        &self,
        fetch: &mut FetchRequest,
        by_id: bool,
        now: Instant,
    ) -> Result<Context, ErrorCode> {
        if matches!(fetch.session_epoch, INITIAL | FINAL) {
            // Whoever begins anew, or ends, has no more use for the session that it names.
            self.remove(fetch.session_id);
            return Ok(match fetch.session_epoch {
                FINAL => Context::Alone,
                _ => Context::Full,
            });
        }
        let known = self.known.borrow().get(&fetch.session_id).cloned();
        let session = known.ok_or(ErrorCode::FetchSessionIdNotFound)?;
        let before = session.len();
        let empty = {
            let state = &mut *session.state.borrow_mut();
            if state.epoch != fetch.session_epoch {
                return Err(ErrorCode::InvalidFetchSessionEpoch);
            }
            if session.ids != by_id {
                return Err(ErrorCode::FetchSessionTopicIdError);
            }
            let mut parts = fetch.parts.iter();
            for topic in &fetch.topics {
                for part in parts.by_ref().take(topic.parts) {
                    state.put(key(by_id, topic, part.index), *part, None);
                }
            }
            for (topic, partitions) in &fetch.forgotten {
                for partition in partitions {
                    state.forget(&key(by_id, topic, *partition));
                }
            }
            state.epoch = next_epoch(state.epoch);
            state.write_into(fetch);
            state.parts.is_empty()
        };
        session.used.set(now);
        let partitions = self.partitions.get() + session.len() - before;
        self.partitions.set(partitions);
        if empty {
            self.remove(session.id);
            return Ok(Context::Alone);
        }
        if partitions > limits::SESSION_PARTITIONS {
            self.remove(session.id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        Ok(Context::Incremental(session))
    }

    /// Begins a session with what a full request was told. Gives its id, 0 if there is no room.
    pub fn create(
        &self,
        fetch: &FetchRequest,
        by_id: bool,
        answers: &[PartAnswer],
        now: Instant,
        random: impl FnOnce() -> u64,
    ) -> i32 {
        if !self.make_room(fetch.parts.len(), now) {
            return 0;
        }
        let mut state = State {
            epoch: next_epoch(INITIAL),
            next_place: 0,
            parts: map(),
            order: BTreeMap::new(),
        };
        let mut both = fetch.parts.iter().zip(answers);
        for topic in &fetch.topics {
            for (part, answer) in both.by_ref().take(topic.parts) {
                state.put(key(by_id, topic, part.index), *part, Some(answer));
            }
        }
        let id = self.new_id(random);
        self.partitions
            .set(self.partitions.get() + state.parts.len());
        let session = Session {
            id,
            ids: by_id,
            created: now,
            used: Cell::new(now),
            state: RefCell::new(state),
        };
        self.known.borrow_mut().insert(id, Rc::new(session));
        id
    }

    /// Ends sessions until one of `partitions` partitions has room; whether it has.
    fn make_room(&self, partitions: usize, now: Instant) -> bool {
        if partitions > limits::SESSION_PARTITIONS || self.slots == 0 {
            return false;
        }
        while self.len() >= self.slots
            || self.partitions.get() + partitions > limits::SESSION_PARTITIONS
        {
            match self.evictable(partitions, now) {
                Some(id) => self.remove(id),
                None => return false,
            }
        }
        true
    }

    fn evictable(&self, partitions: usize, now: Instant) -> Option<i32> {
        let known = self.known.borrow();
        let old = |since: Instant| now.saturating_duration_since(since) > limits::SESSION_KEPT;
        let unused = known.values().min_by_key(|s| (s.used.get(), s.id))?;
        if old(unused.used.get()) {
            return Some(unused.id);
        }
        let aged = known.values().filter(|s| old(s.created));
        let smallest = aged.min_by_key(|s| (s.len(), s.id))?;
        (smallest.len() <= partitions).then_some(smallest.id)
    }

    /// A positive id of this shard that is not in use.
    fn new_id(&self, random: impl FnOnce() -> u64) -> i32 {
        let known = self.known.borrow();
        let most = i32::MAX / self.shards;
        let mut at = (random() % most as u64) as i32;
        loop {
            let id = at * self.shards + self.shard;
            if id > 0 && !known.contains_key(&id) {
                return id;
            }
            // There are far fewer sessions than ids.
            at = (at + 1) % most;
        }
    }
}

fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
