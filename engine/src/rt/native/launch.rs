//! Starting the shards' threads, and saying what to do when they can't start.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread;

use glommio::{GlommioError, LocalExecutor, LocalExecutorBuilder, Placement, PoolPlacement};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{PREEMPT, RANDOM, SPIN_BEFORE_PARK};
use crate::rt::{Launch, Queue};
use crate::types::ShardId;

/// Exit code of a process one of whose shards panicked.
const PANIC_EXIT: i32 = 101;
/// Helper threads per shard, for [`crate::rt::blocking`] and the names of files.
const HELPERS: usize = 2;
/// glommio's buffers for its own file I/O, which we don't use: its minimum.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// Locked memory that the rings of a shard need, in bytes, on kernels that count it.
const MEMLOCK_BYTES: u64 = 512 << 10;

pub fn launch<F, Fut>(l: Launch, make: F) -> io::Result<()>
where
    F: Fn(ShardId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    raise_limits();
    probe_io_uring()?;
    let places = places(&l)?;
    let alone = places.len() == 1;
    let (started, starts) = mpsc::channel();
    let mut threads = Vec::with_capacity(places.len());
    for (i, place) in places.into_iter().enumerate() {
        let id = ShardId(i as u16);
        let seed = l
            .seed
            .map(|s| s ^ (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (go, gone) = mpsc::channel();
        let started = started.clone();
        let make = make.clone();
        let spin = !l.overprovisioned;
        let thread = thread::Builder::new()
            .name(format!("shard-{i}"))
            .spawn(move || {
                let executor = match executor(place) {
                    Ok(e) => e,
                    Err(e) => {
                        let _ = started.send(Err(e));
                        return;
                    }
                };
                let ready = executor.run(async { super::enter(spin) });
                if started.send(ready).is_err() || gone.recv().is_err() {
                    super::leave();
                    return; // Another shard could not start.
                }
                RANDOM.set(seed.map(SmallRng::seed_from_u64));
                let run = || {
                    executor.run(async {
                        crate::rt::spawn(Queue::Latency, make(id)).await;
                        super::shard().disk.clone().quiesce().await;
                    });
                };
                if alone {
                    run();
                } else if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
                    std::process::exit(PANIC_EXIT);
                }
                super::leave();
                drop(executor);
            })?;
        threads.push((thread, go));
    }
    drop(started);
    let ready: io::Result<Vec<()>> = threads
        .iter()
        .map(|_| {
            starts
                .recv()
                .unwrap_or_else(|_| Err(io::Error::other("a shard's thread ended before it began")))
        })
        .collect();
    let mut joins = Vec::with_capacity(threads.len());
    for (thread, go) in threads {
        if ready.is_ok() {
            let _ = go.send(());
        }
        joins.push(thread);
    }
    for thread in joins {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    ready.map(|_| ())
}

fn executor(place: Placement) -> io::Result<LocalExecutor> {
    LocalExecutorBuilder::new(place)
        .spin_before_park(SPIN_BEFORE_PARK) // glommio ignores it on unpinned executors
        .preempt_timer(PREEMPT)
        .io_memory(IO_MEMORY_BYTES)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(HELPERS))
        .make()
        .map_err(|e: GlommioError<()>| explain(io::Error::from(e)))
}

/// One CPU per shard, or none.
fn places(l: &Launch) -> io::Result<Vec<Placement>> {
    let n = usize::from(l.shards);
    if n == 0 {
        return Err(invalid("a node needs at least one shard"));
    }
    if l.overprovisioned {
        return Ok((0..n).map(|_| Placement::Unbound).collect());
    }
    let allowed: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|c| c.id)
        .collect();
    let cpus = match &l.cpus {
        Some(c) => c.clone(),
        None => allowed.clone(),
    };
    if let Some(cpu) = cpus.iter().find(|c| !allowed.contains(c)) {
        return Err(invalid(&format!(
            "CPU {cpu} is not one that this process may use ({allowed:?})"
        )));
    }
    if cpus.len() < n {
        return Err(invalid(&format!(
            "{n} shards need {n} CPUs of their own and there are {}: use fewer shards, or --overprovisioned",
            cpus.len()
        )));
    }
    Ok(cpus.into_iter().take(n).map(Placement::Fixed).collect())
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Locked memory and open files, as far as this process may.
fn raise_limits() {
    raise(libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY);
    raise(libc::RLIMIT_NOFILE, 1 << 20);
}

fn raise(resource: libc::__rlimit_resource_t, wanted: libc::rlim_t) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes one rlimit, which is ours.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return;
    }
    for soft in [wanted.max(limit.rlim_max), limit.rlim_max] {
        let raised = libc::rlimit {
            rlim_cur: soft,
            rlim_max: soft,
        };
        // SAFETY: reads one rlimit, which is ours. That it may fail is expected: raising the hard limit is a privilege.
        if unsafe { libc::setrlimit(resource, &raised) } == 0 {
            return;
        }
    }
}

fn probe_io_uring() -> io::Result<()> {
    io_uring::IoUring::new(8).map(drop).map_err(explain)
}

/// The error of a ring that could not be made, with what to do about it.
pub fn explain(e: io::Error) -> io::Error {
    let advice = match e.raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel has no io_uring: Linux 5.15 or newer is needed, 6.1 or newer is better"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is disabled here: set `sysctl kernel.io_uring_disabled=0`, and in a container allow the io_uring system calls (seccomp)"
        }
        Some(libc::ENOMEM) => {
            "io_uring may not lock enough memory: raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or /etc/security/limits.conf)"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many open files: raise the limit (`ulimit -n 65536`, LimitNOFILE in a systemd unit)"
        }
        None if e.to_string().contains("memlock") => {
            return io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "a shard needs {} KiB of locked memory: raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit): {e}",
                    MEMLOCK_BYTES >> 10
                ),
            );
        }
        _ => return e,
    };
    io::Error::new(e.kind(), format!("{advice} ({e})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        for (code, word) in [
            (libc::ENOSYS, "Linux"),
            (libc::EPERM, "io_uring_disabled"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "ulimit -n"),
        ] {
            let text = explain(io::Error::from_raw_os_error(code)).to_string();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn more_shards_than_cpus_need_overprovisioning() {
        let mut l = Launch {
            shards: 1000,
            overprovisioned: false,
            cpus: None,
            seed: None,
        };
        assert!(
            places(&l)
                .unwrap_err()
                .to_string()
                .contains("--overprovisioned")
        );
        l.overprovisioned = true;
        assert_eq!(places(&l).unwrap().len(), 1000);
        l.shards = 0;
        assert!(places(&l).is_err());
        l.shards = 1;
        l.overprovisioned = false;
        l.cpus = Some(vec![100_000]);
        assert!(places(&l).unwrap_err().to_string().contains("100000"));
    }
}
