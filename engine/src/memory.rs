//! A shard's memory budget: who wants bytes takes a lease for them first and waits in line while there are none.
use std::rc::Rc;

/// What memory is taken for. Every class has a cap of its own, so that no kind of work can starve the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// Whole requests whose size is known, from before their body is read until they are answered.
    Requests,
    /// Frames that have begun to arrive and may never end.
    PartialFrames,
    /// The unflushed tail of the log: appended, not yet written out.
    Tail,
    /// The batch cache.
    Cache,
    /// Fetch answers and the reads behind them.
    Fetch,
}

/// Asked for more than the class can ever have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes were asked for, the class may hold {cap}")]
pub struct TooLarge {
    pub asked: u64,
    pub cap: u64,
}

/// See the module.
pub struct Budget {}

/// Bytes taken; dropping it gives them back.
pub struct Lease {}

impl Budget {
    pub fn new(total_bytes: u64) -> Rc<Budget> {
        let _ = total_bytes;
        todo!()
    }
    /// Waits its turn (first come, first served within the class). Refuses what could never be granted.
    pub async fn take(self: &Rc<Self>, class: MemoryClass, bytes: u64) -> Result<Lease, TooLarge> {
        let _ = (class, bytes);
        todo!()
    }
    /// Takes at once or not at all; doesn't overtake those who wait.
    pub fn try_take(self: &Rc<Self>, class: MemoryClass, bytes: u64) -> Option<Lease> {
        let _ = (class, bytes);
        todo!()
    }
    pub fn used(&self, class: MemoryClass) -> u64 {
        let _ = class;
        todo!()
    }
    pub fn cap(&self, class: MemoryClass) -> u64 {
        let _ = class;
        todo!()
    }
    /// Bytes in use over all classes.
    pub fn used_total(&self) -> u64 {
        todo!()
    }
    pub fn total(&self) -> u64 {
        todo!()
    }
}

impl Lease {
    pub fn bytes(&self) -> u64 {
        todo!()
    }
    /// Gives back all but `bytes` (no more than it has).
    pub fn shrink_to(&mut self, bytes: u64) {
        let _ = bytes;
        todo!()
    }
}
