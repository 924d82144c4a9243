//! Committed offsets: of a group with a member (join, sync, heartbeat, commit), and of one without, which only commits. What was acknowledged or seen never
//! goes back, and nothing comes that nobody sent.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::rt;
use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;

use super::known::{GROUPS, Outside, Place, TOPICS, places};
use super::wire::{Connection, Gone};
use super::{chance, connect, draw, pause};

/// Loading, not available, not coordinator: later.
fn later(code: i16) -> bool {
    [14, 15, 16].contains(&code)
}

/// The member is out: rebalance in progress, illegal generation, unknown member.
fn out(code: i16) -> bool {
    [22, 25, 27].contains(&code)
}

fn name(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

/// What a group has committed of a partition, and how that fits what is known.
pub async fn fetched(
    outside: &Outside,
    c: &mut Connection,
    group: &'static str,
    place: Place,
) -> Result<Option<i64>, Gone> {
    use m::offset_fetch_request as r;
    let began = rt::now();
    loop {
        let version = 1 + draw(9) as i16;
        let (topic, partitions) = (name(TOPICS[place.0].0).into(), vec![place.1]);
        let request = m::OffsetFetchRequest::default();
        let request = if version < 8 {
            let topic = r::OffsetFetchRequestTopic::default()
                .with_name(topic)
                .with_partition_indexes(partitions);
            request
                .with_group_id(name(group).into())
                .with_topics(Some(vec![topic]))
        } else {
            let topic = r::OffsetFetchRequestTopics::default()
                .with_name(topic)
                .with_partition_indexes(partitions);
            let group = r::OffsetFetchRequestGroup::default()
                .with_group_id(name(group).into())
                .with_topics(Some(vec![topic]));
            request.with_groups(vec![group])
        };
        let answer = c.call(version, &request).await?;
        let (whole, part) = if version < 8 {
            let part = answer.topics.first().and_then(|t| t.partitions.first());
            (
                answer.error_code,
                part.map(|p| (p.error_code, p.committed_offset)),
            )
        } else {
            let group = answer.groups.first().expect("the group that was asked for");
            let part = group.topics.first().and_then(|t| t.partitions.first());
            (
                group.error_code,
                part.map(|p| (p.error_code, p.committed_offset)),
            )
        };
        let (code, offset) = part.unwrap_or((whole, -1));
        let code = if whole == 0 { code } else { whole };
        if later(code) {
            assert!(
                began.elapsed().as_secs() < 120,
                "{group} isn't loaded: {code}"
            );
            rt::sleep(Duration::from_millis(5)).await;
            continue;
        }
        assert_eq!(code, 0, "{group} {place:?}");
        let mut all = outside.committed.borrow_mut();
        let known = all.entry((group, place)).or_default();
        let offset = (offset >= 0).then_some(offset);
        assert!(
            offset >= known.floor && offset.is_none_or(|o| o <= known.sent),
            "{group} {place:?}: {offset:?} is committed, and {known:?} was known"
        );
        known.floor = offset;
        return Ok(offset);
    }
}

/// A member of a generation; the empty one of none.
#[derive(Clone, Debug)]
struct Member {
    id: StrBytes,
    generation: i32,
}

async fn commit(
    outside: &Outside,
    c: &mut Connection,
    group: &'static str,
    member: &Member,
    place: Place,
    offset: i64,
) -> Result<i16, Gone> {
    use m::offset_commit_request as r;
    let version = 2 + draw(8) as i16;
    let part = r::OffsetCommitRequestPartition::default()
        .with_partition_index(place.1)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(name("simulated")));
    let topic = r::OffsetCommitRequestTopic::default()
        .with_name(name(TOPICS[place.0].0).into())
        .with_partitions(vec![part]);
    let request = m::OffsetCommitRequest::default()
        .with_group_id(name(group).into())
        .with_generation_id_or_member_epoch(member.generation)
        .with_member_id(member.id.clone())
        .with_topics(vec![topic]);
    {
        let mut all = outside.committed.borrow_mut();
        let known = all.entry((group, place)).or_default();
        known.sent = known.sent.max(offset);
    }
    let answer = c.call(version, &request).await?;
    let code = answer.topics[0].partitions[0].error_code;
    if code == 0 {
        let mut all = outside.committed.borrow_mut();
        let known = all.entry((group, place)).or_default();
        known.floor = known.floor.max(Some(offset));
        outside.count(|k| k.commits += 1);
    }
    Ok(code)
}

/// Somebody who commits without being a member.
pub async fn committer(outside: Rc<Outside>, rounds: u64) {
    let nobody = Member {
        id: StrBytes::default(),
        generation: -1,
    };
    let mut connection = None;
    for _ in 0..rounds {
        if outside.stopping.get() {
            return;
        }
        let Some(c) = connection.as_mut() else {
            connection = connect(&outside).await;
            continue;
        };
        let there: Vec<Place> = places()
            .filter(|p| outside.topics[p.0].there.get())
            .collect();
        if !there.is_empty() {
            let place = there[draw(there.len() as u64) as usize];
            match some_offset(&outside, c, &nobody, place).await {
                Err(Gone) => connection = None,
                Ok(code) => assert!(code == 0 || later(code), "a commit: {code}"),
            }
        }
        pause().await;
    }
}

