//! The state of one group: its members, the protocol they agreed on, and the offsets committed in its name.
//!
//! A group is in one of four states. *Empty*: no members, perhaps offsets. *PreparingRebalance*: members are joining. *CompletingRebalance*: all know
//! the generation, and the leader's assignment is awaited. *Stable*: every member may fetch its assignment. Groups that are gone (Kafka's *Dead*)
//! are not kept.
//!
//! Only bookkeeping here: each change keeps the counts (who waits to join, how many support a protocol, bytes in memory) right. What follows from a
//! change is decided in [`super::join`] and [`super::sync`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use uuid::Uuid;

use super::requests::{DescribedMember, JoinedMember};
use super::{Name, Token, subscription};
use crate::error::ErrorCode;
use crate::shard::{Map, map};

/// The protocol type of Kafka's consumers.
pub const CONSUMER: &str = "consumer";

/// Bytes of memory that are counted for a member, a group and an offset besides their names and metadata.
const MEMBER_BYTES: usize = 512;
const GROUP_BYTES: usize = 512;
const OFFSET_BYTES: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

impl State {
    pub const ALL: [State; 4] = [
        State::Empty,
        State::PreparingRebalance,
        State::CompletingRebalance,
        State::Stable,
    ];

    /// The state of this name, in whatever case.
    pub fn named(name: &str) -> Option<State> {
        let mut all = State::ALL.into_iter();
        all.find(|state| state.name().eq_ignore_ascii_case(name))
    }

    /// As clients are told.
    pub fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Member {
    pub id: Name,
    /// KIP-345: the name under which it comes back after a restart.
    pub instance: Option<Name>,
    pub client_id: Name,
    pub client_host: Name,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    /// Name and metadata, what it likes best first.
    pub protocols: Vec<(Name, Bytes)>,
    pub assignment: Bytes,
    /// It has not been told its first generation yet.
    pub is_new: bool,
    /// Its JoinGroup that waits.
    pub join: Option<Token>,
    /// Its SyncGroup that waits.
    pub sync: Option<Token>,
}

impl Member {
    pub fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| **name == *protocol);
        found.map_or_else(Bytes::new, |(_, metadata)| metadata.clone())
    }

    fn bytes(&self) -> usize {
        let protocols: usize = self.protocols.iter().map(|(n, m)| n.len() + m.len()).sum();
        let names = 3 * self.id.len() + self.client_id.len() + self.client_host.len();
        let instance = self.instance.as_ref().map_or(0, |i| i.len());
        MEMBER_BYTES + protocols + names + 2 * instance + self.assignment.len()
    }
}

/// An offset as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: Name,
    pub commit_ms: i64,
    /// When it is to go, if the client has said so.
    pub expire_ms: Option<i64>,
    pub topic_id: Uuid,
}

