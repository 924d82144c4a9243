//! JoinGroup, and the way to a new generation.
//!
//! A group rebalances when somebody joins, leaves, vanishes or comes with other metadata. An empty group first waits
//! [`Settings::initial_rebalance_delay_ms`], again while members keep coming, up to the longest rebalance timeout; any other group waits until all
//! its members have joined again, up to that timeout. Who has not joined then is out, unless it is a static member.

use bytes::Bytes;

use super::group::{Group, Initial, Member, State};
use super::machine::{Cx, Pending};
use super::record;
use super::requests::{Join, Joined};
use super::timers::Timer;
use super::{Name, Settings, Token, WriteError, own};
use crate::error::ErrorCode;
use crate::limits;

/// A member that was not told its generation yet is out after this long: its client may have gone and come back as another.
const NEW_MEMBER_JOIN_MS: u64 = 5 * 60 * 1_000;

/// A static member that came back while its group is stable: what is to be said, and undone, once that is written or not.
#[derive(Debug)]
pub(super) struct Returned {
    pub group: Name,
    pub instance: Name,
    pub old: Name,
    pub new: Name,
    pub before: Box<Member>,
    pub can_skip_assignment: bool,
    pub old_leader: Option<Name>,
}

impl Group {
    pub(super) fn join(&mut self, cx: &mut Cx<'_>, token: Token, mut join: Join) {
        let unknown = join.member.is_empty();
        let refuse = |cx: &mut Cx<'_>, error| {
            cx.answer(token, Joined::error(join.member.clone(), error));
        };
        if !self.has_room(cx.settings, &join.member) {
            self.drop_for_size(cx, &join.member);
            let reply = Joined::error(Name::default(), ErrorCode::GroupMaxSizeReached);
            return cx.answer(token, reply);
        }
        if !self.supports(&join.protocol_type, &join.protocols) {
            return refuse(cx, ErrorCode::InconsistentGroupProtocol);
        }
        // Nothing of the request is kept in memory by a slice of it.
        for (name, metadata) in &mut join.protocols {
            *name = own(name);
            *metadata = Bytes::copy_from_slice(metadata);
        }
        if unknown {
            return self.join_new(cx, token, join);
        }
        if self.is_pending(&join.member) {
            // Only dynamic members are given ids to come again with.
            if join.instance.is_some() {
                return refuse(cx, ErrorCode::UnknownServerError);
            }
            let id = own(&join.member);
            return self.add_and_rebalance(cx, token, join, id);
        }
        if let Err(error) = self.check_member(&join.member, join.instance.as_ref()) {
            return refuse(cx, error);
        }
        let member = self.member(&join.member).expect("it was just checked");
        let id = member.id.clone();
        let same = member.protocols == join.protocols;
        match self.state() {
            State::PreparingRebalance => self.update_and_rebalance(cx, token, join, &id),
            // Its answer may have been lost.
            State::CompletingRebalance if same => self.tell_generation(cx, token, &id),
            // A leader may have learnt something that no metadata shows.
            State::Stable if same && !self.is_leader(&id) => self.tell_generation(cx, token, &id),
            State::CompletingRebalance | State::Stable => {
                self.update_and_rebalance(cx, token, join, &id);
            }
            State::Empty => unreachable!("an empty group has no members"),
        }
    }

    fn has_room(&self, settings: &Settings, id: &Name) -> bool {
        let max = settings.max_size.min(limits::GROUP_MEMBERS);
        if self.bytes() > limits::GROUP_BYTES && !self.has(id) {
            return false;
        }
        match self.state() {
            State::Empty => true,
            // While members join again, those who wait count: so the last to come are out of a group that was too large.
            State::PreparingRebalance => {
                self.member(id).is_some_and(|m| m.join.is_some()) || self.awaiting_join() < max
            }
            State::CompletingRebalance | State::Stable => self.has(id) || self.size() < max,
        }
    }

    fn drop_for_size(&mut self, cx: &mut Cx<'_>, id: &Name) {
        if let Some(member) = self.remove(id) {
            cx.timers
                .cancel(&Timer::Session(self.id.clone(), id.clone()));
            cx.end_waits(member, ErrorCode::UnknownMemberId);
            self.after_loss(cx);
        }
    }

    fn join_new(&mut self, cx: &mut Cx<'_>, token: Token, join: Join) {
        let id = cx.member_id(join.instance.as_ref().unwrap_or(&join.client_id));
        if let Some(instance) = join.instance.clone() {
            return match self.static_member(&instance).cloned() {
                Some(old) => self.static_returns(cx, token, join, &old, id),
                None => self.add_and_rebalance(cx, token, join, id),
            };
        }
        if !join.needs_known_member {
            return self.add_and_rebalance(cx, token, join, id);
        }
        if self.pending() >= limits::GROUP_MEMBERS {
            let reply = Joined::error(Name::default(), ErrorCode::GroupMaxSizeReached);
            return cx.answer(token, reply);
        }
        self.add_pending(id.clone());
        let session = Timer::Session(self.id.clone(), id.clone());
        cx.after(session, join.session_timeout_ms.max(0) as u64);
        cx.answer(token, Joined::error(id, ErrorCode::MemberIdRequired));
    }

    fn add_and_rebalance(&mut self, cx: &mut Cx<'_>, token: Token, join: Join, id: Name) {
        if self.size() == 0 {
            self.protocol_type = Some(own(&join.protocol_type));
        }
        if self.is(State::PreparingRebalance) && self.previous() == State::Empty {
            self.new_member_added = true;
        }
        self.add(Member {
            id: id.clone(),
            instance: join.instance.as_deref().map(own),
            client_id: own(&join.client_id),
            client_host: own(&join.client_host),
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            session_timeout_ms: join.session_timeout_ms,
            protocols: join.protocols,
            assignment: Bytes::new(),
            is_new: true,
            join: Some(token),
            sync: None,
        });
        cx.after(Timer::Session(self.id.clone(), id), NEW_MEMBER_JOIN_MS);
        self.rebalance(cx);
    }

    fn update(&mut self, cx: &mut Cx<'_>, token: Token, join: Join, id: &Name) {
        let earlier = self.change(id, |m| {
            m.protocols = join.protocols;
            m.rebalance_timeout_ms = join.rebalance_timeout_ms;
            m.session_timeout_ms = join.session_timeout_ms;
            m.join.replace(token)
        });
        // One that was sent again: whoever waits for the first answer has most likely gone.
        if let Some(Some(earlier)) = earlier {
            let reply = Joined::error(id.clone(), ErrorCode::RebalanceInProgress);
            cx.answer(earlier, reply);
        }
    }

    fn update_and_rebalance(&mut self, cx: &mut Cx<'_>, token: Token, join: Join, id: &Name) {
        self.update(cx, token, join, id);
        self.rebalance(cx);
    }

    /// A static member comes back without its id, under a new one; its earlier self is fenced.
    fn static_returns(&mut self, cx: &mut Cx<'_>, token: Token, join: Join, old: &Name, new: Name) {
        let instance = own(join.instance.as_ref().expect("it came by its instance"));
        let before = self
            .member(old)
            .expect("the instance's member is one")
            .clone();
        let old_leader = self.leader.clone();
        let can_skip_assignment = join.can_skip_assignment;
        let [joining, syncing] = self.replace_static(&instance, old, &new);
        cx.end_join(joining, old.clone(), ErrorCode::FencedInstanceId);
        cx.end_sync(syncing, ErrorCode::FencedInstanceId);
        cx.timers
            .cancel(&Timer::Session(self.id.clone(), old.clone()));
        self.update(cx, token, join, &new);
        self.hear_from(cx, &new);
        match self.state() {
            State::Stable if self.select_protocol() == self.protocol => {
                // Nothing changes for the others: only the new id is written.
                let record = record::group(self, |m| m.assignment.clone(), cx.now.wall_ms);
                let returned = Returned {
                    group: self.id.clone(),
                    instance,
                    old: old.clone(),
                    new,
                    before: Box::new(before),
                    can_skip_assignment,
                    old_leader,
                };
                cx.write(vec![record], Pending::Returned(Box::new(returned)));
            }
            State::Stable | State::CompletingRebalance => self.rebalance(cx),
            State::PreparingRebalance => self.complete_if_all_joined(cx),
            State::Empty => unreachable!("an empty group has no members"),
        }
    }

    /// What became of a static member's return.
    pub(super) fn returned(
        &mut self,
        cx: &mut Cx<'_>,
        r: Returned,
        result: Result<(), WriteError>,
    ) {
        let Some(token) = self.change(&r.new, |m| m.join.take()).flatten() else {
            // It went on meanwhile: a rebalance answers it.
            return;
        };
        if let Err(error) = result {
            if self.static_member(&r.instance) == Some(&r.new) {
                self.replace_static(&r.instance, &r.new, &r.old);
                let before = r.before;
                self.change(&r.old, |m| {
                    m.protocols = before.protocols;
                    m.rebalance_timeout_ms = before.rebalance_timeout_ms;
                    m.session_timeout_ms = before.session_timeout_ms;
                });
                cx.timers
                    .cancel(&Timer::Session(self.id.clone(), r.new.clone()));
                self.hear_from(cx, &r.old);
            }
            return cx.answer(token, Joined::error(Name::default(), of_group_write(error)));
        }
        let leads = self.is_leader(&r.new);
        let skip = r.can_skip_assignment && leads;
        cx.answer(
            token,
            super::Reply::Joined(Box::new(Joined {
                error: ErrorCode::None,
                member: r.new,
                generation: self.generation,
                protocol_type: self.protocol_type.clone(),
                protocol: self.protocol.clone(),
                // One that can't be told to skip the assignment must not take itself for the leader.
                leader: if r.can_skip_assignment {
                    self.leader.clone()
                } else {
                    r.old_leader
                }
                .unwrap_or_default(),
                skip_assignment: skip,
                members: if skip {
                    self.for_the_leader()
                } else {
                    Vec::new()
                },
            })),
        );
    }

    /// Begins a rebalance, or looks whether the one that is on can end.
    pub(super) fn rebalance(&mut self, cx: &mut Cx<'_>) {
        if self.is(State::PreparingRebalance) {
            return self.complete_if_all_joined(cx);
        }
        if self.is(State::CompletingRebalance) {
            self.forget_assignments(cx, ErrorCode::RebalanceInProgress);
        }
        cx.timers.cancel(&Timer::Sync(self.id.clone()));
        let initial = self.is(State::Empty);
        self.go(State::PreparingRebalance, cx.now.wall_ms);
        if initial {
            let delay_ms = cx.settings.initial_rebalance_delay_ms;
            let remaining_ms = self.rebalance_timeout_ms().saturating_sub(delay_ms);
            self.new_member_added = false;
            self.initial = Some(Initial {
                delay_ms,
                remaining_ms,
            });
            cx.after(Timer::Join(self.id.clone()), delay_ms);
            if delay_ms == 0 {
                self.join_time_is_up(cx);
            }
        } else if self.all_have_joined() {
            self.complete_join(cx);
        } else {
            cx.after(Timer::Join(self.id.clone()), self.rebalance_timeout_ms());
        }
    }

    /// Ends the join phase if everybody is there, unless an empty group is being waited for.
    pub(super) fn complete_if_all_joined(&mut self, cx: &mut Cx<'_>) {
        if self.is(State::PreparingRebalance) && self.initial.is_none() && self.all_have_joined() {
            self.complete_join(cx);
        }
    }

    /// A member or a pending member is gone.
    pub(super) fn after_loss(&mut self, cx: &mut Cx<'_>) {
        match self.state() {
            State::Stable | State::CompletingRebalance => self.rebalance(cx),
            State::PreparingRebalance => self.complete_if_all_joined(cx),
            State::Empty => {}
        }
    }

    pub(super) fn join_time_is_up(&mut self, cx: &mut Cx<'_>) {
        if !self.is(State::PreparingRebalance) {
            return;
        }
        if let Some(Initial {
            delay_ms,
            remaining_ms,
        }) = self.initial
            && self.new_member_added
            && remaining_ms > 0
        {
            self.new_member_added = false;
            let again_ms = cx.settings.initial_rebalance_delay_ms.min(remaining_ms);
            self.initial = Some(Initial {
                delay_ms: again_ms,
                remaining_ms: remaining_ms.saturating_sub(delay_ms),
            });
            return cx.after(Timer::Join(self.id.clone()), again_ms);
        }
        self.complete_join(cx);
    }

    fn complete_join(&mut self, cx: &mut Cx<'_>) {
        cx.timers.cancel(&Timer::Join(self.id.clone()));
        self.initial = None;
        self.new_member_added = false;
        let missing: Vec<Name> = self
            .members()
            .filter(|m| m.join.is_none() && m.instance.is_none())
            .map(|m| m.id.clone())
            .collect();
        for id in missing {
            self.remove(&id);
            cx.timers.cancel(&Timer::Session(self.id.clone(), id));
        }
        if !self.elect_joined_leader() && self.size() > 0 {
            // Only static members that have not come back: they are given the time once more.
            return cx.after(Timer::Join(self.id.clone()), self.rebalance_timeout_ms());
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        self.pending_sync.clear();
        if self.size() == 0 {
            self.protocol = None;
            self.find_subscribed();
            self.go(State::Empty, cx.now.wall_ms);
            let record = record::group(self, |_| Bytes::new(), cx.now.wall_ms);
            return cx.write(vec![record], Pending::Nothing);
        }
        self.protocol = self.select_protocol();
        self.find_subscribed();
        self.go(State::CompletingRebalance, cx.now.wall_ms);
        for id in self.ids() {
            let token = self.change(&id, |m| {
                m.is_new = false;
                m.join.take()
            });
            if let Some(token) = token.flatten() {
                self.tell_generation_as(cx, token, &id, self.is_leader(&id));
            }
            self.hear_from(cx, &id);
            self.pending_sync.insert(id, ());
        }
        cx.after(Timer::Sync(self.id.clone()), self.rebalance_timeout_ms());
    }

    /// The generation as it is, for a member that asks again.
    fn tell_generation(&mut self, cx: &mut Cx<'_>, token: Token, id: &Name) {
        let everybody = self.is(State::CompletingRebalance) && self.is_leader(id);
        self.tell_generation_as(cx, token, id, everybody);
    }

    fn tell_generation_as(&self, cx: &mut Cx<'_>, token: Token, id: &Name, everybody: bool) {
        let reply = Joined {
            error: ErrorCode::None,
            member: id.clone(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            members: if everybody {
                self.for_the_leader()
            } else {
                Vec::new()
            },
        };
        cx.answer(token, super::Reply::Joined(Box::new(reply)));
    }

    /// A member's session begins anew.
    pub(super) fn hear_from(&self, cx: &mut Cx<'_>, id: &Name) {
        if let Some(member) = self.member(id) {
            let session_ms = member.session_timeout_ms.max(0) as u64;
            cx.after(Timer::Session(self.id.clone(), id.clone()), session_ms);
        }
    }
}

/// What members are told when their group could not be written.
pub(super) fn of_group_write(error: WriteError) -> ErrorCode {
    match error {
        WriteError::NotCoordinator => ErrorCode::NotCoordinator,
        WriteError::Unavailable => ErrorCode::CoordinatorNotAvailable,
        WriteError::TooLarge => ErrorCode::UnknownServerError,
    }
}
