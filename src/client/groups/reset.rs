//! `tailrace group reset`: shows where the group's offsets would go, and moves them only with `--execute`.
//!
//! A group with members is never touched: they would go on from where they are and commit over it. The coordinator refuses it too, so that nothing is lost
//! when a member comes between the look and the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest};
use serde::Serialize;

use super::committed::{self, Committed};
use super::model::{self, Group};
use super::plan::{Goal, Known, target};
use super::targets;
use crate::cli::ResetArgs;
use crate::client::cluster::{Cluster, text, topic_name};
use crate::client::coordinators;
use crate::client::offsets::{self, END, Found, Patience, Place, START};
use crate::client::output::{Table, count, or_nothing, partitions, print_json};
use crate::client::progress::Progress;
use crate::client::{ClientError, at, check, note, print, tell, when};

/// The last version of OffsetCommit that goes by names of topics.
const COMMIT_BY_NAME: i16 = 9;
/// Partitions that one request commits, at most.
const PER_REQUEST: usize = 5000;

#[derive(Serialize)]
struct Move {
    topic: String,
    partition: i32,
    committed: Option<i64>,
    new: i64,
    /// The log's first offset and its end.
    start: i64,
    end: i64,
    /// Why it isn't the offset that was asked for.
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct Reset<'a> {
    group: &'a str,
    /// Whether it was done.
    executed: bool,
    partitions: &'a [Move],
}

pub fn run(args: &ResetArgs) -> Result<(), ClientError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let goal = Goal::of(args, now.map_or(0, |d| d.as_millis() as i64))?;
    let targets = targets::parse(&args.topics)?;
    let mut cluster = Cluster::open(&args.admin.broker)?;
    let group = find(&mut cluster, &args.name, targets.is_empty())?;
    let committed = committed::of(&mut cluster, std::slice::from_ref(&args.name))?
        .remove(&args.name)
        .unwrap_or_else(|| Ok(BTreeMap::new()))?;
    let places = if targets.is_empty() {
        still_there(&mut cluster, committed.keys().cloned().collect())?
    } else {
        targets::places(&mut cluster, &targets)?
    };
    if places.is_empty() {
        return Err(ClientError::Missing(format!(
            "group '{}' has no committed offsets in topics that there are: --topic names the topics to set offsets for",
            args.name
        )));
    }
    let moves = plan(&mut cluster, goal, &places, &committed)?;
    let in_use = group.as_ref().and_then(Group::in_use);
    let execute = args.execute && in_use.is_none();
    if execute {
        commit(&mut cluster, &args.name, &moves)?;
    }
    if args.admin.json {
        print_json(&Reset {
            group: &args.name,
            executed: execute,
            partitions: &moves,
        })?;
    } else {
        show(args, goal, group.as_ref(), execute, &moves)?;
    }
    match in_use {
        // NON_EMPTY_GROUP's own exit code and advice, with the reason.
        Some(reason) => Err(ClientError::refused(
            68,
            Some(&format!("{reason}; nothing was changed")),
        )),
        None => Ok(()),
    }
}

/// The group, or nothing if it isn't there and offsets of named topics may make it.
fn find(cluster: &mut Cluster, name: &str, must_exist: bool) -> Result<Option<Group>, ClientError> {
    let told = model::describe(cluster, &[name.to_string()])?.remove(name);
    match told {
        Some(Ok(group)) if group.kind == "share" => Err(ClientError::Usage(format!(
            "group '{name}' is a share group: it has no offsets of its own to reset"
        ))),
        Some(Ok(group)) => Ok(Some(group)),
        Some(Err(ClientError::Missing(_))) if !must_exist => Ok(None),
        Some(Err(e)) => Err(e),
        None => Ok(None),
    }
}

/// Those of the partitions whose topics there still are; says which are not.
fn still_there(
    cluster: &mut Cluster,
    places: BTreeSet<Place>,
) -> Result<BTreeSet<Place>, ClientError> {
    let mut names: Vec<&str> = places.iter().map(|(topic, _)| topic.as_str()).collect();
    names.dedup();
    let there = offsets::leaders(cluster, &names)?;
    let (kept, gone): (BTreeSet<Place>, BTreeSet<Place>) = places
        .into_iter()
        .partition(|place| there.contains_key(place));
    if !gone.is_empty() {
        let gone = partitions(gone.iter().map(|(topic, p)| (topic.as_str(), *p)));
        note(format_args!("left out, as they are gone: {gone}"));
    }
    Ok(kept)
}

