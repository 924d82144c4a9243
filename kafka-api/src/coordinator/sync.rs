//! SyncGroup, Heartbeat and LeaveGroup, and members that are not heard of any more.

use bytes::Bytes;

use super::group::{Group, State};
use super::join::of_group_write;
use super::machine::{Cx, Pending};
use super::record;
use super::requests::{Leave, Membership, Sync, Synced};
use super::timers::Timer;
use super::{Name, Reply, Token, WriteError};
use crate::error::ErrorCode;
use crate::shard::{Map, map};

impl Group {
    pub(super) fn sync(&mut self, cx: &mut Cx<'_>, token: Token, sync: Sync) {
        if let Err(error) = self.check_sync(&sync) {
            return cx.answer(token, Synced::error(error));
        }
        let id = sync.who.member.clone();
        match self.state() {
            State::Empty => cx.answer(token, Synced::error(ErrorCode::UnknownMemberId)),
            State::PreparingRebalance => {
                cx.answer(token, Synced::error(ErrorCode::RebalanceInProgress));
            }
            State::CompletingRebalance => {
                let earlier = self.change(&id, |m| m.sync.replace(token)).flatten();
                cx.end_sync(earlier, ErrorCode::RebalanceInProgress);
                self.has_synced(cx, &id);
                if self.is_leader(&id) {
                    self.assign(cx, sync.assignments);
                }
            }
            State::Stable => {
                self.has_synced(cx, &id);
                let assignment = self.member(&id).map(|m| m.assignment.clone());
                let reply = self.synced(assignment.unwrap_or_default());
                cx.answer(token, reply);
            }
        }
    }

