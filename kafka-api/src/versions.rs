//! What this broker speaks: the one table of API keys and versions.
//!
//! Everything in it works in every version; what does not work is not in it. It follows Kafka 4.4. The one exception is Produce: it is
//! advertised from 0 on, as Kafka does, because older librdkafka concludes from a higher minimum that compression and idempotence are
//! missing (KAFKA-18659); versions 0-2 are refused like any unknown version.
//!
//! `kafka-protocol` describes Kafka 4.1. Some newest versions are written by hand: ApiVersions 5 (cluster id and node id behind the
//! version 4 fields, KIP-1242), ListOffsets 11 (the same bytes as 10; timestamp -6 becomes legal, KIP-1023), DescribeLogDirs 5 (a flag more
//! in the answer, KIP-1066), OffsetCommit 10, OffsetFetch 10 and DeleteGroups 3.

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    pub key: ApiKey,
    /// The first version that ApiVersions names.
    pub advertised_min: i16,
    pub min: i16,
    pub max: i16,
    /// The first version with compact fields and tags.
    pub flexible_from: i16,
    /// Served, but not named by ApiVersions, as Kafka does with what a node has no use for.
    pub hidden: bool,
}

/// The keys of the table, by their number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum ApiKey {
    Produce = 0,
    Fetch = 1,
    ListOffsets = 2,
    Metadata = 3,
    OffsetCommit = 8,
    OffsetFetch = 9,
    FindCoordinator = 10,
    JoinGroup = 11,
    Heartbeat = 12,
    LeaveGroup = 13,
    SyncGroup = 14,
    DescribeGroups = 15,
    ListGroups = 16,
    ApiVersions = 18,
    CreateTopics = 19,
    DeleteTopics = 20,
    DeleteRecords = 21,
    InitProducerId = 22,
    OffsetForLeaderEpoch = 23,
    DescribeConfigs = 32,
    AlterConfigs = 33,
    AlterReplicaLogDirs = 34,
    DescribeLogDirs = 35,
    CreatePartitions = 37,
    DeleteGroups = 42,
    ElectLeaders = 43,
    IncrementalAlterConfigs = 44,
    OffsetDelete = 47,
    DescribeClientQuotas = 48,
    AlterClientQuotas = 49,
    DescribeCluster = 60,
    DescribeProducers = 61,
    GetTelemetrySubscriptions = 71,
    PushTelemetry = 72,
    ListConfigResources = 74,
    DescribeTopicPartitions = 75,
}

const fn api(key: ApiKey, min: i16, max: i16, flexible_from: i16) -> Api {
    Api {
        key,
        advertised_min: min,
        min,
        max,
        flexible_from,
        hidden: false,
    }
}

const fn hidden(api: Api) -> Api {
    Api {
        hidden: true,
        ..api
    }
}

