//! Connections of clients that use too much: what is charged, what they are told, and for how long they aren't read (KIP-219). The rules are in [`crate::quotas`].
//!
//! The reader takes nothing in meanwhile, and behind a request that isn't answered yet nothing was. A connection that ends or drains waits no longer.

use std::rc::Rc;
use std::time::Duration;

use engine::rt;

use super::{Connection, Leases};
use crate::error::Malformed;
use crate::frame::{ClientId, Request};
use crate::handlers::{self, produce};
use crate::quotas::{self, Kind};
use crate::shard::Shard;

impl Connection {
    /// For so long from now on nothing is read.
    pub(super) fn mute(&self, throttle_ms: u32) {
        let until = rt::now() + Duration::from_millis(u64::from(throttle_ms));
        self.muted_until
            .set(self.muted_until.get().max(Some(until)));
    }

    /// Waits until it may be read again; whether it goes on, and doesn't end or drain.
    pub(super) async fn readable_again(&self) -> bool {
        while let Some(until) = self.muted_until.get() {
            let left = until.saturating_duration_since(rt::now());
            if left.is_zero() {
                self.muted_until.set(None);
                break;
            }
            // What has begun to arrive isn't late: we don't read it.
            self.frame_due.set(None);
            if Box::pin(self.while_reading(rt::sleep(left))).await.is_err() {
                return false;
            }
        }
        true
    }
}

/// Charges a client for what it has produced: for how many milliseconds it is throttled.
pub(super) async fn charge_produce(
    shard: &Rc<Shard>,
    client: &ClientId,
    bytes: usize,
    pending: &produce::Pending,
    spent_ns: u64,
) -> u32 {
    let of_bytes = shard.charge(Kind::Produced, client, bytes as f64).await;
    if !pending.is_answered() || !shard.has_quotas(Kind::Time) {
        return of_bytes;
    }
    let time = quotas::percent(spent_ns);
    of_bytes.max(shard.charge(Kind::Time, client, time).await)
}

/// Carries a request out and charges its client for the time of it.
async fn carry_out_on_time(
    shard: &Rc<Shard>,
    request: &mut Request,
    memory: &mut Leases,
) -> Result<handlers::Answer, Malformed> {
    let carried_out = handlers::dispatch(shard, request, memory);
    let (answer, spent_ns) = quotas::timed(carried_out).await;
    let time = quotas::percent(spent_ns);
    let throttle_ms = shard.charge(Kind::Time, &request.client_id, time).await;
    let mut answer = answer?;
    answer.throttle_ms = answer.throttle_ms.max(throttle_ms);
    Ok(answer)
}

/// Carries a request out; who uses too much is told so in the answer, and muted. Nothing behind it was taken in yet.
pub(super) async fn carry_out(
    shard: &Rc<Shard>,
    connection: &Connection,
    request: &mut Request,
    memory: &mut Leases,
) -> Result<handlers::Answer, Malformed> {
    let mut answer = if shard.has_quotas(Kind::Time) {
        // In a box: an idle connection needs none of it.
        Box::pin(carry_out_on_time(shard, request, memory)).await?
    } else {
        handlers::dispatch(shard, request, memory).await?
    };
    if answer.throttle_ms > 0 {
        quotas::told::tell(request, &mut answer.pieces, answer.throttle_ms);
        connection.mute(answer.throttle_ms);
    }
    Ok(answer)
}
