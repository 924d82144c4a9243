//! Requests about groups, each to the broker that coordinates the group; asked again while a coordinator moves, loads or restarts.

use std::collections::BTreeMap;
use std::time::Instant;

use kafka_protocol::messages::FindCoordinatorRequest;

use super::cluster::{Cluster, RETRY_PAUSE, text};
use super::connection::Connection;
use super::progress::Progress;
use super::{ClientError, at, check};
use crate::settings::join;

/// Coordinators looked up in one request, at most.
const PER_LOOK_UP: usize = 1000;
/// From this version on FindCoordinator takes several groups.
const SEVERAL: i16 = 4;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinator {
    pub id: i32,
    pub address: String,
}

/// What became of each group that was asked about.
pub type Answers<T> = BTreeMap<String, Result<T, ClientError>>;

/// Answers about some groups, in the order in which they came.
pub type Told<T> = Vec<(String, Result<T, ClientError>)>;

/// Says which group an error is about.
pub fn about(group: &str, e: ClientError) -> ClientError {
    at(&format!("group '{group}'"), e)
}

/// Asks every group's coordinator, for up to `per_request` groups at once. `ask` answers for each of the groups that it is given.
pub fn ask<T>(
    cluster: &mut Cluster,
    groups: &[String],
    per_request: usize,
    progress: &mut Progress,
    mut ask: impl FnMut(&mut Connection, &Coordinator, &[String]) -> Result<Told<T>, ClientError>,
) -> Result<Answers<T>, ClientError> {
    let began = Instant::now();
    let mut answers = Answers::new();
    loop {
        let left: Vec<String> = groups
            .iter()
            .filter(|g| !answers.contains_key(*g))
            .cloned()
            .collect();
        if left.is_empty() {
            return Ok(answers);
        }
        let mut round: Answers<T> = Answers::new();
        let mut places: BTreeMap<Coordinator, Vec<String>> = BTreeMap::new();
        for (group, found) in find(cluster, &left)? {
            match found {
                Ok(coordinator) => places.entry(coordinator).or_default().push(group),
                Err(e) => {
                    round.insert(group, Err(e));
                }
            }
        }
        for (coordinator, groups) in places {
            for part in groups.chunks(per_request) {
                let told = cluster
                    .at(&coordinator.address)
                    .and_then(|connection| ask(connection, &coordinator, part));
                match told {
                    Ok(told) => round.extend(told),
                    Err(e @ (ClientError::Connection(_) | ClientError::Refused { .. })) => {
                        round.extend(part.iter().map(|g| (g.clone(), Err(e.again()))));
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        for group in &left {
            round.entry(group.clone()).or_insert_with(|| {
                Err(ClientError::Protocol(format!(
                    "an answer about groups lacks '{group}'"
                )))
            });
        }
        let is_over = began.elapsed() + RETRY_PAUSE >= cluster.timeout();
        let mut broken = false;
        for (group, answer) in round {
            match answer {
                Err(e) if e.is_retriable() && !is_over => {
                    broken |= matches!(e, ClientError::Connection(_));
                    progress.tell(&e.brief());
                }
                answer => {
                    let answer = answer.map_err(|e| about(&group, e));
                    answers.insert(group, answer);
                    // Only now: what is asked again isn't done.
                    progress.add(1);
                }
            }
        }
        if broken {
            cluster.disconnect();
        }
        if answers.len() < groups.len() {
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}

/// Who coordinates each of these groups.
fn find(cluster: &mut Cluster, groups: &[String]) -> Result<Told<Coordinator>, ClientError> {
    let several = cluster.retry(|c| c.any()?.version::<FindCoordinatorRequest>(i16::MAX))?;
    let mut found = Vec::new();
    let mut put =
        |group: &str, code: i16, message: Option<&str>, id: i32, host: &str, port: i32| {
            let coordinator = check(code, message).map(|()| Coordinator {
                id,
                address: join(host, port as u16),
            });
            found.push((group.to_string(), coordinator));
        };
    if several >= SEVERAL {
        for part in groups.chunks(PER_LOOK_UP) {
            let keys = part.iter().map(|g| text(g)).collect();
            let request = FindCoordinatorRequest::default().with_coordinator_keys(keys);
            let answer = cluster.retry(|c| c.any()?.call(&request, i16::MAX))?;
            for c in answer.coordinators {
                let message = c.error_message.as_deref();
                put(&c.key, c.error_code, message, c.node_id.0, &c.host, c.port);
            }
        }
        return Ok(found);
    }
    for group in groups {
        let request = FindCoordinatorRequest::default().with_key(text(group));
        let a = cluster.retry(|c| c.any()?.call(&request, SEVERAL - 1))?;
        let message = a.error_message.as_deref();
        put(group, a.error_code, message, a.node_id.0, &a.host, a.port);
    }
    Ok(found)
}
