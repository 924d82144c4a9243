//! Committed offsets: who may commit when, what is kept for how long, and what goes.
//!
//! Offsets are applied when they were written, in the order of the log; until then nobody is told them. What is to be kept is retained from the
//! group's emptiness on, or from the commit where there is no group protocol; topics that members are subscribed to are kept.

use std::collections::BTreeSet;

use super::group::{Committed, Group, State};
use super::machine::{Coordinator, Cx, Pending, Turn};
use super::record;
use super::requests::{
    Commit, DeleteOffsets, Membership, OffsetsOf, PartitionOffset, TopicOffsets,
};
use super::{Name, Reply, Token, WriteError, own};
use crate::error::ErrorCode;
use crate::limits;

/// Groups that one [`super::Event::Expire`] looks at.
const EXPIRE_SLICE: usize = 200;
/// Records that go into one write, of those that make room.
const TOMBSTONES: usize = 1_000;

/// Answers, with what couldn't be written in place of what was to be.
pub(super) fn outcome(
    mut answers: Vec<ErrorCode>,
    result: Result<(), WriteError>,
) -> Vec<ErrorCode> {
    if let Err(error) = result {
        let code = match error {
            WriteError::NotCoordinator => ErrorCode::NotCoordinator,
            WriteError::Unavailable => ErrorCode::CoordinatorNotAvailable,
            WriteError::TooLarge => ErrorCode::InvalidCommitOffsetSize,
        };
        for answer in answers.iter_mut().filter(|a| a.is_none()) {
            *answer = code;
        }
    }
    answers
}

/// Characters as Kafka counts them.
fn utf16_len(text: &str) -> usize {
    // Never more than bytes, so that short ones needn't be counted.
    text.chars().map(char::len_utf16).sum()
}

impl Group {
    /// Whether a commit by `who` is to be taken.
    fn check_commit(&self, who: &Membership) -> Result<(), ErrorCode> {
        // Whoever manages offsets without being a member.
        if who.generation < 0 && self.is(State::Empty) {
            return Ok(());
        }
        if who.generation < 0 && who.member.is_empty() && who.instance.is_none() {
            return Err(ErrorCode::UnknownMemberId);
        }
        self.check_member(&who.member, who.instance.as_ref())?;
        if who.generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        if self.is(State::CompletingRebalance) {
            return Err(ErrorCode::RebalanceInProgress);
        }
        Ok(())
    }

    fn commit(&mut self, cx: &mut Cx<'_>, token: Token, commit: Commit) {
        if let Err(error) = self.check_commit(&commit.who) {
            let answers = vec![error; commit.offsets.len()];
            return cx.answer(token, Reply::Committed(answers));
        }
        self.hear_from(cx, &commit.who.member);
        let now_ms = cx.now.wall_ms;
        let expire_ms = commit.retention_ms.map(|ms| now_ms.saturating_add(ms));
        let mut answers = Vec::with_capacity(commit.offsets.len());
        let mut offsets = Vec::with_capacity(commit.offsets.len());
        let mut records = Vec::with_capacity(commit.offsets.len());
        for o in commit.offsets {
            let most = cx.settings.offset_metadata_max;
            if o.metadata.len() > most && utf16_len(&o.metadata) > most {
                answers.push(ErrorCode::OffsetMetadataTooLarge);
                continue;
            }
            let topic = self.offsets.get_key_value(&o.topic).map(|(t, _)| t.clone());
            let topic = topic.unwrap_or_else(|| own(&o.topic));
            let committed = Committed {
                offset: o.offset,
                leader_epoch: o.leader_epoch,
                metadata: own(&o.metadata),
                commit_ms: now_ms,
                expire_ms,
                topic_id: o.topic_id,
            };
            records.push(record::offset(&self.id, &topic, o.partition, &committed));
            let key = (topic.clone(), o.partition);
            *self.committing.entry(key).or_default() += 1;
            offsets.push((topic, o.partition, committed));
            answers.push(ErrorCode::None);
        }
        if records.is_empty() {
            return cx.answer(token, Reply::Committed(answers));
        }
        let pending = Pending::Committed {
            token,
            group: self.id.clone(),
            answers,
            offsets,
        };
        cx.write(records, pending);
    }

    /// Offsets that are too old at `now_ms` and that nobody commits anew. KIP-211.
    fn expired(&self, now_ms: i64, retention_ms: i64) -> Vec<(Name, i32)> {
        let from = match self.protocol_type {
            // Nobody was ever a member: each offset for itself.
            None => None,
            Some(_) if self.is(State::Empty) => Some(self.since_ms),
            Some(_) if self.is(State::Stable) && self.knows_subscriptions() => None,
            Some(_) => return Vec::new(),
        };
        let is_old = |c: &Committed| match c.expire_ms {
            Some(expire_ms) => now_ms >= expire_ms,
            None => {
                let from = from.flatten().unwrap_or(c.commit_ms);
                now_ms.saturating_sub(from) >= retention_ms
            }
        };
        let mut old = Vec::new();
        for (topic, of_topic) in &self.offsets {
            if self.protocol_type.is_some() && self.is_subscribed(topic) {
                continue;
            }
            for (partition, committed) in of_topic {
                let key = (topic.clone(), *partition);
                if is_old(committed) && !self.committing.contains_key(&key) {
                    old.push(key);
                }
            }
        }
        old
    }

