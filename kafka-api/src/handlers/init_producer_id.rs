//! InitProducerId, key 22, versions 0-5 (6 is unstable in Kafka and hidden).
//!
//! Without a transactional id: a new producer id with epoch 0, out of a block that the shard gets from the metadata group; ids are never given twice. A
//! producer that asks to go on with the id and epoch it has (version 3, KIP-360) gets a new id as well: its old one stays fenced by
//! nobody using it.
//!
//! With a transactional id, which isn't served yet: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, at once. It is the one code that Java, librdkafka
//! and franz-go all take as fatal here; librdkafka tries again for ever on UNSUPPORTED_VERSION and most others. An empty transactional id
//! is INVALID_REQUEST, and so is an id without its epoch, or the other way round.

use std::cell::Cell;
use std::rc::Rc;

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;
use crate::sync::Semaphore;

/// Producer ids that this shard may give out.
pub struct Block {
    next: Cell<i64>,
    end: Cell<i64>,
    /// One request for a block at a time.
    refill: Semaphore,
}

impl Default for Block {
    fn default() -> Block {
        Block {
            next: Cell::new(0),
            end: Cell::new(0),
            refill: Semaphore::new(1),
        }
    }
}

impl Block {
    fn take(&self) -> Option<i64> {
        let next = self.next.get();
        if next >= self.end.get() {
            return None;
        }
        self.next.set(next + 1);
        Some(next)
    }
}

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: InitProducerIdRequest = schema::decode(request, request.version)?;
    let result = match &asked.transactional_id {
        _ if half_known(asked.producer_id.0, asked.producer_epoch) => {
            Err(ErrorCode::InvalidRequest)
        }
        Some(id) if id.is_empty() => Err(ErrorCode::InvalidRequest),
        Some(_) => Err(ErrorCode::TransactionalIdAuthorizationFailed),
        None => new_id(shard).await,
    };
    Answer::encode(shard, request, &response(result), request.version).await
}

/// Whether one of the two that a producer goes on with is missing.
pub(crate) fn half_known(id: i64, epoch: i16) -> bool {
    (id == -1) != (epoch == -1)
}

async fn new_id(shard: &Rc<Shard>) -> Result<i64, ErrorCode> {
    if let Some(id) = shard.producer_ids.take() {
        return Ok(id);
    }
    let _one = shard.producer_ids.refill.take().await;
    if let Some(id) = shard.producer_ids.take() {
        return Ok(id);
    }
    match shard.ask_controller(ControllerCall::ProducerIds).await {
        Some(ControllerReply::ProducerIds(Ok(block))) => {
            shard.producer_ids.next.set(block.first);
            let end = block.first.saturating_add(block.count);
            shard.producer_ids.end.set(end);
            shard
                .producer_ids
                .take()
                .ok_or(ErrorCode::UnknownServerError)
        }
        // Retriable: the metadata group has no leader at the moment, or the node is going down.
        _ => Err(ErrorCode::RequestTimedOut),
    }
}

pub(crate) fn response(result: Result<i64, ErrorCode>) -> InitProducerIdResponse {
    match result {
        Ok(id) => InitProducerIdResponse::default()
            .with_producer_id(id.into())
            .with_producer_epoch(0),
        Err(code) => InitProducerIdResponse::default()
            .with_error_code(code.code())
            .with_producer_id((-1).into())
            .with_producer_epoch(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn a_block_is_given_out_once() {
        let block = Block::default();
        assert_eq!(block.take(), None);
        block.next.set(1_000);
        block.end.set(1_002);
        assert_eq!(block.take(), Some(1_000));
        assert_eq!(block.take(), Some(1_001));
        assert_eq!(block.take(), None);
    }

    #[test]
    fn who_goes_on_says_id_and_epoch() {
        for (id, epoch, half) in [(-1, -1, false), (7, 0, false), (7, -1, true), (-1, 0, true)] {
            assert_eq!(half_known(id, epoch), half, "{id} {epoch}");
        }
    }

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=5 {
            for result in [Ok(5), Err(ErrorCode::TransactionalIdAuthorizationFailed)] {
                let mut out = bytes::BytesMut::new();
                response(result).encode(&mut out, version).unwrap();
            }
        }
    }
}
