//! A fetch on the shard that owns its partitions: look, wait if there is too little, look again at what moved, read, answer.
//!
//! Cost follows partitions with data: while a fetch waits, only groups that moved are looked at again. Many partitions are looked at in slices of
//! [`limits::FETCH_SLICE`], between which other tasks have their turns. A fetch holds no memory while it waits or gives way. What
//! it gives out of the log's memory is leased from the budget's fetch class until it has left for the socket; what is read from disk is leased before it is read, and its
//! buffers hold their leases. A fetch waits for memory once, for a while, and only while it holds none: then it is answered with what it has.

use std::rc::Rc;
use std::time::Duration;

use engine::log::{LogError, Patience, PendingRead, Read};
use engine::memory::{Leases, MemoryClass};
use engine::rt;
use engine::types::{GroupId, LeaderEpoch, Offset};
use raftgroup::Group;
use smallvec::SmallVec;

use super::waiter::{Subscriptions, Waiter};
use super::wire::PartAnswer;
use crate::error::ErrorCode;
use crate::limits;
use crate::request::{FetchCall, FetchQuery, FetchReply};
use crate::shard::{Shard, check_epoch};

/// What became of one query so far.
struct Slot {
    answer: PartAnswer,
    /// Bytes that are there or will be read.
    bytes: usize,
    /// Those among them that are in the log's memory.
    ready: usize,
    read: Option<PendingRead>,
}

impl Slot {
    /// Lets go of what a look found; the bytes are still counted.
    fn empty(&mut self) {
        self.answer.records.clear();
        self.read = None;
    }

    fn is_emptied(&self) -> bool {
        self.bytes > 0 && self.answer.records.is_empty() && self.read.is_none()
    }

    /// The fetch is answered because of this one, whatever else there is.
    fn ends(&self) -> bool {
        !self.answer.error.is_none() || self.answer.diverging.is_some()
    }
}

/// Serves a call of another shard and keeps the books. None when the caller is gone.
pub async fn serve_remote(
    shard: &Rc<Shard>,
    from: usize,
    call: FetchCall,
    waiter: Rc<Waiter>,
) -> Option<FetchReply> {
    let id = call.id;
    let (parts, memory) = serve(shard, &call, &waiter).await;
    if waiter.is_cancelled() {
        return None;
    }
    let leased = memory.is_some();
    shard.fetches.answered(from, id, memory);
    Some(FetchReply { parts, leased })
}

/// What the slots of a call hold together, kept as they change: nothing goes through all of them because one moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    bytes: usize,
    /// Slots whose answer doesn't wait for more: an error, or a place where logs parted.
    ends: usize,
}

impl Sum {
    fn add(&mut self, slot: &Slot) {
        self.bytes += slot.bytes;
        self.ends += usize::from(slot.ends());
    }

    fn sub(&mut self, slot: &Slot) {
        self.bytes -= slot.bytes;
        self.ends -= usize::from(slot.ends());
    }

    fn is_enough(&self, min_bytes: usize) -> bool {
        self.ends > 0 || self.bytes >= min_bytes
    }
}

/// Serves a call: one answer for each query. The leases stand for what the answers hold of the log's memory.
pub async fn serve(
    shard: &Rc<Shard>,
    call: &FetchCall,
    waiter: &Rc<Waiter>,
) -> (SmallVec<[PartAnswer; 1]>, Option<Leases>) {
    let (mut slots, sum) = look_at_all(shard, call, Keep::UpToASlice).await;
    if !sum.is_enough(waiter.min_bytes(call.min_bytes)) && call.max_wait_ms > 0 {
        let wait = Duration::from_millis(u64::from(call.max_wait_ms));
        let waited = wait_for_enough(shard, call, waiter, &mut slots, sum);
        let _ = rt::timeout(wait, waited).await;
    }
    if waiter.is_cancelled() {
        return (SmallVec::new(), None);
    }
    let memory = lease(shard, call, &mut slots).await;
    read(shard, call, &mut slots).await;
    let parts = slots.into_iter().map(|s| s.answer).collect();
    (parts, memory)
}

/// What becomes of the memory that a look at all queries finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// There is a lease for it.
    All,
    /// There is none: it is kept only where no other task has a turn before it is leased, and else counted and looked for again.
    UpToASlice,
}

/// Whether other tasks have turns while its queries are looked at.
fn is_sliced(call: &FetchCall) -> bool {
    call.queries.len() > limits::FETCH_SLICE
}

