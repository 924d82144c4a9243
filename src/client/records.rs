//! Record batches, format v2: what a client writes and reads. Unlike a map, it keeps headers as they are, in order and repeated.
//!
//! Bytes come from a broker and are not trusted: every length is checked, a batch decompresses to at most [`DECOMPRESSED_BYTES`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::compression::{Compressor, Decompressor, Gzip, Lz4, Snappy, Zstd};

use super::ClientError;
use crate::cli::CodecArg;

/// Bytes of a batch before its records.
const HEADER_BYTES: usize = 61;
/// Largest batch after decompression, in bytes.
const DECOMPRESSED_BYTES: usize = 1 << 30;
const CONTROL: i16 = 1 << 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub offset: i64,
    pub timestamp_ms: i64,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

/// Who produces, for the broker to know repeats by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    pub id: i64,
    pub epoch: i16,
    pub sequence: i32,
}

impl Producer {
    pub const NONE: Producer = Producer {
        id: -1,
        epoch: -1,
        sequence: -1,
    };
}

/// One batch of at least one record.
pub fn encode(
    records: &[Record],
    codec: CodecArg,
    producer: Producer,
) -> Result<Bytes, ClientError> {
    let first = records.first().expect("a batch has records").timestamp_ms;
    let last = records
        .iter()
        .map(|r| r.timestamp_ms)
        .max()
        .unwrap_or(first);
    let count = i32::try_from(records.len())
        .map_err(|_| ClientError::Usage("too many records for one batch".into()))?;
    let mut body = BytesMut::new();
    for (delta, record) in records.iter().enumerate() {
        put_record(&mut body, delta as i64, record.timestamp_ms - first, record);
    }
    let body = compress(body, codec)?;
    let mut batch = BytesMut::with_capacity(HEADER_BYTES + body.len());
    batch.put_i64(0);
    batch.put_i32((HEADER_BYTES - 12 + body.len()) as i32);
    batch.put_i32(-1);
    batch.put_i8(2);
    batch.put_u32(0);
    batch.put_i16(codec as i16);
    batch.put_i32(count - 1);
    batch.put_i64(first);
    batch.put_i64(last);
    batch.put_i64(producer.id);
    batch.put_i16(producer.epoch);
    batch.put_i32(producer.sequence);
    batch.put_i32(count);
    batch.put_slice(&body);
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    Ok(batch.freeze())
}

/// The records of a fetch answer, in order, and the offset after the last whole batch. A batch that was cut off at the end is left out, control
/// batches are skipped.
pub fn decode(mut bytes: Bytes) -> Result<(Vec<Record>, Option<i64>), ClientError> {
    let mut records = Vec::new();
    let mut next = None;
    while bytes.len() >= HEADER_BYTES {
        let length = i32::from_be_bytes(bytes[8..12].try_into().expect("4 bytes"));
        let length = usize::try_from(length)
            .ok()
            .filter(|n| *n >= HEADER_BYTES - 12)
            .ok_or_else(|| broken("length"))?;
        if bytes.len() < 12 + length {
            break;
        }
        next = Some(decode_batch(bytes.split_to(12 + length), &mut records)?);
    }
    Ok((records, next))
}

fn broken(what: &str) -> ClientError {
    ClientError::Protocol(format!(
        "the broker sent a record batch with a wrong {what}"
    ))
}

fn decode_batch(mut batch: Bytes, records: &mut Vec<Record>) -> Result<i64, ClientError> {
    let base_offset = batch.get_i64();
    batch.advance(8);
    if batch.get_i8() != 2 {
        return Err(broken("format"));
    }
    if batch.get_u32() != crc32c::crc32c(&batch) {
        return Err(broken("checksum"));
    }
    let attributes = batch.get_i16();
    let last_delta = batch.get_i32();
    let first_timestamp = batch.get_i64();
    let max_timestamp = batch.get_i64();
    batch.advance(14);
    let count = batch.get_i32();
    let next = base_offset
        .wrapping_add(i64::from(last_delta))
        .wrapping_add(1);
    if attributes & CONTROL != 0 {
        return Ok(next);
    }
    let log_append_time = attributes & 8 != 0;
    let mut body = decompress(batch, attributes & 7)?;
    for _ in 0..count {
        let mut record = get_record(&mut body).ok_or_else(|| broken("record"))?;
        record.offset = base_offset.wrapping_add(record.offset);
        record.timestamp_ms = if log_append_time {
            max_timestamp
        } else {
            first_timestamp.wrapping_add(record.timestamp_ms)
        };
        records.push(record);
    }
    Ok(next)
}

fn put_record(out: &mut BytesMut, offset_delta: i64, timestamp_delta: i64, record: &Record) {
    let mut body = BytesMut::new();
    body.put_i8(0);
    put_varint(&mut body, timestamp_delta);
    put_varint(&mut body, offset_delta);
    put_bytes(&mut body, record.key.as_deref());
    put_bytes(&mut body, record.value.as_deref());
    put_varint(&mut body, record.headers.len() as i64);
    for (name, value) in &record.headers {
        put_bytes(&mut body, Some(name));
        put_bytes(&mut body, value.as_deref());
    }
    put_varint(out, body.len() as i64);
    out.put_slice(&body);
}

