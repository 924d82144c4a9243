//! What holds for both implementations; run with and without `--cfg tailrace_sim`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests make their own directories and threads"
)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
#[cfg(not(tailrace_sim))]
use std::path::Path;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::*;

/// Runs `f` on one shard with a directory of its own.
fn on_a_shard<F, Fut>(name: &str, f: F)
where
    F: Fn(PathBuf) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let dir = test_dir(name);
    let l = Launch {
        shards: 1,
        overprovisioned: true,
        cpus: None,
        seed: Some(1),
    };
    let inside = dir.clone();
    launch(l, move |_| {
        let dir = inside.clone();
        let f = f.clone();
        async move {
            fs::create_dir_all(&dir).await.unwrap();
            timeout(Duration::from_secs(30), f(dir)).await.unwrap();
        }
    })
    .unwrap();
    let _ = std::fs::remove_dir_all(&dir);
}

fn test_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tailrace-rt-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn writing() -> OpenOptions {
    OpenOptions {
        create: true,
        write: true,
        ..OpenOptions::default()
    }
}

fn filled(len: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(byte);
    buf
}

#[test]
fn the_first_file_may_be_new_and_empty() {
    on_a_shard("first", |dir| async move {
        let f = File::open(&dir.join("f"), writing()).await.unwrap();
        assert_eq!(f.read_at(0, 10).await.unwrap(), Bytes::new());
        f.write_at(0, filled(8192, 1)).await.unwrap();
        assert_eq!(f.read_at(0, 8192).await.unwrap(), vec![1; 8192]);
    });
}

#[test]
fn files_read_at_any_position_and_short_at_the_end() {
    on_a_shard("read", |dir| async move {
        let path = dir.join("f");
        let f = File::open(&path, writing()).await.unwrap();
        assert!(f.is_empty().await.unwrap());
        let mut buf = AlignedBuf::zeroed(3 * 4096);
        for (i, b) in buf.iter_mut().enumerate() {
            *b = (i / 7) as u8;
        }
        let copy = buf.to_vec();
        let back = f.write_at(4096, buf).await.unwrap();
        assert_eq!(back.len(), 3 * 4096);
        f.sync().await.unwrap();
        assert_eq!(f.len().await.unwrap(), 4 * 4096);
        let mut whole = vec![0; 4096];
        whole.extend(&copy);
        for (pos, len) in [
            (0, 16384),
            (5, 3),
            (4095, 2),
            (4096, 4096),
            (5000, 11000),
            (16383, 10),
            (16384, 4),
            (99999, 5),
            (0, 0),
        ] {
            let want = &whole[whole.len().min(pos)..whole.len().min(pos + len)];
            assert_eq!(
                f.read_at(pos as u64, len).await.unwrap(),
                want,
                "{len} at {pos}"
            );
        }
        f.set_len(5000).await.unwrap();
        assert_eq!(f.read_at(4000, 4096).await.unwrap(), &whole[4000..5000]);
        f.allocate(0, 1 << 20).await.unwrap();
        f.close().await.unwrap();
        let f = File::open(&path, OpenOptions::default()).await.unwrap();
        assert_eq!(f.read_at(4096, 904).await.unwrap(), &copy[..904]);
        assert!(
            f.write_at(0, filled(4096, 1)).await.is_err(),
            "opened for reading"
        );
    });
}

#[test]
fn names() {
    on_a_shard("names", |dir| async move {
        let sub = dir.join("a/b/c");
        fs::create_dir_all(&sub).await.unwrap();
        fs::create_dir_all(&sub).await.unwrap();
        for name in ["z", "a", "m"] {
            File::open(&sub.join(name), writing())
                .await
                .unwrap()
                .close()
                .await
                .unwrap();
        }
        assert_eq!(fs::read_dir(&sub).await.unwrap(), ["a", "m", "z"]);
        fs::rename(&sub.join("z"), &sub.join("a")).await.unwrap();
        fs::remove_file(&sub.join("m")).await.unwrap();
        fs::sync_dir(&sub).await.unwrap();
        assert_eq!(fs::read_dir(&sub).await.unwrap(), ["a"]);
        assert!(fs::exists(&sub.join("a")).await.unwrap());
        assert!(!fs::exists(&sub.join("m")).await.unwrap());
        assert!(fs::remove_dir(&sub).await.is_err(), "it isn't empty");
        fs::remove_file(&sub.join("a")).await.unwrap();
        fs::remove_dir(&sub).await.unwrap();
        let gone = File::open(&sub.join("a"), OpenOptions::default())
            .await
            .err()
            .unwrap();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        let new = OpenOptions {
            create_new: true,
            write: true,
            ..OpenOptions::default()
        };
        File::open(&dir.join("n"), new).await.unwrap();
        let again = File::open(&dir.join("n"), new).await.err().unwrap();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    });
}

