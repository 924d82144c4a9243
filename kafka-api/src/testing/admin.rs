//! Good requests of the administrative APIs.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as m;

use super::{encoded, s};
use crate::versions::ApiKey;

pub(super) fn body(key: ApiKey, version: i16) -> BytesMut {
    match key {
        ApiKey::AlterConfigs => {
            use m::alter_configs_request as r;
            let resource = r::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(s("orders"))
                .with_configs(vec![
                    r::AlterableConfig::default()
                        .with_name(s("retention.ms"))
                        .with_value(Some(s("1000"))),
                ]);
            let request = m::AlterConfigsRequest::default().with_resources(vec![resource]);
            encoded(&request, version)
        }
        ApiKey::DescribeLogDirs => {
            let topic = m::describe_log_dirs_request::DescribableLogDirTopic::default()
                .with_topic(s("orders").into())
                .with_partitions(vec![0, 1]);
            let request = m::DescribeLogDirsRequest::default().with_topics(Some(vec![topic]));
            encoded(&request, version.min(4))
        }
        ApiKey::DescribeClientQuotas => {
            use m::describe_client_quotas_request as r;
            let component = r::ComponentData::default()
                .with_entity_type(s("client-id"))
                .with_match(Some(s("a-client")));
            let request =
                m::DescribeClientQuotasRequest::default().with_components(vec![component]);
            encoded(&request, version)
        }
        ApiKey::AlterClientQuotas => {
            use m::alter_client_quotas_request as r;
            let entity = r::EntityData::default()
                .with_entity_type(s("client-id"))
                .with_entity_name(Some(s("a-client")));
            let op = r::OpData::default()
                .with_key(s("producer_byte_rate"))
                .with_value(1e6);
            let entry = r::EntryData::default()
                .with_entity(vec![entity])
                .with_ops(vec![op]);
            let request = m::AlterClientQuotasRequest::default().with_entries(vec![entry]);
            encoded(&request, version)
        }
        ApiKey::ElectLeaders => {
            let topic = m::elect_leaders_request::TopicPartitions::default()
                .with_topic(s("orders").into())
                .with_partitions(vec![0, 1]);
            let request =
                m::ElectLeadersRequest::default().with_topic_partitions(Some(vec![topic]));
            encoded(&request, version)
        }
        ApiKey::DescribeProducers => {
            let topic = m::describe_producers_request::TopicRequest::default()
                .with_name(s("orders").into())
                .with_partition_indexes(vec![0, 1]);
            let request = m::DescribeProducersRequest::default().with_topics(vec![topic]);
            encoded(&request, version)
        }
        ApiKey::GetTelemetrySubscriptions => {
            encoded(&m::GetTelemetrySubscriptionsRequest::default(), version)
        }
        ApiKey::PushTelemetry => {
            let request =
                m::PushTelemetryRequest::default().with_metrics(Bytes::from_static(b"metrics"));
            encoded(&request, version)
        }
        ApiKey::DeleteRecords => {
            use m::delete_records_request as r;
            let topic = r::DeleteRecordsTopic::default()
                .with_name(s("orders").into())
                .with_partitions(vec![r::DeleteRecordsPartition::default().with_offset(-1)]);
            let request = m::DeleteRecordsRequest::default().with_topics(vec![topic]);
            encoded(&request, version)
        }
        ApiKey::CreatePartitions => {
            use m::create_partitions_request as r;
            let topic = r::CreatePartitionsTopic::default()
                .with_name(s("orders").into())
                .with_count(3)
                .with_assignments(Some(vec![
                    r::CreatePartitionsAssignment::default().with_broker_ids(vec![1.into()]),
                ]));
            let request = m::CreatePartitionsRequest::default().with_topics(vec![topic]);
            encoded(&request, version)
        }
        ApiKey::AlterReplicaLogDirs => {
            use m::alter_replica_log_dirs_request as r;
            let topic = r::AlterReplicaLogDirTopic::default()
                .with_name(s("orders").into())
                .with_partitions(vec![0, 1]);
            let dir = r::AlterReplicaLogDir::default()
                .with_path(s("/data"))
                .with_topics(vec![topic]);
            let request = m::AlterReplicaLogDirsRequest::default().with_dirs(vec![dir]);
            encoded(&request, version)
        }
        ApiKey::ListConfigResources => encoded(&m::ListConfigResourcesRequest::default(), version),
        ApiKey::DescribeCluster => encoded(&m::DescribeClusterRequest::default(), version),
        ApiKey::DescribeTopicPartitions => {
            use m::describe_topic_partitions_request as r;
            let request = m::DescribeTopicPartitionsRequest::default()
                .with_topics(vec![
                    r::TopicRequest::default().with_name(s("orders").into()),
                ])
                .with_cursor(Some(
                    r::Cursor::default().with_topic_name(s("orders").into()),
                ));
            encoded(&request, version)
        }
        other => unreachable!("{other:?} has no sample"),
    }
}