/// The first rebalance of an empty group, which waits for members to come.
#[derive(Clone, Copy, Debug)]
pub struct Initial {
    pub delay_ms: u64,
    pub remaining_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Group {
    pub id: Name,
    state: State,
    previous: State,
    /// When it came into its state; not known of old records.
    pub since_ms: Option<i64>,
    pub protocol_type: Option<Name>,
    pub protocol: Option<Name>,
    pub generation: i32,
    pub leader: Option<Name>,
    members: Map<Name, Member>,
    statics: Map<Name, Name>,
    /// Those who were given an id and have not come back with it.
    pending: Map<Name, ()>,
    /// Those who have not fetched the assignment of this generation.
    pub pending_sync: Map<Name, ()>,
    /// The latest generation whose leader has said who gets what.
    pub shared_out: i32,
    awaiting_join: usize,
    supported: Map<Name, usize>,
    /// A member came while the first rebalance waits.
    pub new_member_added: bool,
    pub initial: Option<Initial>,
    /// Topics that members are subscribed to; `None` when it can't be known.
    subscribed: Option<BTreeSet<Name>>,
    pub offsets: BTreeMap<Name, BTreeMap<i32, Committed>>,
    /// Commits under way, by partition.
    pub committing: BTreeMap<(Name, i32), u32>,
    bytes: usize,
}

impl Group {
    pub fn new(id: Name, now_ms: i64) -> Group {
        Group {
            bytes: GROUP_BYTES + 2 * id.len(),
            id,
            state: State::Empty,
            previous: State::Empty,
            since_ms: Some(now_ms),
            protocol_type: None,
            protocol: None,
            generation: 0,
            leader: None,
            members: map(),
            statics: map(),
            pending: map(),
            pending_sync: map(),
            shared_out: 0,
            awaiting_join: 0,
            supported: map(),
            new_member_added: false,
            initial: None,
            subscribed: None,
            offsets: BTreeMap::new(),
            committing: BTreeMap::new(),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn previous(&self) -> State {
        self.previous
    }

    pub fn is(&self, state: State) -> bool {
        self.state == state
    }

    pub fn go(&mut self, to: State, now_ms: i64) {
        self.previous = self.state;
        self.state = to;
        self.since_ms = Some(now_ms);
    }

    /// Memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn member(&self, id: &Name) -> Option<&Member> {
        self.members.get(id)
    }

    pub fn has(&self, id: &Name) -> bool {
        self.members.contains_key(id)
    }

    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub fn ids(&self) -> Vec<Name> {
        self.members.keys().cloned().collect()
    }

    /// Its members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    pub fn is_leader(&self, id: &Name) -> bool {
        self.leader.as_ref() == Some(id)
    }

    pub fn is_pending(&self, id: &Name) -> bool {
        self.pending.contains_key(id)
    }

    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    pub fn add_pending(&mut self, id: Name) {
        self.bytes += MEMBER_BYTES;
        self.pending.insert(id, ());
    }

    /// Forgets all who were told an id and haven't joined with it.
    pub fn take_pending(&mut self) -> Vec<Name> {
        let ids: Vec<Name> = self.pending.drain(..).map(|(id, ())| id).collect();
        self.bytes -= ids.len() * MEMBER_BYTES;
        ids
    }

    pub fn remove_pending(&mut self, id: &Name) -> bool {
        let was = self.pending.swap_remove(id).is_some();
        if was {
            self.bytes -= MEMBER_BYTES;
        }
        was
    }

    pub fn static_member(&self, instance: &Name) -> Option<&Name> {
        self.statics.get(instance)
    }

    /// Whether somebody with this id and instance is a member, for every request of members.
    pub fn check_member(&self, id: &Name, instance: Option<&Name>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.statics.get(instance) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(known) if known != id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.has(id) {
            Ok(())
        } else {
            Err(ErrorCode::UnknownMemberId)
        }
    }

    pub fn add(&mut self, member: Member) {
        if self.members.is_empty() && self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        if let Some(instance) = &member.instance {
            let before = self.statics.insert(instance.clone(), member.id.clone());
            assert!(before.is_none(), "a static member is replaced, not added");
        }
        self.remove_pending(&member.id);
        self.count_protocols(&member, true);
        self.awaiting_join += usize::from(member.join.is_some());
        self.bytes += member.bytes();
        let before = self.members.insert(member.id.clone(), member);
        assert!(before.is_none(), "a member is added once");
    }

