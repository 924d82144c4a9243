//! The quota of changes of the metadata: partitions that topics are created with, get, or are deleted with.
//!
//! From the version on that knows THROTTLING_QUOTA_EXCEEDED a topic for which there is no room is refused with it; older clients are let through and wait afterwards (KIP-599). A change is charged once it is known to be sound.

use std::rc::Rc;
use std::time::Duration;

use engine::rt::{self, Instant};

use super::Kind;
use crate::error::ErrorCode;
use crate::frame::Request;
use crate::shard::Shard;

/// The changes of one request.
pub struct Mutations<'a> {
    shard: &'a Rc<Shard>,
    request: &'a Request,
    kind: Kind,
    /// The last word on how long the client is throttled, and when it was given.
    throttled: Option<(Duration, Instant)>,
}

impl<'a> Mutations<'a> {
    /// `strict_since`: the first version whose clients know the error.
    pub fn new(shard: &'a Rc<Shard>, request: &'a Request, strict_since: i16) -> Mutations<'a> {
        let strict = request.version >= strict_since;
        Mutations {
            shard,
            request,
            kind: Kind::Mutations { strict },
            throttled: None,
        }
    }

    /// Whether the client has such a limit.
    pub fn are_limited(&self) -> bool {
        self.shard.has_quotas(self.kind)
            && self
                .shard
                .quota(self.kind, &self.request.client_id)
                .is_some()
    }

    /// Charges the client for a change; an error if it mustn't make it now.
    pub async fn charge(&mut self, partitions: usize) -> Result<(), (i16, String)> {
        if !self.are_limited() {
            return Ok(());
        }
        let client = &self.request.client_id;
        let amount = partitions as f64;
        let throttle_ms = self.shard.charge(self.kind, client, amount).await;
        if throttle_ms == 0 {
            return Ok(());
        }
        let throttled = Duration::from_millis(u64::from(throttle_ms));
        self.throttled = Some((throttled, rt::now()));
        if self.kind == (Kind::Mutations { strict: false }) {
            return Ok(());
        }
        Err((
            ErrorCode::ThrottlingQuotaExceeded.code(),
            "The throttling quota has been exceeded.".to_string(),
        ))
    }

    /// For how many milliseconds the client is throttled, as of now.
    pub fn throttle_ms(&self) -> u32 {
        self.throttled.map_or(0, |(throttled, at)| {
            let left = throttled.saturating_sub(at.elapsed());
            u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
        })
    }
}
