//! ApiVersions, key 18, versions 0-5, by hand.
//!
//! Lists exactly [`crate::versions::TABLE`], without what is hidden there; no supported or finalized features (so clients use none), features epoch unknown. An unknown version
//! is answered as version 0 with UNSUPPORTED_VERSION and the table (KIP-511). From 3 on the client's software name and version must look like
//! ones, else INVALID_REQUEST; version 5 may say which cluster and node the client thinks it talks to, and another one is told
//! REBOOTSTRAP_REQUIRED (KIP-1242), one without the other INVALID_REQUEST. The response header is version 0 always.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::{ErrorCode, Malformed};
use crate::frame::{Request, finish};
use crate::handlers::Answer;
use crate::schema;
use crate::shard::Shard;
use crate::versions::TABLE;
use crate::wire::{Reader, Writer};

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    schema::check(request)?;
    let cluster_id = shard.view.cluster_id();
    let is_own = |broker| shard.faces().is_own(broker);
    let error = check(request, cluster_id.as_deref(), is_own)?;
    let mut out = request.answer(16 + 7 * TABLE.len());
    write_body(&mut out, request.version, error);
    finish(&mut out, 0);
    Ok(Answer::pieces(vec![out.freeze()]).telling([error.code()]))
}

/// The answer to a version that nobody here speaks.
pub fn unknown_version(correlation_id: i32) -> Bytes {
    let mut out = BytesMut::with_capacity(16 + 6 * TABLE.len());
    out.put_i32(0);
    out.put_i32(correlation_id);
    write_body(&mut out, 0, ErrorCode::UnsupportedVersion);
    finish(&mut out, 0);
    out.freeze()
}

pub(crate) fn check(
    request: &Request,
    cluster_id: Option<&str>,
    is_own: impl Fn(i32) -> bool,
) -> Result<ErrorCode, Malformed> {
    if request.version < 3 {
        return Ok(ErrorCode::None);
    }
    let mut r: Reader = request.body.clone();
    let (name, version) = (r.string(true)?, r.string(true)?);
    if !plausible(&name) || !plausible(&version) {
        return Ok(ErrorCode::InvalidRequest);
    }
    if request.version >= 5 {
        let wanted_cluster = r.nullable_string(true)?;
        let wanted_node = r.i32()?;
        if wanted_cluster.is_some() != (wanted_node != -1) {
            return Ok(ErrorCode::InvalidRequest);
        }
        if let Some(wanted) = wanted_cluster
            && (cluster_id.is_some_and(|id| id != &*wanted) || !is_own(wanted_node))
        {
            return Ok(ErrorCode::RebootstrapRequired);
        }
    }
    Ok(ErrorCode::None)
}

/// Letters and digits, with '-' and '.' between them.
fn plausible(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

pub(crate) fn write_body(out: &mut BytesMut, version: i16, error: ErrorCode) {
    let flexible = version >= 3;
    out.put_i16(error.code());
    // Errors other than an unknown version come without the table, as Kafka's.
    let listed = match error {
        ErrorCode::None | ErrorCode::UnsupportedVersion => TABLE,
        _ => &[],
    };
    let listed = || listed.iter().filter(|api| !api.hidden);
    out.put_array(listed().count(), flexible);
    for api in listed() {
        out.put_i16(api.key as i16);
        out.put_i16(api.advertised_min);
        out.put_i16(api.max);
        out.put_no_tags(flexible);
    }
    if version >= 1 {
        out.put_i32(0);
    }
    out.put_no_tags(flexible);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame};
    use bytes::Buf;
    use kafka_protocol::messages as m;
    use kafka_protocol::protocol::Decodable;

    fn request(version: i16, body: &[u8]) -> Request {
        let mut b = BytesMut::new();
        b.put_i16(18);
        b.put_i16(version);
        b.put_i32(5);
        b.put_i16(-1);
        b.put_no_tags(version >= 3);
        b.put_slice(body);
        match frame::parse(b.freeze()) {
            Ok(Frame::Request(r)) => r,
            other => panic!("{other:?}"),
        }
    }

    fn body(name: &str, version: &str, cluster: Option<Option<&str>>, node: i32) -> BytesMut {
        let mut b = BytesMut::new();
        b.put_str(name, true);
        b.put_str(version, true);
        if let Some(cluster) = cluster {
            b.put_nullable_str(cluster, true);
            b.put_i32(node);
        }
        b.put_u8(0);
        b
    }

    #[test]
    fn the_table_is_read_by_the_library_in_every_version() {
        for version in 0..=5 {
            let mut out = BytesMut::new();
            write_body(&mut out, version, ErrorCode::None);
            let mut bytes = out.freeze();
            let got = m::ApiVersionsResponse::decode(&mut bytes, version.min(4)).unwrap();
            assert!(bytes.is_empty());
            let told = TABLE.iter().filter(|api| !api.hidden).count();
            assert_eq!(got.api_keys.len(), told);
            assert_eq!(got.api_keys[0].min_version, 0, "Produce from 0");
            assert_eq!(got.api_keys[2].max_version, 11, "ListOffsets");
            assert_eq!(got.finalized_features_epoch, -1);
        }
    }

    #[test]
    fn an_unknown_version_is_told_the_table() {
        let mut bytes = unknown_version(77);
        assert_eq!(bytes.get_i32() as usize, bytes.len());
        assert_eq!(bytes.get_i32(), 77);
        let got = m::ApiVersionsResponse::decode(&mut bytes, 0).unwrap();
        assert_eq!(got.error_code, 35);
        let told = TABLE.iter().filter(|api| !api.hidden).count();
        assert_eq!(got.api_keys.len(), told);
    }

    #[test]
    fn clients_say_who_they_are_and_whom_they_want() {
        let check = |version, body: BytesMut| {
            let request = request(version, &body);
            schema::check(&request).unwrap();
            check(&request, Some("this-one"), |broker| broker == 1).unwrap()
        };
        assert_eq!(check(3, body("kcat", "1.7.1-rc", None, 0)), ErrorCode::None);
        for (name, version) in [
            ("", "1"),
            ("a", ""),
            ("a b", "1"),
            ("a", "-1"),
            ("a\0", "1"),
        ] {
            assert_eq!(
                check(4, body(name, version, None, 0)),
                ErrorCode::InvalidRequest
            );
        }
        for (cluster, node, want) in [
            (None, -1, ErrorCode::None),
            (Some("this-one"), 1, ErrorCode::None),
            (Some("another"), 1, ErrorCode::RebootstrapRequired),
            (Some("this-one"), 2, ErrorCode::RebootstrapRequired),
            (Some("another"), -1, ErrorCode::InvalidRequest),
            (None, 2, ErrorCode::InvalidRequest),
            (None, 1, ErrorCode::InvalidRequest),
        ] {
            assert_eq!(check(5, body("a", "1", Some(cluster), node)), want);
        }
    }
}
