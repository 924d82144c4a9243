//! Keeps a shard's groups as the metadata has them: creates the replicas that this node was given, removes those of deleted topics, and hands topic
//! configs down to the logs.
//!
//! A topic may have ten thousand partitions: other tasks have their turns between two of them.
//!
//! A replica goes only when its topic is on the metadata's list of the removed. One whose topic is merely unknown stays, and is named in the log.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use cluster::View;
use cluster::metadata::{Change, Partition};
use engine::rt;
use engine::types::{GroupId, NodeId, ReplicaId, ShardId, TopicId, shard_of};
use kafka_api::shard::Follower;
use raftgroup::{GroupError, Groups};

use crate::exit::{Exit, Fatal};

pub struct Replicas {
    pub shard: ShardId,
    pub shards: u16,
    pub node: NodeId,
    pub groups: Rc<Groups>,
    pub view: Rc<View>,
    /// What earlier starts decided has been followed.
    pub caught_up: Cell<bool>,
    /// Replicas of earlier starts without a log here, until they are told.
    pub without_log: Cell<Several>,
}

/// Groups of which one line tells how many there are and names the first: there may be ten thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Several {
    count: u64,
    first: Option<GroupId>,
}

impl Follower for Replicas {
    /// Follows a change that the view has already taken over.
    fn follow<'a>(&'a self, change: &'a Change) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(self.carry_out(change))
    }
}

impl Replicas {
    async fn carry_out(&self, change: &Change) {
        match change {
            Change::Reset(image) => {
                for topic in &image.topics {
                    self.host(topic.id, 0, &topic.partitions).await;
                }
                for removed in &image.removed {
                    self.remove(removed.id).await;
                }
            }
            Change::TopicCreated(topic) => self.host(topic.id, 0, &topic.partitions).await,
            Change::PartitionsAdded {
                topic,
                from,
                partitions,
            } => self.host(*topic, *from, partitions).await,
            Change::TopicDeleted(removed) => self.remove(removed.id).await,
            Change::ConfigsAltered { topic, .. } => self.configure(*topic).await,
            Change::DefaultsAltered(_) => {
                for topic in self.view.topics() {
                    self.configure(topic.id).await;
                }
            }
            Change::ClusterFormed { .. }
            | Change::NodeRegistered(_)
            | Change::RemovedForgotten(_)
            | Change::QuotasAltered(_) => {}
        }
    }

    /// Creates what of these partitions belongs to this shard and isn't there.
    async fn host(&self, topic: TopicId, from: i32, partitions: &[Partition]) {
        for (partition, number) in partitions.iter().zip(from..) {
            let group = GroupId {
                topic,
                partition: number,
            };
            if shard_of(group, self.shards) != self.shard || self.groups.get(group).is_some() {
                continue;
            }
            let Some(own) = partition.replicas.iter().find(|r| r.node == self.node) else {
                continue;
            };
            let voters: Vec<ReplicaId> = partition.replicas.iter().map(|r| r.id).collect();
            if !self.caught_up.get() {
                // The end came before its log was durable, or its log is gone.
                self.without_log.set(self.without_log.get().and(group));
            }
            if let Err(e) = self.groups.create(own.id, group, &voters) {
                cannot_create(group, &e);
            }
            rt::yield_if_needed().await;
        }
        self.configure(topic).await;
    }

    /// The topic's configs, for the logs of its groups on this shard.
    async fn configure(&self, topic: TopicId) {
        let Some(topic) = self.view.topic_by_id(topic) else {
            return;
        };
        let policy = topic.config.log_policy();
        for number in 0..topic.partitions.len() as i32 {
            if let Some(group) = self.groups.get(topic.group(number)) {
                group.log().set_policy(policy);
            }
            rt::yield_if_needed().await;
        }
    }

    async fn remove(&self, topic: TopicId) {
        for group in self.groups.ids() {
            if group.topic == topic {
                self.groups.remove(group);
                rt::yield_if_needed().await;
            }
        }
    }

    /// Everything that earlier starts decided is known: names data of this shard that belongs to nothing.
    pub fn name_strays(&self) {
        self.caught_up.set(true);
        if let Some(which) = self.without_log.take().named() {
            tracing::warn!(
                "made by an earlier start, and without a log here: {which}; they begin empty"
            );
        }
        let groups = self.groups.ids().into_iter();
        let strays = groups.filter(|group| {
            *group != GroupId::METADATA && self.view.topic_by_id(group.topic).is_none()
        });
        if let Some(which) = strays.fold(Several::default(), Several::and).named() {
            tracing::warn!("the data of {which} belongs to no topic that is known; it is kept");
        }
    }
}

impl Several {
    fn and(self, group: GroupId) -> Several {
        Several {
            count: self.count + 1,
            first: self.first.or(Some(group)),
        }
    }

    /// As a line names them, if there are any.
    fn named(self) -> Option<String> {
        let first = self.first?;
        Some(match self.count - 1 {
            0 => first.to_string(),
            more => format!("{first} and {more} more"),
        })
    }
}

/// A replica that the metadata gave this node and that can't be made: to go on would be to lie about it.
fn cannot_create(group: GroupId, e: &GroupError) -> ! {
    Fatal::new(
        Exit::Failure,
        format!("can't create the group {group}: {e}"),
    )
    .end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_there_are_one_line_names_them() {
        let group = |partition| GroupId {
            topic: GroupId::METADATA.topic,
            partition,
        };
        let of = |n| (0..n).map(group).fold(Several::default(), Several::and);
        assert_eq!(of(0).named(), None);
        assert_eq!(of(1).named(), Some(group(0).to_string()));
        let many = of(2_250).named().unwrap();
        assert_eq!(many, format!("{} and 2249 more", group(0)));
    }
}
