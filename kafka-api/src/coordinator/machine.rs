//! The coordinator of one partition of `__consumer_offsets`: its groups, their deadlines, and what is being written.

use std::collections::VecDeque;

use bytes::Bytes;
use uuid::Builder;

use super::group::{Committed, Group, Member};
use super::join::Returned;
use super::record::Record;
use super::requests::{Join, Joined, Synced};
use super::timers::{Timer, Timers};
use super::{
    Effects, Event, Name, Now, Reply, Request, Settings, Token, Write, WriteError, WriteId, own,
};
use crate::error::ErrorCode;
use crate::limits;
use crate::shard::{Map, map};

/// See the module.
pub struct Coordinator {
    pub(super) settings: Settings,
    pub(super) groups: Map<Name, Group>,
    pub(super) timers: Timers,
    pub(super) writes: Writes,
    /// Where the look for what is too old goes on.
    pub(super) expire_from: usize,
    bytes: usize,
}

/// What waits for its records to be written, in the order of the log.
#[derive(Default)]
pub(super) struct Writes {
    newest: WriteId,
    pending: VecDeque<(WriteId, Pending)>,
}

/// What is done when records were written, or were not.
#[derive(Debug)]
pub(super) enum Pending {
    Nothing,
    /// A generation's assignments.
    Assigned {
        group: Name,
        generation: i32,
        given: Map<Name, Bytes>,
    },
    Returned(Box<Returned>),
    Committed {
        token: Token,
        group: Name,
        answers: Vec<ErrorCode>,
        offsets: Vec<(Name, i32, Committed)>,
    },
    /// Offsets go, and with `whole` the group.
    Gone {
        token: Option<Token>,
        group: Name,
        offsets: Vec<(Name, i32)>,
        answers: Vec<ErrorCode>,
        whole: bool,
    },
}

/// What the rules of a group work with.
pub(super) struct Cx<'a> {
    pub now: Now,
    pub settings: &'a Settings,
    pub timers: &'a mut Timers,
    random: &'a mut dyn FnMut() -> u128,
    writes: &'a mut Writes,
    fx: &'a mut Effects,
}

impl Cx<'_> {
    pub fn answer(&mut self, token: Token, reply: Reply) {
        self.fx.answers.push((token, reply));
    }

    pub fn after(&mut self, timer: Timer, ms: u64) {
        self.timers.set(timer, self.now.ms.saturating_add(ms));
    }

    pub fn write(&mut self, records: Vec<Record>, pending: Pending) {
        self.writes.newest += 1;
        let id = self.writes.newest;
        self.writes.pending.push_back((id, pending));
        self.fx.writes.push(Write { id, records });
    }

    /// A member id that nobody has.
    pub fn member_id(&mut self, prefix: &Name) -> Name {
        let random = (self.random)().to_be_bytes();
        let uuid = Builder::from_random_bytes(random).into_uuid();
        let mut end = prefix.len().min(limits::MEMBER_PREFIX_BYTES);
        while !prefix.is_char_boundary(end) {
            end -= 1;
        }
        own(&format!("{}-{uuid}", &prefix[..end]))
    }

    pub fn end_join(&mut self, token: Option<Token>, member: Name, error: ErrorCode) {
        if let Some(token) = token {
            self.answer(token, Joined::error(member, error));
        }
    }

    pub fn end_sync(&mut self, token: Option<Token>, error: ErrorCode) {
        if let Some(token) = token {
            self.answer(token, Synced::error(error));
        }
    }

    /// A member is no more: whatever it waits for ends. One that joins may do so again, as a new one.
    pub fn end_waits(&mut self, member: Member, error: ErrorCode) {
        self.end_join(member.join, Name::default(), error);
        self.end_sync(member.sync, error);
    }
}

impl Coordinator {
    pub fn new(settings: Settings) -> Coordinator {
        Coordinator {
            settings,
            groups: map(),
            timers: Timers::default(),
            writes: Writes::default(),
            expire_from: 0,
            bytes: 0,
        }
    }

    /// One step. `random` gives what ids of members are made of.
    pub fn handle(&mut self, event: Event, now: Now, random: &mut dyn FnMut() -> u128) -> Effects {
        let mut fx = Effects::default();
        let mut turn = Turn {
            now,
            random,
            fx: &mut fx,
        };
        match event {
            Event::Request(token, request) => self.request(&mut turn, token, request),
            Event::Written(id, result) => self.written(&mut turn, id, result),
            Event::Tick => self.tick(&mut turn),
            Event::Expire => self.expire(&mut turn),
            Event::TopicDeleted(topic) => self.topic_deleted(&mut turn, &topic),
        }
        fx
    }

