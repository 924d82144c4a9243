//! The schemas agree with what the library encodes and with what is read by hand, and hold their bounds.

use super::*;
use crate::frame::{self, Frame};
use crate::versions::{self, Api};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::protocol::{Encodable, StrBytes};
use proptest::prelude::*;

fn request(api: &Api, version: i16, body: &[u8]) -> Request {
    let mut b = BytesMut::new();
    b.put_i16(api.key as i16);
    b.put_i16(version);
    b.put_i32(1);
    b.put_i16(-1);
    if api.flexible(version) {
        b.put_u8(0);
    }
    b.put_slice(body);
    match frame::parse(b.freeze()) {
        Ok(Frame::Request(r)) => r,
        other => panic!("{other:?}"),
    }
}

fn s(v: &'static str) -> StrBytes {
    StrBytes::from_static_str(v)
}

/// Encodes with the library and walks with the table: the walk must end exactly where the bytes do.
fn agrees<T: Encodable + Decodable + PartialEq + std::fmt::Debug>(
    key: ApiKey,
    known_to: i16,
    make: impl Fn(i16) -> T,
) {
    let api = versions::find(key as i16).expect("in the table");
    for version in api.min..=known_to {
        let message = make(version);
        let mut body = BytesMut::new();
        message.encode(&mut body, version).unwrap();
        let request = request(api, version, &body);
        let mut r = request.body.clone();
        walk(&mut r, schema(key), version, request.flexible()).unwrap();
        assert_eq!(r.left(), 0, "{key:?} {version}");
        assert_eq!(decode::<T>(&request, version).unwrap(), message);
        // Every cut is seen.
        let body = body.freeze();
        for end in 0..body.len() {
            let mut cut = request.clone();
            cut.body = Reader::new(body.slice(..end));
            assert!(check(&cut).is_err(), "{key:?} {version} cut at {end}");
        }
    }
}

