//! What the state machine of a group needs of its replica's log. `engine::log` is the one implementation that ships; tests put one in
//! memory in its place, so that the machine can be driven through any order of writes, losses and restarts.

use bytes::Bytes;
use engine::log::ReplicaLog;
use engine::types::{Entry, EntryHeader, HardState, Lsn, Offset, RaftIndex, Term};

pub(crate) trait Store: Clone {
    /// L1: entries at index i replace everything from i on. Gives the commit that will hold them.
    fn append(&self, hard_state: Option<HardState>, entries: &[Entry]) -> Lsn;
    fn hard_state(&self) -> HardState;
    fn first_index(&self) -> RaftIndex;
    fn last_index(&self) -> RaftIndex;
    fn term(&self, i: RaftIndex) -> Option<Term>;
    fn header(&self, i: RaftIndex) -> Option<EntryHeader>;
    fn bytes(&self, i: RaftIndex) -> Option<Bytes>;
    fn set_commit(&self, i: RaftIndex);
    fn set_log_start(&self, start: Offset);
    fn log_start_offset(&self) -> Offset;
    /// The offset after the last entry.
    fn log_end_offset(&self) -> Offset;
}

impl Store for ReplicaLog {
    fn append(&self, hard_state: Option<HardState>, entries: &[Entry]) -> Lsn {
        ReplicaLog::append(self, hard_state, entries)
    }
    fn hard_state(&self) -> HardState {
        ReplicaLog::hard_state(self)
    }
    fn first_index(&self) -> RaftIndex {
        ReplicaLog::first_index(self)
    }
    fn last_index(&self) -> RaftIndex {
        ReplicaLog::last_index(self)
    }
    fn term(&self, i: RaftIndex) -> Option<Term> {
        ReplicaLog::term(self, i)
    }
    fn header(&self, i: RaftIndex) -> Option<EntryHeader> {
        ReplicaLog::header(self, i)
    }
    fn bytes(&self, i: RaftIndex) -> Option<Bytes> {
        ReplicaLog::bytes(self, i)
    }
    fn set_commit(&self, i: RaftIndex) {
        ReplicaLog::set_commit(self, i);
    }
    fn set_log_start(&self, start: Offset) {
        ReplicaLog::set_log_start(self, start);
    }
    fn log_start_offset(&self) -> Offset {
        ReplicaLog::log_start_offset(self)
    }
    fn log_end_offset(&self) -> Offset {
        ReplicaLog::log_end_offset(self)
    }
}
