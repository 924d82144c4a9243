//! Starting the shards' threads, and saying what to do when they can't start.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Entered;
use super::descriptors::descriptors;
use super::exec::Shard;
use crate::descriptors::divide;
use crate::rt::{Launch, OLDEST_LINUX};
use crate::types::ShardId;

/// Exit code of a process one of whose shards panicked.
const PANIC_EXIT: i32 = 101;
/// The least that the system's scheduler takes.
const SLICE: Duration = Duration::from_micros(100);

pub fn launch<F, Fut>(l: Launch, make: F) -> io::Result<()>
where
    F: Fn(ShardId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    raise_limits();
    if divide(descriptors(), l.shards).is_none() {
        return Err(explain(io::Error::from_raw_os_error(libc::EMFILE)));
    }
    probe().map_err(explain)?;
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
                run_in_short_slices();
                let begun = pin(place).and_then(|()| Shard::new(spin));
                let shard = match begun {
                    Ok(s) => s,
                    Err(e) => {
                        let _ = started.send(Err(e));
                        return;
                    }
                };
                if started.send(Ok(())).is_err() || gone.recv().is_err() {
                    return; // Another shard could not start.
                }
                let _entered = Entered::new(shard.clone(), seed);
                let run = move || shard.run(make(id));
                if alone {
                    run();
                } else if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
                    std::process::exit(PANIC_EXIT);
                }
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

/// Binds this thread to the CPU, if there is one.
fn pin(place: Option<usize>) -> io::Result<()> {
    let Some(cpu) = place else { return Ok(()) };
    if core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
        Ok(())
    } else {
        Err(invalid(&format!(
            "this process may not bind a thread to CPU {cpu}: use --overprovisioned, or give it that CPU"
        )))
    }
}

/// Asks the system to look after [`SLICE`] whether others of this thread's core want to run. By default it looks after milliseconds, and among the others are this
/// shard's own kernel workers, which make its writes durable (docs/measured.md). Linux before 6.12 goes on as it did.
fn run_in_short_slices() {
    // SAFETY: all-zero is a valid sched_attr.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr) as libc::c_uint;
    // SAFETY: writes at most `size` bytes, which are ours.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    // Who runs it as real-time or in idle time knows why.
    if got != 0 || attr.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.sched_runtime = SLICE.as_nanos() as u64;
    // SAFETY: reads one sched_attr, which is ours. That it may fail changes nothing but the slice.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// The CPUs that a thread may use.
#[derive(Clone, Copy)]
pub struct Affinity(libc::cpu_set_t);

impl Affinity {
    /// Of the process's first thread, which is never pinned.
    pub fn of_process() -> Option<Affinity> {
        // SAFETY: all-zero is a valid, empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes one set, which is ours.
        let r = unsafe { libc::sched_getaffinity(libc::getpid(), size_of_val(&set), &mut set) };
        (r == 0).then_some(Affinity(set))
    }

    /// To this thread. Where it isn't allowed the thread stays where it is.
    pub fn apply(&self) {
        // SAFETY: reads one set, which is ours.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
    }
}

/// One CPU per shard, or none.
fn places(l: &Launch) -> io::Result<Vec<Option<usize>>> {
    let n = usize::from(l.shards);
    if n == 0 {
        return Err(invalid("a node needs at least one shard"));
    }
    if l.overprovisioned {
        return Ok(vec![None; n]);
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
    Ok(cpus.into_iter().take(n).map(Some).collect())
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

pub fn probe() -> io::Result<()> {
    io_uring::IoUring::new(8).map(drop)
}

/// The error of a ring that could not be made, with what to do about it.
pub fn explain(e: io::Error) -> io::Error {
    let too_old = format!("this kernel has no io_uring: Linux {OLDEST_LINUX} or newer is needed");
    let advice = match e.raw_os_error() {
        Some(libc::ENOSYS) => &too_old,
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is disabled here: set `sysctl kernel.io_uring_disabled=0`, and in a container allow the io_uring system calls (seccomp)"
        }
        Some(libc::ENOMEM) => {
            "io_uring may not lock enough memory: raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or /etc/security/limits.conf)"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many open files: raise the limit (`ulimit -n 65536`, LimitNOFILE in a systemd unit)"
        }
        _ => return e,
    };
    io::Error::new(e.kind(), format!("{advice} ({e})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_looked_after_often() {
        let slice = thread::spawn(|| {
            run_in_short_slices();
            // SAFETY: all-zero is a valid sched_attr.
            let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of_val(&attr) as libc::c_uint;
            // SAFETY: writes at most `size` bytes, which are ours.
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
            attr.sched_runtime
        });
        let slice = slice.join().unwrap();
        // 0: a system that has no slices to ask for.
        assert!(slice == 0 || slice == SLICE.as_nanos() as u64, "{slice} ns");
    }

    /// The twin of `a_pinned_shard_stays_on_its_cpu_and_polls` in `rt::tests`.
    #[test]
    fn an_overprovisioned_shard_may_use_every_cpu_and_never_polls() {
        let cpus = || core_affinity::get_core_ids().map(|c| c.len());
        let of_the_process = cpus();
        let l = Launch {
            shards: 1,
            overprovisioned: true,
            cpus: None,
            seed: None,
        };
        launch(l, move |_| async move {
            assert_eq!(cpus(), of_the_process);
            assert_eq!(crate::rt::spin_polls(), 0, "of its rings");
            // That it uses less time isn't measured here: beside others, who polls gives most of its time away.
            assert!(!super::super::shard().spins(), "before it sleeps");
        })
        .unwrap();
    }

    #[test]
    fn errors_say_what_to_do() {
        for (code, word) in [
            (libc::ENOSYS, OLDEST_LINUX),
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
