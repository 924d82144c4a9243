//! What tools ask: which groups there are, what is in one, and that one be gone.

use super::group::State;
use super::machine::{Coordinator, Turn};
use super::requests::{Described, Listed, States};
use super::timers::Timer;
use super::{Name, Reply, Token};
use crate::error::ErrorCode;

impl Coordinator {
    pub(super) fn describe(&self, group: &Name) -> Reply {
        let Some(g) = self.groups.get(group) else {
            return Reply::Refused(ErrorCode::GroupIdNotFound);
        };
        let stable = g.is(State::Stable);
        Reply::Described(Box::new(Described {
            state: g.state().name(),
            protocol_type: g.protocol_type.clone().unwrap_or_default(),
            protocol: g.protocol.clone().filter(|_| stable).unwrap_or_default(),
            members: g.described(),
        }))
    }

    pub(super) fn list(&self, states: States) -> Reply {
        let groups = self.groups.values().filter(|g| states.have(g.state()));
        let listed = groups.map(|g| Listed {
            group: g.id.clone(),
            protocol_type: g.protocol_type.clone().unwrap_or_default(),
            state: g.state().name(),
        });
        Reply::Listed(listed.collect())
    }

    pub(super) fn delete(&mut self, turn: &mut Turn<'_>, token: Token, group: &Name) {
        self.with(turn, group, |g, cx| match g {
            None => cx.answer(token, Reply::Deleted(ErrorCode::GroupIdNotFound)),
            Some(g) if !g.is(State::Empty) => {
                cx.answer(token, Reply::Deleted(ErrorCode::NonEmptyGroup));
            }
            Some(g) => {
                // Who was told an id and hasn't joined with it yet is forgotten with the group; who comes while it goes keeps it.
                for id in g.take_pending() {
                    cx.timers.cancel(&Timer::Session(g.id.clone(), id));
                }
                let mut all: Vec<(Name, i32)> = Vec::new();
                for (topic, of_topic) in &g.offsets {
                    all.extend(of_topic.keys().map(|p| (topic.clone(), *p)));
                }
                // What is being committed comes before in the log, and goes as well.
                all.extend(g.committing.keys().cloned());
                g.forget(cx, Some(token), all, vec![ErrorCode::None], true);
            }
        });
    }
}
