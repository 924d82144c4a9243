//! Requests on their way from bytes to an answer, as far as that goes without a shard: decoded as their handlers do it, put to whatever is pure (coordinators, sessions, checks of settings and limits), and
//! answered, with the answer encoded in the request's version. For fuzzing: it must not panic whatever the bytes.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::BytesMut;
use cluster::controller::CreatedTopic;
use cluster::loggers::Loggers;
use cluster::quota::Quotas;
use cluster::topic_config::{self, AlterOp, ConfigChange, ConfigOp, Settings};
use cluster::{broker_config, fixed_config, topic_name};
use engine::log::DiskState;
use engine::types::{NodeId, TopicId};
use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::world::{World, told};
use crate::error::{ErrorCode, Malformed};
use crate::faces::Faces;
use crate::frame::Request;
use crate::handlers::fetch::{self, session::Context};
use crate::handlers::*;
use crate::records::testing::run;
use crate::schema::{self, decode};
use crate::versions::ApiKey;

mod groups;

/// Carries a request out; an error is what closes the connection.
pub fn carry_out(request: &Request, world: &mut World) -> Result<(), Malformed> {
    let version = request.version;
    match request.api.key {
        ApiKey::Produce => {
            let asked = produce::wire::ProduceRequest::read(request)?;
            let refused = produce::wire::PartAnswer::error(ErrorCode::UnknownTopicOrPartition);
            let answers = vec![refused; asked.parts.len()];
            produce::wire::write(request, &asked.topics, &asked.parts, &answers, &[], 7);
        }
        ApiKey::Fetch => fetch_with_sessions(request, world)?,
        ApiKey::ListOffsets => {
            let known = version.min(10);
            let asked: m::ListOffsetsRequest = decode(request, known)?;
            let parts = asked.topics.iter().flat_map(|t| &t.partitions);
            let answers = parts.map(|p| {
                list_offsets::refused(match list_offsets::served(p.timestamp, version) {
                    true => ErrorCode::OffsetNotAvailable,
                    false => ErrorCode::UnsupportedVersion,
                })
            });
            let answers: Vec<_> = answers.collect();
            told(&list_offsets::response(&asked, &answers, version), known);
        }
        ApiKey::Metadata => {
            let asked: m::MetadataRequest = decode(request, version)?;
            let topics = asked.topics.unwrap_or_default();
            told(&metadata::too_early(&topics), version.min(11));
            let count = topics.len();
            assert!(metadata::once_each(topics, version).count() <= count);
        }
        ApiKey::ApiVersions => {
            schema::check(request)?;
            let error = api_versions::check(request, Some("a-cluster"), |node| node == 1)?;
            api_versions::write_body(&mut BytesMut::new(), version, error);
        }
        ApiKey::OffsetForLeaderEpoch => {
            let asked: m::OffsetForLeaderEpochRequest = decode(request, version)?;
            let parts = asked.topics.iter().map(|t| t.partitions.len());
            let refused = offset_for_leader_epoch::refused(ErrorCode::FencedLeaderEpoch);
            let answers = vec![refused; parts.sum()];
            told(
                &offset_for_leader_epoch::response(&asked, &answers),
                version,
            );
        }
        ApiKey::InitProducerId => {
            let asked: m::InitProducerIdRequest = decode(request, version)?;
            let half = init_producer_id::half_known(asked.producer_id.0, asked.producer_epoch);
            let result = match half {
                true => Err(ErrorCode::InvalidRequest),
                false => Ok(i64::MAX),
            };
            told(&init_producer_id::response(result), version);
        }
        ApiKey::DescribeProducers => {
            let asked: m::DescribeProducersRequest = decode(request, version)?;
            let parts = asked.topics.iter().map(|t| t.partition_indexes.len());
            let answers = vec![Err(ErrorCode::InvalidTopic); parts.sum()];
            told(&describe_producers::response(&asked, answers), version);
        }
        ApiKey::DeleteRecords => {
            let asked: m::DeleteRecordsRequest = decode(request, version)?;
            let parts = asked.topics.iter().map(|t| t.partitions.len());
            let answers = vec![Err(ErrorCode::OffsetOutOfRange); parts.sum()];
            told(&delete_records::response(&asked, &answers), version);
        }
        ApiKey::DescribeLogDirs => {
            let known = version.min(4);
            let asked: m::DescribeLogDirsRequest = decode(request, known)?;
            let topics = asked.topics.unwrap_or_default().into_iter();
            let sizes = topics.map(|t| {
                let parts = t.partitions.into_iter().map(|p| (p, u64::MAX));
                (Rc::from(&**t.topic), parts.collect())
            });
            let disk = DiskState {
                free_bytes: u64::MAX,
                total_bytes: 0,
                refusing: true,
            };
            let sizes: describe_log_dirs::Sizes = sizes.collect();
            describe_log_dirs::write_body(&mut BytesMut::new(), version, "/", &sizes, disk);
        }
        ApiKey::AlterReplicaLogDirs => {
            let asked: m::AlterReplicaLogDirsRequest = decode(request, version)?;
            let wanted = alter_replica_log_dirs::wanted(&asked, "/data");
            let results = wanted.iter().map(|(name, partitions)| {
                let topic = world.view.topic(name);
                alter_replica_log_dirs::result(name, partitions, topic.as_deref())
            });
            let results = results.collect();
            let response = m::AlterReplicaLogDirsResponse::default().with_results(results);
            told(&response, version);
        }
        ApiKey::ListConfigResources => {
            let asked: m::ListConfigResourcesRequest = decode(request, version)?;
            let code = match list_config_resources::wanted(version, &asked.resource_types) {
                Some(_) => ErrorCode::None,
                None => ErrorCode::UnsupportedVersion,
            };
            let response = m::ListConfigResourcesResponse::default();
            told(&response.with_error_code(code.code()), version);
        }
        ApiKey::DescribeCluster => {
            let asked: m::DescribeClusterRequest = decode(request, version)?;
            let why = format!("There is no endpoint type {}.", asked.endpoint_type);
            let code = ErrorCode::UnsupportedEndpointType;
            told(&describe_cluster::refused(code, why), version);
        }
        ApiKey::GetTelemetrySubscriptions => {
            let asked: m::GetTelemetrySubscriptionsRequest = decode(request, version)?;
            let id = asked.client_instance_id;
            told(&get_telemetry_subscriptions::response(id), version);
        }
        ApiKey::PushTelemetry => {
            let mut asked: m::PushTelemetryRequest = decode(request, version)?;
            // What the client was told: nobody guesses it.
            let subscription = get_telemetry_subscriptions::subscription(asked.client_instance_id);
            asked.subscription_id = subscription;
            let error = run(push_telemetry::check(&asked, &world.budget, &async || {}));
            let response = m::PushTelemetryResponse::default().with_error_code(error.code());
            told(&response, version);
        }
        ApiKey::DescribeTopicPartitions => {
            let asked: m::DescribeTopicPartitionsRequest = decode(request, version)?;
            page(&asked, world);
        }
        ApiKey::ElectLeaders => {
            let asked: m::ElectLeadersRequest = decode(request, version)?;
            let results = asked.topic_partitions.unwrap_or_default();
            let results = results.into_iter().map(|t| {
                let topic = world.view.topic(&t.topic);
                let rows = t.partitions.iter().map(|p| {
                    let (code, why) =
                        elect_leaders::elect(topic.as_deref(), *p, asked.election_type);
                    elect_leaders::row(*p, code, why)
                });
                elect_leaders::result(t.topic, rows.collect())
            });
            let results = results.collect();
            let response =
                m::ElectLeadersResponse::default().with_replica_election_results(results);
            told(&response, version);
        }
        ApiKey::DescribeClientQuotas => {
            use describe_client_quotas::{Filter, told as entry};
            let asked: m::DescribeClientQuotasRequest = decode(request, version)?;
            let quotas = Quotas::default();
            let response = m::DescribeClientQuotasResponse::default();
            let response = match Filter::read(&asked.components, asked.strict) {
                Ok(filter) => {
                    let wanted = quotas.entities().filter(|(e, _)| filter.wants(e));
                    response.with_entries(Some(wanted.map(|(e, l)| entry(e, l)).collect()))
                }
                Err((code, why)) => response
                    .with_error_code(code.code())
                    .with_error_message(Some(StrBytes::from_string(why)))
                    .with_entries(None),
            };
            told(&response, version);
        }
        ApiKey::AlterClientQuotas => {
            let asked: m::AlterClientQuotasRequest = decode(request, version)?;
            let checked = alter_client_quotas::check(&asked.entries);
            let sound: Vec<_> = checked.iter().flatten().cloned().collect();
            Quotas::default().apply(&sound);
            let rows = asked.entries.iter().zip(checked);
            let rows = rows.map(|(e, r)| alter_client_quotas::row(e, r.map(|_| ())));
            let response = m::AlterClientQuotasResponse::default().with_entries(rows.collect());
            told(&response, version);
        }
        ApiKey::DescribeConfigs => describe_settings(&decode(request, version)?, version),
        ApiKey::IncrementalAlterConfigs => {
            let asked: m::IncrementalAlterConfigsRequest = decode(request, version)?;
            let rows = asked.resources.iter().map(|r| {
                let ops = r.configs.iter().filter_map(|c| {
                    Some(ConfigOp {
                        name: c.name.to_string(),
                        op: AlterOp::from_code(c.config_operation)?,
                        value: c.value.as_ref().map(|v| v.to_string()),
                    })
                });
                let changed = change(r.resource_type, ops.collect());
                incremental_alter_configs::row(r, changed)
            });
            let response =
                m::IncrementalAlterConfigsResponse::default().with_responses(rows.collect());
            told(&response, version);
        }
        ApiKey::AlterConfigs => {
            let asked: m::AlterConfigsRequest = decode(request, version)?;
            let rows = asked.resources.iter().map(|r| {
                let configs = r.configs.iter();
                let configs =
                    configs.map(|c| (c.name.to_string(), c.value.as_ref().map(|v| v.to_string())));
                let changed = ConfigChange::Replace(configs.collect()).apply(&BTreeMap::new());
                let changed = changed.map(|_| ());
                alter_configs::row(r, changed.map_err(incremental_alter_configs::refused))
            });
            let response = m::AlterConfigsResponse::default().with_responses(rows.collect());
            told(&response, version);
        }
        ApiKey::CreateTopics => {
            let asked: m::CreateTopicsRequest = decode(request, version)?;
            let twice = repeated(asked.topics.iter().map(|t| &t.name));
            let rows = asked.topics.iter().map(|t| {
                let result = match twice.contains(&t.name) {
                    true => Err((ErrorCode::InvalidRequest.code(), "twice".into())),
                    false => create(t),
                };
                create_topics::row(t, result, version)
            });
            let response = m::CreateTopicsResponse::default().with_topics(rows.collect());
            told(&response, version);
        }
        ApiKey::DeleteTopics => {
            let asked: m::DeleteTopicsRequest = decode(request, version)?;
            let names = asked
                .topic_names
                .into_iter()
                .map(|n| (Some(n), Uuid::nil()));
            let topics = asked.topics.into_iter().map(|t| (t.name, t.topic_id));
            let rows = names.chain(topics).map(|one| {
                let why = Some((ErrorCode::UnknownTopicId.code(), "no".to_string()));
                delete_topics::fit(delete_topics::row(one, why), version)
            });
            let response = m::DeleteTopicsResponse::default().with_responses(rows.collect());
            told(&response, version);
        }
        ApiKey::CreatePartitions => {
            let asked: m::CreatePartitionsRequest = decode(request, version)?;
            let rows = asked.topics.iter().map(|t| {
                let known = topic_name::check(&t.name).map(|()| t.count);
                create_partitions::row(t, known.map_err(incremental_alter_configs::refused))
            });
            let response = m::CreatePartitionsResponse::default().with_results(rows.collect());
            told(&response, version);
        }
        ApiKey::OffsetCommit
        | ApiKey::OffsetFetch
        | ApiKey::FindCoordinator
        | ApiKey::JoinGroup
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::SyncGroup
        | ApiKey::DescribeGroups
        | ApiKey::ListGroups
        | ApiKey::DeleteGroups
        | ApiKey::OffsetDelete => groups::carry_out(request, world)?,
    }
    Ok(())
}

