//! What a run cost a process, from /proc: CPU, memory, context switches, bytes to the device. Any broker, by its process id.
//!
//! The kernel counts bytes to the device when a page gets dirty, so for a broker that leaves writing to the page cache they may not be on the disk yet.

use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::{field, kib};

/// Counters of a process and its threads, or their growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    user_ticks: u64,
    system_ticks: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    written_bytes: u64,
    rss_bytes: u64,
    peak_rss_bytes: u64,
}

/// What the process used within the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFigures {
    pub pid: u32,
    pub command: String,
    pub user_cpu_s: f64,
    pub system_cpu_s: f64,
    /// Share of one CPU that it used.
    pub cpus_used: f64,
    pub records_per_cpu_s: f64,
    /// Resident at the end, and the most ever.
    pub rss_bytes: u64,
    pub peak_rss_bytes: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// Handed to the device by this process, and that per byte of record values acknowledged. None where /proc doesn't tell.
    pub written_bytes: Option<u64>,
    pub written_per_produced: Option<f64>,
}

/// Reads the counters of a process now.
pub fn read(pid: u32) -> Result<Counters, Error> {
    let open = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        fs::read_to_string(&path).map_err(Error::io(path))
    };
    let stat = open("stat")?;
    let status = open("status")?;
    let (user_ticks, system_ticks) = cpu_ticks(&stat)
        .ok_or_else(|| Error::Usage(format!("/proc/{pid}/stat has no CPU times")))?;
    let (voluntary, involuntary) = switches(pid)?;
    // Another user's process may hide it.
    let io = open("io").unwrap_or_default();
    Ok(Counters {
        user_ticks,
        system_ticks,
        voluntary_switches: voluntary,
        involuntary_switches: involuntary,
        written_bytes: field(&io, "write_bytes")
            .and_then(|n| n.parse().ok())
            .unwrap_or(u64::MAX),
        rss_bytes: kib(&status, "VmRSS").unwrap_or(0),
        peak_rss_bytes: kib(&status, "VmHWM").unwrap_or(0),
    })
}

/// Context switches of all threads, voluntary and not. Of another process, those of threads that have ended are left out.
fn switches(pid: u32) -> Result<(u64, u64), Error> {
    if pid == std::process::id() {
        // SAFETY: all zeros is a valid value of this plain structure, which the call fills.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` lives until the call returns.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } == 0 {
            return Ok((usage.ru_nvcsw as u64, usage.ru_nivcsw as u64));
        }
    }
    let (mut voluntary, mut involuntary) = (0, 0);
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(Error::io("/proc"))?;
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let number = |name| {
            field(&status, name)
                .and_then(|n| n.parse().ok())
                .unwrap_or(0u64)
        };
        voluntary += number("voluntary_ctxt_switches");
        involuntary += number("nonvoluntary_ctxt_switches");
    }
    Ok((voluntary, involuntary))
}

/// User and system time of /proc/pid/stat: the 14th and 15th field, counted behind the command's closing parenthesis.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// What was used between two readings that lie `seconds` apart, beside so many records acknowledged and bytes of their values.
pub fn figures(
    pid: u32,
    before: Counters,
    after: Counters,
    seconds: f64,
    records: u64,
    bytes: u64,
) -> ProcessFigures {
    // SAFETY: no pointer; the number of clock ticks a second.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let grown = |from: u64, to: u64| to.saturating_sub(from);
    let user = grown(before.user_ticks, after.user_ticks) as f64 / ticks;
    let system = grown(before.system_ticks, after.system_ticks) as f64 / ticks;
    let cpu = user + system;
    let per = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let told = before.written_bytes != u64::MAX && after.written_bytes != u64::MAX;
    let written = told.then(|| grown(before.written_bytes, after.written_bytes));
    ProcessFigures {
        pid,
        command: fs::read(format!("/proc/{pid}/cmdline"))
            .map(|b| {
                String::from_utf8_lossy(&b)
                    .split('\0')
                    .next()
                    .unwrap_or("")
                    .to_owned()
            })
            .unwrap_or_default(),
        user_cpu_s: user,
        system_cpu_s: system,
        cpus_used: per(cpu, seconds),
        records_per_cpu_s: per(records as f64, cpu),
        rss_bytes: after.rss_bytes,
        peak_rss_bytes: after.peak_rss_bytes,
        voluntary_switches: grown(before.voluntary_switches, after.voluntary_switches),
        involuntary_switches: grown(before.involuntary_switches, after.involuntary_switches),
        written_bytes: written,
        written_per_produced: written.map(|w| per(w as f64, bytes as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_found_whatever_the_command_is_called() {
        let stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 111 222 13 14";
        assert_eq!(cpu_ticks(stat), Some((111, 222)));
        assert_eq!(cpu_ticks("42 (short) S 1"), None);
    }

    #[test]
    fn a_process_that_works_is_seen_to() {
        let pid = std::process::id();
        let before = read(pid).unwrap();
        let started = std::time::Instant::now();
        let mut sum = 0u64;
        while started.elapsed().as_millis() < 200 {
            sum = std::hint::black_box(sum + 1);
        }
        // A thread that has ended counts too.
        let sleeper =
            || (0..50).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        std::thread::spawn(sleeper).join().unwrap();
        let found = figures(pid, before, read(pid).unwrap(), 0.2, 100, 1000);
        assert!(found.voluntary_switches >= 50, "{found:?}");
        assert!(found.user_cpu_s + found.system_cpu_s > 0.0, "{found:?}");
        assert!(found.rss_bytes > 1 << 20 && found.peak_rss_bytes >= found.rss_bytes / 2);
        assert!(read(u32::MAX).is_err());
    }
}