/// In ascending order of key, as ApiVersions answers.
pub const TABLE: &[Api] = &[
    Api {
        advertised_min: 0,
        ..api(ApiKey::Produce, 3, 13, 9)
    },
    api(ApiKey::Fetch, 4, 18, 12),
    api(ApiKey::ListOffsets, 1, 11, 6),
    api(ApiKey::Metadata, 0, 13, 9),
    api(ApiKey::OffsetCommit, 2, 10, 8),
    api(ApiKey::OffsetFetch, 1, 10, 6),
    api(ApiKey::FindCoordinator, 0, 6, 3),
    api(ApiKey::JoinGroup, 0, 9, 6),
    api(ApiKey::Heartbeat, 0, 4, 4),
    api(ApiKey::LeaveGroup, 0, 5, 4),
    api(ApiKey::SyncGroup, 0, 5, 4),
    api(ApiKey::DescribeGroups, 0, 6, 5),
    api(ApiKey::ListGroups, 0, 5, 3),
    api(ApiKey::ApiVersions, 0, 5, 3),
    api(ApiKey::CreateTopics, 2, 7, 5),
    api(ApiKey::DeleteTopics, 1, 6, 4),
    api(ApiKey::DeleteRecords, 0, 2, 2),
    api(ApiKey::InitProducerId, 0, 5, 2),
    api(ApiKey::OffsetForLeaderEpoch, 2, 4, 4),
    api(ApiKey::DescribeConfigs, 1, 4, 4),
    api(ApiKey::AlterConfigs, 0, 2, 2),
    api(ApiKey::AlterReplicaLogDirs, 1, 2, 2),
    api(ApiKey::DescribeLogDirs, 1, 5, 2),
    api(ApiKey::CreatePartitions, 0, 3, 2),
    api(ApiKey::DeleteGroups, 0, 3, 2),
    api(ApiKey::ElectLeaders, 0, 2, 2),
    api(ApiKey::IncrementalAlterConfigs, 0, 1, 1),
    // Never flexible.
    api(ApiKey::OffsetDelete, 0, 0, i16::MAX),
    api(ApiKey::DescribeClientQuotas, 0, 1, 1),
    api(ApiKey::AlterClientQuotas, 0, 1, 1),
    api(ApiKey::DescribeCluster, 0, 2, 0),
    api(ApiKey::DescribeProducers, 0, 0, 0),
    hidden(api(ApiKey::GetTelemetrySubscriptions, 0, 0, 0)),
    hidden(api(ApiKey::PushTelemetry, 0, 0, 0)),
    api(ApiKey::ListConfigResources, 0, 1, 0),
    api(ApiKey::DescribeTopicPartitions, 0, 0, 0),
];

/// The row of a key, if there is one.
pub fn find(key: i16) -> Option<&'static Api> {
    TABLE.iter().find(|api| api.key as i16 == key)
}

impl Api {
    pub fn serves(&self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }

    pub fn flexible(&self, version: i16) -> bool {
        version >= self.flexible_from
    }