    /// When the next [`Event::Tick`] is due, on the clock of [`Now::ms`].
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    /// What [`Settings::memory_bytes`] is from now on.
    pub fn set_memory(&mut self, bytes: usize) {
        self.settings.memory_bytes = bytes;
    }

    /// Memory that the groups take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Writes that have no outcome yet.
    pub fn writing(&self) -> usize {
        self.writes.pending.len()
    }

    fn request(&mut self, turn: &mut Turn<'_>, token: Token, request: Request) {
        match request {
            Request::Join(join) => self.join(turn, token, *join),
            Request::Sync(sync) => {
                let group = sync.who.group.clone();
                self.with(turn, &group, |g, cx| match g {
                    _ if group.is_empty() => {
                        cx.answer(token, Synced::error(ErrorCode::InvalidGroupId))
                    }
                    None => cx.answer(token, Synced::error(ErrorCode::UnknownMemberId)),
                    Some(g) => g.sync(cx, token, *sync),
                });
            }
            Request::Heartbeat(who) => {
                let error = |e| Reply::Heartbeat(e);
                self.with(turn, &who.group, |g, cx| match g {
                    _ if who.group.is_empty() => cx.answer(token, error(ErrorCode::InvalidGroupId)),
                    None => cx.answer(token, error(ErrorCode::UnknownMemberId)),
                    Some(g) => g.heartbeat(cx, token, &who),
                });
            }
            Request::Leave(leave) => {
                let group = leave.group.clone();
                self.with(turn, &group, |g, cx| match g {
                    _ if group.is_empty() => {
                        cx.answer(token, Reply::Refused(ErrorCode::InvalidGroupId));
                    }
                    None => {
                        let errors = vec![ErrorCode::UnknownMemberId; leave.members.len()];
                        cx.answer(token, Reply::Left(errors));
                    }
                    Some(g) => g.leave(cx, token, leave),
                });
            }
            Request::Commit(commit) => self.commit(turn, token, *commit),
            Request::Offsets(asked) => {
                let reply = self.offsets_of(&asked);
                turn.fx.answers.push((token, reply));
            }
            Request::DeleteOffsets(asked) => self.delete_offsets(turn, token, &asked),
            Request::Describe(group) => {
                let reply = self.describe(&group);
                turn.fx.answers.push((token, reply));
            }
            Request::List(states) => {
                let reply = self.list(states);
                turn.fx.answers.push((token, reply));
            }
            Request::Delete(group) => self.delete(turn, token, &group),
        }
    }

    fn join(&mut self, turn: &mut Turn<'_>, token: Token, join: Join) {
        let refused = |error| Joined::error(join.member.clone(), error);
        let sessions = self.settings.min_session_timeout_ms..=self.settings.max_session_timeout_ms;
        let known = self.groups.contains_key(&join.group);
        let long = |name: &Name| name.len() > limits::GROUP_NAME_BYTES;
        let refusal = if join.group.is_empty() || long(&join.group) {
            Some(ErrorCode::InvalidGroupId)
        } else if !sessions.contains(&join.session_timeout_ms) {
            Some(ErrorCode::InvalidSessionTimeout)
        } else if join.protocols.len() > limits::MEMBER_PROTOCOLS
            || long(&join.protocol_type)
            || join.instance.as_ref().is_some_and(long)
            || join.protocols.iter().any(|(name, _)| long(name))
        {
            Some(ErrorCode::InvalidRequest)
        } else if !known && !join.member.is_empty() {
            Some(ErrorCode::UnknownMemberId)
        } else if self.is_full(&join.group) && join.member.is_empty() {
            Some(ErrorCode::GroupMaxSizeReached)
        } else {
            None
        };
        if let Some(error) = refusal {
            return turn.fx.answers.push((token, refused(error)));
        }
        let group = join.group.clone();
        if !known {
            self.create(&group, turn.now.wall_ms);
        }
        self.with(turn, &group, |g, cx| {
            g.expect("it is there or was just made")
                .join(cx, token, join);
        });
        // A first member that was refused leaves no group behind.
        self.drop_if_void(&group);
    }