    pub fn remove(&mut self, id: &Name) -> Option<Member> {
        let member = self.members.swap_remove(id)?;
        self.bytes -= member.bytes();
        self.count_protocols(&member, false);
        self.awaiting_join -= usize::from(member.join.is_some());
        if let Some(instance) = &member.instance {
            self.statics.swap_remove(instance);
        }
        self.pending_sync.swap_remove(id);
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Changes a member; the counts follow.
    pub fn change<T>(&mut self, id: &Name, f: impl FnOnce(&mut Member) -> T) -> Option<T> {
        let mut member = self.members.get(id)?.clone();
        let before = (member.bytes(), member.join.is_some());
        let protocols = member.protocols.clone();
        let result = f(&mut member);
        self.bytes = self.bytes - before.0 + member.bytes();
        self.awaiting_join =
            self.awaiting_join - usize::from(before.1) + usize::from(member.join.is_some());
        if protocols != member.protocols {
            let old = self.members.get(id).expect("it was there just now").clone();
            self.count_protocols(&old, false);
            self.count_protocols(&member, true);
        }
        self.members.insert(id.clone(), member);
        Some(result)
    }

    /// Gives a static member a new id; gives its waiting requests, which are those of an earlier life.
    pub fn replace_static(
        &mut self,
        instance: &Name,
        old: &Name,
        new: &Name,
    ) -> [Option<Token>; 2] {
        let led = self.is_leader(old);
        let awaited_sync = self.pending_sync.contains_key(old);
        let mut member = self.remove(old).expect("the instance's member is one");
        let waiting = [member.join.take(), member.sync.take()];
        assert_eq!(
            member.instance.as_ref(),
            Some(instance),
            "it is the instance's"
        );
        member.id = new.clone();
        self.add(member);
        if awaited_sync {
            self.pending_sync.insert(new.clone(), ());
        }
        if led {
            self.leader = Some(new.clone());
        }
        waiting
    }

    fn count_protocols(&mut self, member: &Member, more: bool) {
        for (name, _) in &member.protocols {
            let count = self.supported.entry(name.clone()).or_default();
            if more {
                *count += 1;
                continue;
            }
            *count -= 1;
            // Not by a look at all names there are: others may have brought thousands.
            if *count == 0 {
                self.supported.swap_remove(name);
            }
        }
    }

    /// Whether a member with these protocols can be one of this group.
    pub fn supports(&self, protocol_type: &Name, protocols: &[(Name, Bytes)]) -> bool {
        if self.is(State::Empty) {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        // While members are awaited there may be none at all: then any protocol is one that all support.
        let all = self.members.len();
        self.protocol_type.as_ref() == Some(protocol_type)
            && protocols
                .iter()
                .any(|(name, _)| self.supported.get(name).copied().unwrap_or(0) == all)
    }

    /// The protocol that most members like best of those that all support; of several, the first that a member named.
    pub fn select_protocol(&self) -> Option<Name> {
        let mut votes: Map<&Name, usize> = map();
        for member in self.members.values() {
            let first = member
                .protocols
                .iter()
                .find(|(name, _)| self.supported.get(name) == Some(&self.members.len()));
            if let Some((name, _)) = first {
                *votes.entry(name).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        let (name, _) = votes.into_iter().find(|(_, n)| *n == most)?;
        Some(name.clone())
    }

    pub fn awaiting_join(&self) -> usize {
        self.awaiting_join
    }

    pub fn all_have_joined(&self) -> bool {
        self.members.len() == self.awaiting_join && self.pending.is_empty()
    }

    /// Makes a member that is joining the leader; `false` when nobody is.
    pub fn elect_joined_leader(&mut self) -> bool {
        let Some(leader) = &self.leader else {
            return false;
        };
        if self.members.get(leader).is_some_and(|m| m.join.is_some()) {
            return true;
        }
        let joined = self.members.values().find(|m| m.join.is_some());
        let Some(joined) = joined.map(|m| m.id.clone()) else {
            return false;
        };
        self.leader = Some(joined);
        true
    }

    /// The longest that a member wants for a rebalance.
    pub fn rebalance_timeout_ms(&self) -> u64 {
        let longest = self.members.values().map(|m| m.rebalance_timeout_ms).max();
        longest.unwrap_or(0).max(0) as u64
    }

    pub fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// What members are subscribed to is found anew, when a generation begins.
    pub fn find_subscribed(&mut self) {
        self.subscribed = match &self.protocol {
            _ if !self.uses_consumer_protocol() => None,
            _ if self.members.is_empty() => Some(BTreeSet::new()),
            None => None,
            Some(protocol) => {
                let mut topics = BTreeSet::new();
                let all = self
                    .members
                    .values()
                    .all(|m| subscription::topics(&m.metadata(protocol), &mut topics));
                all.then_some(topics)
            }
        };
    }

    pub fn is_subscribed(&self, topic: &Name) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    pub fn knows_subscriptions(&self) -> bool {
        self.subscribed.is_some()
    }

    /// Members as the leader is told them.
    pub fn for_the_leader(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.clone().unwrap_or_default();
        let members = self.members.values().map(|m| JoinedMember {
            member: m.id.clone(),
            instance: m.instance.clone(),
            metadata: m.metadata(&protocol),
        });
        members.collect()
    }

    pub fn described(&self) -> Vec<DescribedMember> {
        // What a member sent is told once the group has agreed on what it means.
        let protocol = self.protocol.clone().filter(|_| self.is(State::Stable));
        let members = self.members.values().map(|m| DescribedMember {
            member: m.id.clone(),
            instance: m.instance.clone(),
            client_id: m.client_id.clone(),
            client_host: m.client_host.clone(),
            metadata: protocol.as_ref().map_or_else(Bytes::new, |p| m.metadata(p)),
            assignment: m.assignment.clone(),
        });
        members.collect()
    }

    pub fn put_offset(&mut self, topic: &Name, partition: i32, committed: Committed) {
        let cost = |c: &Committed| OFFSET_BYTES + c.metadata.len();
        self.bytes += cost(&committed);
        let of_topic = match self.offsets.get_mut(topic) {
            Some(of_topic) => of_topic,
            None => {
                self.bytes += OFFSET_BYTES + topic.len();
                self.offsets.entry(topic.clone()).or_default()
            }
        };
        if let Some(before) = of_topic.insert(partition, committed) {
            self.bytes -= cost(&before);
        }
    }

    pub fn remove_offset(&mut self, topic: &Name, partition: i32) {
        let Some(of_topic) = self.offsets.get_mut(topic) else {
            return;
        };
        if let Some(before) = of_topic.remove(&partition) {
            self.bytes -= OFFSET_BYTES + before.metadata.len();
        }
        if of_topic.is_empty() {
            self.offsets.remove(topic);
            self.bytes -= OFFSET_BYTES + topic.len();
        }
    }

    /// Every invariant that can be counted again.
    #[cfg(test)]
    pub fn check(&self) {
        let joining = self.members.values().filter(|m| m.join.is_some()).count();
        assert_eq!(joining, self.awaiting_join);
        for (name, count) in &self.supported {
            let having = |m: &&Member| m.protocols.iter().any(|(n, _)| n == name);
            assert_eq!(self.members.values().filter(having).count(), *count);
        }
        let statics = self.members.values().filter(|m| m.instance.is_some());
        assert_eq!(statics.count(), self.statics.len());
        for (instance, id) in &self.statics {
            assert_eq!(self.members[id].instance.as_ref(), Some(instance));
        }
        let members: usize = self.members.values().map(Member::bytes).sum();
        let offsets: usize = self
            .offsets
            .iter()
            .map(|(topic, of_topic)| {
                let own: usize = of_topic
                    .values()
                    .map(|c| OFFSET_BYTES + c.metadata.len())
                    .sum();
                OFFSET_BYTES + topic.len() + own
            })
            .sum();
        let own = GROUP_BYTES + 2 * self.id.len() + self.pending.len() * MEMBER_BYTES;
        assert_eq!(members + offsets + own, self.bytes);
        assert_eq!(
            self.is(State::Empty),
            self.members.is_empty()
                && self.initial.is_none()
                && !self.is(State::PreparingRebalance)
        );
        for id in self.pending_sync.keys() {
            assert!(self.has(id));
        }
        if let Some(leader) = &self.leader {
            assert!(self.has(leader));
        }
    }
}
