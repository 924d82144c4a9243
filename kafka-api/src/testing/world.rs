//! As much of a broker as there is without a shard: a coordinator whose records are written at once, fetch sessions, and a few names that are there. For tests and fuzzing.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::BytesMut;
use cluster::metadata::{Change, Partition, Replica, Topic};
use cluster::view::View;
use engine::memory::Budget;
use engine::rt::Instant;
use engine::types::{NodeId, ReplicaId, TopicId};
use kafka_protocol::protocol::Encodable;
use uuid::Uuid;

use crate::coordinator::{Coordinator, Event, Now, Reply, Request, Settings, Token};
use crate::handlers::fetch::Sessions;
use crate::limits;
use crate::refusals::{Errors, Refusals};

/// Ticks after which a request to a coordinator that waits for nobody but its own deadlines must be answered.
const TICKS: usize = 10_000;

/// See the module.
pub struct World {
    pub view: Rc<View>,
    pub sessions: Sessions,
    pub budget: Rc<Budget>,
    coordinator: Coordinator,
    now_ms: u64,
    next: Token,
    drawn: u128,
}

impl Default for World {
    fn default() -> World {
        let view = View::new(NodeId(1));
        let replica = Replica {
            node: NodeId(1),
            id: ReplicaId(1),
        };
        let partition = Partition {
            replicas: vec![replica],
        };
        // As the good requests name it.
        view.apply(&Change::TopicCreated(Topic {
            id: TopicId(Uuid::from_u128(5)),
            name: "orders".into(),
            partitions: vec![partition; 3],
            configs: Default::default(),
            config_version: 0,
        }));
        World {
            view,
            sessions: Sessions::new(10, 0, 1),
            budget: Budget::new(4 << 30),
            coordinator: Coordinator::new(Settings::default()),
            now_ms: 1_000,
            next: 0,
            drawn: 0,
        }
    }
}

impl World {
    pub fn now(&self) -> Instant {
        Instant(self.now_ms * 1_000_000)
    }

    /// What a coordinator answers. One that waits for others is given time: nobody else comes.
    pub fn ask(&mut self, request: Request) -> Reply {
        self.next += 1;
        let token = self.next;
        let mut answer = self.drive(Event::Request(token, request), token);
        for _ in 0..TICKS {
            if answer.is_some() {
                break;
            }
            let due = self.coordinator.next_deadline();
            self.now_ms = due.expect("who waits has a deadline").max(self.now_ms);
            answer = self.drive(Event::Tick, token);
        }
        answer.expect("every request is answered")
    }

    /// One step and what is written by it.
    fn drive(&mut self, event: Event, token: Token) -> Option<Reply> {
        let now = Now {
            ms: self.now_ms,
            wall_ms: 1_700_000_000_000 + self.now_ms as i64,
        };
        let mut answer = None;
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let drawn = &mut self.drawn;
            let mut random = || {
                *drawn += 1;
                *drawn
            };
            let effects = self.coordinator.handle(event, now, &mut random);
            for (answered, reply) in effects.answers {
                if answered == token {
                    assert!(answer.is_none(), "a request is answered once");
                    answer = Some(reply);
                }
            }
            // Outcomes come in the order of the log.
            let written = effects.writes.into_iter();
            events.extend(written.map(|w| Event::Written(w.id, Ok(()))));
        }
        answer
    }
}

/// Encodes an answer, which every version has room for.
pub fn told<T: Encodable + Errors>(message: &T, version: i16) -> Refusals {
    let size = message
        .compute_size(version)
        .expect("an answer has a size in its version");
    assert!(size <= limits::ANSWER_BYTES);
    let mut out = BytesMut::with_capacity(size);
    message
        .encode(&mut out, version)
        .expect("an answer fits its version");
    assert_eq!(out.len(), size);
    Refusals::of(message)
}
