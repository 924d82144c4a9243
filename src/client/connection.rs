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
    /// It has answered something: it is a broker.
    heard: bool,
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
            heard: false,
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
        self.heard = true;
        Ok(Bytes::from(answer))
    }

    fn broken(&self, e: &std::io::Error) -> ClientError {
        ClientError::Connection(format!("{}: {}", self.address, broken(e, self.heard)))
    }
}

/// Why a connection broke and what to do, by whether the other side has ever answered.
fn broken(e: &std::io::Error, heard: bool) -> String {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    let what = match (e.kind(), heard) {
        (UnexpectedEof | ConnectionReset | BrokenPipe, true) => {
            "the broker closed the connection; its log says why if it still runs"
        }
        (UnexpectedEof | ConnectionReset | BrokenPipe, false) => {
            "the connection was closed before anything was answered: the broker may have as many connections as it takes (max-connections-per-ip; Kafka: max.connections.per.ip), or this is no Kafka port, or one that wants TLS; its log says more"
        }
        (WouldBlock | TimedOut, true) => {
            "the broker didn't answer in time: it may throttle this client (`tailrace quota list` shows the limits), be busy, or be stuck at its disk (`tailrace cluster health`); --timeout-ms allows more time"
        }
        (WouldBlock | TimedOut, false) => {
            "connected, but nothing was answered in time: the broker may have as many connections as it takes (max-connections; Kafka: max.connections) or be starting, or this is no Kafka port; --timeout-ms allows more time"
        }
        _ => return e.to_string(),
    };
    what.to_string()
}

/// A request's name without its path: `Fetch` for `…::FetchRequest`.
fn name<R>() -> &'static str {
    let full = std::any::type_name::<R>();
    let last = full.rsplit("::").next().unwrap_or(full);
    last.strip_suffix("Request").unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_broker_that_has_answered_is_not_asked_whether_it_is_one() {
        let late = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        assert!(broken(&late, true).contains("quota list"));
        assert!(!broken(&late, true).contains("Kafka port"));
        assert!(broken(&late, false).contains("max-connections"));
        let cut = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        assert!(!broken(&cut, true).contains("TLS"));
        assert!(broken(&cut, false).contains("max-connections-per-ip"));
    }

    #[test]
    fn who_takes_the_connection_and_says_nothing_is_told_as_that() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stream = connect(&address, Duration::from_secs(1)).unwrap();
        let e = Connection::open(&address, stream, Duration::from_millis(1)).err();
        let e = e.expect("nobody answers").to_string();
        assert!(e.contains("nothing was answered in time"), "{e}");
    }
}