/// A record with its deltas in the places of offset and timestamp.
fn get_record(bytes: &mut Bytes) -> Option<Record> {
    let length = usize::try_from(get_varint(bytes)?).ok()?;
    if length > bytes.len() || length == 0 {
        return None;
    }
    let mut body = bytes.split_to(length);
    body.advance(1);
    let timestamp_ms = get_varint(&mut body)?;
    let offset = get_varint(&mut body)?;
    let key = get_bytes(&mut body)?;
    let value = get_bytes(&mut body)?;
    let mut headers = Vec::new();
    for _ in 0..get_varint(&mut body)? {
        headers.push((get_bytes(&mut body)??, get_bytes(&mut body)?));
    }
    Some(Record {
        offset,
        timestamp_ms,
        key,
        value,
        headers,
    })
}

fn put_varint(out: &mut BytesMut, v: i64) {
    let mut zigzag = ((v << 1) ^ (v >> 63)) as u64;
    while zigzag >= 0x80 {
        out.put_u8(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    out.put_u8(zigzag as u8);
}

fn get_varint(bytes: &mut Bytes) -> Option<i64> {
    let mut v = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = bytes.try_get_u8().ok()?;
        v |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((v >> 1) as i64 ^ -((v & 1) as i64));
        }
    }
    None
}

fn put_bytes(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, bytes.len() as i64);
            out.put_slice(bytes);
        }
    }
}

fn get_bytes(bytes: &mut Bytes) -> Option<Option<Bytes>> {
    match get_varint(bytes)? {
        -1 => Some(None),
        n => {
            let n = usize::try_from(n).ok().filter(|n| *n <= bytes.len())?;
            Some(Some(bytes.split_to(n)))
        }
    }
}

fn compress(body: BytesMut, codec: CodecArg) -> Result<Bytes, ClientError> {
    let mut out = BytesMut::new();
    let put = |to: &mut BytesMut| {
        to.put_slice(&body);
        Ok(())
    };
    match codec {
        CodecArg::None => return Ok(body.freeze()),
        CodecArg::Gzip => Gzip::compress(&mut out, put),
        CodecArg::Snappy => Snappy::compress(&mut out, put),
        CodecArg::Lz4 => Lz4::compress(&mut out, put),
        CodecArg::Zstd => Zstd::compress(&mut out, put),
    }
    .map_err(|e| ClientError::Usage(format!("can't compress: {e}")))?;
    Ok(out.freeze())
}

fn decompress(mut body: Bytes, codec: i16) -> Result<Bytes, ClientError> {
    let take = |from: &mut Bytes| Ok(from.split_off(0));
    let plain = match codec {
        0 => return Ok(body),
        1 => Gzip::decompress(&mut body, take),
        2 => Snappy::decompress(&mut body, take),
        3 => Lz4::decompress(&mut body, take),
        4 => Zstd::decompress(&mut body, take),
        _ => return Err(broken("codec")),
    }
    .map_err(|e| ClientError::Protocol(format!("a record batch can't be decompressed: {e}")))?;
    if plain.len() > DECOMPRESSED_BYTES {
        return Err(broken("size"));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODECS: [CodecArg; 5] = [
        CodecArg::None,
        CodecArg::Gzip,
        CodecArg::Snappy,
        CodecArg::Lz4,
        CodecArg::Zstd,
    ];

    fn sample() -> Vec<Record> {
        let bytes = |s: &'static str| Some(Bytes::from_static(s.as_bytes()));
        (0..300)
            .map(|i| Record {
                offset: i,
                timestamp_ms: 1_700_000_000_000 - i * 7 % 3,
                key: (i % 3 > 0).then(|| Bytes::from(format!("key {i}"))),
                value: (i % 5 > 0).then(|| Bytes::from(vec![i as u8; i as usize])),
                headers: match i % 2 {
                    0 => vec![],
                    _ => vec![
                        (Bytes::from_static(b"h"), bytes("1")),
                        (Bytes::from_static(b"h"), None),
                        (Bytes::new(), bytes("")),
                    ],
                },
            })
            .collect()
    }

    #[test]
    fn batches_read_back_in_every_codec() {
        for codec in CODECS {
            let records = sample();
            let batch = encode(&records, codec, Producer::NONE).unwrap();
            assert_eq!(decode(batch).unwrap(), (records, Some(300)), "{codec:?}");
        }
    }

    #[test]
    fn the_engine_takes_our_batches() {
        for codec in CODECS {
            let producer = Producer {
                id: 7,
                epoch: 1,
                sequence: 5,
            };
            let batch = encode(&sample(), codec, producer).unwrap();
            let checked = engine::batch::Batch::check(batch).expect("a sound batch");
            assert_eq!(checked.header.producer_id, 7);
        }
    }

    #[test]
    fn a_batch_cut_off_is_left_out_and_damage_is_told() {
        let records = sample();
        let one = encode(&records, CodecArg::Zstd, Producer::NONE).unwrap();
        let mut two = BytesMut::from(&one[..]);
        two.extend_from_slice(&one[..one.len() - 1]);
        assert_eq!(decode(two.freeze()).unwrap().0.len(), 300);
        assert_eq!(decode(one.slice(..40)).unwrap(), (vec![], None));
        for at in 12..one.len() {
            let mut flipped = BytesMut::from(&one[..]);
            flipped[at] ^= 0x40;
            // The leader epoch is outside the checksum.
            assert!(
                decode(flipped.freeze()).is_err() || (12..16).contains(&at),
                "byte {at}"
            );
        }
    }
}