    /// Whether no more can be kept for a group.
    pub(super) fn is_full(&self, group: &Name) -> bool {
        self.bytes >= self.settings.memory_bytes
            || self.groups.len() >= limits::GROUPS && !self.groups.contains_key(group)
    }

    pub(super) fn create(&mut self, id: &Name, now_ms: i64) -> &mut Group {
        if !self.groups.contains_key(id) {
            let id = own(id);
            let group = Group::new(id.clone(), now_ms);
            self.bytes += group.bytes();
            self.groups.insert(id, group);
        }
        self.groups.get_mut(id).expect("it was there or just made")
    }

    /// Drops a group that never was more than a name.
    pub(super) fn drop_if_void(&mut self, id: &Name) {
        let void = self.groups.get(id).is_some_and(|g| {
            g.generation == 0
                && g.size() == 0
                && g.pending() == 0
                && g.initial.is_none()
                && g.offsets.is_empty()
                && g.committing.is_empty()
        });
        if void {
            self.drop_group(id);
        }
    }

    pub(super) fn drop_group(&mut self, id: &Name) {
        if let Some(group) = self.groups.swap_remove(id) {
            self.bytes -= group.bytes();
        }
    }

    /// Works on a group, if it is there; the books follow.
    pub(super) fn with<T>(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Name,
        f: impl FnOnce(Option<&mut Group>, &mut Cx<'_>) -> T,
    ) -> T {
        let mut cx = Cx {
            now: turn.now,
            settings: &self.settings,
            timers: &mut self.timers,
            random: &mut *turn.random,
            writes: &mut self.writes,
            fx: &mut *turn.fx,
        };
        match self.groups.get_mut(id) {
            None => f(None, &mut cx),
            Some(group) => {
                let before = group.bytes();
                let result = f(Some(group), &mut cx);
                self.bytes = self.bytes - before + group.bytes();
                result
            }
        }
    }

    /// A group's books changed outside of [`Coordinator::with`].
    pub(super) fn change_bytes(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes - before + after;
    }

    fn tick(&mut self, turn: &mut Turn<'_>) {
        while let Some(timer) = self.timers.take_due(turn.now.ms) {
            let (Timer::Join(group) | Timer::Sync(group) | Timer::Session(group, _)) = &timer;
            let group = group.clone();
            self.with(turn, &group, |g, cx| {
                let Some(g) = g else { return };
                match &timer {
                    Timer::Join(_) => g.join_time_is_up(cx),
                    Timer::Sync(_) => g.sync_time_is_up(cx),
                    Timer::Session(_, member) => g.session_is_over(cx, member),
                }
            });
            self.drop_if_void(&group);
        }
    }

    fn written(&mut self, turn: &mut Turn<'_>, id: WriteId, result: Result<(), WriteError>) {
        let (oldest, pending) = self
            .writes
            .pending
            .pop_front()
            .expect("an outcome belongs to a write");
        assert_eq!(oldest, id, "outcomes come in the order of the log");
        match pending {
            Pending::Nothing => {}
            Pending::Assigned {
                group,
                generation,
                given,
            } => self.with(turn, &group, |g, cx| {
                if let Some(g) = g {
                    g.assigned(cx, generation, &given, result);
                }
            }),
            Pending::Returned(returned) => {
                let group = returned.group.clone();
                self.with(turn, &group, |g, cx| {
                    if let Some(g) = g {
                        g.returned(cx, *returned, result);
                    }
                });
            }
            Pending::Committed {
                token,
                group,
                answers,
                offsets,
            } => self.committed(turn, token, &group, answers, offsets, result),
            Pending::Gone {
                token,
                group,
                offsets,
                answers,
                whole,
            } => {
                self.gone(&group, &offsets, whole, result);
                if let Some(token) = token {
                    let answers = super::offsets::outcome(answers, result);
                    let reply = if whole {
                        Reply::Deleted(answers[0])
                    } else {
                        Reply::OffsetsDeleted(answers)
                    };
                    turn.fx.answers.push((token, reply));
                }
            }
        }
    }

    #[cfg(test)]
    pub fn check(&self) {
        for group in self.groups.values() {
            group.check();
        }
        let bytes: usize = self.groups.values().map(Group::bytes).sum();
        assert_eq!(bytes, self.bytes);
    }
}

/// One call of [`Coordinator::handle`].
pub(super) struct Turn<'a> {
    pub now: Now,
    random: &'a mut dyn FnMut() -> u128,
    pub fx: &'a mut Effects,
}
