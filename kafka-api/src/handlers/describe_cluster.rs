//! DescribeCluster, key 60, versions 0-2.
//!
//! The nodes, from the shard's own copy. Asked for controllers' endpoints (type 2, from version 1 on) it says MISMATCHED_ENDPOINT_TYPE, as every broker does; other
//! types are UNSUPPORTED_ENDPOINT_TYPE. Every node that is told is unfenced. The controller is told to be the node that is asked, or its shard 0: admin requests are
//! served anywhere. There are no authorizations yet, so that every operation is allowed.

use std::rc::Rc;

use engine::types::ShardId;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::schema;
use crate::shard::Shard;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;
/// CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS and DESCRIBE_TOKENS as bits: what a cluster can allow, as
/// Kafka without an authorizer tells it.
pub(crate) const CLUSTER_OPERATIONS: i32 = 8096;
/// Kafka's "not asked for".
pub(crate) const OPERATIONS_NOT_TOLD: i32 = i32::MIN;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: DescribeClusterRequest = schema::decode(request, request.version)?;
    let response = match asked.endpoint_type {
        BROKERS => told(shard, &asked),
        CONTROLLERS => refused(
            ErrorCode::MismatchedEndpointType,
            "This is a broker's endpoint, not a controller's.".to_string(),
        ),
        other => refused(
            ErrorCode::UnsupportedEndpointType,
            format!("There is no endpoint type {other}."),
        ),
    };
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn refused(code: ErrorCode, message: String) -> DescribeClusterResponse {
    DescribeClusterResponse::default()
        .with_error_code(code.code())
        .with_error_message(Some(StrBytes::from_string(message)))
}

fn told(shard: &Shard, asked: &DescribeClusterRequest) -> DescribeClusterResponse {
    let faces = shard.faces();
    let brokers = faces.all().into_iter().map(|broker| {
        DescribeClusterBroker::default()
            .with_broker_id(broker.node.into())
            .with_host(StrBytes::from_string(broker.host))
            .with_port(broker.port)
            .with_rack(broker.rack.map(StrBytes::from_string))
    });
    let cluster_id = shard.view.cluster_id();
    let operations = if asked.include_cluster_authorized_operations {
        CLUSTER_OPERATIONS
    } else {
        OPERATIONS_NOT_TOLD
    };
    DescribeClusterResponse::default()
        .with_cluster_id(StrBytes::from_string(
            cluster_id.map(|id| id.to_string()).unwrap_or_default(),
        ))
        .with_controller_id(faces.of_shard(shard.node, ShardId(0)).into())
        .with_brokers(brokers.collect())
        .with_cluster_authorized_operations(operations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=2 {
            let good = DescribeClusterResponse::default()
                .with_brokers(vec![DescribeClusterBroker::default()]);
            for response in [
                good,
                refused(ErrorCode::MismatchedEndpointType, "no".into()),
            ] {
                let mut out = bytes::BytesMut::new();
                response.encode(&mut out, version).unwrap();
            }
        }
    }
}
