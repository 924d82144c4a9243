//! A client's end of a simulated connection: real frames, encoded and read by the protocol's library.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::rt::{self, TcpStream};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

/// The connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// How long an answer may take, in simulated time.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    sent: i32,
    answered: i32,
}

impl Connection {
    /// `None` while nobody listens.
    pub async fn open(addr: SocketAddr) -> Option<Connection> {
        let stream = TcpStream::connect(addr).await.ok()?;
        Some(Connection {
            stream,
            buffer: BytesMut::new(),
            sent: 0,
            answered: 0,
        })
    }

    /// A whole frame, with its length in front.
    pub fn frame<R: Request>(&mut self, version: i16, request: &R) -> Bytes {
        self.sent += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.sent)
            .with_client_id(Some(StrBytes::from_static_str("simulated")));
        let mut out = BytesMut::new();
        out.put_i32(0);
        header
            .encode(&mut out, R::header_version(version))
            .expect("a header of its version");
        request
            .encode(&mut out, version)
            .unwrap_or_else(|e| panic!("a request of version {version}: {e}"));
        let length = out.len() as i32 - 4;
        out[..4].copy_from_slice(&length.to_be_bytes());
        out.freeze()
    }

    pub async fn send_bytes(&self, bytes: Bytes) -> Result<(), Gone> {
        self.stream
            .write_all_vectored(&[bytes])
            .await
            .map_err(|_| Gone)
    }

    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<(), Gone> {
        let frame = self.frame(version, request);
        self.send_bytes(frame).await
    }

    /// The answer to the oldest request that has none yet. A node that is alive answers in time.
    pub async fn answer<R: Request>(&mut self, version: i16) -> Result<R::Response, Gone> {
        let frame = rt::timeout(PATIENCE, self.next_frame()).await;
        let mut frame = frame.unwrap_or_else(|_| {
            panic!("no answer to a request of key {} version {version}", R::KEY)
        })?;
        self.answered += 1;
        let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version))
            .expect("a readable header");
        assert_eq!(
            header.correlation_id, self.answered,
            "answers come in order"
        );
        let response = R::Response::decode(&mut frame, version)
            .unwrap_or_else(|e| panic!("an answer of key {} version {version}: {e}", R::KEY));
        assert!(!frame.has_remaining(), "an answer ends with its frame");
        Ok(response)
    }

    pub async fn call<R: Request>(
        &mut self,
        version: i16,
        request: &R,
    ) -> Result<R::Response, Gone> {
        self.send(version, request).await?;
        self.answer::<R>(version).await
    }

    async fn next_frame(&mut self) -> Result<Bytes, Gone> {
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<4>() {
                let length = i32::from_be_bytes(*prefix) as usize;
                assert!(length < 64 << 20, "an answer's length: {length}");
                if self.buffer.len() >= 4 + length {
                    self.buffer.advance(4);
                    return Ok(self.buffer.split_to(length).freeze());
                }
            }
            let mut some = [0; 8 << 10];
            match self.stream.read(&mut some).await {
                Ok(0) | Err(_) => return Err(Gone),
                Ok(n) => self.buffer.extend_from_slice(&some[..n]),
            }
        }
    }

    /// Reads and forgets until the other side closes or nothing has come for a while. True when it was closed.
    pub async fn until_closed(&mut self, quiet: Duration) -> bool {
        let mut some = [0; 4 << 10];
        loop {
            match rt::timeout(quiet, self.stream.read(&mut some)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    }

    /// The request sent last gets no answer.
    pub fn expects_none(&mut self) {
        self.answered += 1;
    }

    pub fn cut(&self) {
        self.stream.shutdown();
    }
}
