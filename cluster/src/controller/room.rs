//! Room for partitions in the memory of this node.
//!
//! A replica takes memory while nothing is done with it, and no budget can refuse it later: a start must take over whatever there is. So it is refused where it is asked for. What is proposed and not yet
//! applied counts too, as requests come at the same time. The bound is the node's own and not part of the replicated state: a node that is started with less memory keeps what it has, and takes no more.

use std::cell::Cell;

use crate::error::{Refusal, Refused};
use crate::limits::{REPLICA_BYTES, REPLICAS_PART_OF_MEMORY};

const MIB: u64 = 1 << 20;

/// See the module.
pub(super) struct Room {
    memory_bytes: u64,
    /// Replicas on this node that are asked for and not yet applied.
    coming: Cell<u64>,
}

/// What a request has asked for. Dropping it ends that.
pub(super) struct Coming<'a> {
    room: &'a Room,
    replicas: u64,
}

impl Room {
    pub fn new(memory_bytes: u64) -> Room {
        Room {
            memory_bytes,
            coming: Cell::new(0),
        }
    }

    /// Replicas that the node has memory for.
    fn holds(&self) -> u64 {
        self.memory_bytes / REPLICAS_PART_OF_MEMORY / REPLICA_BYTES
    }

    /// Takes `more` replicas in beside the `hosted` ones, or says what they would need.
    pub fn take(&self, hosted: usize, more: usize) -> Result<Coming<'_>, Refused> {
        let (hosted, replicas) = (hosted as u64, more as u64);
        let all = hosted + self.coming.get() + replicas;
        if replicas > 0 && all > self.holds() {
            let needed = (all * REPLICA_BYTES * REPLICAS_PART_OF_MEMORY).div_ceil(MIB);
            return Err(Refused::new(
                Refusal::PolicyViolation,
                format!(
                    "This node's memory of {} MiB is enough for {} partitions; it has {hosted}, and {replicas} more were asked for. Start it with --memory {needed}MiB or more, or delete topics.",
                    self.memory_bytes / MIB,
                    self.holds(),
                ),
            ));
        }
        self.coming.set(self.coming.get() + replicas);
        Ok(Coming {
            room: self,
            replicas,
        })
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let coming = &self.room.coming;
        coming.set(coming.get() - self.replicas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_coming_takes_room_until_it_is_there_or_isnt_coming_any_more() {
        let room = Room::new(16 * MIB);
        assert_eq!(room.holds(), 1024);
        let first = room.take(1000, 20).unwrap();
        let refused = room.take(1000, 5).err().unwrap();
        assert_eq!(refused.refusal, Refusal::PolicyViolation);
        assert!(
            refused.message.contains("--memory 17MiB"),
            "{}",
            refused.message
        );
        let second = room.take(1000, 4).unwrap();
        drop(first);
        assert!(room.take(1020, 1).is_err(), "the first is there now");
        drop(second);
        assert!(room.take(1020, 4).is_ok());
        assert!(
            room.take(2000, 1).is_err(),
            "a start with less memory keeps what it has"
        );
        assert!(room.take(2000, 0).is_ok(), "of other nodes");
    }
}
