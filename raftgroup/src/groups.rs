//! All groups of a shard: created, taken over from the log, found, removed; the state that the log keeps for them.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use engine::log::{Captured, DiskState, ReplicaLog, Restored, ShardLog, StateSource};
use engine::rt;
use engine::types::{GroupId, NodeId, RaftIndex, ReplicaId};
use indexmap::IndexMap;

use crate::api::{GroupError, GroupSink, ProduceError};
use crate::codec;
use crate::group::Machine;
use crate::handle::Group;
use crate::limits;
use crate::producers::Producers;
use crate::pump::{self, Bell};

type Table<K> = RefCell<IndexMap<K, Rc<Group>, ahash::RandomState>>;

fn table<K>() -> Table<K> {
    // Fixed seeds: two runs of one history must do the same.
    RefCell::new(IndexMap::with_hasher(ahash::RandomState::with_seeds(
        5, 6, 7, 8,
    )))
}

/// All groups of a shard, and the pump that turns them.
pub struct Groups {
    log: ShardLog,
    node: NodeId,
    sink: Rc<dyn GroupSink>,
    by_id: Table<GroupId>,
    by_replica: Table<ReplicaId>,
    bell: Rc<Bell>,
    me: Weak<Groups>,
    has_source: Cell<bool>,
    retention_interval: Cell<Duration>,
}

impl Groups {
    pub fn new(log: ShardLog, node: NodeId, sink: Rc<dyn GroupSink>) -> Rc<Groups> {
        Rc::new_cyclic(|me| Groups {
            bell: Rc::new(Bell::new(log.clone())),
            log,
            node,
            sink,
            by_id: table(),
            by_replica: table(),
            me: me.clone(),
            has_source: Cell::new(false),
            retention_interval: Cell::new(limits::RETENTION_INTERVAL),
        })
    }

    /// Starts the pump on the latency queue, and retention on the background queue. Dropping the task stops both.
    pub fn run(self: &Rc<Self>) -> rt::Task<()> {
        rt::spawn(rt::Queue::Latency, pump::run(self.clone()))
    }

    /// Takes over what the log found at start. One-voter groups campaign in the pump's first turn, all in one journal batch; committed
    /// commands reach the sink there too, after [`GroupSink::restore_state`], which is called here.
    pub fn restore(&self, restored: Vec<Restored>) -> Result<(), GroupError> {
        for r in restored {
            let error = |why: String| GroupError::Raft {
                group: r.group,
                why,
            };
            if self.by_id.borrow().contains_key(&r.group) {
                return Err(GroupError::Exists(r.group));
            }
            let state = codec::decode_state(&r.state).map_err(|e| error(e.to_string()))?;
            if !state.sink.is_empty() {
                self.sink.restore_state(r.group, state.sink.clone());
            }
            self.adopt(r.group, r.id, r.log, state, r.state_at)
                .map_err(error)?;
        }
        Ok(())
    }

    /// Creates a group of which this node holds replica `id`. It takes part once its first records are durable; a sole voter leads then.
    pub fn create(
        &self,
        id: ReplicaId,
        group: GroupId,
        voters: &[ReplicaId],
    ) -> Result<Rc<Group>, GroupError> {
        if self.by_id.borrow().contains_key(&group) {
            return Err(GroupError::Exists(group));
        }
        if voters != [id] {
            return Err(GroupError::State {
                group,
                why: "a group has one voter until replicas can talk to each other",
            });
        }
        let ids: Vec<u64> = voters.iter().map(|v| v.0).collect();
        let state = codec::GroupState {
            conf: codec::voters(&ids),
            producers: Producers::default(),
            sink: Bytes::new(),
        };
        let bytes = codec::encode_state(&state.conf, &state.producers, &state.sink);
        let (log, _) = self.log.create(id, group, bytes)?;
        self.adopt(group, id, log, state, RaftIndex(0))
            .map_err(|why| GroupError::Raft { group, why })
    }

