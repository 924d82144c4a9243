//! The formats of this crate: the state that the log keeps for a group without looking into it, and a configuration change as it lies in
//! the log. Own encodings, big-endian; nothing from disk or network is ever parsed as protobuf.
//!
//! State, version 1: version u8; configuration; producers ([`Producers::encode`]); the sink's own state, u32 length and bytes.
//! Configuration: voters, learners, outgoing voters, learners to be, each as count u8 and u64 ids; auto-leave u8.
//! Configuration change, version 1: version u8, transition u8 (0 auto, 1 implicit, 2 explicit), count u8, per change type u8 (0 add voter,
//! 1 remove, 2 add learner) and id u64. No bytes at all mean "leave the joint configuration".
//!
//! Decoding takes any bytes: it answers with an error and allocates no more than the input is long.

use bytes::Bytes;
use engine::types::Offset;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};
use thiserror::Error;

use crate::limits;
use crate::producers::{Producers, Remembered};

const STATE_VERSION: u8 = 1;
const CHANGE_VERSION: u8 = 1;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum DecodeError {
    #[error("the state ends too early")]
    Short,
    #[error("the state has an unknown version")]
    Version,
    #[error("the state holds an impossible value")]
    Value,
    #[error("the state is followed by other bytes")]
    Trailing,
}

/// A decoded state.
#[derive(Debug)]
pub(crate) struct GroupState {
    pub conf: ConfState,
    pub producers: Producers,
    pub sink: Bytes,
}

pub(crate) fn encode_state(conf: &ConfState, producers: &Producers, sink: &[u8]) -> Bytes {
    let mut out = encode_front(conf, producers, sink.len()).to_vec();
    out.extend_from_slice(sink);
    out.into()
}

/// A state up to the sink's own, of `sink_bytes`, which follows.
pub(crate) fn encode_front(conf: &ConfState, producers: &Producers, sink_bytes: usize) -> Bytes {
    let mut out = Vec::with_capacity(64 + producers.encoded_bytes());
    out.push(STATE_VERSION);
    encode_conf(conf, &mut out);
    producers.encode(&mut out);
    let length = u32::try_from(sink_bytes).expect("the sink's state is far below 4 GiB");
    out.extend_from_slice(&length.to_be_bytes());
    out.into()
}

pub(crate) fn decode_state(bytes: &Bytes) -> Result<GroupState, DecodeError> {
    let mut r = Reader(bytes);
    if r.u8()? != STATE_VERSION {
        return Err(DecodeError::Version);
    }
    let conf = decode_conf(&mut r)?;
    let producers = decode_producers(&mut r)?;
    let length = r.u32()? as usize;
    if length > r.0.len() {
        return Err(DecodeError::Short);
    }
    let sink = bytes.slice_ref(&r.0[..length]);
    r.0 = &r.0[length..];
    r.end()?;
    Ok(GroupState {
        conf,
        producers,
        sink,
    })
}

/// A new group's configuration.
pub(crate) fn voters(ids: &[u64]) -> ConfState {
    ConfState::from((ids.to_vec(), vec![]))
}

fn encode_conf(conf: &ConfState, out: &mut Vec<u8>) {
    for ids in [
        &conf.voters,
        &conf.learners,
        &conf.voters_outgoing,
        &conf.learners_next,
    ] {
        assert!(
            ids.len() <= limits::MEMBERS,
            "a configuration has at most {} members of a kind",
            limits::MEMBERS
        );
        out.push(ids.len() as u8);
        for id in ids {
            out.extend_from_slice(&id.to_be_bytes());
        }
    }
    out.push(u8::from(conf.auto_leave));
}

fn decode_conf(r: &mut Reader) -> Result<ConfState, DecodeError> {
    let mut kinds = [const { Vec::new() }; 4];
    for ids in &mut kinds {
        for _ in 0..r.u8()? {
            let id = r.u64()?;
            if id == 0 || ids.contains(&id) {
                return Err(DecodeError::Value);
            }
            ids.push(id);
        }
    }
    let [voters, learners, voters_outgoing, learners_next] = kinds;
    let auto_leave = match r.u8()? {
        0 => false,
        1 => true,
        _ => return Err(DecodeError::Value),
    };
    // What raft would take as a broken invariant of its own.
    let joint = !voters_outgoing.is_empty();
    let learner_votes = learners
        .iter()
        .any(|l| voters.contains(l) || voters_outgoing.contains(l));
    let next_is_odd = learners_next
        .iter()
        .any(|l| !voters_outgoing.contains(l) || voters.contains(l));
    if voters.is_empty() || learner_votes || next_is_odd || (!joint && auto_leave) {
        return Err(DecodeError::Value);
    }
    let mut conf = ConfState::from((voters, learners));
    conf.voters_outgoing = voters_outgoing;
    conf.learners_next = learners_next;
    conf.auto_leave = auto_leave;
    Ok(conf)
}

fn decode_producers(r: &mut Reader) -> Result<Producers, DecodeError> {
    let mut producers = Producers::default();
    for _ in 0..r.u32()? {
        let id = r.u64()? as i64;
        let last_write_ms = r.u64()? as i64;
        let count = usize::from(r.u8()?);
        if id < 0 || count == 0 || count > limits::BATCHES_REMEMBERED {
            return Err(DecodeError::Value);
        }
        let mut batches = smallvec::SmallVec::<[Remembered; limits::BATCHES_REMEMBERED]>::new();
        for _ in 0..count {
            batches.push(Remembered {
                epoch: r.u16()? as i16,
                first_sequence: r.u32()? as i32,
                last_sequence: r.u32()? as i32,
                covered: r.u32()?,
                base_offset: Offset(r.u64()? as i64),
                timestamp: r.u64()? as i64,
            });
        }
        producers.adopt(id, last_write_ms, &batches);
    }
    Ok(producers)
}

