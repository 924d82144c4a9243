//! `tailrace group`: list, describe, lag, reset, delete, delete-offsets.
//!
//! [`model`] asks brokers and gives groups in one form, whichever protocol they speak; [`committed`] are their offsets; [`lag`] sets offsets against the logs' ends; [`reset`] decides where a
//! reset goes before anything is changed.

mod committed;
mod delete;
mod lag;
mod model;
mod plan;
mod reset;
mod targets;

use serde::Serialize;

use super::cluster::Cluster;
use super::output::{Table, clean, count, or_nothing, partitions, print_json};
use super::{ClientError, print, tell};
use crate::cli::{AdminArgs, GroupCommand};
use crate::exit::Fatal;
use model::{Group, Listed};

pub fn run(command: GroupCommand) -> Result<(), Fatal> {
    match command {
        GroupCommand::List {
            states,
            kinds,
            admin,
        } => list(&states, &kinds, &admin)?,
        GroupCommand::Describe { names, admin } => describe(&names, &admin)?,
        GroupCommand::Lag {
            names,
            topics,
            admin,
        } => lag::run(&names, &topics, &admin)?,
        GroupCommand::Reset(args) => reset::run(&args)?,
        GroupCommand::Delete { names, admin } => delete::groups(&names, &admin)?,
        GroupCommand::DeleteOffsets {
            name,
            topics,
            admin,
        } => delete::offsets(&name, &topics, &admin)?,
    }
    Ok(())
}

/// Names of all groups, for completion.
pub fn names(cluster: &mut Cluster) -> Result<Vec<String>, ClientError> {
    Ok(model::list(cluster)?.into_iter().map(|g| g.group).collect())
}

fn list(states: &[String], kinds: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let wanted = |among: &[String], told: &str| {
        among.is_empty() || among.iter().any(|one| one.eq_ignore_ascii_case(told))
    };
    let mut groups = model::list(&mut Cluster::open(&admin.broker)?)?;
    groups.retain(|g: &Listed| wanted(states, &g.state) && wanted(kinds, &g.kind));
    if admin.json {
        return print_json(&groups);
    }
    let mut table = Table::new(&["GROUP", "TYPE", "STATE", "PROTOCOL", ">COORDINATOR"]);
    for g in groups {
        table.row(vec![
            g.group,
            g.kind,
            g.state,
            g.protocol,
            g.coordinator.to_string(),
        ]);
    }
    table.print()
}

/// A described group with its lag.
#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    group: Group,
    /// Records behind the committed offsets, where there are any.
    lag: Option<i64>,
}

fn describe(names: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let (mut described, mut failed) = (Vec::new(), Vec::new());
    for (name, group) in model::describe(&mut cluster, names)? {
        match group {
            Ok(group) => described.push((name, group)),
            Err(e) if e.is_about_one() => failed.push(e),
            Err(e) => return Err(e),
        }
    }
    let groups: Vec<Group> = described.into_iter().map(|(_, g)| g).collect();
    let lags = lag::of(&mut cluster, &groups, &[])?;
    if admin.json {
        let described: Vec<Described> = groups
            .into_iter()
            .zip(&lags)
            .map(|(group, lag)| Described {
                group,
                lag: lag.total(),
            })
            .collect();
        print_json(&described)?;
        return tell(failed);
    }
    for (i, (group, lag)) in groups.iter().zip(&lags).enumerate() {
        if i > 0 {
            print("")?;
        }
        describe_one(group, lag)?;
    }
    tell(failed)
}

fn describe_one(group: &Group, lag: &lag::GroupLag) -> Result<(), ClientError> {
    for (name, value) in [
        ("group", group.group.clone()),
        ("type", group.kind.to_string()),
        ("state", group.state.clone()),
        ("protocol", group.protocol.clone()),
        ("assignor", group.assignor.clone()),
        (
            "coordinator",
            format!("{} ({})", group.coordinator, group.coordinator_address),
        ),
        ("members", group.members.len().to_string()),
        ("lag", lag.summary()),
    ] {
        print(format_args!("{name:<12} {}", clean(&value)))?;
    }
    if group.members.is_empty() {
        return Ok(());
    }
    print("")?;
    let has_instances = group.members.iter().any(|m| m.instance.is_some());
    let mut columns = vec![
        "MEMBER",
        "CLIENT",
        "HOST",
        ">PARTITIONS",
        ">LAG",
        "ASSIGNMENT",
    ];
    if has_instances {
        columns.insert(1, "INSTANCE");
    }
    let mut table = Table::new(&columns);
    for m in &group.members {
        let mut row = vec![
            m.member.clone(),
            m.client.clone(),
            m.host.trim_start_matches('/').to_string(),
            m.places().count().to_string(),
            or_nothing(lag.of_member(&m.member)),
            partitions(m.places()),
        ];
        if has_instances {
            row.insert(1, m.instance.clone().unwrap_or_default());
        }
        table.row(row);
    }
    table.print()
}

/// What a sum of lags was made of.
fn in_partitions(known: usize, all: usize) -> String {
    match all - known {
        0 => format!("in {}", count(all, "partition")),
        unknown => format!(
            "in {}, {unknown} more without a committed offset",
            count(known, "partition")
        ),
    }
}
