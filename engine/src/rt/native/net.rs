//! Sockets: non-blocking system calls, and polls in the ring to wait for readiness.
//!
//! A task that waits to read holds no buffer: it waits for readiness, then takes a buffer, then reads. Answers go out by `sendmsg` from where their parts lie,
//! at most `limits::SEND_BYTES` at a time.
//!
//! `unsafe`: `recv` and `sendmsg`.

use std::io::{self, IoSlice};
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use bytes::Bytes;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::ring::Ring;
use super::shard;
use crate::limits::{LISTEN_BACKLOG, SEND_BYTES};

/// Parts that one `sendmsg` takes; the kernel's own limit is 1024.
const PARTS: usize = 256;

pub struct TcpListener {
    socket: Rc<Socket>,
    ring: Rc<Ring>,
}

impl TcpListener {
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let socket = socket(addr)?;
        socket.set_reuse_port(true)?;
        socket
            .bind(&SockAddr::from(addr))
            .map_err(|e| at(addr, e))?;
        socket.listen(LISTEN_BACKLOG).map_err(|e| at(addr, e))?;
        Ok(TcpListener {
            socket: Rc::new(socket),
            ring: shard().ring.clone(),
        })
    }

    pub async fn accept(&self) -> io::Result<TcpStream> {
        loop {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    socket.set_nonblocking(true)?;
                    return TcpStream::new(socket, peer, self.ring.clone());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.ring.ready(self.socket.clone(), libc::POLLIN).await?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address(&self.socket.local_addr()?)
    }
}

fn address(a: &SockAddr) -> io::Result<SocketAddr> {
    a.as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an internet address"))
}

pub fn check_port_free(addr: SocketAddr) -> io::Result<()> {
    let socket = socket(addr)?;
    socket
        .bind(&SockAddr::from(addr))
        .map_err(|e| at(addr, e))?;
    // With SO_REUSEADDR the bind fails beside a listening socket; one that is bound only would be found here.
    socket.listen(1).map_err(|e| at(addr, e))
}

fn socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // Or a restart would wait for the old connections to time out.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn at(addr: SocketAddr, e: io::Error) -> io::Error {
    let advice = match e.kind() {
        io::ErrorKind::AddrInUse => {
            ": another process listens there; stop it or choose another address"
        }
        io::ErrorKind::AddrNotAvailable => ": this machine has no such address",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need a privilege",
        _ => "",
    };
    io::Error::new(e.kind(), format!("{addr}: {e}{advice}"))
}

#[derive(Clone)]
pub struct TcpStream(Rc<Connection>);

struct Connection {
    socket: Rc<Socket>,
    peer: SocketAddr,
    ring: Rc<Ring>,
}

impl TcpStream {
    fn new(socket: Socket, peer: SockAddr, ring: Rc<Ring>) -> io::Result<TcpStream> {
        socket.set_tcp_nodelay(true)?;
        Ok(TcpStream(Rc::new(Connection {
            peer: address(&peer)?,
            socket: Rc::new(socket),
            ring,
        })))
    }

    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        let ring = shard().ring.clone();
        let socket = socket(addr)?;
        let peer = SockAddr::from(addr);
        match socket.connect(&peer) {
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(e) => return Err(e),
            Ok(()) => return TcpStream::new(socket, peer, ring),
        }
        let socket = Rc::new(socket);
        ring.ready(socket.clone(), libc::POLLOUT).await?;
        if let Some(e) = socket.take_error()? {
            return Err(e);
        }
        let socket = Rc::into_inner(socket).expect("the poll has ended and let go of it");
        TcpStream::new(socket, peer, ring)
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.peer)
    }

    pub async fn readable(&self) -> io::Result<()> {
        self.ready(libc::POLLIN).await
    }

    async fn ready(&self, events: i16) -> io::Result<()> {
        let fd: Rc<dyn AsFd> = self.0.socket.clone();
        self.0.ring.ready(fd, events).await
    }

    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let fd = self.0.socket.as_raw_fd();
        // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
        let n = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), 0) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.try_read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    pub async fn write_all_vectored(&self, parts: &[Bytes]) -> io::Result<()> {
        let mut at = Place { part: 0, offset: 0 };
        at.advance(parts, 0);
        while at.part < parts.len() {
            match self.send(parts, &at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    at.advance(parts, n);
                    super::yield_if_needed().await;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.ready(libc::POLLOUT).await?
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub fn shutdown(&self) {
        // It fails when the peer has gone, which is as well.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }

    /// One `sendmsg` of what comes next, at most `SEND_BYTES` and `PARTS`.
    fn send(&self, parts: &[Bytes], at: &Place) -> io::Result<usize> {
        let mut slices: smallvec::SmallVec<[IoSlice<'_>; 16]> = smallvec::SmallVec::new();
        let mut room = SEND_BYTES;
        let mut skip = at.offset;
        for part in &parts[at.part..] {
            let part = &part[skip..];
            skip = 0;
            if part.is_empty() {
                continue;
            }
            if room == 0 || slices.len() == PARTS {
                break;
            }
            let part = &part[..part.len().min(room)];
            room -= part.len();
            slices.push(IoSlice::new(part));
        }
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = slices.as_mut_ptr().cast();
        message.msg_iovlen = slices.len() as _;
        // SAFETY: the message points to `slices`, which is laid out as iovecs and, like the parts, outlives the call; the kernel only reads.
        let n = unsafe { libc::sendmsg(self.0.socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// How far a vectored write has come. Never stands on an empty rest.
struct Place {
    part: usize,
    offset: usize,
}

impl Place {
    fn advance(&mut self, parts: &[Bytes], n: usize) {
        self.offset += n;
        while let Some(part) = parts.get(self.part)
            && self.offset >= part.len()
        {
            self.offset -= part.len();
            self.part += 1;
        }
    }
}
