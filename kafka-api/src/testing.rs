//! Good requests of every API and version, for tests and fuzzing to start from ([`frame`]), and the way of any request to its answer without a shard ([`handling`]). Not for the broker.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::protocol::{Encodable, StrBytes};
use uuid::Uuid;

use crate::codec::Codec;
use crate::records::testing::batch;
use crate::versions::{ApiKey, TABLE};
use crate::wire::Writer;

mod admin;
pub mod handling;
pub mod world;

fn s(v: &'static str) -> StrBytes {
    StrBytes::from_static_str(v)
}

fn encoded<T: Encodable>(message: &T, version: i16) -> BytesMut {
    let mut body = BytesMut::new();
    message
        .encode(&mut body, version)
        .expect("the samples have only fields of their version");
    body
}

/// A body of one API in one version, with something in every array.
pub fn body(key: ApiKey, version: i16) -> Bytes {
    let body = match key {
        ApiKey::Produce => produce(version),
        ApiKey::Fetch => fetch(version),
        ApiKey::ListOffsets => list_offsets(version.min(10)),
        ApiKey::Metadata => metadata(version),
        ApiKey::ApiVersions => api_versions(version),
        ApiKey::CreateTopics => create_topics(version),
        ApiKey::DeleteTopics => delete_topics(version),
        ApiKey::InitProducerId => encoded(&m::InitProducerIdRequest::default(), version),
        ApiKey::OffsetCommit => offset_commit(version),
        ApiKey::OffsetFetch => offset_fetch(version),
        ApiKey::FindCoordinator => find_coordinator(version),
        ApiKey::JoinGroup => join_group(version),
        ApiKey::Heartbeat => heartbeat(version),
        ApiKey::LeaveGroup => leave_group(version),
        ApiKey::SyncGroup => sync_group(version),
        ApiKey::DescribeGroups => encoded(
            &m::DescribeGroupsRequest::default().with_groups(vec![s("group").into()]),
            version,
        ),
        ApiKey::ListGroups => list_groups(version),
        ApiKey::DeleteGroups => encoded(
            &m::DeleteGroupsRequest::default().with_groups_names(vec![s("group").into()]),
            version.min(2),
        ),
        ApiKey::OffsetDelete => offset_delete(version),
        ApiKey::OffsetForLeaderEpoch => offset_for_leader_epoch(version),
        ApiKey::DescribeConfigs => describe_configs(version),
        ApiKey::IncrementalAlterConfigs => incremental_alter_configs(version),
        _ => admin::body(key, version),
    };
    body.freeze()
}

/// The same as a whole frame, without its length.
pub fn frame(key: ApiKey, version: i16) -> Bytes {
    let flexible = TABLE
        .iter()
        .find(|api| api.key == key)
        .is_some_and(|api| api.flexible(version));
    let mut out = BytesMut::new();
    out.put_i16(key as i16);
    out.put_i16(version);
    out.put_i32(7);
    out.put_str("sample", false);
    out.put_no_tags(flexible);
    out.put_slice(&body(key, version));
    out.freeze()
}

/// A frame of every API in every version.
pub fn frames() -> Vec<Bytes> {
    let versions = TABLE
        .iter()
        .flat_map(|api| (api.min..=api.max).map(|v| (api.key, v)));
    versions.map(|(key, version)| frame(key, version)).collect()
}

/// A batch of every codec.
pub fn batches() -> Vec<Bytes> {
    [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ]
    .into_iter()
    .flat_map(|codec| [batch(codec, 1, 20, 1_000), batch(codec, 30, 80, 1_000)])
    .collect()
}

fn produce(version: i16) -> BytesMut {
    use m::produce_request as r;
    let parts = vec![
        r::PartitionProduceData::default()
            .with_index(0)
            .with_records(Some(batch(Codec::None, 2, 10, 1_000))),
        r::PartitionProduceData::default().with_index(1),
    ];
    let topic = r::TopicProduceData::default().with_partition_data(parts);
    let topic = if version >= 13 {
        topic.with_topic_id(Uuid::from_u128(5))
    } else {
        topic.with_name(s("orders").into())
    };
    let request = m::ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(1_000)
        .with_topic_data(vec![topic]);
    encoded(&request, version)
}

