//! `tailrace group lag`: committed offsets beside the ends of the logs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::committed::{self, Committed};
use super::model::{self, Group, Member};
use super::targets::{self, Target};
use super::{in_partitions, names};
use crate::cli::AdminArgs;
use crate::client::cluster::Cluster;
use crate::client::offsets::{self, END, Patience, Place, START};
use crate::client::output::{Table, or_nothing, print_json};
use crate::client::{ClientError, note, print, tell};

/// One partition of a group.
#[derive(Debug, Serialize)]
pub struct PartitionLag {
    pub topic: String,
    pub partition: i32,
    pub committed: Option<i64>,
    /// The log's first offset and its end; nothing if the topic is gone or has no leader.
    pub start: Option<i64>,
    pub end: Option<i64>,
    pub lag: Option<i64>,
    pub member: Option<String>,
    pub client: Option<String>,
    pub host: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct GroupLag {
    pub group: String,
    pub state: String,
    pub members: usize,
    /// Only of partitions with a committed offset.
    #[serde(rename = "lag")]
    total: Option<i64>,
    pub partitions: Vec<PartitionLag>,
}

impl GroupLag {
    fn new(group: &Group, partitions: Vec<PartitionLag>) -> GroupLag {
        let known = partitions.iter().filter_map(|p| p.lag);
        GroupLag {
            group: group.group.clone(),
            state: group.state.clone(),
            members: group.members.len(),
            total: known.reduce(i64::saturating_add),
            partitions,
        }
    }

    pub fn total(&self) -> Option<i64> {
        self.total
    }

    pub fn of_member(&self, member: &str) -> Option<i64> {
        let mine = self
            .partitions
            .iter()
            .filter(|p| p.member.as_deref() == Some(member));
        mine.filter_map(|p| p.lag).reduce(i64::saturating_add)
    }

