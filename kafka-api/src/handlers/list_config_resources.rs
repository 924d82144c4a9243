//! ListConfigResources, key 74, versions 0-1.
//!
//! Names what has configurations of its own kind: topics (type 2, internal ones too), brokers (4) and their loggers (8), client metrics subscriptions (16) and groups (32); of the last two there
//! are none, since neither takes a value that isn't its default. Version 0 asks for subscriptions alone, an empty list for everything; a type named twice is told once. One type that isn't among
//! these makes the whole request UNSUPPORTED_VERSION, as by Kafka.

use std::rc::Rc;

use engine::rt;
use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::describe_configs::{BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC};
use crate::handlers::work::Work;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

const KINDS: [i8; 5] = [TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP];
/// Topics that are named before other tasks may get a turn.
const SLICE: usize = 256;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let all = shard.view.topic_count() * limits::GATHERED_TOPIC_BYTES;
    if !work.grow(&shard.work, all) {
        work.anew(&shard.work).await;
    }
    let asked: ListConfigResourcesRequest = schema::decode(request, request.version)?;
    let response = match wanted(request.version, &asked.resource_types) {
        Some(kinds) => {
            ListConfigResourcesResponse::default().with_config_resources(named(shard, &kinds).await)
        }
        None => ListConfigResourcesResponse::default()
            .with_error_code(ErrorCode::UnsupportedVersion.code()),
    };
    Answer::encode(shard, request, &response, request.version).await
}

/// The kinds that are asked for, each once; none when one of them doesn't exist.
pub(crate) fn wanted(version: i16, asked: &[i8]) -> Option<Vec<i8>> {
    match asked {
        [] if version == 0 => Some(vec![CLIENT_METRICS]),
        [] => Some(KINDS.to_vec()),
        _ if asked.iter().any(|kind| !KINDS.contains(kind)) => None,
        _ => Some(KINDS.into_iter().filter(|k| asked.contains(k)).collect()),
    }
}

async fn named(shard: &Shard, kinds: &[i8]) -> Vec<ConfigResource> {
    let mut found = Vec::new();
    for kind in [LOGGER, BROKER] {
        if kinds.contains(&kind) {
            let brokers = shard.faces().all();
            found.extend(brokers.iter().map(|b| row(b.node.to_string(), kind)));
        }
    }
    if kinds.contains(&TOPIC) {
        for slice in shard.view.topics().chunks(SLICE) {
            found.extend(slice.iter().map(|t| row(t.name.to_string(), TOPIC)));
            rt::yield_if_needed().await;
        }
    }
    found
}

fn row(name: String, kind: i8) -> ConfigResource {
    ConfigResource::default()
        .with_resource_name(StrBytes::from_string(name))
        .with_resource_type(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn nothing_named_is_everything_but_for_version_0() {
        assert_eq!(wanted(0, &[]), Some(vec![CLIENT_METRICS]));
        assert_eq!(wanted(1, &[]), Some(KINDS.to_vec()));
        assert_eq!(
            wanted(1, &[BROKER, TOPIC, BROKER]),
            Some(vec![TOPIC, BROKER])
        );
        for strange in [0, 1, 3, -1] {
            assert_eq!(wanted(1, &[BROKER, strange]), None);
        }
    }

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=1 {
            let good =
                ListConfigResourcesResponse::default().with_config_resources(match version {
                    0 => Vec::new(),
                    _ => vec![row("1".into(), BROKER)],
                });
            let mut out = bytes::BytesMut::new();
            good.encode(&mut out, version).unwrap();
        }
    }
}
