//! What the machine itself takes: a durable write of one block, a round trip over the loopback, and how fast the disk reads and the loopback carries.
//!
//! These are what a broker's figures are set beside: an acknowledged record is at least one durable write and one round trip. All of it is made in the
//! directory and on the CPUs that the broker and its client use, in the same minutes.
//!
//! Durable writes go to a file that was filled with zeros before, past the page cache, one at a time, in both ways that there are (synced by the write
//! itself, and by a data sync behind it); the quicker one counts. Reads go past the page cache too, several at a time, over bytes that don't repeat.
//!
//! Bounds: the file has [`FILE_BYTES`], and is removed. `unsafe` is in [`Block`] (memory on a block's boundary) and in the calls of `pwritev2`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::error::Error;
use crate::measure::histogram;
use crate::result::us;
use crate::side::stay_on;

/// The format's name.
pub const FORMAT: &str = "tailrace-bench-probe/1";
/// Of the file that is written to and read.
pub const FILE_BYTES: u64 = 1 << 30;
/// Where durable writes go: its first part, over and over.
const WRITTEN_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4096;
const PIECE_BYTES: usize = 1 << 20;
/// Reads at the disk at one time.
const READERS: usize = 4;
/// A produce request of one record of 1 KiB, and its answer, are about as long.
const REQUEST_BYTES: usize = 1100;
const ANSWER_BYTES: usize = 64;
/// What the loopback is given at once when it carries a stream.
const SENT_BYTES: usize = 128 << 10;

/// What a probe is told.
#[derive(Clone, Debug)]
pub struct Probe {
    /// On the disk that is asked about.
    pub folder: PathBuf,
    /// Where a broker would run, and where its client; any CPU if none is named.
    pub broker_cpus: Vec<usize>,
    pub load_cpus: Vec<usize>,
    /// How long each of the figures is measured for.
    pub each: Duration,
    /// The moments between two operations, for what is measured at a rate too.
    pub pace: Duration,
}

/// What it found. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// "tailrace-bench-probe/1"
    pub format: String,
    /// Of 4 KiB, one behind the other; synced by the write itself, and by a data sync behind it.
    pub write_dsync: Times,
    pub write_then_sync: Times,
    /// The quicker of both, p50, and what it is when writes come at the pace.
    pub write_p50: f64,
    pub write_at_pace: Times,
    /// One message there and one back, one behind the other, and at the pace.
    pub loopback: Times,
    pub loopback_at_pace: Times,
    pub disk_read_bytes_per_s: f64,
    pub loopback_bytes_per_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    pub count: u64,
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Times {
        let at = |q| us(histogram.value_at_quantile(q));
        Times {
            count: histogram.len(),
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
        }
    }
}

/// Memory on a block's boundary, as direct I/O takes it.
struct Block {
    memory: Vec<u8>,
    from: usize,
    bytes: usize,
}

impl Block {
    fn new(bytes: usize) -> Block {
        let memory = vec![0; bytes + BLOCK_BYTES];
        let from = memory.as_ptr().align_offset(BLOCK_BYTES);
        Block {
            memory,
            from,
            bytes,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.bytes]
    }
}

/// Carries out a probe; it leaves nothing behind.
pub fn run(probe: &Probe) -> Result<Found, Error> {
    fs::create_dir_all(&probe.folder).map_err(Error::io(probe.folder.display().to_string()))?;
    let path = probe
        .folder
        .join(format!("bench-probe-{}", std::process::id()));
    let found = on_file(probe, &path);
    let _ = fs::remove_file(&path);
    found
}

