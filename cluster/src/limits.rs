//! Every bound of the metadata, with its unit, in one place (design §8.2).

/// Longest topic name, in bytes: Kafka's own limit.
pub const TOPIC_NAME_BYTES: usize = 249;
/// Partitions of one topic. A command that creates a topic stays far below a journal commit with this many.
pub const PARTITIONS_PER_TOPIC: i32 = 10_000;
/// Replicas that one node hosts, over all topics.
pub const PARTITIONS_PER_NODE: usize = 100_000;
/// Memory that a replica takes while nothing is done with it, in bytes, with the topic around it (measured: 5 to 8 KiB).
pub const REPLICA_BYTES: u64 = 8 << 10;
/// Replicas take this part (one in so many) of a node's memory at most.
pub const REPLICAS_PART_OF_MEMORY: u64 = 2;
/// Topics of a cluster.
pub const TOPICS: usize = 50_000;
/// Nodes of a cluster.
pub const NODES: usize = 1_000;
/// Replicas of one partition.
pub const REPLICATION_FACTOR: i16 = 9;
/// Length of one configuration value, in bytes.
pub const CONFIG_VALUE_BYTES: usize = 4096;
/// Largest max.message.bytes of a topic, in bytes: a batch that fits a request of 100 MiB, with 4 KiB for what is around it there.
pub const MESSAGE_BYTES: i64 = (100 << 20) - (4 << 10);
/// Operations in one change of a topic's configuration.
pub const CONFIG_OPS: usize = 200;
/// Entities that have quotas.
pub const QUOTA_ENTITIES: usize = 10_000;
/// Length of a name in a quota's entity, in bytes.
pub const QUOTA_NAME_BYTES: usize = 1_024;
/// Addresses with a limit of their own for connections.
pub const CONNECTION_OVERRIDES: usize = 1_000;
/// Names in one command that changes quotas, in bytes; a request with more makes several.
pub const QUOTA_COMMAND_BYTES: usize = 64 << 10;
/// Length of a host name or a rack, in bytes.
pub const HOST_BYTES: usize = 255;
/// Commands that one controller has proposed and not yet seen applied. Above it requests are told to try again.
pub const COMMANDS_IN_FLIGHT: usize = 1_024;
/// Changes waiting to be published to the shards. Above it the waiting ones are replaced by one image of everything.
pub const CHANGES_WAITING: usize = 4_096;
/// Producer ids that a shard takes from group 0 at a time, as in Kafka.
pub const PRODUCER_ID_BLOCK: i64 = 1_000;
/// Attempts at a change that others keep overtaking, before the client is told to try again.
pub const ALTER_ATTEMPTS: usize = 8;
/// Leader announcements kept for topics that a view doesn't know yet, in partitions.
pub const EARLY_LEADERS: usize = 100_000;