async fn some_offset(
    outside: &Outside,
    c: &mut Connection,
    nobody: &Member,
    place: Place,
) -> Result<i16, Gone> {
    let before = fetched(outside, c, GROUPS[1], place).await?;
    let next = before.unwrap_or(0) + draw(5) as i64;
    commit(outside, c, GROUPS[1], nobody, place, next).await
}

/// A member that joins, commits for a while, leaves or is lost, and comes back.
pub async fn member(outside: Rc<Outside>, rounds: u64) {
    let mut connection = None;
    let mut member = None;
    for _ in 0..rounds {
        if outside.stopping.get() {
            return;
        }
        let Some(c) = connection.as_mut() else {
            connection = connect(&outside).await;
            continue;
        };
        let went = match &member {
            None => join(&outside, c).await.map(|joined| member = joined),
            Some(known) => step(&outside, c, known).await.map(|stays| {
                if !stays {
                    member = None;
                }
            }),
        };
        if went.is_err() {
            connection = None;
        }
        pause().await;
    }
}

async fn join(outside: &Outside, c: &mut Connection) -> Result<Option<Member>, Gone> {
    let version = draw(7) as i16;
    let find = m::FindCoordinatorRequest::default();
    let code = if version >= 4 {
        let request = find.with_coordinator_keys(vec![name(GROUPS[0])]);
        c.call(version, &request).await?.coordinators[0].error_code
    } else {
        let request = find.with_key(name(GROUPS[0]));
        c.call(version, &request).await?.error_code
    };
    if code != 0 {
        assert!(later(code), "a coordinator is looked for: {code}");
        rt::sleep(Duration::from_millis(10)).await;
        return Ok(None);
    }
    let version = draw(10) as i16;
    let protocol = m::join_group_request::JoinGroupRequestProtocol::default()
        .with_name(name("range"))
        .with_metadata(Bytes::from_static(b"\0\0\0\0\0\x01\0\x05sim-0\0\0\0\0"));
    let mut request = m::JoinGroupRequest::default()
        .with_group_id(name(GROUPS[0]).into())
        .with_session_timeout_ms(6_000)
        .with_protocol_type(name("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request = request.with_rebalance_timeout_ms(300);
    }
    let mut answer = c.call(version, &request).await?;
    if answer.error_code == 79 {
        // It is given an id first.
        request = request.with_member_id(answer.member_id.clone());
        answer = c.call(version, &request).await?;
    }
    if answer.error_code != 0 {
        let code = answer.error_code;
        assert!(later(code) || out(code), "a member joins: {code}");
        return Ok(None);
    }
    let member = Member {
        id: answer.member_id.clone(),
        generation: answer.generation_id,
    };
    let assignments = answer
        .members
        .iter()
        .map(|other| {
            m::sync_group_request::SyncGroupRequestAssignment::default()
                .with_member_id(other.member_id.clone())
                .with_assignment(Bytes::from_static(b"\0\0\0\0\0\0\0\0\0\0"))
        })
        .collect();
    let version = draw(6) as i16;
    let mut sync = m::SyncGroupRequest::default()
        .with_group_id(name(GROUPS[0]).into())
        .with_generation_id(member.generation)
        .with_member_id(member.id.clone())
        .with_assignments(assignments);
    if version >= 5 {
        sync = sync
            .with_protocol_type(Some(name("consumer")))
            .with_protocol_name(Some(name("range")));
    }
    let code = c.call(version, &sync).await?.error_code;
    if code != 0 {
        assert!(later(code) || out(code), "a member syncs: {code}");
        return Ok(None);
    }
    outside.count(|k| k.members += 1);
    Ok(Some(member))
}

/// One thing that a member does. False when it is none any more.
async fn step(outside: &Outside, c: &mut Connection, member: &Member) -> Result<bool, Gone> {
    let id = || (name(GROUPS[0]).into(), member.id.clone());
    if chance(20) {
        let (group, member) = id();
        let request = m::LeaveGroupRequest::default()
            .with_group_id(group)
            .with_member_id(member);
        let code = c.call(draw(3) as i16, &request).await?.error_code;
        assert!(
            code == 0 || later(code) || out(code),
            "a member leaves: {code}"
        );
        return Ok(false);
    }
    if chance(3) {
        let (group, id) = id();
        let request = m::HeartbeatRequest::default()
            .with_group_id(group)
            .with_generation_id(member.generation)
            .with_member_id(id);
        let code = c.call(draw(5) as i16, &request).await?.error_code;
        assert!(code == 0 || later(code) || out(code), "a heartbeat: {code}");
        return Ok(!out(code));
    }
    let place = (0, draw(3) as i32);
    if !outside.topics[0].there.get() {
        return Ok(true);
    }
    let before = fetched(outside, c, GROUPS[0], place).await?;
    let end = outside.log(place).known_end();
    let next = before.unwrap_or(0);
    let next = next + draw((end - next).max(0) as u64 + 1) as i64;
    let code = commit(outside, c, GROUPS[0], member, place, next).await?;
    assert!(
        code == 0 || later(code) || out(code),
        "a member commits: {code}"
    );
    Ok(!out(code))
}