#[test]
fn the_schemas_agree_with_the_library() {
    agrees(ApiKey::ListOffsets, 10, |_| {
        m::ListOffsetsRequest::default().with_topics(vec![
            m::list_offsets_request::ListOffsetsTopic::default()
                .with_name(s("a").into())
                .with_partitions(vec![Default::default(), Default::default()]),
            Default::default(),
        ])
    });
    agrees(ApiKey::Metadata, 13, |_| {
        m::MetadataRequest::default().with_topics(Some(vec![
            m::metadata_request::MetadataRequestTopic::default().with_name(Some(s("a").into())),
            m::metadata_request::MetadataRequestTopic::default().with_name(Some(s("bcd").into())),
        ]))
    });
    agrees(ApiKey::ApiVersions, 4, |v| {
        let r = m::ApiVersionsRequest::default();
        if v < 3 {
            return r;
        }
        r.with_client_software_name(s("kcat"))
            .with_client_software_version(s("1"))
    });
    agrees(ApiKey::CreateTopics, 7, |_| {
        m::CreateTopicsRequest::default().with_topics(vec![
            m::create_topics_request::CreatableTopic::default()
                .with_name(s("t").into())
                .with_assignments(vec![
                    m::create_topics_request::CreatableReplicaAssignment::default()
                        .with_broker_ids(vec![1.into(), 2.into()]),
                ])
                .with_configs(vec![
                    m::create_topics_request::CreatableTopicConfig::default()
                        .with_name(s("k"))
                        .with_value(None),
                ]),
        ])
    });
    agrees(ApiKey::DeleteTopics, 6, |v| {
        let r = m::DeleteTopicsRequest::default();
        if v >= 6 {
            r.with_topics(vec![
                m::delete_topics_request::DeleteTopicState::default().with_name(None),
                m::delete_topics_request::DeleteTopicState::default()
                    .with_name(Some(s("x").into())),
            ])
        } else {
            r.with_topic_names(vec![s("x").into(), s("yy").into()])
        }
    });
    agrees(ApiKey::InitProducerId, 5, |_| {
        m::InitProducerIdRequest::default().with_transactional_id(Some(s("tx").into()))
    });
    agrees(ApiKey::FindCoordinator, 6, |v| {
        let r = m::FindCoordinatorRequest::default();
        let r = if v >= 1 { r.with_key_type(1) } else { r };
        if v >= 4 {
            r.with_coordinator_keys(vec![s("a"), s("bc")])
        } else {
            r.with_key(s("a"))
        }
    });
    agrees(ApiKey::JoinGroup, 9, |v| {
        use m::join_group_request::JoinGroupRequestProtocol;
        let r = m::JoinGroupRequest::default()
            .with_group_id(s("g").into())
            .with_member_id(s("m"))
            .with_protocol_type(s("consumer"))
            .with_protocols(vec![
                JoinGroupRequestProtocol::default()
                    .with_name(s("range"))
                    .with_metadata(bytes::Bytes::from_static(b"abc")),
            ]);
        let r = if v >= 1 {
            r.with_rebalance_timeout_ms(7)
        } else {
            r
        };
        if v >= 5 {
            r.with_group_instance_id(Some(s("i")))
        } else {
            r
        }
    });
    agrees(ApiKey::Heartbeat, 4, |_| {
        m::HeartbeatRequest::default().with_member_id(s("m"))
    });
    agrees(ApiKey::LeaveGroup, 5, |v| {
        let r = m::LeaveGroupRequest::default().with_group_id(s("g").into());
        if v >= 3 {
            let one = m::leave_group_request::MemberIdentity::default();
            r.with_members(vec![one.with_member_id(s("m"))])
        } else {
            r.with_member_id(s("m"))
        }
    });
    agrees(ApiKey::SyncGroup, 5, |_| {
        use m::sync_group_request::SyncGroupRequestAssignment;
        m::SyncGroupRequest::default().with_assignments(vec![
            SyncGroupRequestAssignment::default()
                .with_member_id(s("m"))
                .with_assignment(bytes::Bytes::from_static(b"abc")),
        ])
    });
    agrees(ApiKey::DescribeGroups, 6, |_| {
        m::DescribeGroupsRequest::default().with_groups(vec![s("a").into(), s("b").into()])
    });
    agrees(ApiKey::ListGroups, 5, |v| {
        let r = m::ListGroupsRequest::default();
        if v >= 4 {
            r.with_states_filter(vec![s("Stable")])
        } else {
            r
        }
    });
    agrees(ApiKey::DeleteGroups, 2, |_| {
        m::DeleteGroupsRequest::default().with_groups_names(vec![s("a").into()])
    });
    agrees(ApiKey::OffsetDelete, 0, |_| {
        use m::offset_delete_request as r;
        m::OffsetDeleteRequest::default().with_topics(vec![
            r::OffsetDeleteRequestTopic::default()
                .with_name(s("a").into())
                .with_partitions(vec![Default::default(), Default::default()]),
        ])
    });
    agrees(ApiKey::OffsetForLeaderEpoch, 4, |_| {
        m::OffsetForLeaderEpochRequest::default().with_topics(vec![
            m::offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
                .with_topic(s("a").into())
                .with_partitions(vec![Default::default(), Default::default()]),
        ])
    });
    agrees(ApiKey::DescribeConfigs, 4, |_| {
        m::DescribeConfigsRequest::default().with_resources(vec![
            m::describe_configs_request::DescribeConfigsResource::default()
                .with_resource_name(s("a"))
                .with_configuration_keys(Some(vec![s("k"), s("l")])),
            m::describe_configs_request::DescribeConfigsResource::default()
                .with_configuration_keys(None),
        ])
    });
    agrees(ApiKey::IncrementalAlterConfigs, 1, |_| {
        m::IncrementalAlterConfigsRequest::default().with_resources(vec![
            m::incremental_alter_configs_request::AlterConfigsResource::default()
                .with_resource_name(s("a"))
                .with_configs(vec![
                    m::incremental_alter_configs_request::AlterableConfig::default()
                        .with_name(s("k"))
                        .with_value(None),
                ]),
        ])
    });
}

