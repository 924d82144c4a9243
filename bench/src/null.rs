//! A responder that acknowledges at once and keeps nothing: what is measured against it is the instrument itself. It can be told to stall.
//!
//! It speaks what a run without consumers needs, in the versions of `protocol`. One thread per connection; a connection that sends anything else is closed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::limits;
use crate::protocol;
use crate::wire::{Malformed, Reader};

/// It answers nothing for `length`, first after `first`, then every `every`, counted from the first produce request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    pub first: Duration,
    pub length: Duration,
    pub every: Duration,
}

impl Stall {
    /// What is left of a stall at a moment since the first request.
    fn left(&self, since: Duration) -> Option<Duration> {
        let since = since.checked_sub(self.first)?;
        let into = Duration::from_nanos((since.as_nanos() % self.every.as_nanos().max(1)) as u64);
        self.length.checked_sub(into).filter(|left| !left.is_zero())
    }
}

struct State {
    address: SocketAddr,
    stall: Option<Stall>,
    first_produce: OnceLock<Instant>,
    /// Partitions of each topic.
    topics: Mutex<BTreeMap<String, i32>>,
    stop: AtomicBool,
}

/// A responder that runs until it is dropped.
pub struct NullResponder {
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

impl NullResponder {
    /// Listens on an address; port 0 takes a free one. Its threads stay on `cpu`, if one is given.
    pub fn start(
        listen: &str,
        stall: Option<Stall>,
        cpu: Option<usize>,
    ) -> Result<NullResponder, Error> {
        let listener = TcpListener::bind(listen).map_err(Error::io(listen))?;
        let address = listener.local_addr().map_err(Error::io(listen))?;
        let state = Arc::new(State {
            address,
            stall,
            first_produce: OnceLock::new(),
            topics: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let shared = state.clone();
        let accepting = std::thread::Builder::new()
            .name("bench-null".into())
            .spawn(move || accept(&listener, &shared, cpu))
            .map_err(Error::io("a thread"))?;
        Ok(NullResponder {
            state,
            accepting: Some(accepting),
        })
    }

    pub fn address(&self) -> String {
        self.state.address.to_string()
    }
}

impl Drop for NullResponder {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        // Its accept returns with one more connection. Threads of connections end with their clients.
        let woken = TcpStream::connect(self.state.address).is_ok();
        if let (Some(accepting), true) = (self.accepting.take(), woken) {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>, cpu: Option<usize>) {
    for stream in listener.incoming() {
        if state.stop.load(Ordering::Relaxed) {
            return;
        }
        let state = state.clone();
        if let Ok(stream) = stream {
            // A thread that can't be had closes the connection.
            let _ = std::thread::Builder::new()
                .name("bench-null".into())
                .spawn(move || {
                    if let Some(id) = cpu {
                        core_affinity::set_for_current(core_affinity::CoreId { id });
                    }
                    let _ = stream.set_nodelay(true);
                    serve(stream, &state)
                });
        }
    }
}

/// Answers requests until the client goes or sends what isn't understood.
fn serve(mut stream: TcpStream, state: &State) {
    let mut input = Vec::new();
    let mut out = Vec::new();
    let mut length = [0; 4];
    while stream.read_exact(&mut length).is_ok() {
        let length = u32::from_be_bytes(length) as usize;
        if length > limits::MAX_FRAME_BYTES {
            return;
        }
        input.clear();
        // It grows with what comes, not with what was announced.
        let taken = (&mut stream).take(length as u64).read_to_end(&mut input);
        if !taken.is_ok_and(|n| n == length) {
            return;
        }
        out.clear();
        out.extend_from_slice(&[0; 4]);
        if answer(&input, &mut out, state).is_err() {
            return;
        }
        let size = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&size.to_be_bytes());
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

fn answer(request: &[u8], out: &mut Vec<u8>, state: &State) -> Result<(), Malformed> {
    let mut r = Reader(request);
    let api = (r.i16()?, r.i16()?);
    out.extend_from_slice(r.bytes(4)?); // correlation id
    r.nullable_string()?;
    match api {
        protocol::API_VERSIONS => api_versions(out),
        protocol::LIST_OFFSETS => list_offsets(&mut r, out)?,
        protocol::METADATA => metadata(&mut r, out, state)?,
        protocol::CREATE_TOPICS => create_topics(&mut r, out, state)?,
        protocol::DELETE_TOPICS => delete_topics(&mut r, out, state)?,
        protocol::INIT_PRODUCER_ID => init_producer_id(&mut r, out)?,
        protocol::PRODUCE => produce(&mut r, out, state)?,
        _ => return Err(Malformed),
    }
    Ok(())
}

fn put_i16(out: &mut Vec<u8>, value: i16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_string(out: &mut Vec<u8>, value: &str) {
    put_i16(out, value.len() as i16);
    out.extend_from_slice(value.as_bytes());
}

fn api_versions(out: &mut Vec<u8>) {
    let spoken = [
        protocol::PRODUCE,
        protocol::LIST_OFFSETS,
        protocol::METADATA,
        protocol::API_VERSIONS,
        protocol::CREATE_TOPICS,
        protocol::DELETE_TOPICS,
        protocol::INIT_PRODUCER_ID,
    ];
    put_i16(out, 0);
    put_i32(out, spoken.len() as i32);
    for (key, version) in spoken {
        for n in [key, version, version] {
            put_i16(out, n);
        }
    }
}

fn metadata(r: &mut Reader, out: &mut Vec<u8>, state: &State) -> Result<(), Malformed> {
    put_i32(out, 0);
    put_i32(out, 1);
    put_i32(out, 1);
    put_string(out, &state.address.ip().to_string());
    put_i32(out, i32::from(state.address.port()));
    put_i16(out, -1);
    put_string(out, "null-responder");
    put_i32(out, 1);
    let count = r.count(2)?;
    put_i32(out, count as i32);
    let topics = state.topics.lock().expect("no thread panics with it");
    for _ in 0..count {
        let name = r.string()?;
        let partitions = topics.get(name).copied();
        put_i16(out, if partitions.is_some() { 0 } else { 3 });
        put_string(out, name);
        out.push(0);
        put_i32(out, partitions.unwrap_or(0));
        for index in 0..partitions.unwrap_or(0) {
            put_i16(out, 0);
            put_i32(out, index);
            // Leader; replicas [1]; in sync [1]; offline [].
            for n in [1, 1, 1, 1, 1, 0] {
                put_i32(out, n);
            }
        }
    }
    Ok(())
}

fn list_offsets(r: &mut Reader, out: &mut Vec<u8>) -> Result<(), Malformed> {
    r.i32()?;
    let topics = r.count(6)?;
    put_i32(out, topics as i32);
    for _ in 0..topics {
        put_string(out, r.string()?);
        let partitions = r.count(12)?;
        put_i32(out, partitions as i32);
        for _ in 0..partitions {
            put_i32(out, r.i32()?);
            r.i64()?;
            out.extend_from_slice(&[0; 18]); // no error, timestamp 0, offset 0
        }
    }
    Ok(())
}

fn create_topics(r: &mut Reader, out: &mut Vec<u8>, state: &State) -> Result<(), Malformed> {
    put_i32(out, 0);
    let count = r.count(16)?;
    put_i32(out, count as i32);
    let mut topics = state.topics.lock().expect("no thread panics with it");
    for _ in 0..count {
        let (name, partitions) = (r.string()?, r.i32()?);
        r.i16()?;
        if r.count(8)? > 0 {
            return Err(Malformed); // assignments: never sent
        }
        for _ in 0..r.count(4)? {
            r.string()?;
            r.nullable_string()?;
        }
        let fits = (1..=limits::MAX_PARTITIONS as i32).contains(&partitions)
            && topics.len() < limits::MAX_PARTITIONS;
        if fits {
            topics.insert(name.to_owned(), partitions);
        }
        put_string(out, name);
        put_i16(out, if fits { 0 } else { 37 });
        put_i16(out, -1);
    }
    Ok(())
}

fn delete_topics(r: &mut Reader, out: &mut Vec<u8>, state: &State) -> Result<(), Malformed> {
    put_i32(out, 0);
    let count = r.count(2)?;
    put_i32(out, count as i32);
    let mut topics = state.topics.lock().expect("no thread panics with it");
    for _ in 0..count {
        let name = r.string()?;
        let gone = topics.remove(name).is_some();
        put_string(out, name);
        put_i16(out, if gone { 0 } else { 3 });
    }
    Ok(())
}

fn init_producer_id(r: &mut Reader, out: &mut Vec<u8>) -> Result<(), Malformed> {
    r.nullable_string()?;
    r.i32()?;
    put_i32(out, 0);
    put_i16(out, 0);
    out.extend_from_slice(&1i64.to_be_bytes());
    put_i16(out, 0);
    Ok(())
}

fn produce(r: &mut Reader, out: &mut Vec<u8>, state: &State) -> Result<(), Malformed> {
    let first = *state.first_produce.get_or_init(Instant::now);
    if let Some(left) = state.stall.and_then(|s| s.left(first.elapsed())) {
        std::thread::sleep(left);
    }
    r.nullable_string()?;
    r.i16()?;
    r.i32()?;
    let topics = r.count(6)?;
    put_i32(out, topics as i32);
    for _ in 0..topics {
        put_string(out, r.string()?);
        let partitions = r.count(8)?;
        put_i32(out, partitions as i32);
        for _ in 0..partitions {
            let index = r.i32()?;
            r.nullable_bytes()?;
            put_i32(out, index);
            put_i16(out, 0);
            out.extend_from_slice(&[0; 24]);
        }
    }
    put_i32(out, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_comes_when_it_was_told_to() {
        let ms = Duration::from_millis;
        let stall = Stall {
            first: ms(2_500),
            length: ms(100),
            every: ms(10_000),
        };
        assert_eq!(stall.left(ms(2_499)), None);
        assert_eq!(stall.left(ms(2_500)), Some(ms(100)));
        assert_eq!(stall.left(ms(2_599)), Some(ms(1)));
        assert_eq!(stall.left(ms(2_600)), None);
        assert_eq!(stall.left(ms(12_550)), Some(ms(50)));
    }
}
