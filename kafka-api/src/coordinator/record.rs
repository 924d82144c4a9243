//! The records of `__consumer_offsets`, in Kafka's own format, so that Kafka's tools read them.
//!
//! A key begins with an i16 that says what it is: 0 and 1 an offset (group, topic, partition i32), 2 a group (group). A value begins with an i16
//! version; null takes the thing away. Written are, as by Kafka 4.4: offsets in version 4 (offset i64, leader epoch i32, compact metadata, commit time
//! i64, tags: 0 is the topic's id), in version 1 when the client set an expiry (offset, metadata, commit time, expiry); groups in version 3
//! (protocol type, generation i32, protocol, leader, time of the state i64, members). Read are all versions that Kafka has; keys of other
//! kinds are passed over.
//!
//! What is read comes from our own log; it is still parsed as bytes from outside: every failure is a [`BadRecord`].

use bytes::{BufMut, Bytes, BytesMut};
use engine::batch::{BatchHeader, HEADER_BYTES, LENGTH_PREFIX_BYTES, reseal};
use thiserror::Error;
use uuid::Uuid;

use super::group::{Committed, Group, Member};
use super::{Name, own};
use crate::codec::{Codec, Compressor, Decompressor, Target};
use crate::error::Malformed;
use crate::limits;
use crate::wire::{Reader, Writer};

/// One record: a key and a value, or none to take the key away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// What a record says.
#[derive(Debug)]
pub enum Said {
    Offset {
        group: Name,
        topic: Name,
        partition: i32,
        /// `None`: it is gone.
        committed: Option<Committed>,
    },
    Group {
        group: Name,
        value: Option<Box<GroupValue>>,
    },
    /// Something that this coordinator keeps nothing of.
    Other,
}

/// A group as its record has it. Of a member's protocols it keeps the one in force.
#[derive(Debug)]
pub struct GroupValue {
    pub protocol_type: Name,
    pub generation: i32,
    pub protocol: Option<Name>,
    pub leader: Option<Name>,
    pub since_ms: Option<i64>,
    pub members: Vec<Member>,
}

/// Why a record or a batch of them can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadRecord {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("a value of version {0}, which is not known")]
    Version(i16),
    #[error("the batch's records can't be read")]
    Batch,
}

fn key(kind: i16, group: &str) -> BytesMut {
    let mut key = BytesMut::with_capacity(8 + group.len());
    key.put_i16(kind);
    key.put_str(group, false);
    key
}

fn offset_key(group: &str, topic: &str, partition: i32) -> Bytes {
    let mut key = key(1, group);
    key.put_str(topic, false);
    key.put_i32(partition);
    key.freeze()
}

pub fn offset(group: &str, topic: &str, partition: i32, c: &Committed) -> Record {
    let mut value = BytesMut::with_capacity(48 + c.metadata.len());
    if let Some(expire_ms) = c.expire_ms {
        value.put_i16(1);
        value.put_i64(c.offset);
        value.put_str(&c.metadata, false);
        value.put_i64(c.commit_ms);
        value.put_i64(expire_ms);
    } else {
        value.put_i16(4);
        value.put_i64(c.offset);
        value.put_i32(c.leader_epoch);
        value.put_str(&c.metadata, true);
        value.put_i64(c.commit_ms);
        if c.topic_id.is_nil() {
            value.put_no_tags(true);
        } else {
            value.put_slice(&[1, 0, 16]);
            value.put_slice(c.topic_id.as_bytes());
        }
    }
    Record {
        key: offset_key(group, topic, partition),
        value: Some(value.freeze()),
    }
}

pub fn offset_tombstone(group: &str, topic: &str, partition: i32) -> Record {
    Record {
        key: offset_key(group, topic, partition),
        value: None,
    }
}

pub fn group_tombstone(group: &str) -> Record {
    Record {
        key: key(2, group).freeze(),
        value: None,
    }
}

/// The record of a group, with the assignments that `assigned` gives.
pub fn group(group: &Group, assigned: impl Fn(&Member) -> Bytes, now_ms: i64) -> Record {
    let protocol = group.protocol.clone().unwrap_or_default();
    let mut value = BytesMut::with_capacity(64 + 256 * group.size());
    value.put_i16(3);
    value.put_str(group.protocol_type.as_deref().unwrap_or(""), false);
    value.put_i32(group.generation);
    value.put_nullable_str(group.protocol.as_deref(), false);
    value.put_nullable_str(group.leader.as_deref(), false);
    value.put_i64(group.since_ms.unwrap_or(now_ms));
    value.put_array(group.size(), false);
    for m in group.members() {
        value.put_str(&m.id, false);
        value.put_nullable_str(m.instance.as_deref(), false);
        value.put_str(&m.client_id, false);
        value.put_str(&m.client_host, false);
        value.put_i32(m.rebalance_timeout_ms);
        value.put_i32(m.session_timeout_ms);
        for bytes in [m.metadata(&protocol), assigned(m)] {
            value.put_bytes_length(bytes.len(), false);
            value.put_slice(&bytes);
        }
    }
    Record {
        key: key(2, &group.id).freeze(),
        value: Some(value.freeze()),
    }
}