    fn offset_count(&self) -> usize {
        self.offsets.values().map(|of_topic| of_topic.len()).sum()
    }

    /// Writes tombstones; with `whole`, the group's own comes last.
    pub(super) fn forget(
        &mut self,
        cx: &mut Cx<'_>,
        token: Option<Token>,
        offsets: Vec<(Name, i32)>,
        answers: Vec<ErrorCode>,
        whole: bool,
    ) {
        let mut last = offsets;
        while last.len() > TOMBSTONES {
            let rest = last.split_off(TOMBSTONES);
            let records = self.tombstones(&last);
            let pending = Pending::Gone {
                token: None,
                group: self.id.clone(),
                offsets: std::mem::replace(&mut last, rest),
                answers: Vec::new(),
                whole: false,
            };
            cx.write(records, pending);
        }
        let mut records = self.tombstones(&last);
        if whole {
            records.push(record::group_tombstone(&self.id));
        }
        let pending = Pending::Gone {
            token,
            group: self.id.clone(),
            offsets: last,
            answers,
            whole,
        };
        cx.write(records, pending);
    }

    fn tombstones(&self, offsets: &[(Name, i32)]) -> Vec<record::Record> {
        let one = |(topic, partition): &(Name, i32)| {
            record::offset_tombstone(&self.id, topic, *partition)
        };
        offsets.iter().map(one).collect()
    }
}

impl Coordinator {
    pub(super) fn commit(&mut self, turn: &mut Turn<'_>, token: Token, commit: Commit) {
        let group = commit.who.group.clone();
        let all = |error| Reply::Committed(vec![error; commit.offsets.len()]);
        if group.len() > limits::GROUP_NAME_BYTES {
            return turn
                .fx
                .answers
                .push((token, all(ErrorCode::InvalidGroupId)));
        }
        if !self.groups.contains_key(&group) && commit.who.generation >= 0 {
            return turn.fx.answers.push((token, all(commit.no_group)));
        }
        if self.is_full(&group) {
            // What is committed already may still be moved on.
            let known = self.groups.get(&group).is_some_and(|g| {
                let known = |o: &super::requests::CommitOffset| {
                    let of_topic = g.offsets.get(&o.topic);
                    of_topic.is_some_and(|t| t.contains_key(&o.partition))
                };
                commit.offsets.iter().all(known)
            });
            if !known {
                let reply = all(ErrorCode::InvalidCommitOffsetSize);
                return turn.fx.answers.push((token, reply));
            }
        }
        self.create(&group, turn.now.wall_ms);
        self.with(turn, &group, |g, cx| {
            g.expect("it is there or was just made")
                .commit(cx, token, commit);
        });
        self.drop_if_void(&group);
    }

