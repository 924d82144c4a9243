//! Sockets on glommio's reactor.
//!
//! glommio waits for readiness, the bytes go by system calls on the descriptor: `recv` for what is there, `sendmsg` from where the parts lie.
//! Waiting to read is a glommio read into an empty buffer: `recv` of nothing says EAGAIN while there is nothing, so glommio polls, and 0 otherwise.
//! Waiting to write is a glommio write of the next part, which sends what fits.
//!
//! `unsafe`: making the listening socket, `recv`, `sendmsg`, `shutdown`.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use futures_lite::{AsyncRead, AsyncWrite};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::limits::{LISTEN_BACKLOG, SEND_BYTES};

/// Parts that one `sendmsg` takes; the kernel's own limit is 1024.
const PARTS: usize = 256;

pub struct TcpListener(glommio::net::TcpListener);

impl TcpListener {
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let socket = socket(addr)?;
        socket.set_reuse_port(true)?;
        socket
            .bind(&SockAddr::from(addr))
            .map_err(|e| at(addr, e))?;
        socket.listen(LISTEN_BACKLOG).map_err(|e| at(addr, e))?;
        // SAFETY: the descriptor is ours and handed over.
        Ok(TcpListener(unsafe {
            FromRawFd::from_raw_fd(socket.into_raw_fd())
        }))
    }

    pub async fn accept(&self) -> io::Result<TcpStream> {
        TcpStream::new(self.0.accept().await?)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }
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
    /// Borrowed within a poll only.
    io: RefCell<glommio::net::TcpStream>,
    fd: RawFd,
    peer: SocketAddr,
}

impl TcpStream {
    fn new(io: glommio::net::TcpStream) -> io::Result<TcpStream> {
        io.set_nodelay(true)?;
        let peer = io.peer_addr()?;
        Ok(TcpStream(Rc::new(Connection {
            fd: io.as_raw_fd(),
            io: RefCell::new(io),
            peer,
        })))
    }

    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::new(glommio::net::TcpStream::connect(addr).await?)
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.peer)
    }

    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| Pin::new(&mut *self.0.io.borrow_mut()).poll_read(cx, &mut []))
            .await
            .map(|_| ())
    }

    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
        let n = unsafe {
            libc::recv(
                self.0.fd,
                buf.as_mut_ptr().cast(),
                buf.len(),
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| Pin::new(&mut *self.0.io.borrow_mut()).poll_read(cx, buf)).await
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
                    let next = &parts[at.part][at.offset..];
                    let n =
                        poll_fn(|cx| Pin::new(&mut *self.0.io.borrow_mut()).poll_write(cx, next))
                            .await?;
                    at.advance(parts, n);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub fn shutdown(&self) {
        // SAFETY: a plain system call on a descriptor that we hold. It fails when the peer has gone, which is as well.
        unsafe { libc::shutdown(self.0.fd, libc::SHUT_RDWR) };
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
        let n =
            unsafe { libc::sendmsg(self.0.fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
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