    /// Whether the response header ends in tagged fields. ApiVersions answers never do: the client may not know yet how to read them.
    pub fn tagged_response_header(&self, version: i16) -> bool {
        self.flexible(version) && self.key != ApiKey::ApiVersions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages as m;
    use kafka_protocol::protocol::{HeaderVersion, Message};

    fn check<Req: Message + HeaderVersion, Res: Message + HeaderVersion>(
        key: ApiKey,
        by_hand_above: i16,
    ) {
        let api = find(key as i16).expect("in the table");
        assert_eq!(api.min, Req::VERSIONS.min, "{key:?}");
        assert_eq!(by_hand_above, Req::VERSIONS.max, "{key:?}");
        assert!(by_hand_above <= Res::VERSIONS.max, "{key:?}");
        for version in api.min..=by_hand_above {
            let header = if api.flexible(version) { 2 } else { 1 };
            assert_eq!(Req::header_version(version), header, "{key:?} {version}");
            let header = i16::from(api.tagged_response_header(version));
            assert_eq!(Res::header_version(version), header, "{key:?} {version}");
        }
    }

    #[test]
    fn the_table_agrees_with_the_schemas() {
        check::<m::ProduceRequest, m::ProduceResponse>(ApiKey::Produce, 13);
        check::<m::FetchRequest, m::FetchResponse>(ApiKey::Fetch, 18);
        check::<m::ListOffsetsRequest, m::ListOffsetsResponse>(ApiKey::ListOffsets, 10);
        check::<m::MetadataRequest, m::MetadataResponse>(ApiKey::Metadata, 13);
        check::<m::ApiVersionsRequest, m::ApiVersionsResponse>(ApiKey::ApiVersions, 4);
        check::<m::OffsetCommitRequest, m::OffsetCommitResponse>(ApiKey::OffsetCommit, 9);
        check::<m::OffsetFetchRequest, m::OffsetFetchResponse>(ApiKey::OffsetFetch, 9);
        check::<m::FindCoordinatorRequest, m::FindCoordinatorResponse>(ApiKey::FindCoordinator, 6);
        check::<m::JoinGroupRequest, m::JoinGroupResponse>(ApiKey::JoinGroup, 9);
        check::<m::HeartbeatRequest, m::HeartbeatResponse>(ApiKey::Heartbeat, 4);
        check::<m::LeaveGroupRequest, m::LeaveGroupResponse>(ApiKey::LeaveGroup, 5);
        check::<m::SyncGroupRequest, m::SyncGroupResponse>(ApiKey::SyncGroup, 5);
        check::<m::DescribeGroupsRequest, m::DescribeGroupsResponse>(ApiKey::DescribeGroups, 6);
        check::<m::ListGroupsRequest, m::ListGroupsResponse>(ApiKey::ListGroups, 5);
        check::<m::DeleteGroupsRequest, m::DeleteGroupsResponse>(ApiKey::DeleteGroups, 2);
        check::<m::OffsetDeleteRequest, m::OffsetDeleteResponse>(ApiKey::OffsetDelete, 0);
        check::<m::CreateTopicsRequest, m::CreateTopicsResponse>(ApiKey::CreateTopics, 7);
        check::<m::DeleteTopicsRequest, m::DeleteTopicsResponse>(ApiKey::DeleteTopics, 6);
        check::<m::InitProducerIdRequest, m::InitProducerIdResponse>(ApiKey::InitProducerId, 5);
        check::<m::OffsetForLeaderEpochRequest, m::OffsetForLeaderEpochResponse>(
            ApiKey::OffsetForLeaderEpoch,
            4,
        );
        check::<m::DescribeConfigsRequest, m::DescribeConfigsResponse>(ApiKey::DescribeConfigs, 4);
        check::<m::IncrementalAlterConfigsRequest, m::IncrementalAlterConfigsResponse>(
            ApiKey::IncrementalAlterConfigs,
            1,
        );
        check::<m::AlterConfigsRequest, m::AlterConfigsResponse>(ApiKey::AlterConfigs, 2);
        check::<m::DescribeLogDirsRequest, m::DescribeLogDirsResponse>(ApiKey::DescribeLogDirs, 4);
        check::<m::ElectLeadersRequest, m::ElectLeadersResponse>(ApiKey::ElectLeaders, 2);
        check::<m::DescribeClientQuotasRequest, m::DescribeClientQuotasResponse>(
            ApiKey::DescribeClientQuotas,
            1,
        );
        check::<m::AlterClientQuotasRequest, m::AlterClientQuotasResponse>(
            ApiKey::AlterClientQuotas,
            1,
        );
        check::<m::DescribeProducersRequest, m::DescribeProducersResponse>(
            ApiKey::DescribeProducers,
            0,
        );
        check::<m::GetTelemetrySubscriptionsRequest, m::GetTelemetrySubscriptionsResponse>(
            ApiKey::GetTelemetrySubscriptions,
            0,
        );
        check::<m::PushTelemetryRequest, m::PushTelemetryResponse>(ApiKey::PushTelemetry, 0);
        check::<m::DeleteRecordsRequest, m::DeleteRecordsResponse>(ApiKey::DeleteRecords, 2);
        check::<m::CreatePartitionsRequest, m::CreatePartitionsResponse>(
            ApiKey::CreatePartitions,
            3,
        );
        check::<m::DescribeClusterRequest, m::DescribeClusterResponse>(ApiKey::DescribeCluster, 2);
        check::<m::AlterReplicaLogDirsRequest, m::AlterReplicaLogDirsResponse>(
            ApiKey::AlterReplicaLogDirs,
            2,
        );
        check::<m::ListConfigResourcesRequest, m::ListConfigResourcesResponse>(
            ApiKey::ListConfigResources,
            1,
        );
        check::<m::DescribeTopicPartitionsRequest, m::DescribeTopicPartitionsResponse>(
            ApiKey::DescribeTopicPartitions,
            0,
        );
    }
}