/// Reads one record.
pub fn read(record: &Record) -> Result<Said, BadRecord> {
    let mut r = Reader::new(record.key.clone());
    match r.i16()? {
        0 | 1 => {
            let (group, topic) = (r.string(false)?, r.string(false)?);
            let partition = r.i32()?;
            let value = record.value.clone();
            Ok(Said::Offset {
                group,
                topic,
                partition,
                committed: value.map(read_offset).transpose()?,
            })
        }
        2 => {
            let group = r.string(false)?;
            let value = record.value.clone();
            Ok(Said::Group {
                group,
                value: value.map(read_group).transpose()?.map(Box::new),
            })
        }
        _ => Ok(Said::Other),
    }
}

fn read_offset(value: Bytes) -> Result<Committed, BadRecord> {
    let mut r = Reader::new(value);
    let version = r.i16()?;
    if !(0..=4).contains(&version) {
        return Err(BadRecord::Version(version));
    }
    let flexible = version >= 4;
    let offset = r.i64()?;
    let leader_epoch = if version >= 3 { r.i32()? } else { -1 };
    let metadata = own(&r.string(flexible)?);
    let commit_ms = r.i64()?;
    let expire_ms = if version == 1 { Some(r.i64()?) } else { None };
    let mut topic_id = Uuid::nil();
    r.tags(flexible, |tag, field| {
        if tag == 0 {
            topic_id = field.uuid()?;
        }
        Ok(())
    })?;
    Ok(Committed {
        offset,
        leader_epoch,
        metadata,
        commit_ms,
        expire_ms: expire_ms.filter(|ms| *ms >= 0),
        topic_id,
    })
}

fn read_group(value: Bytes) -> Result<GroupValue, BadRecord> {
    let mut r = Reader::new(value);
    let version = r.i16()?;
    if !(0..=4).contains(&version) {
        return Err(BadRecord::Version(version));
    }
    let flexible = version >= 4;
    let name = |r: &mut Reader| Ok::<_, Malformed>(own(&r.string(flexible)?));
    let nullable = |r: &mut Reader| {
        let found = r.nullable_string(flexible)?;
        Ok::<_, Malformed>(found.as_deref().map(own))
    };
    let bytes = |r: &mut Reader| {
        let found = r.nullable_bytes(flexible)?.ok_or(Malformed::Null)?;
        Ok::<_, Malformed>(Bytes::copy_from_slice(&found))
    };
    let protocol_type = name(&mut r)?;
    let generation = r.i32()?;
    let protocol = nullable(&mut r)?;
    let leader = nullable(&mut r)?;
    let since_ms = if version >= 2 { r.i64()? } else { -1 };
    let count = r.array(flexible, 16)?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let id = name(&mut r)?;
        let instance = if version >= 3 {
            nullable(&mut r)?
        } else {
            None
        };
        let (client_id, client_host) = (name(&mut r)?, name(&mut r)?);
        let rebalance = if version >= 1 { Some(r.i32()?) } else { None };
        let session_timeout_ms = r.i32()?;
        let (subscription, assignment) = (bytes(&mut r)?, bytes(&mut r)?);
        r.skip_tags(flexible)?;
        members.push(Member {
            id,
            instance,
            client_id,
            client_host,
            rebalance_timeout_ms: rebalance.unwrap_or(session_timeout_ms),
            session_timeout_ms,
            protocols: vec![(protocol.clone().unwrap_or_default(), subscription)],
            assignment,
            is_new: false,
            join: None,
            sync: None,
        });
    }
    r.skip_tags(flexible)?;
    Ok(GroupValue {
        protocol_type,
        generation,
        protocol,
        leader,
        since_ms: Some(since_ms).filter(|ms| *ms >= 0),
        members,
    })
}

fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut v = ((value << 1) ^ (value >> 63)) as u64;
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn varlong_bytes(value: i64) -> usize {
    let v = ((value << 1) ^ (value >> 63)) as u64;
    (64 - v.leading_zeros() as usize).div_ceil(7).max(1)
}

