//! PushTelemetry, key 72, version 0, not told by ApiVersions.
//!
//! Nobody here receives clients' metrics, see [`super::get_telemetry_subscriptions`]. A push is checked as Kafka checks it, and what it carries is dropped: an instance id that nobody has is INVALID_REQUEST, another
//! subscription UNKNOWN_SUBSCRIPTION_ID, another codec UNSUPPORTED_COMPRESSION_TYPE, more than [`limits::TELEMETRY_BYTES`] TELEMETRY_TOO_LARGE, also when decompressed, and
//! broken compression INVALID_RECORD.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use engine::memory::Budget;
use engine::rt;
use kafka_protocol::messages::{PushTelemetryRequest, PushTelemetryResponse};

use crate::codec::{Codec, Decompressor, memory};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::get_telemetry_subscriptions::subscription;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: PushTelemetryRequest = schema::decode(request, request.version)?;
    let pause = async || rt::yield_if_needed().await;
    let error = check(&asked, &shard.budget, &pause).await;
    let response = PushTelemetryResponse::default().with_error_code(error.code());
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) async fn check(
    asked: &PushTelemetryRequest,
    budget: &Rc<Budget>,
    pause: &impl AsyncFn(),
) -> ErrorCode {
    // Kafka keeps the first two ids for itself.
    if asked.client_instance_id.as_u128() <= 1 {
        return ErrorCode::InvalidRequest;
    }
    if asked.subscription_id != subscription(asked.client_instance_id) {
        return ErrorCode::UnknownSubscriptionId;
    }
    let codec = match asked.compression_type {
        bits @ 0..=4 => Codec::from_attributes(i16::from(bits)),
        _ => None,
    };
    let Some(codec) = codec else {
        return ErrorCode::UnsupportedCompressionType;
    };
    if asked.metrics.len() > limits::TELEMETRY_BYTES {
        return ErrorCode::TelemetryTooLarge;
    }
    match decompressed(codec, asked.metrics.clone(), budget, pause).await {
        Ok(bytes) if bytes <= limits::TELEMETRY_BYTES => ErrorCode::None,
        Ok(_) => ErrorCode::TelemetryTooLarge,
        Err(_) => ErrorCode::InvalidRecord,
    }
}

/// Bytes that come out, or more than are allowed.
async fn decompressed(
    codec: Codec,
    bytes: Bytes,
    budget: &Rc<Budget>,
    pause: &impl AsyncFn(),
) -> io::Result<usize> {
    if codec == Codec::None || bytes.is_empty() {
        return Ok(bytes.len());
    }
    let _memory = memory::lease(budget, memory::needed(codec, &bytes)?).await;
    let mut input = Decompressor::new(codec, bytes)?;
    let mut window = vec![0; limits::CHECK_SLICE_BYTES];
    let mut total = 0;
    loop {
        let n = input.read(&mut window)?;
        total += n;
        if n == 0 || total > limits::TELEMETRY_BYTES {
            return Ok(total);
        }
        pause().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Compressor, Target};
    use crate::records::testing::{room, run};
    use uuid::Uuid;

    fn code(codec: i8, metrics: Vec<u8>) -> ErrorCode {
        let instance = Uuid::from_u128(77);
        let asked = PushTelemetryRequest::default()
            .with_client_instance_id(instance)
            .with_subscription_id(subscription(instance))
            .with_compression_type(codec)
            .with_metrics(metrics.into());
        run(check(&asked, &room(), &async || {}))
    }

    fn compressed(codec: Codec, bytes: usize) -> Vec<u8> {
        let target = Target { codec, level: None };
        let mut out = Compressor::new(target, Vec::new(), bytes as u64).unwrap();
        out.write(&vec![7; bytes]).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn pushes_are_checked_and_bounded() {
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            assert_eq!(code(codec as i8, compressed(codec, 1_000)), ErrorCode::None);
            let bomb = compressed(codec, 2 * limits::TELEMETRY_BYTES);
            assert!(bomb.len() < limits::TELEMETRY_BYTES);
            assert_eq!(code(codec as i8, bomb), ErrorCode::TelemetryTooLarge);
            assert_eq!(
                code(codec as i8, b"garbage".to_vec()),
                ErrorCode::InvalidRecord
            );
        }
        assert_eq!(code(0, b"garbage".to_vec()), ErrorCode::None);
        assert_eq!(code(9, Vec::new()), ErrorCode::UnsupportedCompressionType);
        assert_eq!(code(-1, Vec::new()), ErrorCode::UnsupportedCompressionType);
        let large = vec![0; limits::TELEMETRY_BYTES + 1];
        assert_eq!(code(0, large), ErrorCode::TelemetryTooLarge);
        let nobody = PushTelemetryRequest::default();
        assert_eq!(
            run(check(&nobody, &room(), &async || {})),
            ErrorCode::InvalidRequest
        );
        let stranger = nobody.with_client_instance_id(Uuid::from_u128(5));
        let refused = run(check(&stranger, &room(), &async || {}));
        assert_eq!(refused, ErrorCode::UnknownSubscriptionId);
    }
}