fn fetch_with_sessions(request: &Request, world: &mut World) -> Result<(), Malformed> {
    use fetch::wire::{FetchRequest, PartAnswer, write};
    let mut asked = FetchRequest::read(request)?;
    let (by_id, now) = (request.version >= 13, world.now());
    let context = match world.sessions.begin(&mut asked, by_id, now) {
        Ok(context) => context,
        Err(error) => {
            write(request, error, 0, &[], &[], Vec::new(), &[]);
            return Ok(());
        }
    };
    if !matches!(context, Context::Incremental(_)) {
        run(asked.without_repeats(&async || {}));
    }
    asked.own();
    let mut answers = vec![PartAnswer::error(ErrorCode::None); asked.parts.len()];
    let session = match &context {
        Context::Alone => 0,
        Context::Full => world
            .sessions
            .create(&asked, by_id, &answers, now, || u64::MAX),
        Context::Incremental(session) => {
            session.tell(&mut asked, &mut answers);
            session.id()
        }
    };
    let (topics, parts) = (&asked.topics, &asked.parts);
    write(
        request,
        ErrorCode::None,
        session,
        topics,
        parts,
        answers,
        &[],
    );
    Ok(())
}

/// A page of all topics, or of those that are named.
fn page(asked: &m::DescribeTopicPartitionsRequest, world: &World) {
    use describe_topic_partitions as d;
    let response = m::DescribeTopicPartitionsResponse::default();
    if d::bad_cursor(asked) {
        let topics = asked.topics.iter();
        let rows = topics.map(|t| d::missing(t.name.clone(), ErrorCode::InvalidRequest));
        told(&response.with_topics(rows.collect()), 0);
        return;
    }
    let limit = d::page_limit(asked);
    let named = asked.topics.iter().map(|t| {
        let topic = world.view.topic(&t.name);
        let partitions = topic.as_ref().map_or(0, |t| t.partitions.len());
        ((t.name.clone(), topic), partitions)
    });
    let first = asked.cursor.as_ref().map_or(0, |c| c.partition_index);
    let (pieces, _) = d::cut(named, usize::try_from(first).unwrap_or(0), limit);
    let cut = pieces.iter().map(|p| p.to - p.from);
    assert!(cut.sum::<usize>() <= limit);
    let faces = Faces::new(Rc::from([]), false, NodeId(1), 1);
    let rows = pieces.into_iter().map(|piece| d::told(piece, &faces));
    told(&response.with_topics(rows.collect()), 0);
}

