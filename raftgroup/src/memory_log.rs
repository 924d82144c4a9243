//! A replica's log in memory, for tests: every append is one journal commit; what is durable is up to the test, and a crash keeps just that.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use engine::types::{Entry, EntryHeader, HardState, Lsn, Offset, RaftIndex, Term};

use crate::store::Store;

#[derive(Debug, Default)]
struct Inner {
    hard_state: HardState,
    entries: Vec<Entry>,
    commit: RaftIndex,
    log_start: Offset,
    lsn: u64,
    records: Vec<(Lsn, Option<HardState>, Vec<Entry>)>,
    /// Bytes of entries up to here are not in memory.
    written_out: RaftIndex,
    damaged: Vec<RaftIndex>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryLog(Rc<RefCell<Inner>>);

impl MemoryLog {
    /// The commit of the last append.
    pub fn newest(&self) -> Lsn {
        Lsn(self.0.borrow().lsn)
    }

    /// What a power cut leaves: the records up to `durable`, as L1 replays them.
    pub fn crash(&self, durable: Lsn) -> MemoryLog {
        let old = self.0.borrow();
        let new = MemoryLog::default();
        for (lsn, hard_state, entries) in old.records.iter().filter(|r| r.0 <= durable) {
            new.append(*hard_state, entries);
            new.0.borrow_mut().lsn = lsn.0;
        }
        let found = new.hard_state().commit.min(new.last_index());
        let mut inner = new.0.borrow_mut();
        inner.commit = found;
        inner.log_start = old.log_start;
        drop(inner);
        new
    }

    /// The first entry of the last append.
    pub fn first_of_newest(&self) -> Option<RaftIndex> {
        let inner = self.0.borrow();
        inner.records.last()?.2.first().map(|e| e.index)
    }

    pub fn records(&self) -> Vec<(Lsn, Option<HardState>, Vec<Entry>)> {
        self.0.borrow().records.clone()
    }

    pub fn damage(&self, i: RaftIndex) {
        self.0.borrow_mut().damaged.push(i);
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.0.borrow().entries.clone()
    }

    pub fn commit(&self) -> RaftIndex {
        self.0.borrow().commit
    }

    pub fn write_out(&self, to: RaftIndex) {
        assert!(to <= self.commit(), "L5");
        self.0.borrow_mut().written_out = to;
    }
}

impl Inner {
    fn get(&self, i: RaftIndex) -> Option<&Entry> {
        self.entries.get(usize::try_from(i.0.checked_sub(1)?).ok()?)
    }
}

impl Store for MemoryLog {
    fn append(&self, hard_state: Option<HardState>, entries: &[Entry]) -> Lsn {
        let mut inner = self.0.borrow_mut();
        inner.lsn += 1;
        let lsn = Lsn(inner.lsn);
        if let Some(hs) = hard_state {
            inner.hard_state = hs;
        }
        if let Some(first) = entries.first() {
            assert!(first.index > inner.commit, "L5: committed entries stay");
            assert!(first.index.0 <= inner.entries.len() as u64 + 1, "no holes");
            inner.entries.truncate(first.index.0 as usize - 1);
            for e in entries {
                let end = inner.entries.last().map_or(Offset(0), |l| l.next_offset);
                assert_eq!(e.base_offset, end, "offsets are dense");
                assert_eq!(e.index.0, inner.entries.len() as u64 + 1);
                inner.entries.push(e.clone());
            }
        }
        inner.records.push((lsn, hard_state, entries.to_vec()));
        lsn
    }
    fn hard_state(&self) -> HardState {
        self.0.borrow().hard_state
    }
    fn first_index(&self) -> RaftIndex {
        RaftIndex(1)
    }
    fn last_index(&self) -> RaftIndex {
        RaftIndex(self.0.borrow().entries.len() as u64)
    }
    fn term(&self, i: RaftIndex) -> Option<Term> {
        if i.0 == 0 {
            return Some(Term(0));
        }
        self.0.borrow().get(i).map(|e| e.term)
    }
    fn header(&self, i: RaftIndex) -> Option<EntryHeader> {
        self.0.borrow().get(i).map(Entry::header)
    }
    fn bytes(&self, i: RaftIndex) -> Option<Bytes> {
        let inner = self.0.borrow();
        let there = i > inner.written_out && !inner.damaged.contains(&i);
        inner.get(i).filter(|_| there).map(|e| e.data.clone())
    }
    fn set_commit(&self, i: RaftIndex) {
        assert!(i <= self.last_index(), "only what is in the log");
        let mut inner = self.0.borrow_mut();
        assert!(i >= inner.commit, "commit never goes back");
        inner.commit = i;
    }
    fn set_log_start(&self, start: Offset) {
        self.0.borrow_mut().log_start = start;
    }
    fn log_start_offset(&self) -> Offset {
        self.0.borrow().log_start
    }
    fn log_end_offset(&self) -> Offset {
        let inner = self.0.borrow();
        inner.entries.last().map_or(Offset(0), |e| e.next_offset)
    }
}