    fn check_sync(&self, sync: &Sync) -> Result<(), ErrorCode> {
        self.check_member(&sync.who.member, sync.who.instance.as_ref())?;
        if sync.who.generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differs = |said: &Option<Name>, known: &Option<Name>| {
            said.is_some() && known.is_some() && said != known
        };
        if differs(&sync.protocol_type, &self.protocol_type)
            || differs(&sync.protocol, &self.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn synced(&self, assignment: Bytes) -> Reply {
        Reply::Synced(Synced {
            error: ErrorCode::None,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment,
        })
    }

    fn has_synced(&mut self, cx: &mut Cx<'_>, id: &Name) {
        self.pending_sync.swap_remove(id);
        if self.pending_sync.is_empty() {
            cx.timers.cancel(&Timer::Sync(self.id.clone()));
        }
    }

    /// The leader has said who gets what. It is in force when it is written.
    fn assign(&mut self, cx: &mut Cx<'_>, assignments: Vec<(Name, Bytes)>) {
        // A leader that lost its connection may join again and share out anew while its first word is on its way into the log. That one is
        // told when it is written, so nothing else may stand behind it: after a restart this generation would have two assignments.
        if self.shared_out == self.generation {
            return;
        }
        self.shared_out = self.generation;
        let mut given: Map<Name, Bytes> = map();
        for (id, assignment) in assignments {
            // Who isn't a member gets nothing; who isn't named gets nothing either.
            if let Some(member) = self.member(&id) {
                given.insert(member.id.clone(), Bytes::copy_from_slice(&assignment));
            }
        }
        let of = |id: &Name| given.get(id).cloned().unwrap_or_default();
        let record = record::group(self, |m| of(&m.id), cx.now.wall_ms);
        let pending = Pending::Assigned {
            group: self.id.clone(),
            generation: self.generation,
            given,
        };
        cx.write(vec![record], pending);
    }

    pub(super) fn assigned(
        &mut self,
        cx: &mut Cx<'_>,
        generation: i32,
        given: &Map<Name, Bytes>,
        result: Result<(), WriteError>,
    ) {
        // Meanwhile the group may have gone on.
        if !self.is(State::CompletingRebalance) || generation != self.generation {
            return;
        }
        if let Err(error) = result {
            self.forget_assignments(cx, of_group_write(error));
            return self.rebalance(cx);
        }
        for id in self.ids() {
            let assignment = given.get(&id).cloned().unwrap_or_default();
            let waiting = self.change(&id, |m| {
                m.assignment = assignment.clone();
                m.sync.take()
            });
            if let Some(token) = waiting.flatten() {
                let reply = self.synced(assignment);
                cx.answer(token, reply);
                self.hear_from(cx, &id);
            }
        }
        self.go(State::Stable, cx.now.wall_ms);
    }

    /// No assignment of this generation will come: who waits for one is told why.
    pub(super) fn forget_assignments(&mut self, cx: &mut Cx<'_>, error: ErrorCode) {
        for id in self.ids() {
            let waiting = self.change(&id, |m| {
                m.assignment = Bytes::new();
                m.sync.take()
            });
            if let Some(token) = waiting.flatten() {
                cx.answer(token, Synced::error(error));
                self.hear_from(cx, &id);
            }
        }
    }

    /// The time to fetch assignments is up: who has not is out.
    pub(super) fn sync_time_is_up(&mut self, cx: &mut Cx<'_>) {
        let synced = matches!(self.state(), State::CompletingRebalance | State::Stable);
        if !synced || self.pending_sync.is_empty() {
            return;
        }
        let late: Vec<Name> = self.pending_sync.keys().cloned().collect();
        for id in late {
            cx.timers
                .cancel(&Timer::Session(self.id.clone(), id.clone()));
            if let Some(member) = self.remove(&id) {
                cx.end_waits(member, ErrorCode::UnknownMemberId);
            }
        }
        self.rebalance(cx);
    }

    pub(super) fn heartbeat(&mut self, cx: &mut Cx<'_>, token: Token, who: &Membership) {
        let error = match self.check_member(&who.member, who.instance.as_ref()) {
            Err(error) => error,
            Ok(()) if who.generation != self.generation => ErrorCode::IllegalGeneration,
            Ok(()) => {
                self.hear_from(cx, &who.member);
                if self.is(State::PreparingRebalance) {
                    ErrorCode::RebalanceInProgress
                } else {
                    ErrorCode::None
                }
            }
        };
        cx.answer(token, Reply::Heartbeat(error));
    }

    pub(super) fn leave(&mut self, cx: &mut Cx<'_>, token: Token, leave: Leave) {
        let mut some = false;
        let mut errors = Vec::with_capacity(leave.members.len());
        for (id, instance) in leave.members {
            let result = self.leave_one(cx, &id, instance.as_ref());
            some |= result.is_ok();
            errors.push(result.err().unwrap_or(ErrorCode::None));
        }
        cx.answer(token, Reply::Left(errors));
        if some {
            self.after_loss(cx);
        }
    }

    fn leave_one(
        &mut self,
        cx: &mut Cx<'_>,
        id: &Name,
        instance: Option<&Name>,
    ) -> Result<(), ErrorCode> {
        let id = if id.is_empty() {
            // An administrator removes a static member by its name.
            let known = instance.and_then(|i| self.static_member(i));
            known.cloned().ok_or(ErrorCode::UnknownMemberId)?
        } else if self.remove_pending(id) {
            cx.timers
                .cancel(&Timer::Session(self.id.clone(), id.clone()));
            return Ok(());
        } else {
            self.check_member(id, instance)?;
            id.clone()
        };
        self.lose(cx, &id);
        Ok(())
    }

    /// Removes a member; whatever it waits for ends.
    fn lose(&mut self, cx: &mut Cx<'_>, id: &Name) {
        cx.timers
            .cancel(&Timer::Session(self.id.clone(), id.clone()));
        if let Some(member) = self.remove(id) {
            cx.end_waits(member, ErrorCode::UnknownMemberId);
        }
    }

    /// A member, or one that was only given an id, was not heard of.
    pub(super) fn session_is_over(&mut self, cx: &mut Cx<'_>, id: &Name) {
        if self.remove_pending(id) {
            return self.after_loss(cx);
        }
        let Some(member) = self.member(id) else {
            return;
        };
        // Who waits for a rebalance can't send heartbeats; a new one may have come back as another.
        if !member.is_new && (member.join.is_some() || member.sync.is_some()) {
            return;
        }
        self.lose(cx, id);
        self.after_loss(cx);
    }
}