/// A batch of records, as a producer without an id would send it; large ones are compressed.
pub fn batch(records: &[Record], now_ms: i64) -> Bytes {
    assert!(!records.is_empty(), "a batch has records");
    let mut body = Vec::new();
    for (delta, record) in records.iter().enumerate() {
        let delta = delta as i64;
        let (key, value) = (record.key.len(), record.value.as_ref().map(Bytes::len));
        let value_length = value.map_or(-1, |v| v as i64);
        let length = 2
            + varlong_bytes(delta)
            + varlong_bytes(key as i64)
            + key
            + varlong_bytes(value_length)
            + value.unwrap_or(0)
            + 1;
        put_varlong(&mut body, length as i64);
        // Attributes, and no difference to the batch's time.
        body.extend_from_slice(&[0, 0]);
        put_varlong(&mut body, delta);
        put_varlong(&mut body, key as i64);
        body.extend_from_slice(&record.key);
        put_varlong(&mut body, value_length);
        body.extend_from_slice(record.value.as_deref().unwrap_or_default());
        // No headers.
        body.push(0);
    }
    let codec = if body.len() > limits::GROUP_COMPRESS_BYTES {
        Codec::Zstd
    } else {
        Codec::None
    };
    let mut b = vec![0u8; HEADER_BYTES];
    b.reserve_exact(body.len());
    b[12..16].copy_from_slice(&(-1i32).to_be_bytes());
    b[16] = 2;
    b[21..23].copy_from_slice(&(codec as i16).to_be_bytes());
    b[23..27].copy_from_slice(&(records.len() as i32 - 1).to_be_bytes());
    b[27..35].copy_from_slice(&now_ms.to_be_bytes());
    b[35..43].copy_from_slice(&now_ms.to_be_bytes());
    b[43..51].copy_from_slice(&(-1i64).to_be_bytes());
    b[51..53].copy_from_slice(&(-1i16).to_be_bytes());
    b[53..57].copy_from_slice(&(-1i32).to_be_bytes());
    b[57..61].copy_from_slice(&(records.len() as i32).to_be_bytes());
    let target = Target {
        codec,
        level: Some(1),
    };
    let compressed = Compressor::new(target, b, body.len() as u64).and_then(|mut c| {
        c.write(&body)?;
        c.finish()
    });
    let mut b = compressed.expect("memory takes everything");
    let length = (b.len() - LENGTH_PREFIX_BYTES) as i32;
    b[8..12].copy_from_slice(&length.to_be_bytes());
    reseal(&mut b);
    b.into()
}

/// The records of a stored batch, one after the other. Control batches have none.
pub struct Records {
    bytes: Bytes,
    at: usize,
    left: i32,
}

impl Records {
    pub fn of(batch: &Bytes) -> Result<Records, BadRecord> {
        let header = BatchHeader::parse(batch).map_err(|_| BadRecord::Batch)?;
        let codec = Codec::from_attributes(header.attributes).ok_or(BadRecord::Batch)?;
        let stored = batch.slice(HEADER_BYTES..);
        let bytes = match codec {
            Codec::None => stored,
            codec => decompressed(codec, stored).ok_or(BadRecord::Batch)?,
        };
        Ok(Records {
            bytes,
            at: 0,
            left: if header.is_control() {
                0
            } else {
                header.record_count
            },
        })
    }

    fn varlong(&mut self) -> Option<i64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        None
    }

    fn field(&mut self) -> Option<Option<Bytes>> {
        let length = self.varlong()?;
        if length == -1 {
            return Some(None);
        }
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        if end > self.bytes.len() {
            return None;
        }
        let field = self.bytes.slice(self.at..end);
        self.at = end;
        Some(Some(field))
    }

    fn one(&mut self) -> Option<Record> {
        let length = usize::try_from(self.varlong()?).ok()?;
        let end = self.at.checked_add(length)?;
        if end > self.bytes.len() {
            return None;
        }
        self.at += 1;
        self.varlong()?;
        self.varlong()?;
        let key = self.field()?;
        let value = self.field()?;
        // Headers, which nobody sets here, are passed over.
        if self.at > end {
            return None;
        }
        self.at = end;
        Some(Record { key: key?, value })
    }
}

impl Iterator for Records {
    type Item = Result<Record, BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            return None;
        }
        self.left -= 1;
        let one = self.one();
        if one.is_none() {
            self.left = 0;
        }
        Some(one.ok_or(BadRecord::Batch))
    }
}

