//! Request frames: their length, their header, and what to do with what nobody here speaks.
//!
//! A frame is an i32 length and that many bytes: API key i16, version i16, correlation id i32, client id (a nullable string with an i16
//! length, also in flexible versions), tagged fields in flexible versions, then the body. A frame that cannot be read closes its
//! connection. The one exception is ApiVersions in an unknown version: it is answered in version 0 with UNSUPPORTED_VERSION and the
//! table, so that the client can choose a version (KIP-511).

use std::fmt;
use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Malformed;
use crate::limits;
use crate::versions::{self, Api, ApiKey};
use crate::wire::Reader;

/// Checks the length in front of a frame: at least an API key, version and correlation id, at most `max` bytes.
pub fn frame_length(prefix: [u8; 4], max: usize) -> Result<usize, Malformed> {
    let length = i32::from_be_bytes(prefix);
    match usize::try_from(length) {
        Ok(n) if (8..=max).contains(&n) => Ok(n),
        _ => Err(Malformed::FrameSize(length)),
    }
}

/// A request whose header was read.
#[derive(Clone, Debug)]
pub struct Request {
    pub api: &'static Api,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: ClientId,
    /// Where the client is; set by its connection.
    pub peer: Option<SocketAddr>,
    /// Whether it came to the shard's own port; set by its connection.
    pub direct: bool,
    /// What follows the header; its reader still holds the request's whole allowance of array elements and tags.
    pub body: Reader,
    /// The body was walked by its schema and found sound ([`crate::schema::check`]).
    pub checked: bool,
}

/// What a frame turned out to be.
#[derive(Clone, Debug)]
pub enum Frame {
    Request(Request),
    /// ApiVersions in a version that nobody here speaks.
    UnknownApiVersions {
        correlation_id: i32,
    },
}

/// Reads the header of a frame (without its length).
pub fn parse(frame: Bytes) -> Result<Frame, Malformed> {
    let mut r = Reader::new(frame);
    let key = r.i16()?;
    let version = r.i16()?;
    let correlation_id = r.i32()?;
    let unsupported = Malformed::Unsupported { key, version };
    let api = versions::find(key).ok_or(unsupported)?;
    if !api.serves(version) {
        return match api.key {
            ApiKey::ApiVersions => Ok(Frame::UnknownApiVersions { correlation_id }),
            _ => Err(unsupported),
        };
    }
    let client_id = ClientId(r.nullable_raw_string(false)?);
    r.skip_tags(api.flexible(version))?;
    Ok(Frame::Request(Request {
        api,
        version,
        correlation_id,
        client_id,
        peer: None,
        direct: false,
        body: r,
        checked: false,
    }))
}

impl Request {
    pub fn flexible(&self) -> bool {
        self.api.flexible(self.version)
    }

    /// Lets go of the frame: what is left is what an answer and a line in the log need. Whoever waits for something to happen does this once it has read
    /// the body and keeps nothing that is a part of it.
    pub fn let_go(&mut self) {
        self.body = Reader::new(Bytes::new());
        if let Some(id) = &mut self.client_id.0 {
            // A byte more than is shown, so that it is seen that there was more.
            let kept = id.len().min(limits::CLIENT_ID_SHOWN_BYTES + 1);
            *id = Bytes::copy_from_slice(&id[..kept]);
        }
    }

    /// Starts an answer: room for the length, then the response header. [`finish`] fills in the length.
    pub fn answer(&self, body_bytes: usize) -> BytesMut {
        let mut out = BytesMut::with_capacity(9 + body_bytes);
        out.put_i32(0);
        out.put_i32(self.correlation_id);
        if self.api.tagged_response_header(self.version) {
            out.put_u8(0);
        }
        out
    }
}

/// Writes the length into an answer that [`Request::answer`] started; `behind` bytes follow it in other buffers.
pub fn finish(answer: &mut BytesMut, behind: usize) {
    let length = answer.len() - 4 + behind;
    let length = i32::try_from(length).expect("answers are bounded far below 2 GiB");
    answer[..4].copy_from_slice(&length.to_be_bytes());
}

