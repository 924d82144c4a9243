//! What the world outside knows of the node: what was sent, acknowledged and read, and what must therefore be there. It outlives every process.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::producer::Idempotent;

/// Topics, with their number of partitions.
pub const TOPICS: [(&str, i32); 3] = [("sim-0", 3), ("sim-1", 1), ("sim-2", 2)];
/// A group of members, and one of offsets alone.
pub const GROUPS: [&str; 2] = ["sim-members", "sim-offsets"];
pub const IDEMPOTENT: usize = 2;

/// A partition: topic by its place in [`TOPICS`], number.
pub type Place = (usize, i32);

pub fn places() -> impl Iterator<Item = Place> {
    TOPICS
        .iter()
        .enumerate()
        .flat_map(|(topic, (_, partitions))| (0..*partitions).map(move |p| (topic, p)))
}

/// A record's name: `n` counts up within what one producer sent in one stream, which is all that an idempotent one ever sends, and one connection's
/// for those who never send anything twice. So records of a stream are in a partition in the order of `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub producer: u32,
    pub stream: u32,
    pub n: u64,
}

const ID_BYTES: usize = 16;

impl Id {
    /// A record's value that begins with the name.
    pub fn value(self, padding: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(ID_BYTES + padding);
        out.put_u32(self.producer);
        out.put_u32(self.stream);
        out.put_u64(self.n);
        out.extend((0..padding).map(|i| (i as u8) ^ (self.n as u8)));
        out.freeze()
    }

    pub fn of(value: &[u8]) -> Id {
        let part = |at: usize| u32::from_be_bytes(value[at..at + 4].try_into().expect("four"));
        let id = Id {
            producer: part(0),
            stream: part(4),
            n: u64::from(part(8)) << 32 | u64::from(part(12)),
        };
        let padding = &value[ID_BYTES..];
        let whole = padding
            .iter()
            .zip(0..)
            .all(|(b, i)| *b == (i as u8) ^ (id.n as u8));
        assert!(whole, "the bytes of {id:?} are as they were sent");
        id
    }
}

/// What is known of a partition.
#[derive(Default)]
pub struct Log {
    /// What is where for good: acknowledged with acks=all, or read by somebody.
    at: BTreeMap<i64, Id>,
    place: BTreeMap<Id, i64>,
    /// Acknowledged as a duplicate: it is there, who knows where.
    somewhere: BTreeSet<Id>,
    /// Acknowledged with acks=1 in this start: there for as long as it lasts.
    in_memory: BTreeMap<i64, Id>,
    sent: BTreeSet<Id>,
    /// Sent and not acknowledged; will be sent again.
    pub open: BTreeSet<Id>,
    /// Sent once, and not in the log when it was read after a start: must never come back.
    gone: BTreeSet<Id>,
    /// As Metadata last showed it, with the number of the start.
    pub epoch: Option<(i32, u64)>,
    /// Acknowledged with acks=all.
    pub acknowledged: u64,
}

impl Log {
    pub fn sends(&mut self, id: Id) {
        self.sent.insert(id);
    }

    /// Somebody was told, or has read, that the record is there.
    pub fn is_at(&mut self, place: Place, offset: i64, id: Id) {
        let told = |what: &str| format!("{place:?}: {id:?} at {offset}: {what}");
        assert!(self.sent.contains(&id), "{}", told("nobody sent it whole"));
        assert!(
            !self.gone.contains(&id),
            "{}",
            told("it was cut and is back")
        );
        for known in [&self.at, &self.in_memory] {
            let other = known.get(&offset).filter(|other| **other != id);
            assert_eq!(other, None, "{}", told("another record was there"));
        }
        if let Some(before) = self.place.insert(id, offset) {
            assert_eq!(before, offset, "{}", told("it is there twice"));
            return;
        }
        self.at.insert(offset, id);
        let stream = |n| Id { n, ..id };
        let before = self.place.range(stream(0)..id).next_back();
        let after = self.place.range(stream(id.n + 1)..=stream(u64::MAX)).next();
        assert!(
            before.is_none_or(|b| *b.1 < offset),
            "{}: {before:?}",
            told("order")
        );
        assert!(
            after.is_none_or(|a| *a.1 > offset),
            "{}: {after:?}",
            told("order")
        );
    }

