//! What a group with several replicas needs besides: messages, ticks, old entries for lagging followers, changes of the configuration.
//!
//! Messages come from the network, as our own frames parsed into raft's types: what cannot come from a peer that keeps the rules is dropped
//! here, before raft or the log sees it. Called by the peer transport and by the simulation.
#![cfg_attr(not(test), expect(dead_code, reason = "the peer transport calls it"))]

use engine::types::{Entry, EntryKind};
use raft::StateRole;
use raft::eraftpb::{ConfChangeV2, Message, MessageType};

use crate::api::ProduceError;
use crate::codec;
use crate::group::{Machine, TERM_MAX, as_entry};
use crate::storage::Fetch;
use crate::store::Store;

impl<S: Store> Machine<S> {
    /// Takes a message of a peer. What cannot come from a peer that keeps the rules is dropped.
    pub fn step(&mut self, m: Message, now_ms: i64) {
        if !self.acceptable(&m) {
            return;
        }
        // Errors are messages that raft ignores (unknown peer, dropped proposal).
        let _ = self.node.step(m);
        self.absorb(now_ms);
        self.draw_election_timeout();
    }

    fn acceptable(&self, m: &Message) -> bool {
        let kind = m.get_msg_type();
        // G2: a proposal that somebody forwards would arrive with stale offset and epoch. Snapshots have a way of their own.
        let never = matches!(
            kind,
            MessageType::MsgPropose | MessageType::MsgReadIndex | MessageType::MsgSnapshot
        );
        // G11.
        if never || m.to != self.id.0 || m.term > TERM_MAX {
            return false;
        }
        let mut expected = m.index;
        m.entries.iter().all(|e| {
            expected += 1;
            e.index == expected && e.term <= m.term && as_entry(e).is_some()
        })
    }

    /// One tick of the clock. A sole voter has no use for it.
    pub fn tick(&mut self, now_ms: i64) {
        if self.node.raft.term >= TERM_MAX && self.node.raft.state != StateRole::Leader {
            // G11: an election would enter a term that has no epoch.
            return;
        }
        self.node.tick();
        self.absorb(now_ms);
        self.draw_election_timeout();
    }

    /// Entries that a [`Fetch`] asked for, or as many from its low end as could be read; none if the read failed.
    pub fn fetched(&mut self, fetch: Fetch, entries: &[Entry]) {
        if entries.is_empty() {
            return;
        }
        self.node.store().put_fetched(entries);
        self.node.on_entries_fetched(fetch.context);
    }

    /// Proposes a configuration change; raft refuses one while another is under way, which then shows as an empty entry.
    pub fn propose_change(
        &mut self,
        change: &ConfChangeV2,
        now_ms: i64,
    ) -> Result<(), ProduceError> {
        if !self.is_leader() {
            return Err(ProduceError::NotLeader);
        }
        let mut context = vec![EntryKind::Config as u8];
        context.extend_from_slice(&codec::encode_change(change));
        self.node
            .propose_conf_change(context, change.clone())
            .map_err(|_| ProduceError::NotLeader)?;
        self.absorb(now_ms);
        Ok(())
    }
}