#[test]
fn a_journal_is_zero_filled_and_takes_several_writes_at_once() {
    on_a_shard("journal", |dir| async move {
        let path = dir.join("j");
        let j = JournalFile::open(&path, 1 << 20).await.unwrap();
        assert_eq!(j.len().await.unwrap(), 1 << 20);
        assert!(j.read_at(0, 1 << 20).await.unwrap().iter().all(|b| *b == 0));
        let writes: Vec<JournalWrite> = (0..4u8)
            .map(|i| j.write(u64::from(i) * 8192, filled(8192, i + 1)))
            .collect();
        for (i, w) in writes.into_iter().enumerate() {
            let buf = w.await.unwrap();
            assert!(buf.len() == 8192 && buf.iter().all(|b| *b == i as u8 + 1));
        }
        assert_eq!(j.syncs(), 4);
        for i in 0..4u8 {
            assert!(
                j.read_at(u64::from(i) * 8192, 8192)
                    .await
                    .unwrap()
                    .iter()
                    .all(|b| *b == i + 1)
            );
        }
        j.zero_fill(1 << 20, 3 << 20).await.unwrap();
        assert_eq!(j.len().await.unwrap(), 3 << 20);
        drop(j);
        let j = JournalFile::open(&path, 1 << 20).await.unwrap();
        assert_eq!(
            j.len().await.unwrap(),
            3 << 20,
            "only a new file gets the size"
        );
        assert_eq!(j.read_at(8192, 1).await.unwrap(), vec![2]);
    });
}

#[test]
fn a_dropped_journal_write_still_happens() {
    on_a_shard("dropped", |dir| async move {
        let j = JournalFile::open(&dir.join("j"), 1 << 20).await.unwrap();
        for i in 0..32 {
            drop(j.write(i * 16384, filled(16384, 9)));
        }
        // The same positions, so that these come after in the file, whatever order the disk likes.
        sleep(Duration::from_millis(50)).await;
        j.write(1 << 19, filled(4096, 1)).await.unwrap();
        assert!(
            j.read_at(0, 32 * 16384)
                .await
                .unwrap()
                .iter()
                .all(|b| *b == 9)
        );
    });
}

#[test]
fn writes_in_flight_when_the_shard_ends_are_waited_for() {
    on_a_shard("end", |dir| async move {
        let j = JournalFile::open(&dir.join("j"), 8 << 20).await.unwrap();
        for i in 0..8 {
            drop(j.write(i << 20, filled(1 << 20, 7)));
        }
    });
}

#[test]
fn more_file_operations_than_there_is_room_for_wait_in_line() {
    on_a_shard("line", |dir| async move {
        let f = Rc::new(File::open(&dir.join("f"), writing()).await.unwrap());
        f.write_at(0, filled(1 << 20, 3)).await.unwrap();
        let tasks: Vec<Task<()>> = (0..1000u64)
            .map(|i| {
                let f = f.clone();
                spawn(Queue::Background, async move {
                    let bytes = f.read_at(i * 512, 512).await.unwrap();
                    assert!(bytes.len() == 512 && bytes.iter().all(|b| *b == 3));
                })
            })
            .collect();
        for t in tasks {
            t.await;
        }
    });
}