/// Looks at every query, in slices between which other tasks have their turns.
async fn look_at_all(shard: &Shard, call: &FetchCall, keep: Keep) -> (Vec<Slot>, Sum) {
    let mut slots = Vec::with_capacity(call.queries.len());
    let mut sum = Sum::default();
    let empty = keep == Keep::UpToASlice && is_sliced(call);
    for slice in call.queries.chunks(limits::FETCH_SLICE) {
        if !slots.is_empty() {
            rt::yield_if_needed().await;
        }
        for query in slice {
            let mut slot = look(shard, query, sum.bytes, most(shard, call));
            if empty {
                slot.empty();
            }
            sum.add(&slot);
            slots.push(slot);
        }
    }
    (slots, sum)
}

async fn wait_for_enough(
    shard: &Rc<Shard>,
    call: &FetchCall,
    waiter: &Rc<Waiter>,
    slots: &mut [Slot],
    mut sum: Sum,
) {
    let mut subscriptions = Subscriptions::default();
    let mut places = crate::shard::map::<GroupId, usize>();
    // Other tasks may have had turns since the first of them were looked at: what moved meanwhile told nobody.
    let again = is_sliced(call);
    let most = most(shard, call);
    let look_again = |place: usize, slots: &mut [Slot], sum: &mut Sum| {
        sum.sub(&slots[place]);
        let mut slot = look(shard, &call.queries[place], sum.bytes, most);
        // Memory that a look found is not held while waiting.
        slot.empty();
        sum.add(&slot);
        slots[place] = slot;
    };
    for (place, query) in call.queries.iter().enumerate() {
        if place > 0 && place % limits::FETCH_SLICE == 0 {
            rt::yield_if_needed().await;
        }
        slots[place].empty();
        if let Some(group) = shard.groups.get(query.group) {
            subscriptions.add(group, waiter);
        }
        places.insert(query.group, place);
        if again {
            look_again(place, slots, &mut sum);
        }
    }
    loop {
        if sum.is_enough(waiter.min_bytes(call.min_bytes)) || waiter.is_cancelled() {
            return;
        }
        for (group, ()) in waiter.stirred().await {
            if let Some(place) = places.get(&group) {
                look_again(*place, slots, &mut sum);
            }
            rt::yield_if_needed().await;
        }
    }
}

/// Looks at one partition, when `total` bytes go out already.
fn look(shard: &Shard, query: &FetchQuery, total: usize, max_bytes: usize) -> Slot {
    let refused = |code| Slot {
        answer: PartAnswer::error(code),
        bytes: 0,
        ready: 0,
        read: None,
    };
    let group = match shard.led(query.group) {
        Ok(group) => group,
        Err(code) => return refused(code),
    };
    if let Err(code) = check_epoch(&group, query.current_leader_epoch) {
        return refused(code);
    }
    let mut slot = Slot {
        answer: PartAnswer {
            error: ErrorCode::None,
            high_watermark: group.high_watermark().0,
            log_start_offset: group.log_start_offset().0,
            records: SmallVec::new(),
            diverging: None,
            leader: None,
        },
        bytes: 0,
        ready: 0,
        read: None,
    };
    match divergence(&group, query) {
        Ok(None) => {}
        Ok(Some(end)) => {
            slot.answer.diverging = Some(end);
            return slot;
        }
        Err(code) => return refused(code),
    }
    let offset = Offset(query.offset);
    let (start, bound) = (group.log_start_offset(), group.high_watermark());
    if offset < start || offset > group.log_end_offset() {
        return refused(ErrorCode::OffsetOutOfRange);
    }
    let room = max_bytes.saturating_sub(total);
    if offset >= bound || (room == 0 && total > 0) {
        return slot;
    }
    let most = query.max_bytes.min(room);
    match group.log().read(offset, most, bound) {
        Read::Ready(batches) => {
            let bytes: usize = batches.iter().map(|b| b.len()).sum();
            // The first batch comes whole, which only the first partition with data may rely on: behind it both limits bind.
            if total == 0 || bytes <= most {
                (slot.bytes, slot.ready) = (bytes, bytes);
                slot.answer.records = batches.into();
            }
        }
        Read::Later(read) => {
            slot.bytes = read.bytes().max(1);
            slot.read = Some(read);
        }
        Read::OutOfRange => return refused(ErrorCode::OffsetOutOfRange),
        Read::Damaged { to } => {
            // Never served wrong and never skipped in silence (L13); a reader may go on behind it by itself.
            if let Some(kept_back) = shard.failed_reads.pass(rt::now()) {
                tracing::warn!(group = %query.group, offset = query.offset, %to, kept_back, "a fetch asks for damaged offsets");
            }
            return refused(ErrorCode::KafkaStorageError);
        }
    }
    slot
}

