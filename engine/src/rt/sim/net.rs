//! TCP between the tasks of a world: streams of bytes that arrive after a drawn time, in pieces of any size, and fill up.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::exec::Event;
use super::{Inner, current, sleep};
use crate::limits::LISTEN_BACKLOG;

/// Bytes that a direction of a connection holds before the sender waits.
const WINDOW: usize = 64 << 10;
const FIRST_FREE_PORT: u16 = 40_000;

#[derive(Default)]
pub struct Net {
    listeners: BTreeMap<u16, Vec<Weak<Listening>>>,
    next_port: u16,
}

impl Net {
    pub fn clear(&mut self) {
        self.listeners.clear();
    }

    fn listening(&mut self, port: u16) -> Vec<Rc<Listening>> {
        let Some(all) = self.listeners.get_mut(&port) else {
            return Vec::new();
        };
        all.retain(|l| l.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.max(FIRST_FREE_PORT) + 1;
        self.next_port
    }
}

struct Listening {
    addr: SocketAddr,
    queue: RefCell<VecDeque<TcpStream>>,
    waker: RefCell<Option<Waker>>,
}

pub struct TcpListener(Rc<Listening>);

impl TcpListener {
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let world = current();
        let mut net = world.net.borrow_mut();
        let port = if addr.port() == 0 {
            net.free_port()
        } else {
            addr.port()
        };
        let l = Rc::new(Listening {
            addr: SocketAddr::new(addr.ip(), port),
            queue: RefCell::default(),
            waker: RefCell::default(),
        });
        net.listeners
            .entry(port)
            .or_default()
            .push(Rc::downgrade(&l));
        Ok(TcpListener(l))
    }

    pub async fn accept(&self) -> io::Result<TcpStream> {
        poll_fn(|cx| match self.0.queue.borrow_mut().pop_front() {
            Some(s) => Poll::Ready(Ok(s)),
            None => {
                *self.0.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.addr)
    }
}

pub fn check_port_free(addr: SocketAddr) -> io::Result<()> {
    let taken = !current().net.borrow_mut().listening(addr.port()).is_empty();
    if taken {
        Err(io::ErrorKind::AddrInUse.into())
    } else {
        Ok(())
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    /// What is there or on its way, with the time it arrives.
    chunks: VecDeque<(u64, Bytes)>,
    held: usize,
    /// Nothing more is sent; arrives behind what was sent before.
    ended: Option<u64>,
    /// The reader is gone.
    broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wake_all(&mut self) -> Vec<Waker> {
        self.reader
            .take()
            .into_iter()
            .chain(self.writer.take())
            .collect()
    }
}

struct End {
    world: Rc<Inner>,
    peer: SocketAddr,
    incoming: Rc<RefCell<Pipe>>,
    outgoing: Rc<RefCell<Pipe>>,
    closed: Cell<bool>,
}

#[derive(Clone)]
pub struct TcpStream(Rc<End>);

impl TcpStream {
    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        let world = current();
        sleep(Duration::from_nanos(20_000 + world.draw(60_000))).await;
        let (listener, port) = {
            let mut net = world.net.borrow_mut();
            let all = net.listening(addr.port());
            if all.is_empty() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            // As with SO_REUSEPORT: any of them.
            let pick = world.draw(all.len() as u64) as usize;
            (all[pick].clone(), net.free_port())
        };
        if listener.queue.borrow().len() >= LISTEN_BACKLOG as usize {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (there, back) = (Rc::default(), Rc::default());
        let end = |peer, incoming: &Rc<RefCell<Pipe>>, outgoing: &Rc<RefCell<Pipe>>| {
            TcpStream(Rc::new(End {
                world: world.clone(),
                peer,
                incoming: incoming.clone(),
                outgoing: outgoing.clone(),
                closed: Cell::new(false),
            }))
        };
        let ours = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        listener
            .queue
            .borrow_mut()
            .push_back(end(ours, &there, &back));
        let waker = listener.waker.borrow_mut().take();
        if let Some(w) = waker {
            w.wake();
        }
        Ok(end(addr, &back, &there))
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.peer)
    }

    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| {
            let mut pipe = self.0.incoming.borrow_mut();
            let now = self.0.world.clock_ns.get();
            let arrived = pipe.chunks.front().is_some_and(|(at, _)| *at <= now);
            let ended = pipe.chunks.is_empty() && pipe.ended.is_some_and(|at| at <= now);
            if arrived || ended || self.0.closed.get() {
                return Poll::Ready(Ok(()));
            }
            pipe.reader = Some(cx.waker().clone());
            // What is on its way wakes us when it is there.
            if let Some(at) = pipe.chunks.front().map(|c| c.0).or(pipe.ended) {
                let event = Event::Wake(cx.waker().clone());
                self.0.world.executor.at(at, event);
            }
            Poll::Pending
        })
        .await
    }

    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.closed.get() {
            return Ok(0);
        }
        let world = &self.0.world;
        let now = world.clock_ns.get();
        let mut pipe = self.0.incoming.borrow_mut();
        let Some((at, chunk)) = pipe.chunks.front_mut() else {
            return match pipe.ended {
                Some(at) if at <= now => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        };
        if *at > now {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut n = chunk.len().min(buf.len());
        if n > 1 && world.draw(4) == 0 {
            n = 1 + world.draw(n as u64 - 1) as usize;
        }
        buf[..n].copy_from_slice(&chunk.split_to(n));
        if chunk.is_empty() {
            pipe.chunks.pop_front();
        }
        pipe.held -= n;
        let writer = pipe.writer.take();
        drop(pipe);
        if let Some(w) = writer {
            w.wake();
        }
        Ok(n)
    }

    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.try_read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                other => return other,
            }
        }
    }

    pub async fn write_all_vectored(&self, parts: &[Bytes]) -> io::Result<()> {
        for part in parts {
            let mut rest = part.clone();
            while !rest.is_empty() {
                let n = poll_fn(|cx| self.poll_room(cx.waker()))
                    .await?
                    .min(rest.len());
                self.push(rest.split_to(n));
            }
        }
        Ok(())
    }

    fn poll_room(&self, waker: &Waker) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.outgoing.borrow_mut();
        if pipe.broken || pipe.ended.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if pipe.held < WINDOW {
            return Poll::Ready(Ok(WINDOW - pipe.held));
        }
        pipe.writer = Some(waker.clone());
        Poll::Pending
    }

    fn push(&self, bytes: Bytes) {
        let world = &self.0.world;
        world.mix(bytes.len() as u64);
        let at = world.clock_ns.get() + 5_000 + world.draw(40_000);
        let mut pipe = self.0.outgoing.borrow_mut();
        let at = pipe.chunks.back().map_or(at, |c| c.0.max(at));
        pipe.held += bytes.len();
        pipe.chunks.push_back((at, bytes));
        let reader = pipe.reader.take();
        drop(pipe);
        // It looks, and finds when to come back.
        if let Some(w) = reader {
            w.wake();
        }
    }

    pub fn shutdown(&self) {
        self.0.close();
    }
}

impl End {
    fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        let at = self.world.clock_ns.get();
        let mut out = self.outgoing.borrow_mut();
        out.ended = Some(out.chunks.back().map_or(at, |c| c.0.max(at)));
        let mut wake = out.wake_all();
        drop(out);
        let mut incoming = self.incoming.borrow_mut();
        incoming.broken = true;
        wake.extend(incoming.wake_all());
        drop(incoming);
        for w in wake {
            w.wake();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}
