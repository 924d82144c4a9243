//! The one table of topic configs: every name that Kafka 4.4 knows, and Tailrace's own.
//!
//! Columns: name, type, default, valid values, the broker-level name under which the default goes, whether it has an effect here, and what it does. A config
//! without an effect is refused unless it is set to its default: silence would be a lie.

use std::borrow::Cow;

use super::value::{Valid, ValueType};
use crate::limits::MESSAGE_BYTES;

/// One topic config.
#[derive(Debug)]
pub struct Definition {
    pub name: &'static str,
    pub value_type: ValueType,
    /// In Kafka's text form.
    pub default: &'static str,
    pub valid: Valid,
    /// The broker config that gives the default, as DescribeConfigs names it.
    pub broker_name: Option<&'static str>,
    pub effect: Effect,
    pub(crate) documentation: &'static str,
}

/// What setting a config does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tailrace does what it says.
    Works,
    /// Nothing; only the default is taken. The sentence says why.
    Refused(&'static str),
}

impl Definition {
    /// What it does, and what is to be known of it here.
    pub fn documentation(&self) -> Cow<'static, str> {
        match self.effect {
            Effect::Works => self.documentation.into(),
            Effect::Refused(why) => {
                format!("{} Only the default is taken: {why}.", self.documentation).into()
            }
        }
    }

    /// Tailrace's own, and without an effect yet.
    pub fn is_planned(&self) -> bool {
        self.name == "write.caching" && self.effect != Effect::Works
    }
}

/// Finds a config by name.
pub fn definition(name: &str) -> Option<&'static Definition> {
    let at = TABLE.binary_search_by(|d| d.name.cmp(name)).ok()?;
    Some(&TABLE[at])
}