fn describe_settings(asked: &m::DescribeConfigsRequest, version: i16) {
    use describe_configs as d;
    let wanted = d::Wanted {
        synonyms: asked.include_synonyms,
        documentation: asked.include_documentation,
        version,
    };
    let mut out = BytesMut::new();
    let _ = d::estimate(asked);
    let none = Settings::new();
    for resource in &asked.resources {
        let names = resource.configuration_keys.iter().flatten();
        let names = d::sorted(names.map(|n| &**n));
        let names = (!names.is_empty()).then_some(names.as_slice());
        let rows = match resource.resource_type {
            d::TOPIC => Ok(topic_config::describe(&none, &none, names)),
            d::BROKER => Ok(broker_config::describe(&Default::default(), &none, names)),
            d::LOGGER => Ok(Loggers::new("info", || {}).describe(names)),
            d::CLIENT_METRICS => Ok(fixed_config::describe(fixed_config::CLIENT_METRICS, names)),
            d::GROUP => Ok(fixed_config::describe(fixed_config::GROUP, names)),
            _ => Err((ErrorCode::InvalidRequest.code(), "no".into())),
        };
        d::write_resource(&mut out, resource, &rows, wanted);
        // Of more there is no need: each is described by itself.
        out.clear();
    }
}

fn change(kind: i8, ops: Vec<ConfigOp>) -> Result<(), (i16, String)> {
    let config = broker_config::BrokerConfig::default();
    let changed = match kind {
        describe_configs::TOPIC => ConfigChange::Steps(ops).apply(&BTreeMap::new()).map(|_| ()),
        describe_configs::BROKER => broker_config::check(&config, &Settings::new(), &ops),
        describe_configs::LOGGER => Loggers::new("info", || {}).alter(&ops, true),
        describe_configs::CLIENT_METRICS => fixed_config::check(&fixed_config::METRICS, &ops),
        _ => fixed_config::check(&fixed_config::GROUPS, &ops),
    };
    changed.map_err(incremental_alter_configs::refused)
}

