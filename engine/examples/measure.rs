//! Figures of one machine: a hop between two pinned shards, an echo over TCP, journal commits, file reads.
//!
//!     cargo run --profile ci -p engine --example measure -- [DIRECTORY]
//!
//! Two CPUs are needed. The directory (default: the system's temporary one) must lie on the disk in question.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a command-line program"
)]

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::ring::{Class, Credits, Mesh, Port, Rpc};
use engine::rt::{self, AlignedBuf, File, JournalFile, Launch, OpenOptions, Queue};

const CREDITS: Credits = Credits {
    short: 64,
    append: 64,
    waiter: 64,
};

fn main() {
    let dir = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("tailrace-measure-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the directory can be made");
    hops();
    echo();
    for overprovisioned in [false, true] {
        disk(&dir, overprovisioned);
    }
    std::fs::remove_dir_all(&dir).expect("the directory can be removed");
}

fn print(what: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    let at = |q: f64| ns[((ns.len() - 1) as f64 * q) as usize] as f64 / 1000.0;
    println!(
        "{what:<58} p50 {:>8.2}  p99 {:>8.2}  p99.9 {:>8.2} us",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn hops() {
    let ports = Mesh::new(2, 1024);
    let ports: Arc<Mutex<Vec<Option<Port<_>>>>> =
        Arc::new(Mutex::new(ports.into_iter().map(Some).collect()));
    let l = Launch {
        shards: 2,
        overprovisioned: false,
        cpus: None,
        seed: None,
    };
    let run = rt::launch(l, move |id| {
        let ports = ports.clone();
        async move {
            let port = ports.lock().unwrap()[usize::from(id.0)]
                .take()
                .expect("each shard takes its own");
            let rpc: Rpc<u64, u64> = Rpc::new(port, CREDITS);
            let serving = rpc.clone();
            let done = std::rc::Rc::new(std::cell::Cell::new(false));
            let ended = done.clone();
            let serve = rt::spawn(Queue::Latency, async move {
                serving
                    .serve(|_, req, r| {
                        if req == u64::MAX {
                            ended.set(true);
                        }
                        r.reply(req.wrapping_add(1));
                    })
                    .await;
            });
            if id.0 == 0 {
                rt::sleep(Duration::from_millis(100)).await;
                for (name, pause_us) in [
                    ("back to back", 0),
                    ("one every 200 us", 200),
                    ("one every 5 ms", 5000),
                ] {
                    let rounds = if pause_us == 0 { 200_000 } else { 2_000 };
                    let mut times = Vec::with_capacity(rounds);
                    for i in 0..rounds {
                        if pause_us > 0 {
                            rt::sleep(Duration::from_micros(pause_us)).await;
                        }
                        let begun = rt::now();
                        rpc.call(1, Class::Short, i as u64).await.unwrap();
                        times.push(begun.elapsed().as_nanos() as u64);
                    }
                    print(&format!("round trip of a hop, {name}"), times);
                }
                let _ = rpc.call(1, Class::Short, u64::MAX - 1).await;
                rpc.cast(1, u64::MAX).await;
                rt::sleep(Duration::from_millis(10)).await;
            } else {
                while !done.get() {
                    rt::sleep(Duration::from_millis(5)).await;
                }
            }
            drop(serve);
        }
    });
    if let Err(e) = run {
        println!("no hops: {e}");
    }
}

/// A shard that echoes and a thread that asks.
fn echo() {
    const ROUNDS: usize = 20_000;
    let (sender, addr) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let addr: std::net::SocketAddr = addr.recv().expect("the shard listens");
        let mut s = std::net::TcpStream::connect(addr).unwrap();
        s.set_nodelay(true).unwrap();
        let mut buf = [7; 128];
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let begun = std::time::Instant::now();
            s.write_all(&buf).unwrap();
            s.read_exact(&mut buf).unwrap();
            times.push(begun.elapsed().as_nanos() as u64);
        }
        print("TCP echo of 128 B, pinned", times);
    });
    let l = Launch {
        shards: 1,
        overprovisioned: false,
        cpus: None,
        seed: None,
    };
    rt::launch(l, move |_| {
        let sender = sender.clone();
        async move {
            let l = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            sender.send(l.local_addr().unwrap()).unwrap();
            let s = l.accept().await.unwrap();
            let mut buf = vec![0; 4096];
            loop {
                s.readable().await.unwrap();
                let n = s.try_read(&mut buf).unwrap();
                if n == 0 {
                    break;
                }
                let answer = bytes::Bytes::copy_from_slice(&buf[..n]);
                s.write_all_vectored(&[answer]).await.unwrap();
            }
        }
    })
    .expect("a shard starts");
    client.join().unwrap();
}

fn disk(dir: &Path, overprovisioned: bool) {
    let dir = dir.to_owned();
    let l = Launch {
        shards: 1,
        overprovisioned,
        cpus: None,
        seed: None,
    };
    rt::launch(l, move |_| {
        let dir = dir.clone();
        async move {
            let kind = if overprovisioned {
                "overprovisioned"
            } else {
                "pinned"
            };
            let j = JournalFile::open(&dir.join("journal"), 32 << 20)
                .await
                .unwrap();
            for (size, in_flight) in [(4096, 1), (4096, 4), (65536, 1), (65536, 4)] {
                commits(&j, size, in_flight, kind).await;
            }
            reads(&dir, kind).await;
        }
    })
    .expect("a shard starts");
}

async fn commits(j: &JournalFile, size: usize, in_flight: usize, kind: &str) {
    let rounds = 5000;
    let mut times = Vec::with_capacity(rounds);
    let mut flying = VecDeque::new();
    let mut pos = 0u64;
    for _ in 0..rounds {
        if flying.len() == in_flight {
            let (begun, write): (rt::Instant, rt::JournalWrite) =
                flying.pop_front().expect("it is not empty");
            write.await.unwrap();
            times.push(begun.elapsed().as_nanos() as u64);
        }
        flying.push_back((rt::now(), j.write(pos, AlignedBuf::zeroed(size))));
        pos = (pos + size as u64) % (32 << 20);
    }
    while let Some((_, write)) = flying.pop_front() {
        write.await.unwrap();
    }
    print(
        &format!(
            "journal commit of {} KiB, {in_flight} in flight, {kind}",
            size >> 10
        ),
        times,
    );
}

async fn reads(dir: &Path, kind: &str) {
    let o = OpenOptions {
        create: true,
        write: true,
        ..OpenOptions::default()
    };
    let f = File::open(&dir.join("file"), o).await.unwrap();
    for i in 0..64 {
        f.write_at(i << 20, AlignedBuf::zeroed(1 << 20))
            .await
            .unwrap();
    }
    f.sync().await.unwrap();
    for size in [4096, 65536, 1 << 20] {
        let mut times = Vec::new();
        for i in 0..1000u64 {
            let begun = rt::now();
            let bytes = f
                .read_at((i * 7919 * 4096) % (63 << 20), size)
                .await
                .unwrap();
            times.push(begun.elapsed().as_nanos() as u64);
            assert_eq!(bytes.len(), size);
        }
        print(&format!("file read of {} KiB, {kind}", size >> 10), times);
    }
}
