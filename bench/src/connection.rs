//! One connection of the load: frames out and in, never waiting. What doesn't fit the socket stays in `out`; answers come in order.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::error::Error;
use crate::limits;
use crate::poll::Poll;

pub struct Connection {
    stream: TcpStream,
    token: usize,
    address: String,
    /// Requests that aren't handed to the socket yet, from `sent` on. Bounded by the requests in flight.
    pub out: Vec<u8>,
    sent: usize,
    waits_for_room: bool,
    input: Vec<u8>,
    /// What was received and not yet taken, within `input`.
    start: usize,
    end: usize,
}

impl Connection {
    pub fn open(address: &str, token: usize, poll: &Poll) -> Result<Connection, Error> {
        let stream = crate::control::connect(address)?;
        Connection::on(stream, address, token, poll)
    }

    /// On a socket that is connected.
    pub fn on(
        stream: TcpStream,
        address: &str,
        token: usize,
        poll: &Poll,
    ) -> Result<Connection, Error> {
        stream
            .set_nonblocking(true)
            .map_err(Error::io("a socket"))?;
        poll.add(&stream, token).map_err(Error::io("epoll"))?;
        Ok(Connection {
            stream,
            token,
            address: address.to_owned(),
            out: Vec::with_capacity(limits::READ_BYTES),
            sent: 0,
            waits_for_room: false,
            input: vec![0; limits::READ_BYTES],
            start: 0,
            end: 0,
        })
    }

    fn lost(&self, why: impl std::fmt::Display) -> Error {
        Error::Lost(format!("the connection to {} is lost: {why}", self.address))
    }

    /// Hands the socket what it takes.
    pub fn flush(&mut self, poll: &Poll) -> Result<(), Error> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(self.lost("it takes no bytes")),
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.lost(e)),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > limits::READ_BYTES * 4 {
            // What is behind a slow socket is moved to the front now and then, not at each write.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        let wait = !self.out.is_empty();
        if wait != self.waits_for_room {
            poll.want_write(&self.stream, self.token, wait)
                .map_err(Error::io("epoll"))?;
            self.waits_for_room = wait;
        }
        Ok(())
    }

    /// Reads once; whether there may be more. The bytes are taken with `frame`.
    pub fn fill(&mut self) -> Result<bool, Error> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let wanted = self.frame_length()?.map_or(limits::READ_BYTES, |l| l + 4);
        if self.input.len() - self.start < wanted || self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.input.len() < wanted {
                self.input.resize(wanted, 0);
            }
        }
        loop {
            match self.stream.read(&mut self.input[self.end..]) {
                Ok(0) => return Err(self.lost("the broker closed it")),
                Ok(count) => {
                    self.end += count;
                    return Ok(self.end == self.input.len());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.lost(e)),
            }
        }
    }

    /// The length of the frame at the front, if that much has come.
    fn frame_length(&self) -> Result<Option<usize>, Error> {
        let Some(length) = self.input[self.start..self.end].first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if !(4..=limits::MAX_FRAME_BYTES).contains(&length) {
            return Err(self.lost(format!("an answer of {length} bytes")));
        }
        Ok(Some(length))
    }

    /// Takes the frame at the front: its correlation id, and where its body lies for `body`.
    pub fn frame(&mut self) -> Result<Option<(i32, std::ops::Range<usize>)>, Error> {
        let Some(length) = self.frame_length()? else {
            return Ok(None);
        };
        let from = self.start + 4;
        if from + length > self.end {
            return Ok(None);
        }
        self.start = from + length;
        let correlation = self.input[from..from + 4]
            .try_into()
            .expect("a frame has at least 4 bytes");
        Ok(Some((
            i32::from_be_bytes(correlation),
            from + 4..from + length,
        )))
    }

    /// The bytes of a frame that `frame` gave, valid until `fill`.
    pub fn body(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.input[range]
    }
}

/// An answer that isn't the protocol, or not to what was asked.
pub fn nonsense(what: &str) -> Error {
    Error::Broker(format!("an answer that isn't the protocol: {what}"))
}