    /// The lag, and what it was summed up of.
    pub fn summary(&self) -> String {
        let known = self.partitions.iter().filter(|p| p.lag.is_some()).count();
        match self.total {
            Some(total) => format!("{total} {}", in_partitions(known, self.partitions.len())),
            None => "unknown: no committed offsets".into(),
        }
    }
}

pub fn run(names: &[String], topics: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let wanted = targets::parse(topics)?;
    let mut cluster = Cluster::open(&admin.broker)?;
    let is_overview = names.is_empty();
    let names = if is_overview {
        self::names(&mut cluster)?
    } else {
        names.to_vec()
    };
    let (mut groups, mut failed) = (Vec::new(), Vec::new());
    for (_, group) in model::describe(&mut cluster, &names)? {
        match group {
            Ok(group) => groups.push(group),
            // Between the list and the question it may have gone; or it is of a kind that we don't know.
            Err(ClientError::Missing(why)) if is_overview => note(why),
            Err(e) if e.is_about_one() => failed.push(e),
            Err(e) => return Err(e),
        }
    }
    let mut lags = of(&mut cluster, &groups, &wanted)?;
    if is_overview && !wanted.is_empty() {
        lags.retain(|lag| !lag.partitions.is_empty());
    }
    if admin.json {
        print_json(&lags)?;
    } else if is_overview {
        overview(&lags)?;
    } else {
        per_partition(&lags)?;
    }
    tell(failed)
}

/// The lag of each group, in the groups' order; of all that it has committed or has assigned, or of some.
pub fn of(
    cluster: &mut Cluster,
    groups: &[Group],
    wanted: &[Target],
) -> Result<Vec<GroupLag>, ClientError> {
    // What share groups keep is told by another request, which isn't asked yet.
    let names: Vec<String> = groups
        .iter()
        .filter(|g| g.kind != "share")
        .map(|g| g.group.clone())
        .collect();
    let mut committed: BTreeMap<String, Committed> = BTreeMap::new();
    for (name, offsets) in committed::of(cluster, &names)? {
        committed.insert(name, offsets?);
    }
    let is_wanted = |place: &Place| wanted.is_empty() || wanted.iter().any(|t| t.takes(place));
    let mut all: BTreeSet<Place> = committed.values().flat_map(|c| c.keys().cloned()).collect();
    let assigned = groups
        .iter()
        .flat_map(|g| g.members.iter().flat_map(Member::places));
    all.extend(assigned.map(|(topic, p)| (topic.to_string(), p)));
    all.retain(|place| is_wanted(place));
    let ask = |at| all.iter().cloned().map(|place| (place, at)).collect();
    let ends = offsets::look_up(cluster, &ask(END), Patience::Brief)?;
    let starts = offsets::look_up(cluster, &ask(START), Patience::Brief)?;
    let found = |among: &offsets::Found, place: &Place| match among.get(place) {
        Some(Ok(offset)) => Some(*offset),
        _ => None,
    };
    let none = Committed::new();
    Ok(groups
        .iter()
        .map(|group| {
            let committed = committed.get(&group.group).unwrap_or(&none);
            let mut owners: BTreeMap<Place, Option<&Member>> = BTreeMap::new();
            for place in committed.keys() {
                owners.insert(place.clone(), None);
            }
            for member in &group.members {
                for (topic, p) in member.places() {
                    owners.insert((topic.to_string(), p), Some(member));
                }
            }
            owners.retain(|place, _| is_wanted(place));
            let partitions = owners.into_iter().map(|(place, owner)| {
                let (committed, end) = (committed.get(&place).copied(), found(&ends, &place));
                PartitionLag {
                    start: found(&starts, &place),
                    topic: place.0,
                    partition: place.1,
                    committed,
                    end,
                    lag: committed
                        .zip(end)
                        .map(|(c, end)| end.saturating_sub(c).max(0)),
                    member: owner.map(|m| m.member.clone()),
                    client: owner.map(|m| m.client.clone()),
                    host: owner.map(|m| m.host.trim_start_matches('/').to_string()),
                }
            });
            GroupLag::new(group, partitions.collect())
        })
        .collect())
}

fn overview(lags: &[GroupLag]) -> Result<(), ClientError> {
    let mut table = Table::new(&[
        "GROUP",
        "STATE",
        ">MEMBERS",
        ">TOPICS",
        ">PARTITIONS",
        ">LAG",
    ]);
    for lag in lags {
        let topics: BTreeSet<&str> = lag.partitions.iter().map(|p| &*p.topic).collect();
        table.row(vec![
            lag.group.clone(),
            lag.state.clone(),
            lag.members.to_string(),
            topics.len().to_string(),
            lag.partitions.len().to_string(),
            or_nothing(lag.total),
        ]);
    }
    table.print()
}

fn per_partition(lags: &[GroupLag]) -> Result<(), ClientError> {
    let mut table = Table::new(&[
        "GROUP",
        "TOPIC",
        ">PARTITION",
        ">COMMITTED",
        ">END",
        ">LAG",
        "CLIENT",
        "HOST",
        "MEMBER",
    ]);
    for lag in lags {
        for p in &lag.partitions {
            table.row(vec![
                lag.group.clone(),
                p.topic.clone(),
                p.partition.to_string(),
                or_nothing(p.committed),
                or_nothing(p.end),
                or_nothing(p.lag),
                p.client.clone().unwrap_or_default(),
                p.host.clone().unwrap_or_default(),
                p.member.clone().unwrap_or_default(),
            ]);
        }
    }
    table.print()?;
    for lag in lags {
        print(format_args!(
            "{}: {}, {}, lag {}",
            super::clean(&lag.group),
            super::clean(&lag.state),
            super::count(lag.members, "member"),
            lag.summary()
        ))?;
        for text in lag.partitions.iter().filter_map(|p| what_is_odd(lag, p)) {
            note(text);
        }
    }
    Ok(())
}

/// What a number alone doesn't tell.
fn what_is_odd(lag: &GroupLag, p: &PartitionLag) -> Option<String> {
    let place = format!(
        "group '{}', partition {} of '{}'",
        lag.group, p.partition, p.topic
    );
    let committed = p.committed?;
    match (p.start, p.end) {
        (Some(start), _) if committed < start => Some(format!(
            "{place}: the records from {committed} to {start} are gone by retention; the group goes on where its auto.offset.reset says"
        )),
        (_, Some(end)) if committed > end => Some(format!(
            "{place}: offset {committed} is behind the log's end {end}; the group goes on where its auto.offset.reset says"
        )),
        (_, None) => Some(format!(
            "{place}: its end is unknown: the topic is gone (`tailrace group delete-offsets` forgets the offset) or has no leader (`tailrace cluster health`)"
        )),
        _ => None,
    }
}
