//! Groups as commands see them, whichever protocol they speak: what a broker tells, in one form.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, DescribeGroupsRequest, GroupId, ListGroupsRequest,
    ShareGroupDescribeRequest,
};
use serde::Serialize;

use crate::client::cluster::{Cluster, text};
use crate::client::connection::Connection;
use crate::client::coordinators::{self, Answers, Coordinator};
use crate::client::progress::Progress;
use crate::client::{ClientError, at, check};

/// Groups that one request asks about, at most.
pub const PER_REQUEST: usize = 100;
/// GROUP_ID_NOT_FOUND
pub const NOT_FOUND: i16 = 69;
/// UNSUPPORTED_VERSION
const UNSUPPORTED: i16 = 35;

/// A line of the list of groups.
#[derive(Debug, Serialize)]
pub struct Listed {
    pub group: String,
    /// classic, consumer, share or streams; empty from brokers before 3.8.
    #[serde(rename = "type")]
    pub kind: String,
    /// Empty from brokers before 2.6.
    pub state: String,
    pub protocol: String,
    pub coordinator: i32,
}

#[derive(Clone, Debug, Serialize)]
pub struct Group {
    pub group: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub state: String,
    pub protocol: String,
    /// How partitions are shared out among the members.
    pub assignor: String,
    pub coordinator: i32,
    pub coordinator_address: String,
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Member {
    pub member: String,
    pub instance: Option<String>,
    pub client: String,
    pub host: String,
    pub assignment: Vec<Assigned>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Assigned {
    pub topic: String,
    pub partitions: Vec<i32>,
}

impl Member {
    pub fn places(&self) -> impl Iterator<Item = (&str, i32)> {
        self.assignment
            .iter()
            .flat_map(|a| a.partitions.iter().map(|p| (a.topic.as_str(), *p)))
    }
}

impl Group {
    /// Why offsets can't be changed now, if so.
    pub fn in_use(&self) -> Option<String> {
        if self.members.is_empty() {
            return None;
        }
        let clients: BTreeSet<String> = self
            .members
            .iter()
            .map(|m| format!("{} at {}", m.client, m.host.trim_start_matches('/')))
            .collect();
        let more = clients.len().saturating_sub(3);
        let mut names: Vec<String> = clients.into_iter().take(3).collect();
        if more > 0 {
            names.push(format!("{more} more"));
        }
        Some(format!(
            "group '{}' is {} with {} ({})",
            self.group,
            self.state,
            crate::client::output::count(self.members.len(), "member"),
            names.join(", ")
        ))
    }
}

/// Every group of every broker, by name.
pub fn list(cluster: &mut Cluster) -> Result<Vec<Listed>, ClientError> {
    cluster.retry(|c| c.metadata(Some(&[]), false))?;
    let ids = cluster.broker_ids();
    let mut progress = Progress::new("brokers asked for their groups", ids.len());
    let mut groups = Vec::new();
    for id in ids {
        let answer = cluster.retry(|c| {
            let answer = c
                .broker(id)?
                .call(&ListGroupsRequest::default(), i16::MAX)?;
            check(answer.error_code, None).map_err(|e| at(&format!("broker {id}"), e))?;
            Ok(answer)
        })?;
        groups.extend(answer.groups.into_iter().map(|g| Listed {
            group: g.group_id.to_string(),
            kind: g.group_type.to_lowercase(),
            state: g.group_state.to_string(),
            protocol: g.protocol_type.to_string(),
            coordinator: id,
        }));
        progress.add(1);
    }
    groups.sort_by(|a, b| a.group.cmp(&b.group));
    // A group that moved while we asked is told by two brokers.
    groups.dedup_by(|a, b| a.group == b.group);
    Ok(groups)
}

/// What there is to tell about each of these groups; one that there isn't is [`ClientError::Missing`].
pub fn describe(cluster: &mut Cluster, names: &[String]) -> Result<Answers<Group>, ClientError> {
    let mut progress = Progress::new("groups described", names.len());
    let mut answers = coordinators::ask(
        cluster,
        names,
        PER_REQUEST,
        &mut progress,
        |connection, coordinator, names| {
            let mut told = classic(connection, coordinator, names)?;
            newer(connection, coordinator, names, &mut told)?;
            Ok(told
                .into_iter()
                .map(|(name, group)| (name, group.and_then(|g| g.ok_or_else(missing))))
                .collect())
        },
    )?;
    let lacks =
        |answer: &Result<Group, ClientError>| matches!(answer, Err(ClientError::Missing(_)));
    if answers.values().any(lacks) {
        // There may be one of a kind that we don't know how to describe.
        for listed in list(cluster)? {
            if let Some(answer) = answers.get_mut(&listed.group).filter(|a| lacks(a)) {
                *answer = Err(ClientError::Missing(format!(
                    "group '{}' is a {} group, which this command doesn't know; Kafka's own tools do",
                    listed.group, listed.kind
                )));
            }
        }
    }
    Ok(answers)
}

fn missing() -> ClientError {
    ClientError::Missing("there is no such group; `tailrace group list` shows what there is".into())
}

/// By name: the group, `None` for one that isn't a classic one, or an error.
type Told = BTreeMap<String, Result<Option<Group>, ClientError>>;

fn classic(
    connection: &mut Connection,
    coordinator: &Coordinator,
    names: &[String],
) -> Result<Told, ClientError> {
    let request = DescribeGroupsRequest::default()
        .with_groups(names.iter().map(|n| GroupId(text(n))).collect());
    let answer = connection.call(&request, i16::MAX)?;
    let mut told = Told::new();
    for g in answer.groups {
        let name = g.group_id.to_string();
        // Below version 6 a group that there isn't is told as a dead one.
        let is_missing =
            g.error_code == NOT_FOUND || (g.error_code == 0 && &*g.group_state == "Dead");
        let group = if is_missing {
            Ok(None)
        } else {
            check(g.error_code, g.error_message.as_deref()).map(|()| {
                let is_consumer = &*g.protocol_type == "consumer";
                Some(Group {
                    group: name.clone(),
                    kind: "classic",
                    state: g.group_state.to_string(),
                    protocol: g.protocol_type.to_string(),
                    assignor: g.protocol_data.to_string(),
                    coordinator: coordinator.id,
                    coordinator_address: coordinator.address.clone(),
                    members: g
                        .members
                        .into_iter()
                        .map(|m| Member {
                            member: m.member_id.to_string(),
                            instance: m.group_instance_id.map(|i| i.to_string()),
                            client: m.client_id.to_string(),
                            host: m.client_host.to_string(),
                            assignment: if is_consumer {
                                assignment(m.member_assignment)
                            } else {
                                Vec::new()
                            },
                        })
                        .collect(),
                })
            })
        };
        told.insert(name, group);
    }
    Ok(told)
}

/// What a consumer's assignment says; nothing if it can't be read. Its bytes are the clients' own, so lengths are not believed: memory grows with what is
/// there.
fn assignment(mut bytes: Bytes) -> Vec<Assigned> {
    /// Every version begins like version 0.
    fn read(bytes: &mut Bytes) -> Option<Vec<(String, Vec<i32>)>> {
        bytes.try_get_i16().ok()?;
        let mut topics = Vec::new();
        for _ in 0..bytes.try_get_i32().ok()? {
            let length = usize::try_from(bytes.try_get_i16().ok()?).ok()?;
            if length > bytes.len() {
                return None;
            }
            let name = String::from_utf8(bytes.split_to(length).to_vec()).ok()?;
            let mut partitions = Vec::new();
            for _ in 0..bytes.try_get_i32().ok()? {
                partitions.push(bytes.try_get_i32().ok()?);
            }
            topics.push((name, partitions));
        }
        Some(topics)
    }
    assigned(read(&mut bytes).unwrap_or_default().into_iter())
}

fn assigned(topics: impl Iterator<Item = (String, Vec<i32>)>) -> Vec<Assigned> {
    let mut assigned: Vec<Assigned> = topics
        .map(|(topic, mut partitions)| {
            partitions.sort_unstable();
            Assigned { topic, partitions }
        })
        .collect();
    assigned.sort_by(|a, b| a.topic.cmp(&b.topic));
    assigned
}

/// Asks for those of the groups that are not classic ones, as far as the broker knows newer kinds.
fn newer(
    connection: &mut Connection,
    coordinator: &Coordinator,
    names: &[String],
    told: &mut Told,
) -> Result<(), ClientError> {
    macro_rules! ask {
        ($request:ty, $kind:literal, $instance:expr) => {
            let left: Vec<GroupId> = names
                .iter()
                .filter(|n| matches!(told.get(*n), Some(Ok(None))))
                .map(|n| GroupId(text(n)))
                .collect();
            if !left.is_empty() && connection.supports::<$request>() {
                let request = <$request>::default().with_group_ids(left);
                for g in connection.call(&request, i16::MAX)?.groups {
                    let name = g.group_id.to_string();
                    if matches!(g.error_code, NOT_FOUND | UNSUPPORTED) {
                        continue;
                    }
                    let group = check(g.error_code, g.error_message.as_deref()).map(|()| {
                        Some(Group {
                            group: name.clone(),
                            kind: $kind,
                            state: g.group_state.to_string(),
                            protocol: $kind.to_string(),
                            assignor: g.assignor_name.to_string(),
                            coordinator: coordinator.id,
                            coordinator_address: coordinator.address.clone(),
                            members: g
                                .members
                                .into_iter()
                                .map(|m| Member {
                                    instance: $instance(&m),
                                    member: m.member_id.to_string(),
                                    client: m.client_id.to_string(),
                                    host: m.client_host.to_string(),
                                    assignment: assigned(
                                        m.assignment
                                            .topic_partitions
                                            .into_iter()
                                            .map(|t| (t.topic_name.to_string(), t.partitions)),
                                    ),
                                })
                                .collect(),
                        })
                    });
                    told.insert(name, group);
                }
            }
        };
    }
    use kafka_protocol::messages::{
        consumer_group_describe_response as consumer, share_group_describe_response as share,
    };
    ask!(
        ConsumerGroupDescribeRequest,
        "consumer",
        |m: &consumer::Member| m.instance_id.as_ref().map(ToString::to_string)
    );
    ask!(ShareGroupDescribeRequest, "share", |_: &share::Member| None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};
    use kafka_protocol::messages::ConsumerProtocolAssignment;
    use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn assignments_are_read_and_what_isnt_one_is_nothing() {
        let topic = |name: &str, partitions: Vec<i32>| {
            TopicPartition::default()
                .with_topic(crate::client::cluster::topic_name(name))
                .with_partitions(partitions)
        };
        let mut bytes = BytesMut::new();
        bytes.put_i16(1);
        ConsumerProtocolAssignment::default()
            .with_assigned_partitions(vec![topic("b", vec![2, 0]), topic("a", vec![1])])
            .encode(&mut bytes, 1)
            .unwrap();
        let bytes = bytes.freeze();
        let read = assignment(bytes.clone());
        let told: Vec<_> = read.iter().map(|a| (&*a.topic, &*a.partitions)).collect();
        assert_eq!(told, [("a", &[1][..]), ("b", &[0, 2][..])]);
        for cut in 0..bytes.len() {
            assignment(bytes.slice(..cut));
        }
        // A length that would take 100 GB.
        assert!(
            assignment(Bytes::from_static(
                b"\0\x01\x7f\xff\xff\xff\0\x01x\x7f\xff\xff\xff"
            ))
            .is_empty()
        );
    }

    #[test]
    fn who_uses_a_group_is_named_within_bounds() {
        let member = |n: usize| Member {
            member: format!("m{n}"),
            instance: None,
            client: format!("app-{n}"),
            host: "/127.0.0.1".into(),
            assignment: Vec::new(),
        };
        let mut group = Group {
            group: "g".into(),
            kind: "classic",
            state: "Stable".into(),
            protocol: "consumer".into(),
            assignor: "range".into(),
            coordinator: 1,
            coordinator_address: "h:1".into(),
            members: Vec::new(),
        };
        assert_eq!(group.in_use(), None);
        group.members = (0..5).map(member).collect();
        assert_eq!(
            group.in_use().unwrap(),
            "group 'g' is Stable with 5 members (app-0 at 127.0.0.1, app-1 at 127.0.0.1, app-2 at 127.0.0.1, 2 more)"
        );
    }
}