    pub(super) fn committed(
        &mut self,
        turn: &mut Turn<'_>,
        token: Token,
        group: &Name,
        answers: Vec<ErrorCode>,
        offsets: Vec<(Name, i32, Committed)>,
        result: Result<(), WriteError>,
    ) {
        // It may have been deleted in between: the log has the offsets behind that.
        self.create(group, turn.now.wall_ms);
        self.with(turn, group, |g, _| {
            let g = g.expect("it is there or was just made");
            for (topic, partition, committed) in offsets {
                let key = (topic, partition);
                if let Some(count) = g.committing.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        g.committing.remove(&key);
                    }
                }
                if result.is_ok() {
                    g.put_offset(&key.0, partition, committed);
                }
            }
        });
        self.drop_if_void(group);
        let reply = Reply::Committed(outcome(answers, result));
        turn.fx.answers.push((token, reply));
    }

    pub(super) fn offsets_of(&self, asked: &OffsetsOf) -> Reply {
        let group = self.groups.get(&asked.group);
        let told = |partition: i32, found: Option<&Committed>| match found {
            None => PartitionOffset {
                partition,
                offset: -1,
                leader_epoch: -1,
                metadata: Name::default(),
            },
            Some(c) => PartitionOffset {
                partition,
                offset: c.offset,
                leader_epoch: c.leader_epoch,
                metadata: c.metadata.clone(),
            },
        };
        let topics = match &asked.topics {
            Some(topics) => topics
                .iter()
                .map(|(topic, partitions)| {
                    let of_topic = group.and_then(|g| g.offsets.get(topic));
                    let one = |p: &i32| told(*p, of_topic.and_then(|t| t.get(p)));
                    TopicOffsets {
                        topic: topic.clone(),
                        partitions: partitions.iter().map(one).collect(),
                    }
                })
                .collect(),
            None => {
                let all = group.into_iter().flat_map(|g| &g.offsets);
                all.map(|(topic, of_topic)| TopicOffsets {
                    topic: topic.clone(),
                    partitions: of_topic.iter().map(|(p, c)| told(*p, Some(c))).collect(),
                })
                .collect()
            }
        };
        Reply::Offsets(topics)
    }

    pub(super) fn delete_offsets(
        &mut self,
        turn: &mut Turn<'_>,
        token: Token,
        asked: &DeleteOffsets,
    ) {
        self.with(turn, &asked.group, |g, cx| {
            let refused = match &g {
                _ if asked.group.is_empty() => Some(ErrorCode::InvalidGroupId),
                None => Some(ErrorCode::GroupIdNotFound),
                Some(g) if !g.is(State::Empty) && !g.uses_consumer_protocol() => {
                    Some(ErrorCode::NonEmptyGroup)
                }
                Some(_) => None,
            };
            let Some(g) = g.filter(|_| refused.is_none()) else {
                let error = refused.unwrap_or(ErrorCode::GroupIdNotFound);
                return cx.answer(token, Reply::Refused(error));
            };
            // Once each: a request may name one a hundred thousand times.
            let mut gone = BTreeSet::new();
            let mut answers = Vec::with_capacity(asked.partitions.len());
            for (topic, partition) in &asked.partitions {
                if g.is_subscribed(topic) {
                    answers.push(ErrorCode::GroupSubscribedToTopic);
                    continue;
                }
                answers.push(ErrorCode::None);
                let has = g
                    .offsets
                    .get(topic)
                    .is_some_and(|t| t.contains_key(partition));
                if has || g.committing.contains_key(&(topic.clone(), *partition)) {
                    gone.insert((own(topic), *partition));
                }
            }
            if gone.is_empty() {
                return cx.answer(token, Reply::OffsetsDeleted(answers));
            }
            let gone = gone.into_iter().collect();
            g.forget(cx, Some(token), gone, answers, false);
        });
    }

    /// Tombstones were written, or not.
    pub(super) fn gone(
        &mut self,
        group: &Name,
        offsets: &[(Name, i32)],
        whole: bool,
        result: Result<(), WriteError>,
    ) {
        if result.is_err() {
            return;
        }
        let Some(g) = self.groups.get_mut(group) else {
            return;
        };
        let before = g.bytes();
        for (topic, partition) in offsets {
            g.remove_offset(topic, *partition);
        }
        // Somebody may have joined it since.
        let empty = whole && g.is(State::Empty) && g.pending() == 0;
        let nothing = g.offsets.is_empty() && g.committing.is_empty();
        let after = g.bytes();
        self.change_bytes(before, after);
        if empty && nothing {
            self.drop_group(group);
        }
    }

    /// Looks at a slice of the groups for what is too old. [`Coordinator::expires_more`] says whether there are more.
    pub(super) fn expire(&mut self, turn: &mut Turn<'_>) {
        let end = (self.expire_from + EXPIRE_SLICE).min(self.groups.len());
        let slice = self.expire_from.min(end)..end;
        let ids: Vec<Name> = slice
            .filter_map(|at| self.groups.get_index(at).map(|(id, _)| id.clone()))
            .collect();
        self.expire_from = if end >= self.groups.len() { 0 } else { end };
        for id in ids {
            self.with(turn, &id, |g, cx| {
                let g = g.expect("its name was just read");
                let old = g.expired(cx.now.wall_ms, cx.settings.offsets_retention_ms);
                let nothing_left = old.len() == g.offset_count() && g.committing.is_empty();
                let whole = nothing_left && g.is(State::Empty) && g.pending() == 0;
                if whole || !old.is_empty() {
                    g.forget(cx, None, old, Vec::new(), whole);
                }
            });
        }
    }

    pub fn expires_more(&self) -> bool {
        self.expire_from > 0
    }

    pub(super) fn topic_deleted(&mut self, turn: &mut Turn<'_>, topic: &Name) {
        let has = |g: &Group| {
            g.offsets.contains_key(topic) || g.committing.keys().any(|(t, _)| t == topic)
        };
        let ids: Vec<Name> = self
            .groups
            .values()
            .filter(|g| has(g))
            .map(|g| g.id.clone())
            .collect();
        for id in ids {
            self.with(turn, &id, |g, cx| {
                let g = g.expect("it was just seen");
                let mut gone: Vec<(Name, i32)> = Vec::new();
                if let Some(of_topic) = g.offsets.get(topic) {
                    gone.extend(of_topic.keys().map(|p| (topic.clone(), *p)));
                }
                let under_way = g.committing.keys().filter(|(t, _)| t == topic);
                gone.extend(under_way.cloned());
                g.forget(cx, None, gone, Vec::new(), false);
            });
        }
    }
}