fn on_file(probe: &Probe, path: &Path) -> Result<Found, Error> {
    let named = || path.display().to_string();
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(Error::io(named()))
    };
    // Threads inherit where they may run, so that each part has one of its own.
    let on = |cpus: &[usize], work: &mut (dyn FnMut() -> Result<(), Error> + Send)| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| stay_on(cpus).and_then(|()| work()));
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    };
    let (mut dsync, mut then_sync, mut at_pace) = (None, None, None);
    let mut read = 0.0;
    on(&probe.broker_cpus, &mut || {
        let file = open()?;
        fill(&file).map_err(Error::io(named()))?;
        let write = |sync: Sync, pace| -> Result<Histogram<u64>, Error> {
            writes(&file, sync, probe.each, pace).map_err(Error::io(named()))
        };
        let by_itself = write(Sync::ByItself, None)?;
        let behind = write(Sync::Behind, None)?;
        let quicker = match by_itself.value_at_quantile(0.5) < behind.value_at_quantile(0.5) {
            true => Sync::ByItself,
            false => Sync::Behind,
        };
        at_pace = Some(Times::of(&write(quicker, Some(probe.pace))?));
        (dsync, then_sync) = (Some(Times::of(&by_itself)), Some(Times::of(&behind)));
        read = reads(&file, probe.each).map_err(Error::io(named()))?;
        Ok(())
    })?;
    let loopback = |what: Loopback| -> Result<(Histogram<u64>, f64), Error> {
        let failed = || Error::io("the loopback");
        // Both ends are there before anybody waits for one.
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        let near = TcpStream::connect(address).map_err(failed())?;
        let (far, _) = listener.accept().map_err(failed())?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                stay_on(&probe.broker_cpus)?;
                serve(far, what).map_err(failed())
            });
            let client = scope.spawn(move || {
                stay_on(&probe.load_cpus)?;
                ask(near, what, probe.each).map_err(failed())
            });
            let asked = client
                .join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p));
            let served = server
                .join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p));
            served.and(asked)
        })
    };
    let (quick, _) = loopback(Loopback::RoundTrip(None))?;
    let (slow, _) = loopback(Loopback::RoundTrip(Some(probe.pace)))?;
    let (_, carried) = loopback(Loopback::Stream)?;
    let whole = "it was measured above";
    let (dsync, then_sync) = (dsync.expect(whole), then_sync.expect(whole));
    Ok(Found {
        format: FORMAT.into(),
        write_p50: dsync.p50.min(then_sync.p50),
        write_dsync: dsync,
        write_then_sync: then_sync,
        write_at_pace: at_pace.expect(whole),
        loopback: Times::of(&quick),
        loopback_at_pace: Times::of(&slow),
        disk_read_bytes_per_s: read,
        loopback_bytes_per_s: carried,
    })
}

