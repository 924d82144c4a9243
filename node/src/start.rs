//! The start of a node's shards: rings between them, recovery on shard 0, to each its part of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use engine::log::{RecoveredShard, recover};
use engine::metrics::Sample;
use engine::ring::{Class, Frame, Mesh, Port, Rpc};
use engine::rt::{self, Launch};
use engine::types::ShardId;
use kafka_api::{CREDITS, ShardReply, ShardRequest};
use tokio::sync::{mpsc, oneshot};

use crate::exit::{Exit, Fatal};
use crate::shard::{self, Own, Plan};

/// Every shard's numbers, by shard.
pub type Numbers = Vec<Vec<Sample>>;

/// Asks for the numbers of all shards; dropped when they can't be had.
pub type Asked = oneshot::Sender<Numbers>;

pub type ShardPort = Port<Frame<ShardRequest, ShardReply>>;

/// Messages that a ring between two participants holds, at most and at least.
const RING_MESSAGES: usize = 1024;
const RING_MESSAGES_MIN: usize = 64;
/// Messages that the rings to one participant hold together, where that is not below the least of each. There is a ring for every two of them, so that many
/// shards with rings of the full size would take gigabytes.
const RING_MESSAGES_TOGETHER: usize = 16 * 1024;

/// A full ring makes its sender wait, nothing else: smaller ones cost time, not safety.
fn ring_messages(participants: usize) -> usize {
    (RING_MESSAGES_TOGETHER / participants.max(1))
        .next_power_of_two()
        .clamp(RING_MESSAGES_MIN, RING_MESSAGES)
}

/// The rings of a node: one port for each shard, and the side office's.
pub fn rings(shards: u16) -> (Vec<ShardPort>, ShardPort) {
    let participants = usize::from(shards) + 1;
    let mut ports: Vec<ShardPort> = Mesh::new(participants, ring_messages(participants));
    let office = ports
        .pop()
        .expect("the office's port comes after the shards'");
    (ports, office)
}

/// What waits for a shard's thread to fetch it.
struct Waiting {
    port: ShardPort,
    /// Where shard 0 sends this shard's part of the recovery, and where it is taken from.
    part: oneshot::Receiver<RecoveredShard>,
}

/// Starts the shards and waits for their end. `ready` is set when clients are served.
pub fn run(
    plan: &Plan,
    overprovisioned: bool,
    ports: Vec<ShardPort>,
    ready: &Arc<AtomicBool>,
) -> Result<(), Fatal> {
    let (senders, receivers): (Vec<_>, Vec<_>) = ports.iter().map(|_| oneshot::channel()).unzip();
    let waiting: Vec<Option<Waiting>> = ports
        .into_iter()
        .zip(receivers)
        .map(|(port, part)| Some(Waiting { port, part }))
        .collect();
    // Taken once by each shard, when its thread starts and before it runs anything.
    let (waiting, senders) = (
        Arc::new(Mutex::new(waiting)),
        Arc::new(Mutex::new(Some(senders))),
    );
    let launch = Launch {
        shards: plan.shards,
        overprovisioned,
        cpus: None,
        seed: None,
    };
    let (plan, ready) = (plan.clone(), ready.clone());
    rt::launch(launch, move |id: ShardId| {
        let mine = waiting
            .lock()
            .expect("no shard panics while it takes its things")[usize::from(id.0)]
        .take();
        let senders = senders
            .lock()
            .expect("no shard panics while it takes its things")
            .take_if(|_| id == ShardId(0));
        let (plan, ready) = (plan.clone(), ready.clone());
        async move {
            let mine = mine.expect("every shard starts once");
            if let Some(senders) = senders {
                rt::spawn(rt::Queue::Latency, tell_when_ready(plan.clone(), ready)).detach();
                recover_for(&plan, senders).await;
            }
            // The sender is gone only when the process is ending.
            let Ok(part) = mine.part.await else { return };
            let own = Own {
                id,
                port: mine.port,
                part,
            };
            shard::run(plan, own).await;
        }
    })
    .map_err(|e| Fatal::new(Exit::Unfit, format!("can't start the shards: {e}")))
}

/// Reads the journals and hands every shard its part.
async fn recover_for(plan: &Plan, senders: Vec<oneshot::Sender<RecoveredShard>>) {
    let recovery = match recover(&plan.store).await {
        Ok(recovery) => recovery,
        Err(e) => shard::of_the_log(&e).end(),
    };
    let report = &recovery.report;
    tracing::info!(
        "start {}: {} replicas, {} entries in {} MiB of journal, {} torn tails cut",
        recovery.boot_epoch,
        report.replicas,
        report.entries,
        report.journal_bytes >> 20,
        report.torn_tails
    );
    if report.damaged_commits + report.damaged_entries + report.suspect_replicas > 0 {
        tracing::error!(
            "the journals are damaged: {} commits, {} entries; of {} replicas it isn't known what they lost. What is lost answers an error",
            report.damaged_commits,
            report.damaged_entries,
            report.suspect_replicas
        );
    }
    assert_eq!(
        recovery.shards.len(),
        senders.len(),
        "recovery gives each shard its part"
    );
    for (sender, part) in senders.into_iter().zip(recovery.shards) {
        let _ = sender.send(part);
    }
}

async fn tell_when_ready(plan: Plan, ready: Arc<AtomicBool>) {
    plan.serving.opened(0).await;
    if plan.stop.is_open() {
        return;
    }
    ready.store(true, Ordering::Release);
    tracing::info!(
        "ready: Kafka clients connect to {}",
        plan.server.broker.advertised
    );
}

/// Answers the office's scrapes by asking every shard, over the rings.
pub async fn answer_scrapes(port: ShardPort, shards: u16, mut asked: mpsc::Receiver<Asked>) {
    let rpc = Rpc::<ShardRequest, ShardReply>::new(port, CREDITS);
    // Nobody asks the office for anything: what comes is dropped, and the caller told so.
    let rings = rpc.serve(|_, _, _| {});
    let scrapes = async {
        while let Some(to) = asked.recv().await {
            let mut numbers = Vec::with_capacity(usize::from(shards));
            for shard in 0..usize::from(shards) {
                match rpc.call(shard, Class::Short, ShardRequest::Metrics).await {
                    Ok(ShardReply::Metrics(samples)) => numbers.push(samples),
                    _ => break,
                }
            }
            if numbers.len() == usize::from(shards) {
                let _ = to.send(numbers);
            }
        }
    };
    tokio::join!(rings, scrapes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_many_shards_are_smaller() {
        assert_eq!(ring_messages(2), RING_MESSAGES);
        assert_eq!(ring_messages(16), RING_MESSAGES);
        assert_eq!(ring_messages(65), 256);
        assert_eq!(ring_messages(1025), RING_MESSAGES_MIN);
    }
}
