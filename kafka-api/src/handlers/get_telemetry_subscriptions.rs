//! GetTelemetrySubscriptions, key 71, version 0, not told by ApiVersions.
//!
//! Nobody here receives clients' metrics (KIP-714), so that clients aren't told of it and send none, as with a Kafka without a receiver. Whoever asks all the same is answered as Kafka does it: an instance id
//! of its own if it has none, a subscription to no metrics, and what a push would have to keep to. Nothing is remembered: the subscription's id follows from the instance id.

use std::rc::Rc;

use cluster::ids::random_uuid;
use engine::rt;
use kafka_protocol::messages::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse,
};
use uuid::Uuid;

use crate::codec::Codec;
use crate::error::Malformed;
use crate::frame::Request;
use crate::handlers::Answer;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

/// How often clients would push, in milliseconds: Kafka's default.
const PUSH_INTERVAL_MS: i32 = 300_000;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: GetTelemetrySubscriptionsRequest = schema::decode(request, request.version)?;
    let instance = match asked.client_instance_id {
        id if id.is_nil() => random_uuid(rt::random_u64),
        id => id,
    };
    Answer::encode(shard, request, &response(instance), request.version).await
}

pub(crate) fn response(instance: Uuid) -> GetTelemetrySubscriptionsResponse {
    let codecs = [Codec::Zstd, Codec::Lz4, Codec::Gzip, Codec::Snappy];
    GetTelemetrySubscriptionsResponse::default()
        .with_client_instance_id(instance)
        .with_subscription_id(subscription(instance))
        .with_accepted_compression_types(codecs.map(|c| c as i8).to_vec())
        .with_push_interval_ms(PUSH_INTERVAL_MS)
        .with_telemetry_max_bytes(limits::TELEMETRY_BYTES as i32)
        .with_delta_temporality(true)
}

/// The id of the one subscription that a client instance has.
pub(crate) fn subscription(instance: Uuid) -> i32 {
    crc32c::crc32c(instance.as_bytes()) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_can_be_encoded() {
        let mut out = bytes::BytesMut::new();
        response(Uuid::from_u128(7)).encode(&mut out, 0).unwrap();
    }
}
