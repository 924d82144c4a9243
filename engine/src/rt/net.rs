//! Sockets.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;

use super::imp;

/// Listens with SO_REUSEPORT, so that every shard can have one on the same port; the kernel spreads connections over them.
pub struct TcpListener(imp::TcpListener);

impl TcpListener {
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        imp::TcpListener::bind(addr).map(TcpListener)
    }

    /// The stream has TCP_NODELAY set. After an error (out of descriptors, say) the caller should sleep before the next try.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        self.0.accept().await.map(TcpStream)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Whether anybody listens on the address: since every [`TcpListener`] shares its port, binding one doesn't tell.
pub fn check_port_free(addr: SocketAddr) -> io::Result<()> {
    imp::check_port_free(addr)
}

/// A connection. Clones are the same connection: at most one task reads and one writes at a time.
#[derive(Clone)]
pub struct TcpStream(imp::TcpStream);

impl TcpStream {
    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        imp::TcpStream::connect(addr).await.map(TcpStream)
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Waits for bytes, the end or an error without holding a buffer. Cancel-safe.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    /// `WouldBlock` when there is nothing, 0 at the end.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }

    /// 0 at the end. Cancel-safe.
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).await
    }

    /// Sends the parts one after the other, by `sendmsg` from where they lie, waiting for room. When dropped half-way the connection is of no more use.
    pub async fn write_all_vectored(&self, parts: &[Bytes]) -> io::Result<()> {
        self.0.write_all_vectored(parts).await
    }

    /// Ends both directions: the waiting tasks of every clone wake up.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }
}