fn fetch(version: i16) -> BytesMut {
    use m::fetch_request as r;
    let parts = vec![
        r::FetchPartition::default()
            .with_partition(0)
            .with_partition_max_bytes(1 << 20),
        r::FetchPartition::default().with_partition(1),
    ];
    let topic = r::FetchTopic::default().with_partitions(parts);
    let forgotten = r::ForgottenTopic::default().with_partitions(vec![1]);
    let (topic, forgotten) = if version >= 13 {
        let id = Uuid::from_u128(5);
        (topic.with_topic_id(id), forgotten.with_topic_id(id))
    } else {
        let name = || s("orders").into();
        (topic.with_topic(name()), forgotten.with_topic(name()))
    };
    let request = m::FetchRequest::default()
        .with_max_wait_ms(10)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_topics(vec![topic]);
    if version >= 7 {
        encoded(
            &request.with_forgotten_topics_data(vec![forgotten]),
            version,
        )
    } else {
        encoded(&request, version)
    }
}

fn list_offsets(version: i16) -> BytesMut {
    use m::list_offsets_request as r;
    let topic = r::ListOffsetsTopic::default()
        .with_name(s("orders").into())
        .with_partitions(vec![
            r::ListOffsetsPartition::default().with_timestamp(-1),
            r::ListOffsetsPartition::default().with_timestamp(1_000),
        ]);
    encoded(
        &m::ListOffsetsRequest::default().with_topics(vec![topic]),
        version,
    )
}

fn metadata(version: i16) -> BytesMut {
    let topic =
        m::metadata_request::MetadataRequestTopic::default().with_name(Some(s("orders").into()));
    encoded(
        &m::MetadataRequest::default().with_topics(Some(vec![topic])),
        version,
    )
}

fn api_versions(version: i16) -> BytesMut {
    let mut out = BytesMut::new();
    if version >= 3 {
        out.put_str("sample", true);
        out.put_str("1.0", true);
        if version >= 5 {
            out.put_nullable_str(Some("a-cluster"), true);
            out.put_i32(1);
        }
        out.put_u8(0);
    }
    out
}

fn offset_commit(version: i16) -> BytesMut {
    use m::offset_commit_request as r;
    if version >= 10 {
        // By hand: topics go by id.
        let mut out = BytesMut::new();
        out.put_str("group", true);
        out.put_i32(3);
        out.put_str("member", true);
        out.put_nullable_str(None, true);
        out.put_array(1, true);
        out.put_u128(5);
        out.put_array(1, true);
        out.put_i32(0);
        out.put_i64(42);
        out.put_i32(7);
        out.put_nullable_str(Some("here"), true);
        out.put_slice(&[0, 0, 0]);
        return out;
    }
    let part = r::OffsetCommitRequestPartition::default()
        .with_committed_offset(42)
        .with_committed_metadata(Some(s("here")));
    let topic = r::OffsetCommitRequestTopic::default()
        .with_name(s("orders").into())
        .with_partitions(vec![part]);
    let request = m::OffsetCommitRequest::default()
        .with_group_id(s("group").into())
        .with_generation_id_or_member_epoch(3)
        .with_member_id(s("member"))
        .with_topics(vec![topic]);
    encoded(&request, version)
}

fn offset_fetch(version: i16) -> BytesMut {
    use m::offset_fetch_request as r;
    let request = m::OffsetFetchRequest::default();
    match version {
        ..8 => {
            let topic = r::OffsetFetchRequestTopic::default()
                .with_name(s("orders").into())
                .with_partition_indexes(vec![0, 1]);
            let request = request
                .with_group_id(s("group").into())
                .with_topics(Some(vec![topic]));
            encoded(&request, version)
        }
        8..10 => {
            let topic = r::OffsetFetchRequestTopics::default()
                .with_name(s("orders").into())
                .with_partition_indexes(vec![0, 1]);
            let group = r::OffsetFetchRequestGroup::default()
                .with_group_id(s("group").into())
                .with_topics(Some(vec![topic]));
            encoded(&request.with_groups(vec![group]), version)
        }
        _ => {
            let mut out = BytesMut::new();
            out.put_array(1, true);
            out.put_str("group", true);
            out.put_nullable_str(None, true);
            out.put_i32(-1);
            out.put_array(1, true);
            out.put_u128(5);
            out.put_array(2, true);
            out.put_i32(0);
            out.put_i32(1);
            out.put_slice(&[0, 0, 1, 0]);
            out
        }
    }
}

fn find_coordinator(version: i16) -> BytesMut {
    let request = m::FindCoordinatorRequest::default();
    if version >= 4 {
        encoded(&request.with_coordinator_keys(vec![s("group")]), version)
    } else {
        encoded(&request.with_key(s("group")), version)
    }
}

