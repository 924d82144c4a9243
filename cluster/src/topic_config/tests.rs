use proptest::prelude::*;

use super::*;
use crate::limits::MESSAGE_BYTES;

fn set(name: &str, value: &str) -> ConfigOp {
    ConfigOp {
        name: name.into(),
        op: AlterOp::Set,
        value: Some(value.into()),
    }
}

fn refusal(ops: &[ConfigOp]) -> Refusal {
    alter(&BTreeMap::new(), ops).unwrap_err().refusal
}

#[test]
fn defaults_are_kafkas() {
    let config = TopicConfig::default();
    assert_eq!(config.retention_ms, 7 * 24 * 3600 * 1000);
    assert_eq!(config.retention_bytes, -1);
    assert_eq!(config.segment_bytes, 1 << 30);
    assert_eq!(config.max_message_bytes, 1_048_588);
    assert_eq!(config.compression_type, CompressionType::Producer);
    assert_eq!(config.message_timestamp_type, TimestampType::CreateTime);
    assert!(config.cleanup_delete);
}

#[test]
fn settings_take_effect() {
    let own = check_overrides([
        ("retention.ms", Some(" 1000 ")),
        ("compression.type", Some("zstd")),
        ("message.timestamp.type", Some("LogAppendTime")),
        ("cleanup.policy", Some("")),
    ])
    .unwrap();
    let config = TopicConfig::in_force(&own, &Settings::new());
    assert_eq!(config.retention_ms, 1000);
    assert_eq!(config.compression_type, CompressionType::Zstd);
    assert_eq!(config.message_timestamp_type, TimestampType::LogAppendTime);
    assert!(!config.cleanup_delete);
    assert_eq!(own["retention.ms"], "1000", "stored in canonical form");
}

#[test]
fn what_has_no_effect_is_refused_unless_it_is_the_default() {
    let refused = alter(&BTreeMap::new(), &[set("index.interval.bytes", "1")]).unwrap_err();
    assert_eq!(refused.refusal, Refusal::InvalidConfig);
    assert!(
        refused.message.contains("no such setting"),
        "{}",
        refused.message
    );
    let own = alter(&BTreeMap::new(), &[set("index.interval.bytes", "4096")]).unwrap();
    assert_eq!(own.len(), 1);
    assert!(alter(&own, &[set("min.cleanable.dirty.ratio", "0.50")]).is_ok());
}

/// Every batch is synced, so that a promise to sync after so many is kept: who moves a topic with flush.messages=1 here gets what it says.
#[test]
fn a_log_that_is_always_synced_keeps_any_flush_setting() {
    for (name, value) in [("flush.messages", "1"), ("flush.ms", "1000")] {
        let own = alter(&BTreeMap::new(), &[set(name, value)]).unwrap();
        assert_eq!(own[name], value);
    }
    assert!(alter(&BTreeMap::new(), &[set("flush.messages", "0")]).is_err());
}

#[test]
fn a_batch_that_fits_no_request_is_no_size_to_allow() {
    let most = MESSAGE_BYTES.to_string();
    assert!(alter(&BTreeMap::new(), &[set("max.message.bytes", &most)]).is_ok());
    for above in [MESSAGE_BYTES + 1, 2_147_483_647] {
        let above = above.to_string();
        let e = check_overrides([("max.message.bytes", Some(above.as_str()))]).unwrap_err();
        assert_eq!(e.refusal, Refusal::InvalidConfig);
        assert!(e.message.contains(&most), "says the limit: {}", e.message);
        assert_eq!(
            refusal(&[set("max.message.bytes", &above)]),
            Refusal::InvalidConfig
        );
    }
}

#[test]
fn bad_values_and_names_are_refused() {
    for (name, value) in [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", "9223372036854775808"),
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete,compact"),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "shred"),
        ("write.caching", "true"),
        ("min.insync.replicas", "0"),
        ("message.format.version", "2.0"),
        ("", "x"),
    ] {
        assert_eq!(
            refusal(&[set(name, value)]),
            Refusal::InvalidConfig,
            "{name}={value}"
        );
    }
    let null = check_overrides([("retention.ms", None)]).unwrap_err();
    assert_eq!(null.refusal, Refusal::InvalidConfig);
    let long = "9".repeat(5000);
    assert_eq!(
        refusal(&[set("retention.ms", &long)]),
        Refusal::InvalidConfig
    );
}

#[test]
fn incremental_ops_follow_kafka() {
    let op = |name: &str, op, value: Option<&str>| ConfigOp {
        name: name.into(),
        op,
        value: value.map(Into::into),
    };
    let own = BTreeMap::from([("retention.ms".to_string(), "5".to_string())]);
    let own = alter(&own, &[op("retention.ms", AlterOp::Delete, None)]).unwrap();
    assert!(own.is_empty());
    let own = alter(
        &own,
        &[op("cleanup.policy", AlterOp::Subtract, Some("delete"))],
    )
    .unwrap();
    assert_eq!(own["cleanup.policy"], "");
    let own = alter(
        &own,
        &[op("cleanup.policy", AlterOp::Append, Some("delete"))],
    )
    .unwrap();
    let own = alter(
        &own,
        &[op("cleanup.policy", AlterOp::Append, Some("delete"))],
    )
    .unwrap();
    assert_eq!(own["cleanup.policy"], "delete");

    let no_list = op("retention.ms", AlterOp::Append, Some("1"));
    assert_eq!(refusal(&[no_list]), Refusal::InvalidConfig);
    assert_eq!(
        refusal(&[op("retention.ms", AlterOp::Set, None)]),
        Refusal::InvalidRequest
    );
    let twice = [set("retention.ms", "1"), set("retention.ms", "2")];
    assert_eq!(refusal(&twice), Refusal::InvalidRequest);
    let unknown = alter(&own, &[op("nope", AlterOp::Delete, None)]);
    assert_eq!(unknown, Ok(own), "to delete what nobody set does nothing");
}

