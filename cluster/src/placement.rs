//! Which nodes get a partition's replicas. Pure.

use engine::types::NodeId;

use crate::command::Placement;
use crate::error::{Refusal, Refused};
use crate::limits::REPLICATION_FACTOR;

/// A node that may get replicas, and how many it has.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub node: NodeId,
    pub hosted: usize,
}

/// Places `partitions` × `replication_factor` replicas: the nodes in turn, those with the fewest replicas first, so that leaders and followers both spread
/// evenly.
pub fn place(
    candidates: &[Candidate],
    partitions: usize,
    replication_factor: i16,
) -> Result<Vec<Placement>, Refused> {
    let refuse = |why: String| Err(Refused::new(Refusal::InvalidReplicationFactor, why));
    if replication_factor < 1 {
        return refuse("The replication factor must be at least 1.".into());
    }
    let factor = usize::from(replication_factor.unsigned_abs());
    if factor > candidates.len() {
        return refuse(format!(
            "The replication factor is {replication_factor}, but there are {} nodes.",
            candidates.len()
        ));
    }
    if replication_factor > REPLICATION_FACTOR {
        return refuse(format!(
            "The replication factor can be {REPLICATION_FACTOR} at most."
        ));
    }
    let mut order: Vec<Candidate> = candidates.to_vec();
    order.sort_by_key(|c| (c.hosted, c.node));
    let nodes = order.len();
    Ok((0..partitions)
        .map(|p| {
            // Once round, the followers shift by one against the leader, so that a node's partitions don't all share their followers.
            let round = p / nodes;
            Placement {
                nodes: (0..factor)
                    .map(|r| {
                        let step = if r == 0 {
                            0
                        } else {
                            1 + (r - 1 + round) % (nodes - 1)
                        };
                        order[(p + step) % nodes].node
                    })
                    .collect(),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn replicas_are_distinct_and_even(nodes in 1usize..9, factor in 1i16..9, partitions in 0usize..200) {
            let candidates: Vec<Candidate> = (0..nodes)
                .map(|n| Candidate { node: NodeId(n as i32), hosted: 0 })
                .collect();
            let placed = place(&candidates, partitions, factor);
            if factor as usize > nodes {
                prop_assert_eq!(placed.unwrap_err().refusal, Refusal::InvalidReplicationFactor);
                return Ok(());
            }
            let placed = placed.unwrap();
            let mut leaders = vec![0; nodes];
            let mut all = vec![0; nodes];
            for p in &placed {
                let mut seen = p.nodes.clone();
                seen.sort();
                seen.dedup();
                prop_assert_eq!(seen.len(), factor as usize);
                leaders[p.nodes[0].0 as usize] += 1;
                for n in &p.nodes {
                    all[n.0 as usize] += 1;
                }
            }
            let spread = |counts: &[usize]| counts.iter().max().unwrap() - counts.iter().min().unwrap();
            prop_assert!(spread(&leaders) <= 1);
            prop_assert!(spread(&all) <= factor as usize);
        }
    }
}