/// Where the reader's log parted from this one, if it says what epoch it read last and that doesn't fit (KIP-595).
fn divergence(group: &Group, query: &FetchQuery) -> Result<Option<(i32, i64)>, ErrorCode> {
    if query.last_fetched_epoch < 0 {
        return Ok(None);
    }
    match group
        .log()
        .end_of_epoch(LeaderEpoch(query.last_fetched_epoch))
    {
        None => Err(ErrorCode::OffsetOutOfRange),
        Some((epoch, end)) if epoch.0 < query.last_fetched_epoch || end.0 < query.offset => {
            Ok(Some((epoch.0, end.0)))
        }
        Some(_) => Ok(None),
    }
}

/// Bytes that go out for a call: no fetch has more than half of the memory for all of them, unless its first batch is larger.
fn most(shard: &Shard, call: &FetchCall) -> usize {
    let half = shard.budget.cap(MemoryClass::Fetch) / 2;
    call.max_bytes
        .min(usize::try_from(half).unwrap_or(usize::MAX))
}

fn patience(call: &FetchCall) -> Patience {
    Patience::AtMost(if call.alone {
        limits::FETCH_MEMORY_WAIT
    } else {
        limits::FETCH_MEMORY_WAIT_OF_SEVERAL
    })
}

fn in_memory(slots: &[Slot]) -> usize {
    slots.iter().map(|s| s.answer.record_bytes()).sum()
}

/// Takes memory for what goes out of the log's memory. Looks again where a slot has bytes and nothing in it: it waited, for data, for its turn or for memory.
async fn lease(shard: &Rc<Shard>, call: &FetchCall, slots: &mut Vec<Slot>) -> Option<Leases> {
    if !is_sliced(call) && slots.iter().any(Slot::is_emptied) {
        *slots = look_at_all(shard, call, Keep::UpToASlice).await.0;
    }
    let bytes: usize = slots.iter().map(|s| s.ready).sum();
    let mut memory = None;
    if bytes > limits::UNLEASED_FETCH_BYTES {
        let log = shard.groups.shard_log();
        memory = log.memory_now(bytes as u64);
        if memory.is_none() {
            // Nothing is held while it waits.
            slots.iter_mut().for_each(Slot::empty);
            memory = Some(log.memory(bytes as u64, patience(call)).await?);
        }
    }
    if slots.iter().any(Slot::is_emptied) {
        *slots = look_at_all(shard, call, Keep::All).await.0;
        keep_within(slots, bytes);
    }
    memory
}

/// Cuts what was found to `bytes`, whole batches, the first one always.
fn keep_within(slots: &mut [Slot], bytes: usize) {
    let mut total = 0;
    for slot in slots {
        while total + slot.answer.record_bytes() > bytes
            && (total > 0 || slot.answer.records.len() > 1)
        {
            if slot.answer.records.pop().is_none() {
                break;
            }
        }
        total += slot.answer.record_bytes();
    }
}

/// Carries out the reads from disk. What they give holds its memory itself; only a call that holds none yet waits for some.
async fn read(shard: &Shard, call: &FetchCall, slots: &mut [Slot]) {
    let mut total = in_memory(slots);
    for (slot, query) in slots.iter_mut().zip(&call.queries) {
        let Some(read) = slot.read.take() else {
            continue;
        };
        // A first batch comes whatever its size, and behind others where it fits the whole answer: the next answer may begin with it.
        let (patience, largest) = if total == 0 {
            (patience(call), usize::MAX)
        } else {
            let room = call.max_bytes.saturating_sub(total);
            (Patience::Never, room.min(query.max_bytes))
        };
        let batches = match read.run(patience, largest).await {
            Ok(batches) => batches,
            Err(e) => {
                slot.answer = PartAnswer::error(log_error(shard, query.group, &e));
                continue;
            }
        };
        let bytes: usize = batches.iter().map(|b| b.len()).sum();
        if total > 0 && total + bytes > call.max_bytes {
            continue;
        }
        total += bytes;
        slot.answer.records = batches.into();
    }
}

fn log_error(shard: &Shard, group: GroupId, e: &LogError) -> ErrorCode {
    // Retention was faster than the reader, who learns it as if it had asked a moment later.
    if matches!(e, LogError::Trimmed) {
        return ErrorCode::OffsetOutOfRange;
    }
    if let Some(kept_back) = shard.failed_reads.pass(rt::now()) {
        tracing::warn!(%group, error = %e, kept_back, "a fetch could not be read");
    }
    match e {
        LogError::Removed => ErrorCode::NotLeaderOrFollower,
        _ => ErrorCode::KafkaStorageError,
    }
}
