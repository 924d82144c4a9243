//! `tailrace cluster health`: is everything there that should be? Each check is a line; what fails says what to do. With `--wait` it asks again until all is
//! well or the time is up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use serde::Serialize;

use super::cluster::Cluster;
use super::configs;
use super::output::{Table, bytes, count, partitions, print_json};
use super::overview::{self, Disks, Overview};
use super::progress::Progress;
use super::{ClientError, print};
use crate::cli::AdminArgs;
use crate::exit::{Exit, Fatal};

/// Pause between two looks of `--wait`.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Free space below which a disk is worth a warning: this share of it.
const LOW_SHARE: f64 = 0.1;
const MIN_IN_SYNC: &str = "min.insync.replicas";
/// Partitions that a line names, at most.
const NAMED: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    /// Worth a look; nothing is broken.
    Warning,
    Failed,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    outcome: Outcome,
    detail: String,
    /// What to do.
    advice: Option<&'static str>,
}

#[derive(Serialize)]
struct Health<'a> {
    healthy: bool,
    checks: &'a [Check],
}

pub fn run(wait: bool, admin: &AdminArgs) -> Result<(), Fatal> {
    let began = Instant::now();
    let mut progress = Progress::new("waiting for the cluster to be well", 0);
    let checks = loop {
        let checks = look(admin);
        let is_well = |checks: &[Check]| checks.iter().all(|c| c.outcome != Outcome::Failed);
        let is_over = !wait || began.elapsed() + LOOK_EVERY >= admin.broker.timeout();
        match checks {
            Ok(checks) if is_over || is_well(&checks) => break checks,
            Ok(checks) => {
                let first = checks.iter().find(|c| c.outcome == Outcome::Failed);
                progress.tell(first.map_or("", |c| &c.detail));
            }
            Err(e @ ClientError::Connection(_)) if !is_over => progress.tell(&e.brief()),
            Err(e) => return Err(e.into()),
        }
        std::thread::sleep(LOOK_EVERY);
    };
    drop(progress);
    tell(&checks, admin)
}

/// Prints the checks; an error if one of them failed.
fn tell(checks: &[Check], admin: &AdminArgs) -> Result<(), Fatal> {
    let failed = checks
        .iter()
        .filter(|c| c.outcome == Outcome::Failed)
        .count();
    if admin.json {
        print_json(&Health {
            healthy: failed == 0,
            checks,
        })?;
    } else {
        let mut table = Table::new(&["CHECK", "OUTCOME", "DETAIL"]);
        for c in checks {
            let outcome = match c.outcome {
                Outcome::Ok => "ok",
                Outcome::Warning => "warning",
                Outcome::Failed => "FAILED",
            };
            table.row(vec![c.check.into(), outcome.into(), c.detail.clone()]);
        }
        table.print()?;
        for c in checks.iter().filter(|c| c.outcome > Outcome::Ok) {
            if let Some(advice) = c.advice {
                print(format_args!("{}: {advice}", c.check))?;
            }
        }
    }
    match failed {
        0 => Ok(()),
        n => Err(Fatal::new(
            Exit::Failure,
            format!("the cluster isn't well: {} failed", count(n, "check")),
        )),
    }
}

fn look(admin: &AdminArgs) -> Result<Vec<Check>, ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let overview = overview::overview(&mut cluster)?;
    let mut checks = Vec::new();
    let answered = ask_all(&mut cluster, &overview, &mut checks);
    checks.push(controller(&overview));
    checks.push(leaders(&overview));
    checks.extend(replicas(&mut cluster, &overview)?);
    checks.extend(disks(&answered));
    Ok(checks)
}

/// What each broker that answers has on its disks.
type Answered = BTreeMap<i32, Disks>;

