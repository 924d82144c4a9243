//! raft's view of a replica's log (G6).
//!
//! raft asks synchronously. Everything but sending entries to followers needs only headers, which are in memory: those questions get
//! entries without data, so raft never holds bytes for applying. Sending needs bytes: they come from memory, or from an earlier fetch, or
//! the answer is `LogTemporarilyUnavailable` and a [`Fetch`] is noted, which the shell carries out and hands back. No call blocks.
//!
//! An entry's kind travels in its `context` as one byte (nothing for raft's own empty entry); a configuration change follows it there in
//! our own encoding, because raft wants `data` to be protobuf when it is proposed.
//!
//! Bounds: [`limits::FETCHES_PER_GROUP`] fetches noted at a time, one fetched range kept.

use std::cell::RefCell;

use bytes::Bytes;
use engine::types::{EntryKind, RaftIndex, Term};
use raft::eraftpb::{
    ConfState, Entry as RaftEntry, EntryType, HardState as RaftHardState, Snapshot,
};
use raft::{Error, GetEntriesContext, RaftState, StorageError};

use crate::limits;
use crate::store::Store;

/// Entries `low .. high` are wanted from the disk, for sending.
#[derive(Debug)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the peer transport carries fetches out")
)]
pub(crate) struct Fetch {
    pub low: RaftIndex,
    pub high: RaftIndex,
    pub context: GetEntriesContext,
}

pub(crate) struct Storage<S> {
    store: S,
    hard_state: RaftHardState,
    conf: ConfState,
    wanted: RefCell<Vec<Fetch>>,
    fetched: RefCell<Vec<RaftEntry>>,
}

/// The `context` of an entry of this kind.
pub(crate) fn context_of(kind: EntryKind) -> Bytes {
    Bytes::from_static(match kind {
        EntryKind::Batch => &[EntryKind::Batch as u8],
        EntryKind::NoOp => &[],
        EntryKind::Config => &[EntryKind::Config as u8],
        EntryKind::TrimPrefix => &[EntryKind::TrimPrefix as u8],
        EntryKind::Command => &[EntryKind::Command as u8],
        EntryKind::Extent => &[EntryKind::Extent as u8],
    })
}

/// The kind of an entry of raft's, if it is one that we make.
pub(crate) fn kind_of(entry: &RaftEntry) -> Option<EntryKind> {
    if entry.get_entry_type() != EntryType::EntryNormal {
        return Some(EntryKind::Config);
    }
    match entry.context.first() {
        None => entry.data.is_empty().then_some(EntryKind::NoOp),
        Some(b) => {
            EntryKind::from_u8(*b).filter(|k| !matches!(k, EntryKind::NoOp | EntryKind::Config))
        }
    }
}

/// An entry's data as it lies in the log.
pub(crate) fn data_of(entry: &RaftEntry) -> Bytes {
    if entry.get_entry_type() == EntryType::EntryNormal {
        return entry.data.clone();
    }
    // raft's own "leave the joint configuration" has no context.
    entry.context.slice(entry.context.len().min(1)..)
}

/// An entry of the log as raft wants it; `data` is None where only the header is asked for.
fn raft_entry(index: RaftIndex, term: Term, kind: EntryKind, data: Option<Bytes>) -> RaftEntry {
    let mut e = RaftEntry {
        index: index.0,
        term: term.0,
        context: context_of(kind),
        ..RaftEntry::default()
    };
    if kind == EntryKind::Config {
        e.set_entry_type(EntryType::EntryConfChangeV2);
        if let Some(data) = data {
            let mut context = vec![EntryKind::Config as u8];
            context.extend_from_slice(&data);
            e.context = context.into();
        }
    } else if let Some(data) = data {
        e.data = data;
    }
    e
}

fn fixed(entry: &RaftEntry) -> u64 {
    // What an entry costs in a message besides its data, roughly.
    32 + entry.data.len() as u64 + entry.context.len() as u64
}

impl<S: Store> Storage<S> {
    pub fn new(store: S, hard_state: RaftHardState, conf: ConfState) -> Storage<S> {
        Storage {
            store,
            hard_state,
            conf,
            wanted: RefCell::default(),
            fetched: RefCell::default(),
        }
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    /// What raft asked for and memory did not have.
    pub fn take_wanted(&self) -> Vec<Fetch> {
        self.wanted.take()
    }

    /// Entries that a [`Fetch`] brought; they are used once.
    pub fn put_fetched(&self, entries: &[engine::types::Entry]) {
        *self.fetched.borrow_mut() = entries
            .iter()
            .map(|e| raft_entry(e.index, e.term, e.kind, Some(e.data.clone())))
            .collect();
    }

    fn header_only(&self, low: u64, high: u64, max: u64) -> Vec<RaftEntry> {
        let mut size = 0;
        let mut out = Vec::new();
        for i in low..high {
            let header = self
                .store
                .header(RaftIndex(i))
                .expect("G6: headers of entries above the applied index are in memory");
            let e = raft_entry(header.index, header.term, header.kind, None);
            size += fixed(&e);
            if !out.is_empty() && size > max {
                break;
            }
            out.push(e);
        }
        out
    }

    fn with_bytes(
        &self,
        low: u64,
        high: u64,
        max: u64,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        let fetched = self.fetched.take();
        let mut size = 0;
        let mut out: Vec<RaftEntry> = Vec::new();
        for i in low..high {
            let in_memory = || {
                let index = RaftIndex(i);
                let header = self.store.header(index)?;
                let data = self.store.bytes(index)?;
                Some(raft_entry(index, header.term, header.kind, Some(data)))
            };
            let from_fetch = || {
                let found = fetched.binary_search_by_key(&i, |e| e.index).ok()?;
                // A fetch that was under way while the log was cut brings what is not in it any more.
                let term = self.store.term(RaftIndex(i))?;
                (fetched[found].term == term.0).then(|| fetched[found].clone())
            };
            let Some(e) = in_memory().or_else(from_fetch) else {
                break;
            };
            size += fixed(&e);
            if !out.is_empty() && size > max {
                break;
            }
            out.push(e);
        }
        if out.is_empty() {
            let mut wanted = self.wanted.borrow_mut();
            if wanted.len() < limits::FETCHES_PER_GROUP {
                wanted.push(Fetch {
                    low: RaftIndex(low),
                    high: RaftIndex(high),
                    context,
                });
            }
            // One that finds no place is asked for again when the follower answers the next heartbeat.
            return Err(Error::Store(StorageError::LogTemporarilyUnavailable));
        }
        Ok(out)
    }
}

impl<S: Store> raft::Storage for Storage<S> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        let max = max_size.into().unwrap_or(u64::MAX);
        if low < self.store.first_index().0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(
            high <= self.store.last_index().0 + 1,
            "raft asks only for entries that it has handed over"
        );
        if context.can_async() {
            self.with_bytes(low, high, max, context)
        } else {
            Ok(self.header_only(low, high, max))
        }
    }

    fn term(&self, idx: u64) -> raft::Result<u64> {
        if idx == 0 {
            return Ok(0);
        }
        match self.store.term(RaftIndex(idx)) {
            Some(term) => Ok(term.0),
            None if idx < self.store.first_index().0 => Err(Error::Store(StorageError::Compacted)),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.store.first_index().0)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.store.last_index().0)
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