#[test]
fn a_replacement_takes_the_place_of_everything() {
    let own = BTreeMap::from([("retention.ms".to_string(), "5".to_string())]);
    let replace = |configs: &[(&str, Option<&str>)]| {
        let configs = configs.iter();
        let configs = configs.map(|(n, v)| (n.to_string(), v.map(String::from)));
        ConfigChange::Replace(configs.collect()).apply(&own)
    };
    assert_eq!(replace(&[]), Ok(BTreeMap::new()));
    let other = replace(&[("segment.ms", Some("7"))]).unwrap();
    assert_eq!(other, BTreeMap::from([("segment.ms".into(), "7".into())]));
    let code = |configs: &[(&str, Option<&str>)]| replace(configs).unwrap_err().refusal;
    assert_eq!(code(&[("segment.ms", None)]), Refusal::InvalidRequest);
    assert_eq!(code(&[("nope", Some("7"))]), Refusal::InvalidConfig);
    let twice = [("segment.ms", Some("7")), ("segment.ms", Some("7"))];
    assert_eq!(code(&twice), Refusal::InvalidRequest);
}

/// What a request has a hundred thousand of is not compared with all that came before.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "how long it takes is what it is about"
)]
fn long_lists_are_not_compared_with_themselves() {
    let began = std::time::Instant::now();
    let many = || (0..200_000).map(|n| n.to_string());
    let replace = ConfigChange::Replace(many().map(|n| (n, Some("1".into()))).collect());
    let refused = replace.apply(&BTreeMap::new()).unwrap_err();
    assert_eq!(refused.refusal, Refusal::InvalidRequest);
    for op in [AlterOp::Append, AlterOp::Subtract] {
        let list = ConfigOp {
            name: "cleanup.policy".into(),
            op,
            value: Some(many().collect::<Vec<_>>().join(",")),
        };
        let refused = alter(&BTreeMap::new(), &[list]).unwrap_err();
        assert_eq!(refused.refusal, Refusal::InvalidConfig);
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn rows_say_where_a_value_comes_from() {
    let own = BTreeMap::from([("retention.ms".to_string(), "5".to_string())]);
    let rows = describe(
        &own,
        &Settings::new(),
        Some(&["index.interval.bytes", "retention.ms", "segment.ms"]),
    );
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0].name, "index.interval.bytes");
    assert!(rows[0].documentation.contains("Only the default is taken"));
    let rows = &rows[1..];
    assert_eq!(rows[0].name, "retention.ms");
    assert_eq!(rows[0].value.as_deref(), Some("5"));
    assert_eq!(rows[0].source, ConfigSource::Topic);
    assert_eq!(rows[0].synonyms.len(), 2);
    assert_eq!(rows[0].synonyms[1].name, "log.retention.ms");
    assert_eq!(rows[0].synonyms[1].value.as_deref(), Some("604800000"));
    assert_eq!(rows[1].source, ConfigSource::Default);
    assert_eq!(
        describe(&own, &Settings::new(), None).len(),
        37,
        "what Kafka 4.4 lists"
    );
}

#[test]
fn what_the_cluster_has_set_stands_between_a_topics_own_and_the_default() {
    let map = |of: &[(&str, &str)]| -> Settings {
        of.iter()
            .map(|(n, v)| (n.to_string(), v.to_string()))
            .collect()
    };
    let own = map(&[("retention.ms", "5")]);
    let defaults = map(&[
        ("retention.ms", "6"),
        ("segment.ms", "7"),
        ("segment.bytes", "no number"),
    ]);
    let config = TopicConfig::in_force(&own, &defaults);
    assert_eq!((config.retention_ms, config.segment_ms), (5, 7));
    assert_eq!(config.segment_bytes, 1 << 30);
    let rows = describe(&own, &defaults, Some(&["retention.ms", "segment.ms"]));
    let sources = |row: &ConfigRow| row.synonyms.iter().map(|s| s.source).collect::<Vec<_>>();
    use ConfigSource::{Default, DynamicDefault, Topic};
    assert_eq!(rows[0].source, Topic);
    assert_eq!(sources(&rows[0]), [Topic, DynamicDefault, Default]);
    assert_eq!(rows[1].source, DynamicDefault);
    assert_eq!(rows[1].value.as_deref(), Some("7"));
    assert_eq!(sources(&rows[1]), [DynamicDefault]);
}

proptest! {
    #[test]
    fn no_text_panics_and_what_is_taken_reads_back(
        at in 0..TABLE.len(),
        text in prop_oneof![".{0,40}", "-?[0-9]{1,20}", "[a-z,]{0,20}"],
    ) {
        let d = &TABLE[at];
        if let Ok(own) = alter(&BTreeMap::new(), &[set(d.name, &text)]) {
            let again = alter(&own, &[set(d.name, &own[d.name])]).expect("canonical text is taken");
            prop_assert_eq!(&again, &own);
            let _ = TopicConfig::in_force(&own, &Settings::new());
        }
    }
}