fn plan(
    cluster: &mut Cluster,
    goal: Goal,
    places: &BTreeSet<Place>,
    committed: &Committed,
) -> Result<Vec<Move>, ClientError> {
    let mut ask = |at: i64| {
        let wanted = places.iter().cloned().map(|place| (place, at)).collect();
        offsets::look_up(cluster, &wanted, Patience::Whole)
    };
    let (mut starts, mut ends) = (ask(START)?, ask(END)?);
    let mut times = match goal {
        Goal::Time(ms) => ask(ms)?,
        _ => Found::new(),
    };
    let (mut moves, mut failed) = (Vec::new(), Vec::new());
    for place in places {
        let take = |from: &mut Found| from.remove(place).unwrap_or(Ok(-1));
        let known = (|| {
            Ok(Known {
                committed: committed.get(place).copied(),
                start: take(&mut starts)?,
                end: take(&mut ends)?,
                at_time: Some(take(&mut times)?).filter(|offset| *offset >= 0),
            })
        })();
        let planned = known.and_then(|known: Known| {
            target(goal, known).map(|to| (known, to)).map_err(|why| {
                let place = format!("partition {} of '{}'", place.1, place.0);
                at(&place, ClientError::Missing(why.into()))
            })
        });
        match planned {
            Ok((known, (new, note))) => moves.push(Move {
                topic: place.0.clone(),
                partition: place.1,
                committed: known.committed,
                new,
                start: known.start,
                end: known.end,
                note,
            }),
            Err(e) => failed.push(e),
        }
    }
    // All of it or nothing.
    tell(failed)?;
    Ok(moves)
}

fn show(
    args: &ResetArgs,
    goal: Goal,
    group: Option<&Group>,
    executed: bool,
    moves: &[Move],
) -> Result<(), ClientError> {
    if let Goal::Time(ms) = goal {
        note(format_args!(
            "to the first records since {}",
            when::show(ms)
        ));
    }
    if group.is_none() && !executed {
        note(format_args!(
            "there is no group '{}' yet: its offsets would make it",
            args.name
        ));
    }
    let has_notes = moves.iter().any(|m| m.note.is_some());
    let mut columns = vec![
        "TOPIC",
        ">PARTITION",
        ">COMMITTED",
        ">NEW",
        ">CHANGE",
        ">LAG",
    ];
    if has_notes {
        columns.push("NOTE");
    }
    let mut table = Table::new(&columns);
    for m in moves {
        let change = m.committed.map(|c| match m.new.saturating_sub(c) {
            0 => "0".to_string(),
            by => format!("{by:+}"),
        });
        let mut row = vec![
            m.topic.clone(),
            m.partition.to_string(),
            or_nothing(m.committed),
            m.new.to_string(),
            or_nothing(change),
            m.end.saturating_sub(m.new).to_string(),
        ];
        if has_notes {
            row.push(m.note.unwrap_or_default().into());
        }
        table.row(row);
    }
    table.print()?;
    let offsets = count(moves.len(), "offset");
    if executed {
        print(format_args!("{offsets} of group '{}' set", args.name))
    } else if group.is_some_and(|g| g.in_use().is_some()) {
        Ok(())
    } else {
        print(format_args!(
            "preview: nothing was changed; the same with --execute sets {offsets}"
        ))
    }
}

/// Commits the offsets as an administrator does: without a member, which the coordinator takes only while the group is empty.
fn commit(cluster: &mut Cluster, group: &str, moves: &[Move]) -> Result<(), ClientError> {
    let mut progress = Progress::new("offsets set", moves.len());
    let mut failed = Vec::new();
    let mut done = 0;
    for part in moves.chunks(PER_REQUEST) {
        let mut topics: Vec<OffsetCommitRequestTopic> = Vec::new();
        for m in part {
            if topics.last().is_none_or(|t| t.name.as_str() != m.topic) {
                topics.push(OffsetCommitRequestTopic::default().with_name(topic_name(&m.topic)));
            }
            let last = topics.last_mut().expect("one was pushed");
            last.partitions.push(
                OffsetCommitRequestPartition::default()
                    .with_partition_index(m.partition)
                    .with_committed_offset(m.new)
                    .with_committed_leader_epoch(-1)
                    .with_committed_metadata(Some(text(""))),
            );
        }
        let request = OffsetCommitRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(topics);
        let mut quiet = Progress::waiting("waiting for the group's coordinator");
        let name = [group.to_string()];
        let answers = coordinators::ask(cluster, &name, 1, &mut quiet, |connection, _, _| {
            let answer = connection.call(&request, COMMIT_BY_NAME)?;
            Ok(vec![(group.to_string(), results(answer))])
        })?;
        for (_, answer) in answers {
            for (place, result) in answer? {
                match result {
                    Ok(()) => done += 1,
                    Err(e) => failed.push(at(&place, coordinators::about(group, e))),
                }
            }
        }
        progress.add(part.len());
    }
    if !failed.is_empty() && done > 0 {
        note(format_args!(
            "{done} of {} are set all the same; `tailrace group lag {group}` shows them",
            count(moves.len(), "offset")
        ));
    }
    tell(failed)
}

type Results = Vec<(String, Result<(), ClientError>)>;

/// By partition what became of it. An error that passes is the whole request's, so that it is sent again.
fn results(answer: kafka_protocol::messages::OffsetCommitResponse) -> Result<Results, ClientError> {
    let mut results = Results::new();
    for topic in answer.topics {
        for p in topic.partitions {
            let result = check(p.error_code, None);
            match result {
                // 3: the topic has gone since, which doesn't pass.
                Err(e) if e.is_retriable() && p.error_code != 3 => return Err(e),
                result => {
                    let place = format!("partition {} of '{}'", p.partition_index, &*topic.name);
                    results.push((place, result));
                }
            }
        }
    }
    Ok(results)
}
