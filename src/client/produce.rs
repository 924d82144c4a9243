//! `tailrace produce`: one record per line of standard input, idempotently.
//!
//! However it ends, it says how many records were acknowledged, and which line is the first that wasn't.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::ClientError;
use super::lines::read_lines;
use super::records::Record;
use super::sender::Sender;
use super::topics::pairs;
use crate::cli::{AcksArg, ProduceArgs};
use crate::exit::Fatal;

/// A batch is sent when its records reach this many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// How long a started batch waits for more lines.
const LINGER: Duration = Duration::from_millis(20);

pub fn run(args: ProduceArgs) -> Result<(), Fatal> {
    let headers = pairs(&args.headers)?
        .into_iter()
        .map(|(k, v)| (Bytes::from(k), Some(Bytes::from(v))))
        .collect();
    if args.key_separator.as_deref() == Some("") {
        return Err(ClientError::Usage(
            "--key-separator can't be empty: give the text that parts key and value".into(),
        )
        .into());
    }
    let acknowledged = Arc::new(AtomicU64::new(0));
    let word = done(&args);
    tell_when_interrupted(acknowledged.clone(), word);
    let sender = Sender::open(&args, acknowledged)?;
    let mut input = Input {
        args: &args,
        headers,
        sender,
        turn: 0,
        line: 0,
    };
    let result = input.send_all();
    let count = records(input.sender.acknowledged());
    match result {
        Ok(()) => {
            crate::say(format_args!("{count} {word}"));
            Ok(())
        }
        Err(e) => {
            let rest = input.sender.rest().map(|r| format!("; {r}"));
            let fatal = Fatal::from(e);
            let text = format!("{fatal}\n{count} {word}{}", rest.unwrap_or_default());
            Err(Fatal::new(fatal.exit, text))
        }
    }
}

/// What is said of records that arrived.
fn done(args: &ProduceArgs) -> &'static str {
    match args.acks {
        AcksArg::None => "sent",
        _ => "acknowledged",
    }
}

fn records(count: u64) -> String {
    format!("{count} record{}", if count == 1 { "" } else { "s" })
}

/// Ctrl-C, and SIGTERM: the count is told, then the signal does what it always does. Called before any thread is started, which then all leave these signals
/// to the one that waits for them.
fn tell_when_interrupted(acknowledged: Arc<AtomicU64>, word: &'static str) {
    // SAFETY: plain calls on a set and actions of our own; nothing else in a client command touches signals.
    let signals = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            // Who started us may want it ignored (nohup, a shell's background).
            if action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: the set is initialised and ours; the signal is blocked in every thread, and lifted in this one once its action is the default again.
        unsafe {
            if libc::sigwait(&signals, &mut signal) != 0 {
                return;
            }
            let count = records(acknowledged.load(Ordering::Relaxed));
            crate::say(format_args!(
                "tailrace: interrupted: {count} {word}; what was on its way may be written or not"
            ));
            libc::signal(signal, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut());
            libc::raise(signal);
        }
    });
}

struct Input<'a> {
    args: &'a ProduceArgs,
    /// Of every record.
    headers: Vec<(Bytes, Option<Bytes>)>,
    sender: Sender<'a>,
    /// Where records without a key go next.
    turn: usize,
    /// The number of the last line read.
    line: u64,
}

impl Input<'_> {
    fn send_all(&mut self) -> Result<(), ClientError> {
        let chunks = read_lines();
        let (mut records, mut bytes) = (0, 0);
        loop {
            let chunk = if records == 0 {
                chunks.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                chunks.recv_timeout(LINGER)
            };
            let ended = matches!(chunk, Err(RecvTimeoutError::Disconnected));
            // The lines before one that can't be sent are sent.
            let mut bad = None;
            match chunk {
                Ok(Ok(lines)) => {
                    for line in lines {
                        bytes += line.len();
                        if let Err(e) = self.take(line) {
                            bad = Some(e);
                            break;
                        }
                        records += 1;
                        if records >= self.args.batch_records.max(1) || bytes >= BATCH_BYTES {
                            self.flush()?;
                            (records, bytes) = (0, 0);
                        }
                    }
                    if bad.is_none() {
                        continue;
                    }
                }
                Ok(Err(e)) => bad = Some(e),
                Err(_) => {}
            }
            self.flush()?;
            (records, bytes) = (0, 0);
            if let Some(e) = bad {
                return Err(e);
            }
            if ended {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        self.turn += 1;
        self.sender.flush()
    }

    /// Makes a record of a line and has it wait for its batch.
    fn take(&mut self, line: Bytes) -> Result<(), ClientError> {
        self.line += 1;
        let mut record = record_of(line, self.line, self.args)?;
        record.headers.clone_from(&self.headers);
        let count = self.sender.partitions();
        let partition = match (self.args.partition, &record.key) {
            (Some(p), _) => p,
            (None, Some(key)) => ((murmur2(key) & 0x7FFF_FFFF) as usize % count) as i32,
            (None, None) => (self.turn % count) as i32,
        };
        self.sender.add(partition, self.line, record);
        Ok(())
    }
}

fn record_of(line: Bytes, number: u64, args: &ProduceArgs) -> Result<Record, ClientError> {
    let or_null = |b: Bytes| match &args.null {
        Some(null) if b == null.as_bytes() => None,
        _ => Some(b),
    };
    let (key, value) = match &args.key_separator {
        None => (None, or_null(line)),
        Some(separator) => {
            let sep = separator.as_bytes();
            let at = line
                .windows(sep.len())
                .position(|w| w == sep)
                .ok_or_else(|| {
                    ClientError::Usage(format!(
                        "line {number} has no '{separator}' to part key and value: {}",
                        String::from_utf8_lossy(&line[..line.len().min(80)]).escape_debug()
                    ))
                })?;
            (
                or_null(line.slice(..at)),
                or_null(line.slice(at + sep.len()..)),
            )
        }
    };
    Ok(Record {
        offset: 0,
        timestamp_ms: now_ms(),
        key,
        value,
        headers: Vec::new(),
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The hash with which Kafka's own producer picks partitions: MurmurHash2, 32 bits, its seed fixed.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5BD1_E995;
    let mut h = 0x9747_B28C ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("4 bytes")).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that Kafka's Utils.murmur2 gives.
    #[test]
    fn keys_hash_as_in_kafka() {
        assert_eq!(murmur2(b"21") as i32, -973_932_308);
        assert_eq!(murmur2(b"foobar") as i32, -790_332_482);
        assert_eq!(murmur2(b"a-little-bit-long-string") as i32, -985_981_536);
        assert_eq!(murmur2(b"abc") as i32, 479_470_107);
    }
}
