//! A coordinator rebuilt from the records of its partition, and written down again.

use super::group::{Group, State};
use super::machine::Coordinator;
use super::record::{self, Record, Said};
use super::timers::Timer;
use super::{Effects, Name, Now, own};

impl Coordinator {
    /// Takes one record of the partition's log over, in the log's order, before any event.
    pub fn replay(&mut self, record: &Record, now_ms: i64) -> Result<(), record::BadRecord> {
        match record::read(record)? {
            Said::Other => {}
            Said::Offset {
                group,
                topic,
                partition,
                committed: Some(committed),
            } => {
                let g = self.create(&group, now_ms);
                let before = g.bytes();
                let topic = g
                    .offsets
                    .get_key_value(&topic)
                    .map(|(t, _)| t.clone())
                    .unwrap_or_else(|| own(&topic));
                g.put_offset(&topic, partition, committed);
                let after = g.bytes();
                self.change_bytes(before, after);
            }
            Said::Offset {
                group,
                topic,
                partition,
                committed: None,
            } => {
                if let Some(g) = self.groups.get_mut(&group) {
                    let before = g.bytes();
                    g.remove_offset(&topic, partition);
                    let after = g.bytes();
                    self.change_bytes(before, after);
                    self.drop_if_void(&group);
                }
            }
            Said::Group { group, value } => {
                let id = own(&group);
                let g = self.create(&id, now_ms);
                let before = g.bytes();
                g.empty(now_ms);
                if let Some(value) = value {
                    g.restore(*value, now_ms);
                }
                let after = g.bytes();
                self.change_bytes(before, after);
                self.drop_if_void(&id);
            }
        }
        Ok(())
    }

    /// All records were replayed: sessions begin. Members that are gone are found out by them.
    pub fn loaded(&mut self, now: Now) -> Effects {
        let mut sessions = Vec::new();
        for g in self.groups.values() {
            for m in g.members() {
                let at = now.ms + m.session_timeout_ms.max(0) as u64;
                sessions.push((Timer::Session(g.id.clone(), m.id.clone()), at));
            }
        }
        for (timer, at) in sessions {
            self.timers.set(timer, at);
        }
        Effects::default()
    }

    /// The groups there are.
    pub fn names(&self) -> Vec<Name> {
        self.groups.keys().cloned().collect()
    }

    /// The records of everything that is in force of a group.
    pub fn records_of(&self, group: &Name, now_ms: i64) -> Vec<Record> {
        let Some(g) = self.groups.get(group) else {
            return Vec::new();
        };
        let mut records = Vec::new();
        for (topic, of_topic) in &g.offsets {
            for (partition, committed) in of_topic {
                records.push(record::offset(&g.id, topic, *partition, committed));
            }
        }
        if g.generation > 0 {
            records.push(record::group(g, |m| m.assignment.clone(), now_ms));
        }
        records
    }
}

impl Group {
    /// Nothing but its offsets stays.
    fn empty(&mut self, now_ms: i64) {
        for id in self.ids() {
            self.remove(&id);
        }
        self.protocol_type = None;
        self.protocol = None;
        self.generation = 0;
        self.go(State::Empty, now_ms);
        self.find_subscribed();
    }

    fn restore(&mut self, value: record::GroupValue, now_ms: i64) {
        self.protocol_type = Some(value.protocol_type).filter(|t| !t.is_empty());
        self.generation = value.generation.max(0);
        self.protocol = value.protocol;
        for member in value.members {
            // Damage that a checksum doesn't see must not end the process.
            let twice = self.has(&member.id)
                || member
                    .instance
                    .as_ref()
                    .is_some_and(|i| self.static_member(i).is_some());
            if !twice {
                self.add(member);
            }
        }
        if let Some(leader) = value.leader.filter(|l| self.has(l)) {
            self.leader = Some(leader);
        }
        if self.size() > 0 {
            self.go(State::Stable, now_ms);
        }
        self.since_ms = value.since_ms;
        self.find_subscribed();
    }
}