/// Writes the whole file, zeros where durable writes go and behind them what doesn't repeat.
fn fill(file: &File) -> std::io::Result<()> {
    let mut piece = Block::new(PIECE_BYTES);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (0..FILE_BYTES).step_by(PIECE_BYTES) {
        if at >= WRITTEN_BYTES {
            for word in piece.bytes().chunks_exact_mut(8) {
                // Xorshift: nothing that a disk could leave out.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
        }
        file.write_all_at(piece.bytes(), at)?;
    }
    file.sync_all()
}

#[derive(Clone, Copy)]
enum Sync {
    ByItself,
    Behind,
}

/// Durable writes of one block, one at a time.
fn writes(
    file: &File,
    sync: Sync,
    length: Duration,
    pace: Option<Duration>,
) -> std::io::Result<Histogram<u64>> {
    let mut times = histogram();
    let mut block = Block::new(BLOCK_BYTES);
    let began = Instant::now();
    let mut count = 0u64;
    while began.elapsed() < length {
        keep_pace(began, pace, count);
        let at = count * BLOCK_BYTES as u64 % WRITTEN_BYTES;
        block.bytes().fill(count as u8 | 1);
        let from = Instant::now();
        match sync {
            Sync::ByItself => write_dsync(file, block.bytes(), at)?,
            Sync::Behind => {
                file.write_all_at(block.bytes(), at)?;
                file.sync_data()?;
            }
        }
        times.saturating_record(from.elapsed().as_nanos() as u64);
        count += 1;
    }
    Ok(times)
}

fn write_dsync(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    let one = libc::iovec {
        iov_base: bytes.as_ptr() as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the memory lives until the call returns, and is only read.
    let written = unsafe {
        libc::pwritev2(
            file.as_raw_fd(),
            &one,
            1,
            at as libc::off_t,
            libc::RWF_DSYNC,
        )
    };
    match written {
        n if n == bytes.len() as isize => Ok(()),
        n if n < 0 => Err(std::io::Error::last_os_error()),
        _ => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

fn keep_pace(began: Instant, pace: Option<Duration>, count: u64) {
    let Some(pace) = pace else { return };
    let due = began + pace.saturating_mul(count.min(u64::from(u32::MAX)) as u32);
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Bytes a second read from the first to the last, over and over, for so long.
fn reads(file: &File, length: Duration) -> std::io::Result<f64> {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let one = || -> std::io::Result<u64> {
        let mut piece = Block::new(PIECE_BYTES);
        let mut bytes = 0;
        while began.elapsed() < length {
            let at = next.fetch_add(PIECE_BYTES as u64, Ordering::Relaxed);
            let at = WRITTEN_BYTES + at % (FILE_BYTES - WRITTEN_BYTES);
            file.read_exact_at(piece.bytes(), at)?;
            bytes += PIECE_BYTES as u64;
        }
        Ok(bytes)
    };
    let bytes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .sum::<std::io::Result<u64>>()
    })?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

#[derive(Clone, Copy)]
enum Loopback {
    RoundTrip(Option<Duration>),
    Stream,
}

/// The broker's end: answers what comes, or sends until nobody reads.
fn serve(mut stream: TcpStream, what: Loopback) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    match what {
        Loopback::RoundTrip(_) => {
            let mut request = [0; REQUEST_BYTES];
            while stream.read_exact(&mut request).is_ok() {
                stream.write_all(&[1; ANSWER_BYTES])?;
            }
        }
        Loopback::Stream => {
            let bytes = vec![1; SENT_BYTES];
            while stream.write_all(&bytes).is_ok() {}
        }
    }
    Ok(())
}

/// The client's end: times of round trips, or bytes a second that arrived.
fn ask(
    mut stream: TcpStream,
    what: Loopback,
    length: Duration,
) -> std::io::Result<(Histogram<u64>, f64)> {
    stream.set_nodelay(true)?;
    let mut times = histogram();
    let began = Instant::now();
    let mut bytes = 0u64;
    match what {
        Loopback::RoundTrip(pace) => {
            let mut answer = [0; ANSWER_BYTES];
            let mut count = 0;
            while began.elapsed() < length {
                keep_pace(began, pace, count);
                let from = Instant::now();
                stream.write_all(&[1; REQUEST_BYTES])?;
                stream.read_exact(&mut answer)?;
                times.saturating_record(from.elapsed().as_nanos() as u64);
                count += 1;
            }
        }
        Loopback::Stream => {
            let mut buffer = vec![0; 2 * SENT_BYTES];
            while began.elapsed() < length {
                bytes += stream.read(&mut buffer)? as u64;
            }
        }
    }
    Ok((times, bytes as f64 / began.elapsed().as_secs_f64()))
}

/// A probe in a few lines, for people.
pub fn summary(found: &Found) -> String {
    let line = |what: &str, t: &Times| {
        format!(
            "{what:<34} p50 {:.1}  p99 {:.1}  p99.9 {:.1} µs  ({} times)\n",
            t.p50, t.p99, t.p99_9, t.count
        )
    };
    line("4 KiB, synced by the write", &found.write_dsync)
        + &line("4 KiB, synced behind it", &found.write_then_sync)
        + &line("the quicker, at the pace", &found.write_at_pace)
        + &line("loopback, there and back", &found.loopback)
        + &line("the same at the pace", &found.loopback_at_pace)
        + &format!(
            "the disk reads {:.0} MB/s, the loopback carries {:.0} MB/s\n",
            found.disk_read_bytes_per_s / 1e6,
            found.loopback_bytes_per_s / 1e6
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_has_every_figure_and_leaves_nothing() {
        // Beside the build's own files: what is in memory knows no direct I/O, or no disk.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../target/tmp")
            .join(format!("bench-probe-{}", std::process::id()));
        let probe = Probe {
            folder: folder.clone(),
            broker_cpus: vec![],
            load_cpus: vec![],
            each: Duration::from_millis(50),
            pace: Duration::from_millis(5),
        };
        let found = run(&probe).unwrap();
        let times = [
            &found.write_dsync,
            &found.write_then_sync,
            &found.write_at_pace,
            &found.loopback,
            &found.loopback_at_pace,
        ];
        assert!(
            times.iter().all(|t| t.count > 0 && t.p50 > 0.0),
            "{found:?}"
        );
        assert!(found.write_at_pace.count <= 12, "{found:?}");
        assert!(found.loopback.count > found.loopback_at_pace.count);
        assert!(found.write_p50 <= found.write_dsync.p50.min(found.write_then_sync.p50));
        assert!(found.disk_read_bytes_per_s > 1e6 && found.loopback_bytes_per_s > 1e6);
        assert!(summary(&found).contains("the disk reads"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir(folder).unwrap();
    }
}
