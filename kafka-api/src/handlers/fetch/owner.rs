//! A fetch on the shard that owns its partitions: look, wait if there is too little, look again at what moved, read, answer.
//!
//! Cost follows partitions with data: while a fetch waits, only groups that moved are looked at again. It holds no memory while it waits. Before
//! anything large is read or given out, its bytes are leased from the budget's fetch class; reads from disk are bounded in number as
//! well, because a first batch is read whole whatever its size.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::log::{Found, LogError, PendingRead, Read};
use engine::memory::{Lease, MemoryClass};
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
    let (parts, lease) = serve(shard, &call, &waiter).await;
    if waiter.is_cancelled() {
        return None;
    }
    let leased = lease.is_some();
    shard.fetches.answered(from, id, lease);
    Some(FetchReply { parts, leased })
}

/// Serves a call: one answer for each query. The lease stands for the answers' bytes.
pub async fn serve(
    shard: &Rc<Shard>,
    call: &FetchCall,
    waiter: &Rc<Waiter>,
) -> (SmallVec<[PartAnswer; 1]>, Option<Lease>) {
    let mut slots = look_at_all(shard, call);
    if !enough(&slots, waiter.min_bytes(call.min_bytes)) && call.max_wait_ms > 0 {
        let wait = Duration::from_millis(u64::from(call.max_wait_ms));
        let waited = wait_for_enough(shard, call, waiter, &mut slots);
        let _ = rt::timeout(wait, waited).await;
    }
    if waiter.is_cancelled() {
        return (SmallVec::new(), None);
    }
    let lease = lease(shard, call, &mut slots).await;
    let lease = read(shard, call, &mut slots, lease).await;
    let parts = slots.into_iter().map(|s| s.answer).collect();
    (parts, lease)
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
        let slot = look(shard, query, total, call.max_bytes);
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
                let mut slot = look(shard, &call.queries[*place], others, call.max_bytes);
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
            tracing::warn!(group = %query.group, offset = query.offset, %to, "a fetch asks for damaged offsets");
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

/// Takes memory for what goes out. Looks again where a slot has bytes and nothing in it: it waited, for data or for memory.
async fn lease(shard: &Rc<Shard>, call: &FetchCall, slots: &mut Vec<Slot>) -> Option<Lease> {
    let bytes: usize = slots.iter().map(|s| s.bytes).sum();
    let mut lease = None;
    if bytes > limits::UNLEASED_FETCH_BYTES {
        let bytes = (bytes as u64).min(shard.budget.cap(MemoryClass::Fetch));
        lease = shard.budget.try_take(MemoryClass::Fetch, bytes);
        if lease.is_none() {
            for slot in slots.iter_mut() {
                slot.empty();
            }
            lease = shard.budget.take(MemoryClass::Fetch, bytes).await.ok();
        }
    }
    if slots.iter().any(Slot::is_emptied) {
        *slots = look_at_all(shard, call);
    }
    lease
}

/// Carries out the reads from disk.
async fn read(
    shard: &Rc<Shard>,
    call: &FetchCall,
    slots: &mut [Slot],
    mut lease: Option<Lease>,
) -> Option<Lease> {
    let mut total: usize = slots.iter().map(|s| s.answer.record_bytes()).sum();
    for (slot, query) in slots.iter_mut().zip(&call.queries) {
        let Some(read) = slot.read.take() else {
            continue;
        };
        let _permit = shard.fetches.disk_reads.take().await;
        let batches = match run(shard, read, total, call.max_bytes, &mut lease).await {
            Ok(batches) => batches,
            Err(e) => {
                slot.answer = PartAnswer::error(log_error(query.group, &e));
                continue;
            }
        };
        let bytes: usize = batches.iter().map(|b| b.len()).sum();
        if total > 0 && total + bytes > call.max_bytes {
            continue;
        }
        total += bytes;
        slot.answer.records = batches.into();
        // A first batch may be far larger than what was leased; the permit for reading is kept until its memory is there.
        let held = lease.as_ref().map_or(0, Lease::bytes) as usize;
        if total > held.max(limits::UNLEASED_FETCH_BYTES) {
            let all = (total as u64).min(shard.budget.cap(MemoryClass::Fetch));
            drop(lease.take());
            lease = match shard.budget.try_take(MemoryClass::Fetch, all) {
                Some(lease) => Some(lease),
                None => shard.budget.take(MemoryClass::Fetch, all).await.ok(),
            };
        }
    }
    if let Some(lease) = &mut lease {
        lease.shrink_to(total as u64);
    }
    lease
}

/// Runs a read, when `total` bytes go out already. A first batch that is larger than what was asked of its partition is read only when its memory is there, and behind others only
/// where it fits the whole answer: the next answer may begin with it.
async fn run(
    shard: &Rc<Shard>,
    read: PendingRead,
    total: usize,
    max_bytes: usize,
    lease: &mut Option<Lease>,
) -> Result<Vec<Bytes>, LogError> {
    let mut found = read.run().await?;
    loop {
        match found {
            Found::Batches(batches) => return Ok(batches),
            Found::Larger { bytes, .. } if total > 0 && total + bytes > max_bytes => {
                return Ok(Vec::new());
            }
            Found::Larger { bytes, read } => {
                let bytes = ((total + bytes) as u64).min(shard.budget.cap(MemoryClass::Fetch));
                drop(lease.take());
                *lease = shard.budget.take(MemoryClass::Fetch, bytes).await.ok();
                found = read.run().await?;
            }
        }
    }
}

fn log_error(group: GroupId, e: &LogError) -> ErrorCode {
    tracing::warn!(%group, error = %e, "a fetch could not be read");
    match e {
        LogError::Removed => ErrorCode::NotLeaderOrFollower,
        _ => ErrorCode::KafkaStorageError,
    }
}