/// Makes a table of configs, sorted by name.
macro_rules! config_table {
    ($(#[$about:meta])* $table:ident; $($name:literal $type:ident $default:literal $valid:expr, $broker:expr, $effect:expr, $doc:literal;)*) => {
        $(#[$about])*
        pub static $table: &[$crate::topic_config::table::Definition] = &[$($crate::topic_config::table::Definition {
            name: $name,
            value_type: $crate::topic_config::value::ValueType::$type,
            default: $default,
            valid: $valid,
            broker_name: $broker,
            effect: $effect,
            documentation: $doc,
        },)*];
    };
}
pub(crate) use config_table;

use Effect::{Refused, Works};
use Valid::{Any, OneOf};

const CODECS: &[&str] = &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];

const fn from(low: i64) -> Valid {
    Valid::Range(low, i64::MAX)
}

const NOT_COMPACTED: Effect = Refused("Tailrace doesn't compact topics yet");
const NOT_TIERED: Effect = Refused("Tailrace doesn't tier topics to remote storage yet");
const OWN_STORE: Effect = Refused("Tailrace's storage has no such setting");
const NOT_THROTTLED: Effect = Refused("Tailrace doesn't throttle replication yet");

config_table! {
    /// Sorted by name.
    TABLE;
    "cleanup.policy" List "delete" OneOf(&["compact", "delete"]), Some("log.cleanup.policy"), Works,
        "What happens to old data: 'delete' removes it by retention.ms and retention.bytes; empty keeps it for ever. 'compact' is not supported yet.";
    "compression.gzip.level" Int "-1" Valid::RangeOr(1, 9, -1), Some("compression.gzip.level"), Works,
        "Level used when batches are re-encoded with gzip; -1 is the codec's default.";
    "compression.lz4.level" Int "9" Valid::Range(1, 17), Some("compression.lz4.level"), Works,
        "Level used when batches are re-encoded with lz4.";
    "compression.type" String "producer" OneOf(CODECS), Some("compression.type"), Works,
        "'producer' stores batches as they were sent; any other value has them re-encoded with that codec.";
    "compression.zstd.level" Int "3" Valid::Range(-131_072, 22), Some("compression.zstd.level"), Works,
        "Level used when batches are re-encoded with zstd.";
    "delete.retention.ms" Long "86400000" from(0), Some("log.cleaner.delete.retention.ms"), NOT_COMPACTED,
        "How long tombstones outlive the cleaning of a compacted topic, in milliseconds.";
    "errors.deadletterqueue.group.enable" Boolean "false" Any, None, Refused("Tailrace has no share groups yet"),
        "Whether the topic may serve share groups as a dead-letter queue.";
    "file.delete.delay.ms" Long "60000" from(0), Some("log.segment.delete.delay.ms"), OWN_STORE,
        "How long a removed segment's file stays, in milliseconds.";
    "flush.messages" Long "9223372036854775807" from(1), Some("log.flush.interval.messages"), Works,
        "After how many records the log is synced at the latest. Any value is kept: every batch is synced before it is acknowledged.";
    "flush.ms" Long "9223372036854775807" from(0), Some("log.flush.interval.ms"), Works,
        "After how much time the log is synced at the latest, in milliseconds. Any value is kept: every batch is synced before it is acknowledged.";
    "follower.replication.throttled.replicas" List "" Any, None, NOT_THROTTLED,
        "Replicas whose followers are throttled.";
    "index.interval.bytes" Int "4096" from(0), Some("log.index.interval.bytes"), OWN_STORE,
        "Distance between two entries of a segment's index, in bytes.";
    "leader.replication.throttled.replicas" List "" Any, None, NOT_THROTTLED,
        "Replicas whose leaders are throttled.";
    "local.retention.bytes" Long "-2" from(-2), Some("log.local.retention.bytes"), NOT_TIERED,
        "How much of a tiered partition stays local, in bytes.";
    "local.retention.ms" Long "-2" from(-2), Some("log.local.retention.ms"), NOT_TIERED,
        "How long a tiered partition's data stays local, in milliseconds.";
    "max.compaction.lag.ms" Long "9223372036854775807" from(1), Some("log.cleaner.max.compaction.lag.ms"), NOT_COMPACTED,
        "When a record can be compacted at the latest, in milliseconds.";
    "max.decompressed.message.bytes" Int "2147483639" Valid::Range(1, 2_147_483_639), Some("max.decompressed.message.bytes"), Works,
        "Largest batch after decompression, in bytes.";
    "max.message.bytes" Int "1048588" Valid::Range(0, MESSAGE_BYTES), Some("message.max.bytes"), Works,
        "Largest batch as it is stored, so compressed, in bytes. It must fit a request, which has at most 100 MiB.";
    "message.timestamp.after.max.ms" Long "3600000" from(0), Some("log.message.timestamp.after.max.ms"), Works,
        "How far in the future a record's CreateTime may lie, in milliseconds.";
    "message.timestamp.before.max.ms" Long "9223372036854775807" from(0), Some("log.message.timestamp.before.max.ms"), Works,
        "How far in the past a record's CreateTime may lie, in milliseconds.";
    "message.timestamp.type" String "CreateTime" OneOf(&["CreateTime", "LogAppendTime"]), Some("log.message.timestamp.type"), Works,
        "Whether records keep the producer's timestamp or get the leader's time of append.";
    "min.cleanable.dirty.ratio" Double "0.5" Valid::Range(0, 1), Some("log.cleaner.min.cleanable.ratio"), NOT_COMPACTED,
        "Share of uncompacted data that has a partition compacted.";
    "min.compaction.lag.ms" Long "0" from(0), Some("log.cleaner.min.compaction.lag.ms"), NOT_COMPACTED,
        "How long a record stays uncompacted at least, in milliseconds.";
    "min.insync.replicas" Int "1" from(1), Some("min.insync.replicas"), Works,
        "On how many replicas a batch must be synced before acks=all answers.";
    "preallocate" Boolean "false" Any, Some("log.preallocate"), OWN_STORE,
        "Whether segment files are allocated up front.";
    "remote.copy.lag.bytes" Long "-1" from(-1), Some("log.remote.copy.lag.bytes"), NOT_TIERED,
        "By how much the upload of a tiered partition may lag, in bytes.";
    "remote.copy.lag.ms" Long "0" from(-1), Some("log.remote.copy.lag.ms"), NOT_TIERED,
        "By how much the upload of a tiered partition may lag, in milliseconds.";
    "remote.log.copy.disable" Boolean "false" Any, None, NOT_TIERED,
        "Whether nothing more is uploaded.";
    "remote.log.delete.on.disable" Boolean "false" Any, None, NOT_TIERED,
        "Whether remote data goes when tiering is turned off.";
    "remote.storage.enable" Boolean "false" Any, None, NOT_TIERED,
        "Whether the topic is tiered.";
    "retention.bytes" Long "-1" Any, Some("log.retention.bytes"), Works,
        "How large a partition grows before its oldest segments go, in bytes; -1 is no limit.";
    "retention.ms" Long "604800000" from(-1), Some("log.retention.ms"), Works,
        "How old a segment's newest record grows before the segment goes, in milliseconds; -1 is no limit.";
    "segment.bytes" Int "1073741824" from(1_048_576), Some("log.segment.bytes"), Works,
        "Size at which a new segment is begun, in bytes.";
    "segment.index.bytes" Int "10485760" from(4), Some("log.index.size.max.bytes"), OWN_STORE,
        "Largest index of a segment, in bytes.";
    "segment.jitter.ms" Long "0" from(0), Some("log.roll.jitter.ms"), OWN_STORE,
        "By how much segment.ms is shortened at random, in milliseconds.";
    "segment.ms" Long "604800000" from(1), Some("log.roll.ms"), Works,
        "Age at which a new segment is begun, in milliseconds.";
    "unclean.leader.election.enable" Boolean "false" Any, Some("unclean.leader.election.enable"),
        Refused("Tailrace never elects a leader that lacks acknowledged records"),
        "Whether a replica that lacks acknowledged records may lead.";
    "write.caching" Boolean "false" Any, None,
        Refused("Tailrace answers acks=all only when the batch is synced; earlier answers are planned"),
        "Tailrace's own: whether acks=all answers when a quorum has the batch in memory, before it is synced.";
}

#[cfg(test)]
mod tests {
    use super::super::value::parse;
    use super::*;

    #[test]
    fn the_table_is_sorted_and_names_are_found() {
        for pair in TABLE.windows(2) {
            assert!(
                pair[0].name < pair[1].name,
                "{} > {}",
                pair[0].name,
                pair[1].name
            );
        }
        for d in TABLE {
            assert_eq!(definition(d.name).map(|found| found.name), Some(d.name));
        }
        assert!(definition("message.format.version").is_none());
    }

    #[test]
    fn every_default_is_valid() {
        for d in TABLE {
            let canonical = parse(d, d.default).map(|v| v.to_string());
            assert_eq!(canonical.as_deref(), Ok(d.default), "{}", d.name);
        }
    }
}
