//! A fetch on the shard that owns its partitions: look, wait if there is too little, look again at what moved, read, answer.
//!
//! Cost follows partitions with data: while a fetch waits, only groups that moved are looked at again. It holds no memory while it waits. What
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

/// Serves a call: one answer for each query. The leases stand for what the answers hold of the log's memory.
pub async fn serve(
    shard: &Rc<Shard>,
    call: &FetchCall,
    waiter: &Rc<Waiter>,
) -> (SmallVec<[PartAnswer; 1]>, Option<Leases>) {
    let mut slots = look_at_all(shard, call);
    if !enough(&slots, waiter.min_bytes(call.min_bytes)) && call.max_wait_ms > 0 {
        let wait = Duration::from_millis(u64::from(call.max_wait_ms));
        let waited = wait_for_enough(shard, call, waiter, &mut slots);
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

fn enough(slots: &[Slot], min_bytes: usize) -> bool {
    let mut bytes = 0;
    for slot in slots {
        if !slot.answer.error.is_none() || slot.answer.diverging.is_some() {
            return true;
        }
        bytes += slot.bytes;
    }
    bytes >= min_bytes
}

fn look_at_all(shard: &Shard, call: &FetchCall) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(call.queries.len());
    let mut total = 0;
    for query in &call.queries {
        let slot = look(shard, query, total, most(shard, call));
        total += slot.bytes;
        slots.push(slot);
    }
    slots
}

async fn wait_for_enough(
    shard: &Rc<Shard>,
    call: &FetchCall,
    waiter: &Rc<Waiter>,
    slots: &mut [Slot],
) {
    let mut subscriptions = Subscriptions::default();
    let mut places = crate::shard::map::<GroupId, SmallVec<[usize; 1]>>();
    for (place, query) in call.queries.iter().enumerate() {
        let known: &mut SmallVec<[usize; 1]> = places.entry(query.group).or_default();
        if known.is_empty()
            && let Some(group) = shard.groups.get(query.group)
        {
            subscriptions.add(group, waiter);
        }
        known.push(place);
    }
    // Memory that a look found is not held while waiting.
    for slot in slots.iter_mut() {
        slot.empty();
    }
    loop {
        if enough(slots, waiter.min_bytes(call.min_bytes)) || waiter.is_cancelled() {
            return;
        }
        let moved = waiter.stirred().await;
        for group in moved {
            for place in places.get(&group).into_iter().flatten() {
                let others: usize =
                    slots.iter().map(|s| s.bytes).sum::<usize>() - slots[*place].bytes;
                let mut slot = look(shard, &call.queries[*place], others, most(shard, call));
                slot.empty();
                slots[*place] = slot;
            }
        }
        rt::yield_if_needed().await;
    }
}

/// Looks at one partition, when `total` bytes go out already.
fn look(shard: &Shard, query: &FetchQuery, total: usize, max_bytes: usize) -> Slot {
    let refused = |code| Slot {
        answer: PartAnswer::error(code),
        bytes: 0,
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
            // The first batch comes whole, which only the first partition with data may rely on.
            if total == 0 || bytes <= room {
                slot.bytes = bytes;
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

/// Takes memory for what goes out of the log's memory. Looks again where a slot has bytes and nothing in it: it waited, for data or for memory.
async fn lease(shard: &Rc<Shard>, call: &FetchCall, slots: &mut Vec<Slot>) -> Option<Leases> {
    if slots.iter().any(Slot::is_emptied) {
        *slots = look_at_all(shard, call);
    }
    let bytes = in_memory(slots);
    if bytes <= limits::UNLEASED_FETCH_BYTES {
        return None;
    }
    let log = shard.groups.shard_log();
    if let Some(memory) = log.memory_now(bytes as u64) {
        return Some(memory);
    }
    // Nothing is held while it waits.
    slots.iter_mut().for_each(Slot::empty);
    let memory = log.memory(bytes as u64, patience(call)).await?;
    *slots = look_at_all(shard, call);
    keep_within(slots, bytes);
    Some(memory)
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
            (Patience::Never, call.max_bytes.saturating_sub(total))
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