fn create(topic: &m::create_topics_request::CreatableTopic) -> Result<CreatedTopic, (i16, String)> {
    let refused = incremental_alter_configs::refused;
    topic_name::check(&topic.name).map_err(refused)?;
    let configs = topic.configs.iter();
    let configs = configs.map(|c| (&*c.name, c.value.as_deref()));
    let configs = topic_config::check_overrides(configs).map_err(refused)?;
    Ok(CreatedTopic {
        name: topic.name.to_string(),
        id: TopicId(Uuid::from_u128(1)),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        configs: topic_config::describe(&configs, &Settings::new(), None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame};
    use crate::testing;

    #[test]
    fn good_requests_of_every_version_come_to_an_answer() {
        let mut world = World::default();
        for bytes in testing::frames() {
            let Ok(Frame::Request(request)) = frame::parse(bytes) else {
                panic!("a good frame");
            };
            let (key, version) = (request.api.key, request.version);
            let done = carry_out(&request, &mut world);
            assert_eq!(done, Ok(()), "{key:?} {version}");
        }
    }

    #[test]
    fn cut_requests_come_to_none() {
        for bytes in testing::frames() {
            let end = bytes.len() - 1;
            let Ok(Frame::Request(request)) = frame::parse(bytes.slice(..end)) else {
                continue;
            };
            let done = carry_out(&request, &mut World::default());
            let (key, version) = (request.api.key, request.version);
            assert!(done.is_err(), "{key:?} {version}");
        }
    }
}
