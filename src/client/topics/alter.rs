//! `tailrace topic alter`: more partitions and other configs. Everything is checked by the broker before anything is changed.

use std::time::Instant;

use kafka_protocol::messages::CreatePartitionsRequest;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use serde::Serialize;

use super::of;
use crate::cli::{AdminArgs, KindArg, MoreChanges};
use crate::client::cluster::{Cluster, RETRY_PAUSE, topic_name};
use crate::client::configs::{self, Change, Changed, Thing};
use crate::client::output::{count, print_json};
use crate::client::progress::Progress;
use crate::client::{ClientError, check, note, print, tell};

/// What is to become of one topic.
#[derive(Serialize)]
struct Altered {
    topic: String,
    executed: bool,
    partitions_before: usize,
    partitions_after: usize,
    configs: Vec<Changed>,
}

pub fn run(
    names: &[String],
    partitions: Option<i32>,
    configs: &[String],
    more: &MoreChanges,
    admin: &AdminArgs,
) -> Result<(), ClientError> {
    let changes = configs::changes(configs, more)?;
    if partitions.is_none() && changes.is_empty() {
        return Err(ClientError::Usage(
            "nothing to change: give --partitions, --config, --unset, --append or --subtract"
                .into(),
        ));
    }
    let mut cluster = Cluster::open(&admin.broker)?;
    let (mut plans, mut failed) = (Vec::new(), Vec::new());
    for name in names {
        match plan(&mut cluster, name, partitions, &changes) {
            Ok(plan) => plans.push(plan),
            Err(e) if e.is_about_one() => failed.push(e),
            Err(e) => return Err(e),
        }
    }
    // All topics or none.
    tell(failed)?;
    if !more.dry_run {
        let mut progress = Progress::new("topics altered", plans.len());
        for plan in &mut plans {
            execute(&mut cluster, plan, &changes)?;
            plan.executed = true;
            progress.add(1);
        }
    }
    show(&plans, more.dry_run, admin)
}

/// What would change, after the broker has found it possible.
fn plan(
    cluster: &mut Cluster,
    name: &str,
    partitions: Option<i32>,
    changes: &[Change],
) -> Result<Altered, ClientError> {
    let before = cluster.topic(name, false)?.partitions.len();
    let after = match partitions {
        Some(n) => n as usize,
        None => before,
    };
    if after < before {
        return Err(of(
            name,
            ClientError::Missing(format!(
                "it has {} already, and there can't be fewer: their records would be lost; create another topic to have less",
                count(before, "partition")
            )),
        ));
    }
    if after > before {
        more_partitions(cluster, name, after, true)?;
    }
    let thing = thing(name);
    let mut changed = Vec::new();
    if !changes.is_empty() {
        let settings = configs::describe(cluster, thing, false)?;
        changed = configs::foresee(&settings, thing, changes);
        configs::alter(cluster, thing, changes, true)?;
    }
    Ok(Altered {
        topic: name.into(),
        executed: false,
        partitions_before: before,
        partitions_after: after,
        configs: changed,
    })
}

fn thing(name: &str) -> Thing<'_> {
    Thing {
        kind: KindArg::Topic,
        name,
    }
}

fn execute(cluster: &mut Cluster, plan: &Altered, changes: &[Change]) -> Result<(), ClientError> {
    let name = &plan.topic;
    if !changes.is_empty() {
        configs::alter(cluster, thing(name), changes, false)?;
    }
    if plan.partitions_after > plan.partitions_before {
        more_partitions(cluster, name, plan.partitions_after, false)?;
        wait_for_leaders(cluster, name, plan.partitions_after)?;
    }
    Ok(())
}

fn more_partitions(
    cluster: &mut Cluster,
    name: &str,
    count: usize,
    validate_only: bool,
) -> Result<(), ClientError> {
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![
            CreatePartitionsTopic::default()
                .with_name(topic_name(name))
                .with_count(i32::try_from(count).unwrap_or(i32::MAX))
                .with_assignments(None),
        ])
        .with_timeout_ms(cluster.timeout_ms())
        .with_validate_only(validate_only);
    let answer = cluster.retry(|c| c.controller()?.call(&request, i16::MAX))?;
    for result in answer.results {
        check(result.error_code, result.error_message.as_deref()).map_err(|e| of(name, e))?;
    }
    Ok(())
}

/// New partitions are of use once clients are told of them and they have leaders.
fn wait_for_leaders(cluster: &mut Cluster, name: &str, count: usize) -> Result<(), ClientError> {
    let began = Instant::now();
    let mut progress = Progress::new("waiting for the new partitions' leaders", 0);
    loop {
        match cluster.topic_now(name, false) {
            Ok(topic) if topic.partitions.len() >= count => return Ok(()),
            Err(e) if !e.is_retriable() => return Err(e),
            result if began.elapsed() + RETRY_PAUSE >= cluster.timeout() => {
                return result.and(Err(of(name, ClientError::refused(5, None))));
            }
            Ok(_) => progress.tell("not all are known yet"),
            Err(e) => progress.tell(&e.brief()),
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

fn show(plans: &[Altered], dry_run: bool, admin: &AdminArgs) -> Result<(), ClientError> {
    if admin.json {
        return print_json(&plans);
    }
    let mut grew = false;
    for plan in plans {
        if plan.partitions_after == plan.partitions_before {
            print(format_args!("{}", plan.topic))?;
        } else {
            grew = true;
            print(format_args!(
                "{}: {} instead of {}",
                plan.topic,
                count(plan.partitions_after, "partition"),
                plan.partitions_before
            ))?;
        }
        if !plan.configs.is_empty() {
            configs::print_changes(&plan.configs)?;
        }
    }
    if grew {
        note(
            "the same key goes to another partition than before: what relies on the order by key should have read the old records first",
        );
    }
    if dry_run {
        print("checked: nothing was changed; the same without --dry-run changes it")?;
    }
    Ok(())
}