fn ask_all(cluster: &mut Cluster, overview: &Overview, checks: &mut Vec<Check>) -> Answered {
    let mut answered = Answered::new();
    let (mut slowest, mut silent) = (Duration::ZERO, Vec::new());
    let mut unasked = Vec::new();
    for b in &overview.brokers {
        if b.fenced {
            silent.push(format!("broker {} is fenced", b.broker));
            continue;
        }
        let began = Instant::now();
        match overview::disks(cluster, b.broker) {
            Ok(disks) => {
                answered.insert(b.broker, disks);
            }
            // It answers, if not about its disks.
            Err(
                e @ (ClientError::Refused { .. }
                | ClientError::Missing(_)
                | ClientError::Protocol(_)),
            ) => {
                unasked.push(format!("broker {}: {e}", b.broker));
            }
            Err(e) => silent.push(e.to_string()),
        }
        slowest = slowest.max(began.elapsed());
    }
    let all = overview.brokers.len();
    checks.push(if silent.is_empty() {
        Check {
            check: "brokers",
            outcome: Outcome::Ok,
            detail: format!(
                "{} of {all} answered, the slowest in {:.1} ms",
                all,
                slowest.as_secs_f64() * 1000.0
            ),
            advice: None,
        }
    } else {
        Check {
            check: "brokers",
            outcome: Outcome::Failed,
            detail: format!(
                "{} of {all} answered; {}",
                all - silent.len(),
                silent.join("; ")
            ),
            advice: Some("start those that don't answer, or look at their logs"),
        }
    });
    if !unasked.is_empty() {
        checks.push(Check {
            check: "disks",
            outcome: Outcome::Warning,
            detail: unasked.join("; "),
            advice: None,
        });
    }
    answered
}

fn controller(overview: &Overview) -> Check {
    let id = overview.controller;
    if overview.brokers.iter().any(|b| b.broker == id) {
        return Check {
            check: "controller",
            outcome: Outcome::Ok,
            detail: format!("broker {id}"),
            advice: None,
        };
    }
    Check {
        check: "controller",
        outcome: Outcome::Failed,
        detail: "there is none".into(),
        advice: Some(
            "without it no topic can be made or changed: see whether most of its voters run",
        ),
    }
}