    fn adopt(
        &self,
        group: GroupId,
        id: ReplicaId,
        log: ReplicaLog,
        state: codec::GroupState,
        applied: RaftIndex,
    ) -> Result<Rc<Group>, String> {
        let machine = Machine::new(
            id,
            log.clone(),
            state,
            applied,
            rt::random_u64(),
            rt::wall_clock_ms(),
        )?;
        let handle = Group::new(group, log, machine, self.bell.clone());
        self.by_id.borrow_mut().insert(group, handle.clone());
        self.by_replica.borrow_mut().insert(id, handle.clone());
        handle.mark_dirty();
        Ok(handle)
    }

    /// Lets the log ask for states, once the pump's first round has applied what was found committed: the log may have written out more than
    /// the states that were restored know of, and would be told nothing of groups not yet taken over.
    pub(crate) fn become_source(&self) {
        if !self.has_source.replace(true) {
            let me = self.me.upgrade().expect("it is called on a live one");
            self.log.set_state_source(Rc::new(Source(me)));
        }
    }

    /// Removes a group and its data; whoever waits for it is answered.
    pub fn remove(&self, group: GroupId) {
        let Some(handle) = self.by_id.borrow_mut().swap_remove(&group) else {
            return;
        };
        self.by_replica.borrow_mut().swap_remove(&handle.replica());
        self.log.remove(handle.replica());
        handle.remove();
        // The removal is a record too: a turn takes it to the journal.
        self.bell.ring_for_turn();
    }

    pub fn get(&self, group: GroupId) -> Option<Rc<Group>> {
        self.by_id.borrow().get(&group).cloned()
    }

    pub fn len(&self) -> usize {
        self.by_id.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn ids(&self) -> Vec<GroupId> {
        self.by_id.borrow().keys().copied().collect()
    }

    /// Groups that this shard leads.
    pub fn led(&self) -> usize {
        self.bell.led()
    }

    /// Rounds that the pump has made: none are made for idle groups.
    pub fn rounds(&self) -> u64 {
        self.bell.rounds()
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    /// How often retention looks at the groups, from its next look on.
    pub fn set_retention_interval(&self, interval: Duration) {
        self.retention_interval.set(interval);
    }

    /// Retention's look at all groups, now.
    pub fn retain_now(&self) {
        for id in self.ids() {
            if let Some(group) = self.get(id) {
                group.retain(rt::wall_clock_ms());
            }
        }
    }

    /// The log failed and the process is about to end: every wait ends with [`ProduceError::Storage`], and nothing is taken any more.
    pub fn fail(&self) {
        self.bell.fail();
        let all: Vec<_> = self.by_id.borrow().values().cloned().collect();
        for group in all {
            group.fail(ProduceError::Storage);
        }
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// What is known of the disk. While it is nearly full batches are refused, and nothing that takes space should be begun.
    pub fn disk(&self) -> DiskState {
        self.log.disk()
    }

    pub fn shard_log(&self) -> &ShardLog {
        &self.log
    }

    pub(crate) fn sink(&self) -> &dyn GroupSink {
        &*self.sink
    }

    pub(crate) fn retention_interval(&self) -> Duration {
        self.retention_interval.get()
    }
}

/// Gives the log the state of a replica when it writes a checkpoint (L8). It keeps the groups for as long as the log is there: until the
/// shard ends.
struct Source(Rc<Groups>);

impl StateSource for Source {
    fn capture(&self, replica: ReplicaId) -> Captured {
        let group = self.0.by_replica.borrow().get(&replica).cloned();
        let group = group.expect("the log asks only for replicas that it still has");
        group.capture(self.0.sink.snapshot_state(group.id()))
    }

    fn prepare(&self, replica: ReplicaId) -> bool {
        let group = self.0.by_replica.borrow().get(&replica).map(|g| g.id());
        group.is_none_or(|group| self.0.sink.prepare_snapshot(group))
    }
}
