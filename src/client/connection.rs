//! One connection to one broker: requests in the newest version that both sides know, answers of bounded size.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

use super::ClientError;

/// Largest answer that is read, in bytes.
const ANSWER_BYTES: usize = 256 << 20;
/// How long a connection attempt may take, at most.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Beyond the time that a request allows the broker, for the answer to come.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Connection {
    address: String,
    stream: TcpStream,
    /// The broker's versions by API key.
    versions: BTreeMap<i16, (i16, i16)>,
    correlation: i32,
}

/// Connects, to whichever of the host's addresses answers first in their order.
pub fn connect(address: &str, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the host has no address");
    for found in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&found, timeout.min(CONNECT_TIMEOUT)) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

impl Connection {
    /// Asks for the broker's versions. No read or write takes longer than `timeout` and a moment.
    pub fn open(
        address: &str,
        stream: TcpStream,
        timeout: Duration,
    ) -> Result<Connection, ClientError> {
        let failed = |e: std::io::Error| ClientError::Connection(format!("{address}: {e}"));
        // A broker may hold an answer for the whole time that a request allows.
        let patience = timeout + PATIENCE;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        stream.set_write_timeout(Some(patience)).map_err(failed)?;
        let mut connection = Connection {
            address: address.to_string(),
            stream,
            versions: BTreeMap::from([(ApiVersionsRequest::KEY, (0, 0))]),
            correlation: 0,
        };
        let answer = connection.call(&ApiVersionsRequest::default(), i16::MAX)?;
        super::check(answer.error_code, None)?;
        for key in answer.api_keys {
            connection
                .versions
                .insert(key.api_key, (key.min_version, key.max_version));
        }
        Ok(connection)
    }

    /// The newest version of a request that both sides know and that is not above `newest`.
    pub fn version<R: Request>(&self, newest: i16) -> Result<i16, ClientError> {
        let ours = R::VERSIONS;
        let (low, high) = *self.versions.get(&R::KEY).ok_or_else(|| {
            ClientError::Missing(format!(
                "the broker at {} doesn't support {}; `tailrace cluster apis` shows what it does",
                self.address,
                name::<R>()
            ))
        })?;
        let best = high.min(ours.max).min(newest);
        if best < low.max(ours.min) {
            return Err(ClientError::Missing(format!(
                "the broker at {} supports {} in versions {low} to {high}; this client knows {} to {}",
                self.address,
                name::<R>(),
                ours.min,
                ours.max.min(newest)
            )));
        }
        Ok(best)
    }

    /// Each API key with the lowest and highest version that the broker takes.
    pub fn versions(&self) -> impl Iterator<Item = (i16, i16, i16)> {
        self.versions
            .iter()
            .map(|(key, (min, max))| (*key, *min, *max))
    }

    pub fn supports<R: Request>(&self) -> bool {
        self.version::<R>(i16::MAX).is_ok()
    }

    /// Sends a request and reads its answer.
    pub fn call<R: Request>(
        &mut self,
        request: &R,
        newest: i16,
    ) -> Result<R::Response, ClientError> {
        let version = self.send(request, newest)?;
        let mut answer = self.receive()?;
        let unreadable =
            |e| ClientError::Protocol(format!("the answer to {} can't be read: {e}", name::<R>()));
        let header = ResponseHeader::decode(&mut answer, R::Response::header_version(version))
            .map_err(unreadable)?;
        if header.correlation_id != self.correlation {
            return Err(ClientError::Protocol(
                "an answer to another request came".into(),
            ));
        }
        R::Response::decode(&mut answer, version).map_err(unreadable)
    }

    /// Sends a request; gives the version.
    pub fn send<R: Request>(&mut self, request: &R, newest: i16) -> Result<i16, ClientError> {
        let version = self.version::<R>(newest)?;
        self.correlation = self.correlation.wrapping_add(1);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("tailrace-cli")));
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        header
            .encode(&mut frame, R::header_version(version))
            .and_then(|()| request.encode(&mut frame, version))
            .map_err(|e| ClientError::Usage(format!("{} can't be sent: {e}", name::<R>())))?;
        let length = i32::try_from(frame.len() - 4)
            .map_err(|_| ClientError::Usage("the request is larger than 2 GiB".into()))?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&frame).map_err(|e| self.broken(&e))?;
        Ok(version)
    }

    fn receive(&mut self) -> Result<Bytes, ClientError> {
        let mut length = [0; 4];
        self.stream
            .read_exact(&mut length)
            .map_err(|e| self.broken(&e))?;
        let length = i32::from_be_bytes(length);
        let length = usize::try_from(length)
            .ok()
            .filter(|n| (4..=ANSWER_BYTES).contains(n))
            .ok_or_else(|| {
                ClientError::Protocol(format!(
                    "what listens at {} doesn't answer as a Kafka broker does: --broker takes the address of its Kafka port",
                    self.address
                ))
            })?;
        let mut answer = vec![0; length];
        self.stream
            .read_exact(&mut answer)
            .map_err(|e| self.broken(&e))?;
        Ok(Bytes::from(answer))
    }

    fn broken(&self, e: &std::io::Error) -> ClientError {
        let what = match e.kind() {
            std::io::ErrorKind::UnexpectedEof
            | std::io::ErrorKind::ConnectionReset
            | std::io::ErrorKind::BrokenPipe => {
                "the broker closed the connection; its log says why if it still runs".to_string()
            }
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                "no answer came in time; is this a Kafka broker's port? --timeout-ms allows more time"
                    .to_string()
            }
            _ => e.to_string(),
        };
        ClientError::Connection(format!("{}: {what}", self.address))
    }
}

/// A request's name without its path: `Fetch` for `…::FetchRequest`.
fn name<R>() -> &'static str {
    let full = std::any::type_name::<R>();
    let last = full.rsplit("::").next().unwrap_or(full);
    last.strip_suffix("Request").unwrap_or(last)
}