fn join_group(version: i16) -> BytesMut {
    let protocol = m::join_group_request::JoinGroupRequestProtocol::default()
        .with_name(s("range"))
        .with_metadata(Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t"));
    let request = m::JoinGroupRequest::default()
        .with_group_id(s("group").into())
        .with_session_timeout_ms(10_000)
        .with_protocol_type(s("consumer"))
        .with_protocols(vec![protocol]);
    encoded(&request, version)
}

fn heartbeat(version: i16) -> BytesMut {
    let request = m::HeartbeatRequest::default()
        .with_group_id(s("group").into())
        .with_member_id(s("member"));
    encoded(&request, version)
}

fn leave_group(version: i16) -> BytesMut {
    let request = m::LeaveGroupRequest::default().with_group_id(s("group").into());
    if version >= 3 {
        let member = m::leave_group_request::MemberIdentity::default();
        encoded(
            &request.with_members(vec![member.with_member_id(s("member"))]),
            version,
        )
    } else {
        encoded(&request.with_member_id(s("member")), version)
    }
}

fn sync_group(version: i16) -> BytesMut {
    let assignment = m::sync_group_request::SyncGroupRequestAssignment::default()
        .with_member_id(s("member"))
        .with_assignment(Bytes::from_static(b"abc"));
    let request = m::SyncGroupRequest::default()
        .with_group_id(s("group").into())
        .with_member_id(s("member"))
        .with_assignments(vec![assignment]);
    encoded(&request, version)
}

fn list_groups(version: i16) -> BytesMut {
    let request = m::ListGroupsRequest::default();
    if version >= 4 {
        encoded(&request.with_states_filter(vec![s("Stable")]), version)
    } else {
        encoded(&request, version)
    }
}

fn offset_delete(version: i16) -> BytesMut {
    use m::offset_delete_request as r;
    let topic = r::OffsetDeleteRequestTopic::default()
        .with_name(s("orders").into())
        .with_partitions(vec![r::OffsetDeleteRequestPartition::default()]);
    let request = m::OffsetDeleteRequest::default()
        .with_group_id(s("group").into())
        .with_topics(vec![topic]);
    encoded(&request, version)
}

fn create_topics(version: i16) -> BytesMut {
    use m::create_topics_request as r;
    let topic = r::CreatableTopic::default()
        .with_name(s("orders").into())
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_assignments(vec![
            r::CreatableReplicaAssignment::default().with_broker_ids(vec![1.into()]),
        ])
        .with_configs(vec![
            r::CreatableTopicConfig::default()
                .with_name(s("retention.ms"))
                .with_value(Some(s("1000"))),
        ]);
    encoded(
        &m::CreateTopicsRequest::default().with_topics(vec![topic]),
        version,
    )
}

fn delete_topics(version: i16) -> BytesMut {
    let request = m::DeleteTopicsRequest::default();
    let request = if version >= 6 {
        let topic = m::delete_topics_request::DeleteTopicState::default();
        request.with_topics(vec![topic.with_name(Some(s("orders").into()))])
    } else {
        request.with_topic_names(vec![s("orders").into()])
    };
    encoded(&request, version)
}

fn offset_for_leader_epoch(version: i16) -> BytesMut {
    use m::offset_for_leader_epoch_request as r;
    let topic = r::OffsetForLeaderTopic::default()
        .with_topic(s("orders").into())
        .with_partitions(vec![r::OffsetForLeaderPartition::default()]);
    encoded(
        &m::OffsetForLeaderEpochRequest::default().with_topics(vec![topic]),
        version,
    )
}

fn describe_configs(version: i16) -> BytesMut {
    let resource = m::describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(s("orders"))
        .with_configuration_keys(Some(vec![s("retention.ms")]));
    encoded(
        &m::DescribeConfigsRequest::default().with_resources(vec![resource]),
        version,
    )
}

fn incremental_alter_configs(version: i16) -> BytesMut {
    use m::incremental_alter_configs_request as r;
    let resource = r::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(s("orders"))
        .with_configs(vec![
            r::AlterableConfig::default()
                .with_name(s("retention.ms"))
                .with_value(Some(s("1000"))),
        ]);
    encoded(
        &m::IncrementalAlterConfigsRequest::default().with_resources(vec![resource]),
        version,
    )
}