#[test]
fn tasks_run_and_are_cancelled_when_dropped() {
    on_a_shard("tasks", |_| async {
        assert_eq!(spawn(Queue::Background, async { 7 }).await, 7);
        let dropped = Rc::new(Cell::new(false));
        struct Flag(Rc<Cell<bool>>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let flag = Flag(dropped.clone());
        let task = spawn(Queue::Latency, async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        drop(task);
        for _ in 0..10 {
            yield_now().await;
        }
        assert!(dropped.get());
        let done = Rc::new(Cell::new(false));
        let d = done.clone();
        spawn(Queue::Latency, async move {
            sleep(Duration::from_millis(1)).await;
            d.set(true);
        })
        .detach();
        sleep(Duration::from_millis(200)).await;
        assert!(done.get());
        assert_eq!(blocking(|| 5).await, 5);
    });
}

#[test]
fn time() {
    on_a_shard("time", |_| async {
        let begun = now();
        let quick = timeout(Duration::from_secs(5), sleep(Duration::from_millis(5))).await;
        assert!(quick.is_ok() && begun.elapsed() >= Duration::from_millis(5));
        let late = timeout(Duration::from_millis(5), sleep(Duration::from_secs(20))).await;
        assert_eq!(late, Err(Elapsed));
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(wall_clock_ms() > 1_600_000_000_000);
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30u64, 10, 20]
            .map(|ms| {
                let order = order.clone();
                spawn(Queue::Latency, async move {
                    sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(ms);
                })
            })
            .into();
        for t in tasks {
            t.await;
        }
        assert_eq!(*order.borrow(), [10, 20, 30]);
    });
}

#[test]
fn a_busy_background_does_not_hold_up_the_latency_queue() {
    on_a_shard("busy", |_| async {
        let stop = Rc::new(Cell::new(false));
        // When the latency queue is due, and the rounds of the background since then: time that the machine gives to others doesn't count.
        let (due, late) = (Rc::new(Cell::new(now())), Rc::new(Cell::new(0u32)));
        let (s, d, l) = (stop.clone(), due.clone(), late.clone());
        spawn(Queue::Background, async move {
            while !s.get() {
                for _ in 0..100 {
                    std::hint::black_box(random_u64());
                }
                l.set(l.get() + u32::from(now() > d.get()));
                yield_if_needed().await;
            }
        })
        .detach();
        let mut worst = 0;
        sleep(Duration::from_millis(60)).await; // the first sleep may be long
        for _ in 0..50 {
            due.set(now() + Duration::from_millis(1));
            late.set(0);
            sleep(Duration::from_millis(1)).await;
            worst = worst.max(late.get());
        }
        stop.set(true);
        assert!(worst < 10_000, "{worst} rounds after it was due");
    });
}

/// What a task waits for is looked at between slices of 100 µs, however many others can run.
#[cfg(not(tailrace_sim))]
#[test]
fn tasks_that_yield_all_the_time_do_not_hold_up_what_comes_in() {
    on_a_shard("slices", |_| async {
        let rounds = Rc::new(Cell::new(0u32));
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let rounds = rounds.clone();
                spawn(Queue::Latency, async move {
                    loop {
                        let begun = now();
                        while begun.elapsed() < Duration::from_micros(120) {}
                        rounds.set(rounds.get() + 1);
                        yield_if_needed().await;
                    }
                })
            })
            .collect();
        let mut passed = Vec::new();
        for _ in 0..20 {
            let due = now() + Duration::from_millis(1);
            let before = rounds.get();
            sleep(Duration::from_millis(1)).await;
            // Rounds until it was due took their time; the rest is what it waited for.
            let late = now().saturating_duration_since(due);
            passed.push((late, rounds.get() - before));
        }
        drop(busy);
        // Of a millisecond eight rounds fit, four tasks may be in front, and one is under way.
        passed.sort();
        let rounds = passed[passed.len() / 2].1;
        assert!(rounds <= 8 + 4 + 2, "{rounds} rounds: {passed:?}");
    });
}

/// What tasks ask of the kernel goes to it between slices, also when there is always a task that can run.
#[cfg(not(tailrace_sim))]
#[test]
fn tasks_that_yield_all_the_time_do_not_hold_up_what_goes_out() {
    on_a_shard("asked", |dir| async move {
        let busy = spawn(Queue::Latency, async {
            loop {
                yield_now().await;
            }
        });
        // Readiness of sockets is asked for in the ring, and what is done to files.
        pair().await;
        let file = File::open(&dir.join("f"), writing()).await.unwrap();
        file.write_at(0, AlignedBuf::zeroed(4096)).await.unwrap();
        file.close().await.unwrap();
        drop(busy);
    });
}

fn any_port() -> std::net::SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn pair() -> (TcpStream, TcpStream) {
    let l = TcpListener::bind(any_port()).unwrap();
    let to = l.local_addr().unwrap();
    let client = spawn(Queue::Latency, TcpStream::connect(to));
    let server = l.accept().await.unwrap();
    (client.await.unwrap(), server)
}

