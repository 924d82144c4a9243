//! The coordinator by itself: tables of what happens step by step (`golden/`), and what must hold whatever happens.

mod golden;
mod property;
mod scale;

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::requests::{Commit, CommitOffset, Join, Leave, Membership, States, Sync};
use super::*;
use crate::error::ErrorCode;
use crate::wire::Writer;

/// A consumer's metadata: it wants these topics.
pub fn subscription(topics: &[&str]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(0);
    out.put_array(topics.len(), false);
    for topic in topics {
        out.put_str(topic, false);
    }
    out.freeze()
}

pub fn membership(group: &str, member: &str, generation: i32) -> Membership {
    Membership {
        group: own(group),
        member: own(member),
        instance: None,
        generation,
    }
}

pub fn join(group: &str, member: &str) -> Join {
    Join {
        group: own(group),
        member: own(member),
        instance: None,
        client_id: own("c"),
        client_host: own("/127.0.0.1"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: own("consumer"),
        protocols: vec![(own("range"), subscription(&["t"]))],
        needs_known_member: true,
        can_skip_assignment: true,
    }
}

pub fn commit_of(who: Membership, partition: i32, offset: i64) -> Request {
    Request::Commit(Box::new(Commit {
        who,
        retention_ms: None,
        no_group: ErrorCode::IllegalGeneration,
        offsets: vec![CommitOffset {
            topic: own("t"),
            topic_id: Uuid::from_u128(1),
            partition,
            offset,
            leader_epoch: 3,
            metadata: own(""),
        }],
    }))
}

pub fn sync_of(who: Membership, assignments: Vec<(Name, Bytes)>) -> Request {
    Request::Sync(Box::new(Sync {
        who,
        protocol_type: None,
        protocol: None,
        assignments,
    }))
}

pub fn leave_of(group: &str, members: Vec<(Name, Option<Name>)>) -> Request {
    Request::Leave(Leave {
        group: own(group),
        members,
    })
}

/// A coordinator with its clock; ids of members count up.
pub struct Bench {
    pub coordinator: Coordinator,
    pub now: Now,
    pub next_id: u128,
    pub next_token: Token,
    /// Writes without an outcome.
    pub writes: std::collections::VecDeque<Write>,
    /// What was written, in order.
    pub log: Vec<record::Record>,
}

impl Bench {
    pub fn new(settings: Settings) -> Bench {
        Bench {
            coordinator: Coordinator::new(settings),
            now: Now {
                ms: 0,
                wall_ms: 1_000_000,
            },
            next_id: 0,
            next_token: 0,
            writes: Default::default(),
            log: Vec::new(),
        }
    }

    pub fn handle(&mut self, event: Event) -> Vec<(Token, Reply)> {
        let next = &mut self.next_id;
        let mut random = || {
            *next += 1;
            *next
        };
        let effects = self.coordinator.handle(event, self.now, &mut random);
        self.coordinator.check();
        self.writes.extend(effects.writes);
        effects.answers
    }

    pub fn ask(&mut self, request: Request) -> (Token, Vec<(Token, Reply)>) {
        self.next_token += 1;
        let token = self.next_token;
        (token, self.handle(Event::Request(token, request)))
    }

    pub fn pass(&mut self, ms: u64) -> Vec<(Token, Reply)> {
        self.now.ms += ms;
        self.now.wall_ms += ms as i64;
        self.handle(Event::Tick)
    }

    /// The oldest write's outcome.
    pub fn settle(&mut self, result: Result<(), WriteError>) -> Vec<(Token, Reply)> {
        let Some(write) = self.writes.pop_front() else {
            return Vec::new();
        };
        if result.is_ok() {
            self.log.extend(write.records);
        }
        self.handle(Event::Written(write.id, result))
    }

    /// The coordinator that another node would make of what was written.
    pub fn reloaded(&self) -> Coordinator {
        let mut c = Coordinator::new(self.coordinator.settings.clone());
        for record in &self.log {
            c.replay(record, self.now.wall_ms).unwrap();
        }
        c.loaded(self.now);
        c.check();
        c
    }
}