fn decompressed(codec: Codec, stored: Bytes) -> Option<Bytes> {
    let mut stream = Decompressor::new(codec, stored).ok()?;
    let mut all = Vec::new();
    let mut piece = vec![0; limits::CHECK_SLICE_BYTES];
    loop {
        let n = stream.read(&mut piece).ok()?;
        if n == 0 {
            return Some(all.into());
        }
        if all.len() + n > limits::GROUP_BATCH_BYTES {
            return None;
        }
        all.extend_from_slice(&piece[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn committed(expire_ms: Option<i64>, topic_id: u128) -> Committed {
        Committed {
            offset: 42,
            leader_epoch: if expire_ms.is_some() { -1 } else { 7 },
            metadata: own("where I was"),
            commit_ms: 1_000,
            expire_ms,
            topic_id: Uuid::from_u128(topic_id),
        }
    }

    /// The bytes that Kafka 4.4 writes.
    #[test]
    fn offsets_are_in_kafkas_format() {
        let r = offset("g", "orders", 3, &committed(None, 5));
        assert_eq!(&r.key[..], b"\0\x01\0\x01g\0\x06orders\0\0\0\x03");
        let value = r.value.clone().unwrap();
        assert_eq!(&value[..2], b"\0\x04");
        assert_eq!(&value[value.len() - 19..value.len() - 16], [1, 0, 16]);
        let expiring = offset("g", "orders", 3, &committed(Some(9_000), 0));
        assert_eq!(&expiring.value.unwrap()[..2], b"\0\x01");
        assert_eq!(offset_tombstone("g", "orders", 3).key, r.key);
        assert_eq!(&group_tombstone("g").key[..], b"\0\x02\0\x01g");
    }

    #[test]
    fn offsets_come_back() {
        for c in [
            committed(None, 5),
            committed(None, 0),
            committed(Some(9), 0),
        ] {
            match read(&offset("g", "t", 3, &c)).unwrap() {
                Said::Offset {
                    group,
                    topic,
                    partition,
                    committed,
                } => {
                    assert_eq!((&*group, &*topic, partition), ("g", "t", 3));
                    assert_eq!(committed, Some(c));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            read(&offset_tombstone("g", "t", 3)).unwrap(),
            Said::Offset {
                committed: None,
                ..
            }
        ));
    }

    #[test]
    fn other_kinds_are_passed_over_and_unknown_versions_are_not() {
        let r = |key: &'static [u8], value: &'static [u8]| Record {
            key: Bytes::from_static(key),
            value: Some(Bytes::from_static(value)),
        };
        assert!(matches!(read(&r(b"\0\x05\0\x01g", b"")), Ok(Said::Other)));
        let newer = r(b"\0\x01\0\x01g\0\x01t\0\0\0\0", b"\0\x05");
        assert_eq!(read(&newer).unwrap_err(), BadRecord::Version(5));
    }

    proptest! {
        #[test]
        fn batches_come_back(lengths in proptest::collection::vec((0usize..40, proptest::option::of(0usize..3_000)), 1..200)) {
            let records: Vec<Record> = lengths.iter().map(|(k, v)| Record {
                key: vec![b'k'; *k].into(),
                value: v.map(|n| vec![b'v'; n].into()),
            }).collect();
            let made = batch(&records, 1_000);
            engine::batch::Batch::check(made.clone()).unwrap();
            let back: Result<Vec<Record>, _> = Records::of(&made).unwrap().collect();
            prop_assert_eq!(back.unwrap(), records.clone());
            // The walk that producers' batches go through finds nothing wrong either.
            let header = BatchHeader::parse(&made).unwrap();
            let codec = Codec::from_attributes(header.attributes).unwrap();
            let walked = crate::records::testing::run(crate::records::walk(&header, &made, codec, 1 << 24, &crate::records::testing::room(), &async || {}, |_| std::ops::ControlFlow::Continue(())));
            prop_assert!(walked.is_ok());
        }

        #[test]
        fn any_record_is_answered(key in proptest::collection::vec(any::<u8>(), 0..40), value in proptest::collection::vec(any::<u8>(), 0..80), kind in 0u8..3) {
            let mut keyed = vec![0, kind, 0, 1, b'g'];
            keyed.extend(&key);
            let _ = read(&Record { key: keyed.into(), value: Some(value.clone().into()) });
            let _ = read(&Record { key: key.into(), value: Some(value.into()) });
        }

        #[test]
        fn any_batch_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..61, byte: u8) {
            let mut made = batch(&[offset_tombstone("g", "t", 3)], 5).to_vec();
            made[at] = byte;
            made.extend(bytes);
            if let Ok(records) = Records::of(&made.into()) {
                let _ = records.count();
            }
        }
    }
}