/// Places by name, cut off where there are too many to read.
fn name(places: &BTreeSet<(&str, i32)>) -> String {
    let text = partitions(places.iter().copied().take(NAMED));
    match places.len().saturating_sub(NAMED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn leaders(overview: &Overview) -> Check {
    let topics = &overview.metadata.topics;
    let mut without = BTreeSet::new();
    let mut all = 0;
    for t in topics {
        for p in &t.partitions {
            all += 1;
            if p.leader_id.0 < 0 {
                let topic = t.name.as_ref().map_or("?", |n| n.as_str());
                without.insert((topic, p.partition_index));
            }
        }
    }
    if without.is_empty() {
        return Check {
            check: "leaders",
            outcome: Outcome::Ok,
            detail: format!(
                "{} in {}",
                count(all, "partition"),
                count(topics.len(), "topic")
            ),
            advice: None,
        };
    }
    Check {
        check: "leaders",
        outcome: Outcome::Failed,
        detail: format!("{} of {all} without: {}", without.len(), name(&without)),
        advice: Some(
            "these can't be read or written until one of their replicas is back: `tailrace topic describe` names them",
        ),
    }
}

/// Partitions with replicas that lag, and those that take no writes of acks=all.
fn replicas(cluster: &mut Cluster, overview: &Overview) -> Result<Vec<Check>, ClientError> {
    let mut lagging = BTreeMap::new();
    let mut away_from_first = 0;
    for t in &overview.metadata.topics {
        let topic = t.name.as_ref().map_or("?", |n| n.as_str());
        for p in &t.partitions {
            if p.isr_nodes.len() < p.replica_nodes.len() {
                lagging.insert((topic, p.partition_index), p.isr_nodes.len());
            }
            let first = p.replica_nodes.first().map(|b| b.0);
            if p.leader_id.0 >= 0 && first != Some(p.leader_id.0) {
                away_from_first += 1;
            }
        }
    }
    let places: BTreeSet<(&str, i32)> = lagging.keys().copied().collect();
    let mut checks = vec![if lagging.is_empty() {
        Check {
            check: "replicas",
            outcome: Outcome::Ok,
            detail: "all in sync".into(),
            advice: None,
        }
    } else {
        Check {
            check: "replicas",
            outcome: Outcome::Failed,
            detail: format!(
                "{} lag: {}",
                count(lagging.len(), "partition"),
                name(&places)
            ),
            advice: Some(
                "they catch up by themselves once their brokers run; the brokers' logs say what keeps them",
            ),
        }
    }];
    checks.extend(in_sync(cluster, overview)?);
    if away_from_first > 0 {
        checks.push(Check {
            check: "balance",
            outcome: Outcome::Warning,
            detail: format!("{} not led by the first of their replicas", count(away_from_first, "partition")),
            advice: Some("brokers move leadership back by themselves after a while, if auto.leader.rebalance.enable is on"),
        });
    }
    Ok(checks)
}

/// Asks every topic's min.insync.replicas: of those that have few replicas in sync it matters at once, and one above their number takes no write of acks=all ever.
fn in_sync(cluster: &mut Cluster, overview: &Overview) -> Result<Option<Check>, ClientError> {
    let topics = &overview.metadata.topics;
    let names: Vec<&str> = topics
        .iter()
        .filter_map(|t| t.name.as_deref())
        .map(|n| n.as_str())
        .collect();
    let asked = match configs::of_topics(cluster, &names, MIN_IN_SYNC) {
        // Whoever may not see configs can still be told the rest.
        Err(e @ (ClientError::Refused { .. } | ClientError::Missing(_))) => {
            return Ok(Some(Check {
                check: MIN_IN_SYNC,
                outcome: Outcome::Warning,
                detail: e.brief(),
                advice: None,
            }));
        }
        asked => asked?,
    };
    Ok(too_few_in_sync(topics, &asked))
}

fn too_few_in_sync(
    topics: &[MetadataResponseTopic],
    asked: &BTreeMap<String, String>,
) -> Option<Check> {
    let (mut too_few, mut never) = (BTreeSet::new(), BTreeSet::new());
    for topic in topics {
        let name = topic.name.as_ref().map_or("?", |n| n.as_str());
        let Some(least) = asked.get(name).and_then(|v| v.parse::<usize>().ok()) else {
            continue;
        };
        for p in &topic.partitions {
            let place = (name, p.partition_index);
            if p.replica_nodes.len() < least {
                never.insert(place);
            } else if p.isr_nodes.len() < least {
                too_few.insert(place);
            }
        }
    }
    if !never.is_empty() {
        return Some(Check {
            check: MIN_IN_SYNC,
            outcome: Outcome::Failed,
            detail: format!(
                "{} with fewer replicas than it asks for: {}",
                count(never.len(), "partition"),
                name(&never)
            ),
            advice: Some(
                "no write with acks=all is ever taken there: `tailrace config set topic NAME min.insync.replicas=N` with N no more than the replicas it has",
            ),
        });
    }
    (!too_few.is_empty()).then(|| Check {
        check: MIN_IN_SYNC,
        outcome: Outcome::Failed,
        detail: format!(
            "{} below: {}",
            count(too_few.len(), "partition"),
            name(&too_few)
        ),
        advice: Some("producers with acks=all are refused there until more replicas are in sync"),
    })
}

fn disks(answered: &Answered) -> Option<Check> {
    let failed: Vec<String> = answered
        .iter()
        .filter(|(_, disks)| !disks.failed.is_empty())
        .map(|(id, disks)| format!("broker {id}: {}", disks.failed.join(", ")))
        .collect();
    if !failed.is_empty() {
        return Some(Check {
            check: "disks",
            outcome: Outcome::Failed,
            detail: failed.join("; "),
            advice: Some("the broker can't read or write there: see its log"),
        });
    }
    // What is usable, and not what is free: Tailrace tells 0 when it takes no more records.
    let full: Vec<String> = answered
        .iter()
        .filter(|(_, disks)| disks.free_bytes == Some(0))
        .map(|(id, _)| format!("broker {id}"))
        .collect();
    if !full.is_empty() {
        return Some(Check {
            check: "disks",
            outcome: Outcome::Failed,
            detail: format!("no room to write: {}", full.join(", ")),
            advice: Some(
                "records are refused there, and what is there can be read: delete topics or shorten retention (`tailrace topic alter`), or give it a larger disk",
            ),
        });
    }
    let share = |d: &Disks| Some((d.free_bytes?, d.disk_bytes.filter(|n| *n > 0)?));
    let (id, (free, of)) = answered
        .iter()
        .filter_map(|(id, disks)| Some((id, share(disks)?)))
        .min_by(|(_, (a, of_a)), (_, (b, of_b))| {
            (*a as f64 / *of_a as f64).total_cmp(&(*b as f64 / *of_b as f64))
        })?;
    let is_low = (free as f64) < of as f64 * LOW_SHARE;
    Some(Check {
        check: "disks",
        outcome: if is_low {
            Outcome::Warning
        } else {
            Outcome::Ok
        },
        detail: format!(
            "broker {id} has least free: {} of {}, {:.0} %",
            bytes(free),
            bytes(of),
            free as f64 * 100.0 / of as f64
        ),
        advice: is_low.then_some(
            "delete topics or shorten retention (`tailrace topic alter`), or give it a larger disk",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::cluster::topic_name;
    use kafka_protocol::messages::metadata_response::MetadataResponsePartition;

    fn topic(name: &str, replicas: i32, in_sync: i32) -> MetadataResponseTopic {
        let nodes = |n: i32| (1..=n).map(Into::into).collect();
        let partition = MetadataResponsePartition::default()
            .with_partition_index(0)
            .with_replica_nodes(nodes(replicas))
            .with_isr_nodes(nodes(in_sync));
        MetadataResponseTopic::default()
            .with_name(Some(topic_name(name)))
            .with_partitions(vec![partition])
    }

    #[test]
    fn topics_that_never_take_acks_all_are_told_though_nothing_lags() {
        let asked = |n: &str| BTreeMap::from([("a".to_string(), n.to_string())]);
        assert!(too_few_in_sync(&[topic("a", 1, 1)], &asked("1")).is_none());
        let never = too_few_in_sync(&[topic("a", 1, 1), topic("b", 1, 1)], &asked("5")).unwrap();
        assert_eq!(never.outcome, Outcome::Failed);
        assert_eq!(
            never.detail,
            "1 partition with fewer replicas than it asks for: a 0"
        );
        let lags = too_few_in_sync(&[topic("a", 3, 1)], &asked("2")).unwrap();
        assert_eq!(lags.detail, "1 partition below: a 0");
        assert_eq!(lags.outcome, Outcome::Failed);
    }

    #[test]
    fn a_disk_without_room_to_write_is_a_failure() {
        let disk = |free| {
            let disks = Disks {
                disk_bytes: Some(1 << 40),
                free_bytes: Some(free),
                ..Disks::default()
            };
            disks_of(disks)
        };
        fn disks_of(of: Disks) -> Check {
            disks(&Answered::from([(1, of)])).unwrap()
        }
        assert_eq!(disk(1 << 39).outcome, Outcome::Ok);
        assert_eq!(disk(1 << 30).outcome, Outcome::Warning);
        let full = disk(0);
        assert_eq!(full.outcome, Outcome::Failed);
        assert_eq!(full.detail, "no room to write: broker 1");
        assert!(full.advice.unwrap().contains("larger disk"));
    }
}