pub(crate) fn encode_change(change: &ConfChangeV2) -> Bytes {
    if change.changes.is_empty() {
        return Bytes::new();
    }
    let mut out = vec![CHANGE_VERSION];
    out.push(match change.get_transition() {
        ConfChangeTransition::Auto => 0,
        ConfChangeTransition::Implicit => 1,
        ConfChangeTransition::Explicit => 2,
    });
    assert!(
        change.changes.len() <= limits::MEMBERS,
        "a change touches at most {} members",
        limits::MEMBERS
    );
    out.push(change.changes.len() as u8);
    for c in &change.changes {
        out.push(match c.get_change_type() {
            ConfChangeType::AddNode => 0,
            ConfChangeType::RemoveNode => 1,
            ConfChangeType::AddLearnerNode => 2,
        });
        out.extend_from_slice(&c.node_id.to_be_bytes());
    }
    out.into()
}

pub(crate) fn decode_change(bytes: &[u8]) -> Result<ConfChangeV2, DecodeError> {
    let mut change = ConfChangeV2::default();
    if bytes.is_empty() {
        return Ok(change);
    }
    let mut r = Reader(bytes);
    if r.u8()? != CHANGE_VERSION {
        return Err(DecodeError::Version);
    }
    change.set_transition(match r.u8()? {
        0 => ConfChangeTransition::Auto,
        1 => ConfChangeTransition::Implicit,
        2 => ConfChangeTransition::Explicit,
        _ => return Err(DecodeError::Value),
    });
    let mut changes = Vec::new();
    for _ in 0..r.u8()? {
        let kind = match r.u8()? {
            0 => ConfChangeType::AddNode,
            1 => ConfChangeType::RemoveNode,
            2 => ConfChangeType::AddLearnerNode,
            _ => return Err(DecodeError::Value),
        };
        let node_id = r.u64()?;
        if node_id == 0 {
            return Err(DecodeError::Value);
        }
        let mut one = ConfChangeSingle::default();
        one.set_change_type(kind);
        one.node_id = node_id;
        changes.push(one);
    }
    r.end()?;
    if changes.is_empty() {
        return Err(DecodeError::Value);
    }
    change.set_changes(changes.into());
    Ok(change)
}

/// The new log start that a TrimPrefix entry carries (L9).
pub(crate) fn encode_trim(start: Offset) -> Bytes {
    Bytes::copy_from_slice(&start.0.to_be_bytes())
}

pub(crate) fn decode_trim(bytes: &[u8]) -> Result<Offset, DecodeError> {
    let mut r = Reader(bytes);
    let start = r.u64()? as i64;
    r.end()?;
    if start < 0 {
        return Err(DecodeError::Value);
    }
    Ok(Offset(start))
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|b| b[0])
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_be_bytes)
    }

    fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_state() -> (ConfState, Producers) {
        let mut conf = voters(&[3, 4]);
        conf.learners = vec![9];
        conf.voters_outgoing = vec![3, 5];
        conf.learners_next = vec![5];
        conf.auto_leave = true;
        let mut producers = Producers::default();
        for id in 0..7i64 {
            let batches: Vec<_> = (0..(id as i32 % 5) + 1)
                .map(|n| Remembered {
                    base_offset: Offset(i64::from(n) * 10),
                    timestamp: -1,
                    first_sequence: n,
                    last_sequence: n,
                    covered: n as u32 + 1,
                    epoch: 2,
                })
                .collect();
            producers.adopt(id, id * 1000, &batches);
        }
        (conf, producers)
    }

    #[test]
    fn a_state_comes_back_as_it_went() {
        let (conf, producers) = some_state();
        let bytes = encode_state(&conf, &producers, b"of the sink");
        let back = decode_state(&bytes).unwrap();
        assert_eq!(back.conf, conf);
        assert_eq!(back.sink, "of the sink");
        let again = encode_state(&back.conf, &back.producers, &back.sink);
        assert_eq!(again, bytes);
    }

    #[test]
    fn every_cut_of_a_state_is_an_error() {
        let (conf, producers) = some_state();
        let bytes = encode_state(&conf, &producers, b"x");
        for end in 0..bytes.len() {
            assert!(decode_state(&bytes.slice(..end)).is_err(), "{end}");
        }
    }

    #[test]
    fn a_change_comes_back_as_it_went() {
        let mut one = ConfChangeSingle::default();
        one.set_change_type(ConfChangeType::AddLearnerNode);
        one.node_id = 77;
        let mut change = ConfChangeV2::default();
        change.set_transition(ConfChangeTransition::Explicit);
        change.set_changes(vec![one].into());
        assert_eq!(decode_change(&encode_change(&change)), Ok(change));
        let leave = ConfChangeV2::default();
        assert_eq!(decode_change(&encode_change(&leave)), Ok(leave));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut state = bytes.clone();
            if let Some(first) = state.first_mut() {
                *first = STATE_VERSION;
            }
            let _ = decode_state(&state.into());
            let _ = decode_change(&bytes);
            let _ = decode_trim(&bytes);
        }

        #[test]
        fn a_flipped_byte_never_panics(at in 0usize..1000, to in any::<u8>()) {
            let (conf, producers) = some_state();
            let mut bytes = encode_state(&conf, &producers, b"x").to_vec();
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = decode_state(&bytes.into());
        }
    }
}
