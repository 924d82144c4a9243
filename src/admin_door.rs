//! The admin address's listener, bounded: [`CONNECTIONS`] at one time, each for [`LONGEST`]. More wait to be accepted. So whoever opens connections there and stays can't
//! take the descriptors of files (`engine::descriptors`), and leaves at last.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

const CONNECTIONS: usize = 32;
const LONGEST: Duration = Duration::from_secs(60);

pub struct Door {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Door {
    pub fn new(listener: TcpListener) -> Door {
        Door {
            listener,
            room: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }
}

impl axum::serve::Listener for Door {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        let room = self.room.clone().acquire_owned().await;
        let room = room.expect("the semaphore is never closed");
        // It waits a second where there is no descriptor.
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let visit = Visit {
            stream,
            end: Box::pin(sleep(LONGEST)),
            _room: room,
        };
        (visit, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

pub struct Visit {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl Visit {
    fn over(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.over(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.over(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::serve::Listener;

    #[test]
    fn only_so_many_are_let_in_and_none_stays() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let mut door = Door::new(listener);
            let (mut outside, mut inside) = (Vec::new(), Vec::new());
            for _ in 0..CONNECTIONS {
                outside.push(TcpStream::connect(addr).await.unwrap());
                inside.push(door.accept().await.0);
            }
            outside.push(TcpStream::connect(addr).await.unwrap());
            let soon = Duration::from_millis(50);
            assert!(tokio::time::timeout(soon, door.accept()).await.is_err());
            let mut first = inside.remove(0);
            first.end = Box::pin(sleep(Duration::ZERO));
            let read = std::future::poll_fn(|cx| {
                let mut byte = [0];
                Pin::new(&mut first).poll_read(cx, &mut ReadBuf::new(&mut byte))
            })
            .await;
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(first);
            door.accept().await;
        });
    }
}