/// The client id as the client sent it. It is shown escaped and cut: it may be any bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientId(pub Option<Bytes>);

impl ClientId {
    /// As a quota names it; empty when the client has none.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.0.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bytes) = &self.0 else {
            return f.write_str("(none)");
        };
        let shown = &bytes[..bytes.len().min(limits::CLIENT_ID_SHOWN_BYTES)];
        write!(f, "{}", shown.escape_ascii())?;
        if shown.len() < bytes.len() {
            f.write_str("...")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_that_lets_go_keeps_nothing_of_its_frame() {
        let mut out = BytesMut::new();
        out.put_slice(&[0, 3, 0, 1, 0, 0, 0, 9]);
        out.put_i16(200);
        out.put_slice(&[b'c'; 200]);
        out.put_slice(&[0; 1_000]);
        let frame = out.freeze();
        let Ok(Frame::Request(mut request)) = parse(frame.clone()) else {
            panic!("a good frame");
        };
        let shown = request.client_id.to_string();
        assert!(!frame.is_unique());
        request.let_go();
        assert!(frame.is_unique());
        assert_eq!(request.client_id.to_string(), shown);
        assert_eq!(request.body.left(), 0);
    }

    #[test]
    fn lengths_outside_the_bounds_are_refused() {
        for bad in [0, 1, 3, 7, -1, i32::MIN, i32::MAX, 101] {
            assert_eq!(
                frame_length(bad.to_be_bytes(), 100),
                Err(Malformed::FrameSize(bad))
            );
        }
        assert_eq!(frame_length(100i32.to_be_bytes(), 100), Ok(100));
        // What a browser, a TLS client and an SSH client send first.
        for bad in [*b"GET ", [0x16, 3, 1, 2], *b"SSH-"] {
            assert!(frame_length(bad, limits::FRAME_BYTES).is_err());
        }
    }

    fn header(key: i16, version: i16, client: Option<&[u8]>) -> Bytes {
        let mut b = BytesMut::new();
        b.put_i16(key);
        b.put_i16(version);
        b.put_i32(7);
        match client {
            Some(c) => {
                b.put_i16(c.len() as i16);
                b.put_slice(c);
            }
            None => b.put_i16(-1),
        }
        b.put_u8(0);
        b.freeze()
    }

    #[test]
    fn what_nobody_speaks_closes_and_api_versions_does_not() {
        for (key, version) in [
            (0, 2),
            (0, 14),
            (1, 3),
            (4, 0),
            (10, 7),
            (999, 0),
            (-1, 0),
            (3, -1),
        ] {
            assert_eq!(
                parse(header(key, version, None)).unwrap_err(),
                Malformed::Unsupported { key, version }
            );
        }
        assert!(matches!(
            parse(header(18, 99, None)),
            Ok(Frame::UnknownApiVersions { correlation_id: 7 })
        ));
    }

    #[test]
    fn client_ids_are_shown_escaped_and_cut() {
        let Ok(Frame::Request(r)) = parse(header(3, 12, Some(b"a\x1b[31m\xff\n"))) else {
            panic!("a good header");
        };
        assert_eq!(r.client_id.to_string(), r"a\x1b[31m\xff\n");
        let Ok(Frame::Request(r)) = parse(header(3, 12, Some(&[b'x'; 30_000]))) else {
            panic!("a good header");
        };
        assert_eq!(
            r.client_id.to_string().len(),
            limits::CLIENT_ID_SHOWN_BYTES + 3
        );
    }

    proptest! {
        #[test]
        fn any_frame_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(bytes.into());
        }

        #[test]
        fn any_header_is_answered(key in 0i16..50, version in 0i16..20, rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut b = BytesMut::new();
            b.put_i16(key);
            b.put_i16(version);
            b.put_slice(&rest);
            let _ = parse(b.freeze());
        }
    }
}
