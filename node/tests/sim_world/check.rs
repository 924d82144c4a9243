//! What is looked at after every start, before anybody sends anything; and the topics.

use std::time::Duration;

use engine::rt;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{CreateTopicsRequest, MetadataRequest};
use kafka_protocol::protocol::StrBytes;

use super::known::{GROUPS, Outside, TOPICS, places};
use super::wire::{Connection, Gone};
use super::{connect, draw, group, reader};

const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for the node and checks everything that is known of it.
pub async fn everything(outside: &Outside) {
    let began = rt::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "the node doesn't serve");
        if let Some(mut c) = connect(outside).await {
            // Nobody has a reason to close it but the process's own end.
            look(outside, &mut c)
                .await
                .expect("a good connection stays");
            return;
        }
        rt::sleep(Duration::from_millis(1)).await;
    }
}

async fn look(outside: &Outside, c: &mut Connection) -> Result<(), Gone> {
    metadata(outside, c, false).await?;
    let there = |topic: usize| outside.topics[topic].there.get();
    for place in places().filter(|p| there(p.0)) {
        let found = reader::all(outside, c, place).await?;
        let checked = outside.log(place).check(place, &found);
        outside.count(|k| k.checked += checked);
    }
    for name in GROUPS {
        for place in places().filter(|p| there(p.0)) {
            let known = outside.committed.borrow().contains_key(&(name, place));
            if known {
                group::fetched(outside, c, name, place).await?;
                outside.count(|k| k.commits_checked += 1);
            }
        }
    }
    outside.count(|k| k.starts += 1);
    Ok(())
}

/// Topics that were there still are, with the same ids (one that was `created` just now may take a moment on this shard); each of their partitions has a leader, of a later epoch than in every start before.
async fn metadata(outside: &Outside, c: &mut Connection, created: bool) -> Result<(), Gone> {
    let began = rt::now();
    'again: loop {
        assert!(began.elapsed() < PATIENCE, "partitions have no leaders");
        let version = 7 + draw(7) as i16;
        let topics = TOPICS.map(|(name, _)| {
            MetadataRequestTopic::default().with_name(Some(StrBytes::from_static_str(name).into()))
        });
        let request = MetadataRequest::default()
            .with_allow_auto_topic_creation(false)
            .with_topics(Some(topics.to_vec()));
        let answer = c.call(version, &request).await?;
        for found in &answer.topics {
            let name = found.name.as_ref().expect("by name").0.as_str();
            let index = TOPICS
                .iter()
                .position(|(n, _)| *n == name)
                .expect("asked for");
            let topic = &outside.topics[index];
            if found.error_code == 3 {
                let known = topic.there.get() || topic.acknowledged.get();
                assert!(!known || created, "the topic {name} is lost");
                if known {
                    rt::sleep(Duration::from_millis(1)).await;
                    continue 'again;
                }
                continue;
            }
            if found.error_code != 0 || found.partitions.iter().any(|p| p.error_code != 0) {
                rt::sleep(Duration::from_millis(1)).await;
                continue 'again;
            }
            assert_eq!(found.partitions.len(), TOPICS[index].1 as usize, "{name}");
            if version >= 10 {
                let before = topic.id.replace(Some(found.topic_id));
                assert!(
                    before.is_none_or(|id| id == found.topic_id),
                    "{name} has another id"
                );
            } else if topic.id.get().is_none() {
                // Its id is needed from here on.
                continue 'again;
            }
            topic.there.set(true);
            for p in &found.partitions {
                let start = outside.start.get();
                let mut log = outside.log((index, p.partition_index));
                if let Some((epoch, before)) = log.epoch
                    && before < start
                {
                    let now = p.leader_epoch;
                    assert!(
                        now > epoch,
                        "{name}-{}: epoch {now} after {epoch}",
                        p.partition_index
                    );
                    outside.count(|k| k.epochs += 1);
                }
                log.epoch = Some((p.leader_epoch, start));
            }
        }
        return Ok(());
    }
}

/// Creates what topics there aren't yet.
pub async fn topics(outside: &Outside) {
    while (0..TOPICS.len()).any(|t| !outside.topics[t].there.get()) {
        if let Some(mut c) = connect(outside).await {
            let _ = create(outside, &mut c).await;
        }
        rt::sleep(Duration::from_millis(1)).await;
    }
}

async fn create(outside: &Outside, c: &mut Connection) -> Result<(), Gone> {
    for (topic, (name, partitions)) in TOPICS.into_iter().enumerate() {
        if outside.topics[topic].there.get() {
            continue;
        }
        let segments = CreatableTopicConfig::default()
            .with_name(StrBytes::from_static_str("segment.bytes"))
            .with_value(Some(StrBytes::from_static_str("1048576")));
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(30_000)
            .with_topics(vec![
                CreatableTopic::default()
                    .with_name(StrBytes::from_static_str(name).into())
                    .with_num_partitions(partitions)
                    .with_replication_factor(1)
                    .with_configs(vec![segments]),
            ]);
        let version = 2 + draw(6) as i16;
        let answer = c.call(version, &request).await?;
        let code = answer.topics[0].error_code;
        assert!([0, 7, 36].contains(&code), "{name} is created: {code}");
        if code == 0 {
            outside.topics[topic].acknowledged.set(true);
        }
    }
    metadata(outside, c, true).await
}