    /// True if it was known to be there before: the answer is to a repeat.
    pub fn acknowledge(&mut self, place: Place, offset: Option<i64>, id: Id) -> bool {
        let repeat = self.place.contains_key(&id) || offset.is_none();
        self.acknowledged += 1;
        self.open.remove(&id);
        match offset {
            Some(offset) => self.is_at(place, offset, id),
            None => {
                self.somewhere.insert(id);
            }
        }
        repeat
    }

    pub fn acknowledge_in_memory(&mut self, place: Place, offset: i64, id: Id) {
        let other = self.at.get(&offset).filter(|other| **other != id);
        assert_eq!(
            other, None,
            "{place:?}: {id:?} at {offset}, where another one was"
        );
        self.in_memory.insert(offset, id);
    }

    /// The process has ended. Gives how many records in memory count no more.
    pub fn ended(&mut self, place: Place, clean: bool) -> u64 {
        let in_memory = std::mem::take(&mut self.in_memory);
        if clean {
            for (offset, id) in in_memory {
                self.is_at(place, offset, id);
            }
            return 0;
        }
        in_memory
            .keys()
            .filter(|o| !self.at.contains_key(o))
            .count() as u64
    }

    /// The log was read whole after a start, before anybody sent anything: everything is there, in order and once.
    pub fn check(&mut self, place: Place, found: &BTreeMap<i64, Id>) -> u64 {
        for (offset, id) in found {
            self.is_at(place, *offset, *id);
        }
        for (offset, id) in &self.at {
            let end = found.len();
            assert_eq!(
                found.get(offset),
                Some(id),
                "{place:?}: {id:?} at {offset} of {end} is lost"
            );
        }
        let there: BTreeSet<Id> = found.values().copied().collect();
        for id in &self.somewhere {
            assert!(
                there.contains(id),
                "{place:?}: {id:?}, acknowledged as a duplicate, is lost"
            );
        }
        let missing = self
            .sent
            .difference(&there)
            .filter(|id| !self.open.contains(id));
        self.gone.extend(missing);
        self.acknowledged
    }

    /// An offset up to which everything is committed.
    pub fn known_end(&self) -> i64 {
        self.at.keys().next_back().map_or(0, |last| last + 1)
    }
}

/// A group's offset of a partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Committed {
    /// Acknowledged or fetched.
    pub floor: Option<i64>,
    /// The largest that was ever sent.
    pub sent: i64,
}

#[derive(Default)]
pub struct Topic {
    pub id: Cell<Option<Uuid>>,
    /// Its creation was acknowledged.
    pub acknowledged: Cell<bool>,
    /// It was seen.
    pub there: Cell<bool>,
}

/// How often what was meant to happen did happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub checked: u64,
    pub starts: u64,
    pub clean: u64,
    /// Starts that were asked to stop before they served.
    pub asked_in_start: u64,
    pub epochs: u64,
    pub commits: u64,
    pub commits_checked: u64,
    pub connections: u64,
    pub members: u64,
    pub acks_1: u64,
    pub acks_1_lost: u64,
    pub requests: u64,
    pub resent: u64,
    pub duplicates: u64,
    pub large: u64,
    pub fetched: u64,
    pub cut_in_frame: u64,
    pub cut_unanswered: u64,
    pub garbage: u64,
    pub closed_on_garbage: u64,
    pub slow: u64,
    pub hops: u64,
}

#[derive(Default)]
pub struct Outside {
    pub logs: BTreeMap<Place, RefCell<Log>>,
    pub topics: [Topic; TOPICS.len()],
    pub committed: RefCell<BTreeMap<(&'static str, Place), Committed>>,
    pub idempotent: Vec<RefCell<Idempotent>>,
    /// Streams of records begun by those who send nothing twice.
    pub streams: Cell<u32>,
    /// The number of this start.
    pub start: Cell<u64>,
    /// The node was asked to stop: connections end.
    pub stopping: Cell<bool>,
    counts: Cell<Counts>,
}

impl Outside {
    pub fn new() -> Outside {
        Outside {
            logs: places().map(|p| (p, RefCell::default())).collect(),
            idempotent: (0..IDEMPOTENT as u32)
                .map(|n| RefCell::new(Idempotent::new(n)))
                .collect(),
            ..Outside::default()
        }
    }

    pub fn count(&self, f: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        f(&mut counts);
        self.counts.set(counts);
    }

    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    pub fn log(&self, place: Place) -> std::cell::RefMut<'_, Log> {
        self.logs[&place].borrow_mut()
    }
}