#[test]
fn readable_waits_without_a_buffer() {
    on_a_shard("readable", |_| async {
        let (a, b) = pair().await;
        let mut buf = [0; 64];
        assert_eq!(
            b.try_read(&mut buf).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let early = timeout(Duration::from_millis(20), b.readable()).await;
        assert_eq!(early.err(), Some(Elapsed), "nothing to read");
        for round in 0..3 {
            let reader = b.clone();
            let t = spawn(Queue::Latency, async move {
                reader.readable().await.unwrap();
                let mut buf = [0; 64];
                let n = reader.try_read(&mut buf).unwrap();
                buf[..n].to_vec()
            });
            sleep(Duration::from_millis(2)).await;
            let text = format!("round {round}");
            a.write_all_vectored(&[Bytes::from(text.clone())])
                .await
                .unwrap();
            assert_eq!(t.await, text.as_bytes());
            // What has been read is no longer there.
            assert_eq!(
                b.try_read(&mut buf).unwrap_err().kind(),
                io::ErrorKind::WouldBlock
            );
            let early = timeout(Duration::from_millis(20), b.readable()).await;
            assert_eq!(early.err(), Some(Elapsed), "nothing to read again");
        }
        drop(a);
        b.readable().await.unwrap();
        assert_eq!(b.try_read(&mut buf).unwrap(), 0);
        assert_eq!(b.read(&mut buf).await.unwrap(), 0);
    });
}

#[test]
fn large_answers_go_out_whole_while_the_same_connection_is_read() {
    on_a_shard("large", |_| async {
        let (a, b) = pair().await;
        let parts: Vec<Bytes> = (0..3000u32)
            .map(|i| Bytes::from(vec![i as u8; (i as usize * 37) % 9000]))
            .collect();
        let want: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
        let writer = a.clone();
        let out = spawn(Queue::Latency, async move {
            writer.write_all_vectored(&parts).await
        });
        let reader = a.clone();
        let back = spawn(Queue::Latency, async move {
            let mut buf = [0; 16];
            reader.read(&mut buf).await.map(|n| buf[..n].to_vec())
        });
        sleep(Duration::from_millis(5)).await;
        b.write_all_vectored(&[Bytes::new(), Bytes::from_static(b"hello"), Bytes::new()])
            .await
            .unwrap();
        assert_eq!(back.await.unwrap(), b"hello");
        let mut got = Vec::new();
        let mut buf = vec![0; 50_000];
        while got.len() < want.len() {
            let n = b.read(&mut buf).await.unwrap();
            assert!(n > 0);
            got.extend_from_slice(&buf[..n]);
        }
        assert!(got == want);
        out.await.unwrap();
    });
}

#[test]
fn shutdown_wakes_everybody() {
    on_a_shard("shutdown", |_| async {
        let (a, b) = pair().await;
        assert_eq!(a.peer_addr().unwrap().ip(), any_port().ip());
        let reader = a.clone();
        let reading = spawn(Queue::Latency, async move { reader.readable().await });
        let writer = a.clone();
        let writing = spawn(Queue::Latency, async move {
            let much = Bytes::from(vec![0; 64 << 20]);
            writer.write_all_vectored(&[much]).await
        });
        sleep(Duration::from_millis(20)).await;
        a.shutdown();
        let _ = reading.await;
        assert!(writing.await.is_err());
        let mut buf = vec![0; 1 << 20];
        while b.read(&mut buf).await.unwrap_or(0) > 0 {}
    });
}

#[test]
fn a_port_is_taken_while_somebody_listens() {
    on_a_shard("port", |_| async {
        let first = TcpListener::bind(any_port()).unwrap();
        let addr = first.local_addr().unwrap();
        assert_eq!(
            check_port_free(addr).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        let second = TcpListener::bind(addr).expect("shards share a port");
        drop(first);
        drop(second);
        yield_now().await;
        check_port_free(addr).unwrap();
        let refused = TcpStream::connect(addr).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn every_shard_runs() {
    let l = Launch {
        shards: 3,
        overprovisioned: true,
        cpus: None,
        seed: None,
    };
    let (sender, ids) = std::sync::mpsc::channel();
    launch(l, move |id| {
        let sender = sender.clone();
        async move {
            sleep(Duration::from_millis(1)).await;
            sender.send((id, random_u64())).unwrap();
        }
    })
    .unwrap();
    let mut got: Vec<_> = ids.iter().collect();
    got.sort_unstable();
    assert_eq!(
        got.iter().map(|(id, _)| id.0).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert!(got[0].1 != got[1].1 && got[1].1 != got[2].1);
}

#[test]
fn shards_that_call_each_other_always_wake_up() {
    use crate::ring::{Class, Credits, Mesh, Port, Rpc};
    type Ports = std::sync::Arc<std::sync::Mutex<Vec<Option<Port<crate::ring::Frame<u64, u64>>>>>>;
    let ports: Ports = std::sync::Arc::new(std::sync::Mutex::new(
        Mesh::new(2, 16).into_iter().map(Some).collect(),
    ));
    let credits = Credits {
        short: 8,
        append: 8,
        waiter: 8,
    };
    let l = Launch {
        shards: 2,
        overprovisioned: true,
        cpus: None,
        seed: None,
    };
    launch(l, move |id| {
        let ports = ports.clone();
        async move {
            let port = ports.lock().unwrap()[usize::from(id.0)].take().unwrap();
            let rpc: Rpc<u64, u64> = Rpc::new(port, credits);
            let serving = rpc.clone();
            let others_end = Rc::new(Cell::new(false));
            let seen = others_end.clone();
            let serve = spawn(Queue::Latency, async move {
                serving
                    .serve(move |_, n, r| {
                        if n == u64::MAX {
                            seen.set(true);
                        }
                        r.reply(n ^ 1);
                    })
                    .await;
            });
            let other = 1 - usize::from(id.0);
            for i in 0..3000u64 {
                let answer =
                    timeout(Duration::from_secs(5), rpc.call(other, Class::Short, i)).await;
                assert_eq!(
                    answer.expect("a call between idle shards is answered"),
                    Ok(i ^ 1)
                );
                if i % 10 == 0 {
                    sleep(Duration::from_micros(random_u64() % 300)).await;
                }
            }
            rpc.cast(other, u64::MAX).await;
            while !others_end.get() {
                sleep(Duration::from_millis(1)).await;
            }
            drop(serve);
        }
    })
    .unwrap();
}

#[cfg(not(tailrace_sim))]
#[test]
fn other_threads_wake_a_sleeping_shard() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    on_a_shard("foreign", |_| async {
        let count = Arc::new(AtomicU64::new(0));
        let waker = Arc::new(atomic_waker::AtomicWaker::new());
        let (c, w) = (count.clone(), waker.clone());
        let thread = std::thread::spawn(move || {
            for i in 0..5000u64 {
                c.fetch_add(1, Ordering::SeqCst);
                w.wake();
                if i % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(30));
                }
            }
        });
        let mut seen = 0;
        while seen < 5000 {
            std::future::poll_fn(|cx| {
                waker.register(cx.waker());
                let n = count.load(Ordering::SeqCst);
                if n > seen {
                    seen = n;
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        }
        thread.join().unwrap();
    });
}

#[cfg(not(tailrace_sim))]
#[test]
fn an_idle_shard_uses_no_cpu() {
    on_a_shard("idle", |_| async {
        // Connections that wait and timers far away cost nothing.
        let (_a, b) = pair().await;
        spawn(Queue::Latency, async move { b.readable().await }).detach();
        spawn(Queue::Background, sleep(Duration::from_secs(100))).detach();
        let cpu = || {
            let mut t = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: writes one timespec, which is ours.
            assert_eq!(
                unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) },
                0
            );
            Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
        };
        let begun = cpu();
        sleep(Duration::from_millis(500)).await;
        let spent = cpu() - begun;
        assert!(spent < Duration::from_millis(5), "{spent:?} of 500 ms");
    });
}

#[cfg(not(tailrace_sim))]
#[test]
fn a_pinned_shard_stays_on_its_cpu_and_polls() {
    let l = Launch {
        shards: 1,
        overprovisioned: false,
        cpus: None,
        seed: None,
    };
    let path = test_dir("pinned");
    let dir = path.clone();
    launch(l, move |_| {
        let dir = dir.clone();
        async move {
            assert_eq!(core_affinity::get_core_ids().unwrap().len(), 1);
            assert!(spin_polls() > 0);
            fs::create_dir_all(&dir).await.unwrap();
            let j = JournalFile::open(&dir.join("j"), 1 << 20).await.unwrap();
            for i in 0..100 {
                j.write(i * 4096, filled(4096, 1)).await.unwrap();
            }
            assert_eq!(j.syncs(), 100);
            // Something slower than the polling lasts, so that the driver parks and is woken.
            j.write(0, filled(1 << 20, 1)).await.unwrap();
        }
    })
    .unwrap();
    assert_eq!(spin_polls(), 0, "this thread is no shard");
    let _ = std::fs::remove_dir_all(Path::new(&path));
}

#[cfg(not(tailrace_sim))]
#[test]
fn a_filesystem_without_direct_io_is_named() {
    on_a_shard("nodirect", |_| async {
        // proc has no O_DIRECT.
        let e = File::open(Path::new("/proc/self/status"), OpenOptions::default())
            .await
            .err()
            .unwrap();
        assert!(e.to_string().contains("O_DIRECT"), "{e}");
    });
}