#[test]
fn the_schemas_of_admin_requests_agree_with_the_library() {
    agrees(ApiKey::AlterConfigs, 2, |_| {
        m::AlterConfigsRequest::default().with_resources(vec![
            m::alter_configs_request::AlterConfigsResource::default()
                .with_resource_name(s("a"))
                .with_configs(vec![
                    m::alter_configs_request::AlterableConfig::default()
                        .with_name(s("k"))
                        .with_value(None),
                ]),
        ])
    });
    for topics in [None, Some(())] {
        agrees(ApiKey::DescribeLogDirs, 4, |_| {
            let topic = m::describe_log_dirs_request::DescribableLogDirTopic::default()
                .with_topic(s("a").into())
                .with_partitions(vec![1, 2]);
            m::DescribeLogDirsRequest::default().with_topics(topics.map(|()| vec![topic]))
        });
        agrees(ApiKey::ElectLeaders, 2, |_| {
            let topic = m::elect_leaders_request::TopicPartitions::default()
                .with_topic(s("a").into())
                .with_partitions(vec![1, 2]);
            m::ElectLeadersRequest::default().with_topic_partitions(topics.map(|()| vec![topic]))
        });
    }
    agrees(ApiKey::DescribeProducers, 0, |_| {
        m::DescribeProducersRequest::default().with_topics(vec![
            m::describe_producers_request::TopicRequest::default()
                .with_name(s("a").into())
                .with_partition_indexes(vec![1, 2]),
        ])
    });
    agrees(ApiKey::GetTelemetrySubscriptions, 0, |_| {
        m::GetTelemetrySubscriptionsRequest::default()
    });
    agrees(ApiKey::PushTelemetry, 0, |_| {
        m::PushTelemetryRequest::default().with_metrics(Bytes::from_static(b"abc"))
    });
    agrees(ApiKey::DeleteRecords, 2, |_| {
        m::DeleteRecordsRequest::default().with_topics(vec![
            m::delete_records_request::DeleteRecordsTopic::default()
                .with_name(s("a").into())
                .with_partitions(vec![Default::default(), Default::default()]),
        ])
    });
    agrees(ApiKey::CreatePartitions, 3, |_| {
        m::CreatePartitionsRequest::default().with_topics(vec![
            m::create_partitions_request::CreatePartitionsTopic::default()
                .with_name(s("a").into())
                .with_assignments(Some(vec![
                    m::create_partitions_request::CreatePartitionsAssignment::default()
                        .with_broker_ids(vec![1.into(), 2.into()]),
                ])),
            m::create_partitions_request::CreatePartitionsTopic::default().with_assignments(None),
        ])
    });
    agrees(ApiKey::AlterReplicaLogDirs, 2, |_| {
        use m::alter_replica_log_dirs_request as r;
        let topic = r::AlterReplicaLogDirTopic::default()
            .with_name(s("a").into())
            .with_partitions(vec![1, 2]);
        m::AlterReplicaLogDirsRequest::default().with_dirs(vec![
            r::AlterReplicaLogDir::default()
                .with_path(s("/data"))
                .with_topics(vec![topic]),
        ])
    });
    agrees(ApiKey::ListConfigResources, 1, |version| {
        m::ListConfigResourcesRequest::default().with_resource_types(match version {
            0 => Vec::new(),
            _ => vec![2, 4],
        })
    });
    agrees(ApiKey::DescribeCluster, 2, |_| {
        m::DescribeClusterRequest::default()
    });
    for cursor in [None, Some(Default::default())] {
        agrees(ApiKey::DescribeTopicPartitions, 0, |_| {
            m::DescribeTopicPartitionsRequest::default()
                .with_topics(vec![
                    m::describe_topic_partitions_request::TopicRequest::default()
                        .with_name(s("abc").into()),
                ])
                .with_cursor(cursor.clone())
        });
    }
}

/// What is read by hand is walked for the number of its elements: the walk must end where the reader does.
#[test]
fn what_is_read_by_hand_is_walked_to_its_end() {
    for api in versions::TABLE.iter().filter(|api| is_by_hand(api.key)) {
        for version in api.min..=api.max {
            let frame = crate::testing::frame(api.key, version);
            let Ok(Frame::Request(request)) = frame::parse(frame) else {
                panic!("a good frame");
            };
            let mut r = request.body.clone();
            walk(&mut r, schema(api.key), version, request.flexible()).unwrap();
            assert_eq!(r.left(), 0, "{:?} {version}", api.key);
            assert!(r.elements_seen() > 1, "{:?} {version}", api.key);
            let body = request.body.rest();
            for end in 0..body.len() {
                let mut cut = request.clone();
                cut.body = Reader::new(body.slice(..end));
                assert!(check(&cut).is_err(), "{:?} {version} cut at {end}", api.key);
            }
        }
    }
}

#[test]
fn counts_that_would_fill_the_memory_are_refused() {
    let api = versions::find(3).expect("Metadata");
    // 2^31 - 1 topics in ten bytes, as an i32 and as a varint.
    let r = request(api, 1, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    assert_eq!(check(&r), Err(Malformed::Elements));
    let r = request(api, 12, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0]);
    assert_eq!(check(&r), Err(Malformed::Elements));
    // The allowance is for the request, not for each array.
    let api = versions::find(32).expect("DescribeConfigs");
    let mut body = BytesMut::new();
    body.put_i32(2);
    for _ in 0..2 {
        body.put_slice(&[2, 0, 0]);
        body.put_i32(150_000);
        body.put_bytes(0, 300_000);
    }
    body.put_u8(0);
    assert_eq!(check(&request(api, 1, &body)), Err(Malformed::Elements));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn any_body_is_answered(which in 0usize..versions::TABLE.len(), v in 0i16..14, body in proptest::collection::vec(any::<u8>(), 0..120)) {
        let api = &versions::TABLE[which];
        let version = api.min + v % (api.max - api.min + 1);
        let _ = check(&request(api, version, &body));
    }
}

#[test]
fn a_body_that_ends_early_is_refused() {
    let api = versions::find(3).expect("Metadata");
    let r = request(api, 9, &[]);
    assert!(matches!(check(&r), Err(Malformed::Short(_))));
}
