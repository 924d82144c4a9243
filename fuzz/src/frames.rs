//! Requests that no client sends: every frame is read or refused, and what is read stays within its bounds.

use bytes::Bytes;
use kafka_api::frame::{self, Frame, Request};
use kafka_api::handlers::fetch::wire::FetchRequest;
use kafka_api::handlers::offset_commit::OffsetCommitRequest;
use kafka_api::handlers::offset_fetch::OffsetFetchRequest;
use kafka_api::handlers::produce::wire::ProduceRequest;
use kafka_api::versions::ApiKey;
use kafka_api::{limits, schema};
use kafka_protocol::messages as m;

use crate::memory;

/// Memory that a request may take: so many times its bytes, and this many besides. An element of an array is more in memory than on the wire.
const TIMES_INPUT: usize = 512;
const BESIDES_BYTES: usize = 64 << 10;

/// Reads a request as its handler does; whether it could be read.
fn read(request: &Request) -> bool {
    let version = request.version;
    match request.api.key {
        ApiKey::Produce => ProduceRequest::read(request).is_ok(),
        ApiKey::Fetch => FetchRequest::read(request).is_ok(),
        ApiKey::ListOffsets => {
            schema::decode::<m::ListOffsetsRequest>(request, version.min(10)).is_ok()
        }
        ApiKey::Metadata => schema::decode::<m::MetadataRequest>(request, version).is_ok(),
        ApiKey::ApiVersions => schema::check(request).is_ok(),
        ApiKey::CreateTopics => schema::decode::<m::CreateTopicsRequest>(request, version).is_ok(),
        ApiKey::DeleteTopics => schema::decode::<m::DeleteTopicsRequest>(request, version).is_ok(),
        ApiKey::InitProducerId => {
            schema::decode::<m::InitProducerIdRequest>(request, version).is_ok()
        }
        ApiKey::OffsetCommit => OffsetCommitRequest::read(request).is_ok(),
        ApiKey::OffsetFetch => OffsetFetchRequest::read(request).is_ok(),
        ApiKey::FindCoordinator => {
            schema::decode::<m::FindCoordinatorRequest>(request, version).is_ok()
        }
        ApiKey::JoinGroup => schema::decode::<m::JoinGroupRequest>(request, version).is_ok(),
        ApiKey::Heartbeat => schema::decode::<m::HeartbeatRequest>(request, version).is_ok(),
        ApiKey::LeaveGroup => schema::decode::<m::LeaveGroupRequest>(request, version).is_ok(),
        ApiKey::SyncGroup => schema::decode::<m::SyncGroupRequest>(request, version).is_ok(),
        ApiKey::DescribeGroups => {
            schema::decode::<m::DescribeGroupsRequest>(request, version).is_ok()
        }
        ApiKey::ListGroups => schema::decode::<m::ListGroupsRequest>(request, version).is_ok(),
        ApiKey::DeleteGroups => {
            schema::decode::<m::DeleteGroupsRequest>(request, version.min(2)).is_ok()
        }
        ApiKey::OffsetDelete => schema::decode::<m::OffsetDeleteRequest>(request, version).is_ok(),
        ApiKey::OffsetForLeaderEpoch => {
            schema::decode::<m::OffsetForLeaderEpochRequest>(request, version).is_ok()
        }
        ApiKey::DescribeConfigs => {
            schema::decode::<m::DescribeConfigsRequest>(request, version).is_ok()
        }
        ApiKey::IncrementalAlterConfigs => {
            schema::decode::<m::IncrementalAlterConfigsRequest>(request, version).is_ok()
        }
        ApiKey::AlterConfigs => schema::decode::<m::AlterConfigsRequest>(request, version).is_ok(),
        ApiKey::DescribeLogDirs => {
            schema::decode::<m::DescribeLogDirsRequest>(request, version.min(4)).is_ok()
        }
        ApiKey::ElectLeaders => schema::decode::<m::ElectLeadersRequest>(request, version).is_ok(),
        ApiKey::DescribeProducers => {
            schema::decode::<m::DescribeProducersRequest>(request, version).is_ok()
        }
        ApiKey::GetTelemetrySubscriptions => {
            schema::decode::<m::GetTelemetrySubscriptionsRequest>(request, version).is_ok()
        }
        ApiKey::PushTelemetry => {
            schema::decode::<m::PushTelemetryRequest>(request, version).is_ok()
        }
        ApiKey::DeleteRecords => {
            schema::decode::<m::DeleteRecordsRequest>(request, version).is_ok()
        }
        ApiKey::CreatePartitions => {
            schema::decode::<m::CreatePartitionsRequest>(request, version).is_ok()
        }
        ApiKey::AlterReplicaLogDirs => {
            schema::decode::<m::AlterReplicaLogDirsRequest>(request, version).is_ok()
        }
        ApiKey::ListConfigResources => {
            schema::decode::<m::ListConfigResourcesRequest>(request, version).is_ok()
        }
        ApiKey::DescribeCluster => {
            schema::decode::<m::DescribeClusterRequest>(request, version).is_ok()
        }
        ApiKey::DescribeClientQuotas => {
            schema::decode::<m::DescribeClientQuotasRequest>(request, version).is_ok()
        }
        ApiKey::AlterClientQuotas => {
            schema::decode::<m::AlterClientQuotasRequest>(request, version).is_ok()
        }
        ApiKey::DescribeTopicPartitions => {
            schema::decode::<m::DescribeTopicPartitionsRequest>(request, version).is_ok()
        }
    }
}

/// Takes a frame without its length; whether it could be read.
pub fn run(input: &[u8]) -> bool {
    if let Some(prefix) = input.first_chunk()
        && let Ok(length) = frame::frame_length(*prefix, limits::FRAME_BYTES)
    {
        assert!(length <= limits::FRAME_BYTES);
    }
    let frame = Bytes::copy_from_slice(input);
    let (good, peak) = memory::peak(|| match frame::parse(frame) {
        Ok(Frame::Request(request)) => {
            let shown = request.client_id.to_string();
            assert!(shown.len() <= 4 * limits::CLIENT_ID_SHOWN_BYTES + 3);
            read(&request)
        }
        _ => false,
    });
    let allowed = TIMES_INPUT * input.len() + BESIDES_BYTES;
    assert!(peak <= allowed, "{peak} bytes for {}", input.len());
    good
}
