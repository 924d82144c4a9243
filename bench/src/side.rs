//! A broker that a comparison starts, measures and ends: Tailrace, Apache Kafka by the project's `kafka-peer`, or whatever a command starts.
//!
//! Invariants: it gets a data directory made for it, which goes with it; only processes started here are ended, by their ids; a dropped
//! [`Running`] leaves none behind.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::error::Error;
use crate::faults::kill_group;
use crate::limits;

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pub label: String,
    pub start: Start,
}

/// How a broker is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A program with arguments, in the foreground. `{dir}`, `{port}` and `{addr}` stand for its data directory, port and address.
    Program(Vec<String>),
    /// The same, as a line of the shell, which becomes the broker.
    Shell(String),
    /// The script `kafka-peer`, which starts it in the background; with a flush on every message or as it is shipped.
    Kafka { script: PathBuf, fsync: bool },
}

/// What a comparison's file says of a side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SideInfo {
    pub label: String,
    pub command: String,
    /// What the start told of the broker's version.
    pub version: Option<String>,
}

/// A broker that runs.
pub struct Running {
    start: Start,
    /// Of a broker in the foreground.
    child: Option<Child>,
    pub pid: u32,
    pub address: String,
    pub data_dir: PathBuf,
    pub version: Option<String>,
    log: PathBuf,
    ended: bool,
}

impl Side {
    /// "kafka", "kafka-fsync", or NAME=COMMAND.
    pub fn parse(text: &str, kafka_peer: &Path) -> Result<Side, Error> {
        let kafka = |fsync| Start::Kafka {
            script: kafka_peer.to_owned(),
            fsync,
        };
        let (label, start) = match (text, text.split_once('=')) {
            ("kafka", _) => ("kafka", kafka(false)),
            ("kafka-fsync", _) => ("kafka-fsync", kafka(true)),
            (_, Some((label, command))) if fits_file_name(label) && !command.trim().is_empty() => {
                (label, Start::Shell(command.to_owned()))
            }
            _ => {
                return Err(Error::Usage(format!(
                    "{text}: a broker is kafka, kafka-fsync, or NAME=COMMAND with a name of letters, digits, dots and dashes"
                )));
            }
        };
        Ok(Side {
            label: label.into(),
            start,
        })
    }

    pub fn info(&self) -> SideInfo {
        SideInfo {
            label: self.label.clone(),
            command: match &self.start {
                Start::Program(words) => words.join(" "),
                Start::Shell(line) => line.clone(),
                Start::Kafka { fsync, .. } => {
                    format!("kafka-peer start{}", if *fsync { " --fsync" } else { "" })
                }
            },
            version: None,
        }
    }

    /// Starts it on a fresh data directory below `work`, on these CPUs (any, if none are named), and waits until it answers.
    pub fn start(&self, work: &Path, cpus: &[usize], stop: &AtomicBool) -> Result<Running, Error> {
        let data_dir = work.join(format!("{}-data", self.label));
        let named = data_dir.display().to_string();
        fs::create_dir(&data_dir).map_err(Error::io(&named))?;
        let data_dir = data_dir.canonicalize().map_err(Error::io(&named))?;
        let port = free_port()?;
        let mut running = Running {
            start: self.start.clone(),
            child: None,
            pid: 0,
            address: format!("127.0.0.1:{port}"),
            log: work.join(format!("{}.log", self.label)),
            data_dir,
            version: None,
            ended: false,
        };
        let begun = running.begin(port, cpus).and_then(|()| running.wait(stop));
        begun.map_err(|e| running.with_log(e))?;
        Ok(running)
    }
}

fn fits_file_name(label: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    !label.is_empty() && label.len() <= 64 && label.chars().all(fits) && !label.starts_with('.')
}

/// A free port of the loopback, below those that the kernel gives to clients, whose hundredth neighbour is free too: `kafka-peer` puts its
/// controller there. No port is given twice in a row.
fn free_port() -> Result<u16, Error> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..10_000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let spread = (std::process::id() as u16)
            .wrapping_mul(37)
            .wrapping_add(step);
        let port = 20_000 + spread % 10_000;
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 100) {
            return Ok(port);
        }
    }
    Err(Error::Usage("no free port is found".into()))
}

impl Running {
    fn begin(&mut self, port: u16, cpus: &[usize]) -> Result<(), Error> {
        let name = self.log.display().to_string();
        let log = || File::create(&self.log).map_err(Error::io(&name));
        let dir = self.data_dir.display().to_string();
        let fill = |text: &String| {
            text.replace("{dir}", &dir)
                .replace("{port}", &port.to_string())
                .replace("{addr}", &self.address)
        };
        let mut command = match &self.start {
            Start::Program(words) => {
                let words: Vec<String> = words.iter().map(fill).collect();
                let (program, arguments) = words.split_first().expect("it names a program");
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            Start::Shell(line) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("exec {}", fill(line))]);
                command
            }
            Start::Kafka { script, fsync } => {
                let mut command = Command::new(script);
                command.args(["start", "--dir", &dir, "--port", &port.to_string()]);
                command.args(fsync.then_some("--fsync"));
                command
            }
        };
        // Ctrl-C is for the comparison, which then ends the broker.
        command.stdin(Stdio::null()).process_group(0);
        if !cpus.is_empty() {
            let set = cpu_set(cpus);
            // SAFETY: between fork and exec only one system call is made, on memory of the closure.
            unsafe {
                command.pre_exec(move || {
                    match libc::sched_setaffinity(0, size_of_val(&set), &set) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    }
                })
            };
        }
        let what = || format!("{:?}", command.get_program());
        if let Start::Kafka { .. } = self.start {
            let what = what();
            command.stderr(log()?);
            let out = command.output().map_err(Error::io(&what))?;
            if !out.status.success() {
                return Err(Error::Broker(format!("{what} ended with {}", out.status)));
            }
            let said = String::from_utf8_lossy(&out.stdout);
            self.version = said.split(':').next().map(Into::into);
            let path = self.data_dir.join("node1").join("pid");
            let pid = fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
            let wrong = |_| Error::Broker(format!("{what} left no process id"));
            self.pid = pid.trim().parse().map_err(wrong)?;
            return Ok(());
        }
        let what = what();
        let (out, err) = (log()?, log()?);
        let child = command.stdout(out).stderr(err).spawn();
        let child = child.map_err(Error::io(what))?;
        self.pid = child.id();
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it speaks the protocol.
    fn wait(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(limits::BROKER_WITHIN_S);
        loop {
            let answer = match Control::connect(&self.address, false) {
                Ok(_) => return Ok(()),
                Err(e) => e,
            };
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait().map_err(Error::io("the broker"))?
            {
                self.child = None;
                return Err(Error::Broker(format!("it ended with {status}")));
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            if Instant::now() > deadline {
                return Err(answer);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// An error of the broker with what it last said.
    fn with_log(&self, error: Error) -> Error {
        let Error::Broker(what) = error else {
            return error;
        };
        let mut tail = String::new();
        if let Ok(mut file) = File::open(&self.log) {
            let length = file.metadata().map_or(0, |m| m.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(2_000)));
            let mut bytes = Vec::new();
            let _ = file.take(2_000).read_to_end(&mut bytes);
            tail = String::from_utf8_lossy(&bytes).into_owned();
        }
        Error::Broker(format!("{what}\n{tail}").trim_end().to_owned())
    }

    /// Ends the broker, and removes its data.
    pub fn end(mut self) -> Result<(), Error> {
        self.stop();
        let name = self.data_dir.display().to_string();
        fs::remove_dir_all(&self.data_dir).map_err(Error::io(name))?;
        let _ = fs::remove_file(&self.log);
        Ok(())
    }

    fn stop(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Start::Kafka { script, .. } = &self.start {
            let mut command = Command::new(script);
            command.args(["stop", "--dir"]).arg(&self.data_dir);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let _ = command.process_group(0).status();
        }
        let Some(child) = &mut self.child else {
            return;
        };
        // SAFETY: no pointer is passed; the child isn't reaped yet, so that its id isn't anybody else's.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(limits::BROKER_ENDS_WITHIN_S);
        while Instant::now() < deadline {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                _ => return,
            }
        }
        kill_group(child);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn cpu_set(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|c| **c < libc::CPU_SETSIZE as usize) {
        // SAFETY: the set is a plain bit field, and the number lies within it.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    set
}

/// Keeps this thread, and those that it starts, on some CPUs.
pub fn stay_on(cpus: &[usize]) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    let set = cpu_set(cpus);
    // SAFETY: the set lives until the call returns.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(Error::Usage(format!(
            "this process may not run on the CPUs {cpus:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bench-side-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn brokers_are_named_or_given_by_their_command() {
        let parse = |text| Side::parse(text, Path::new("k"));
        assert_eq!(
            parse("kafka-fsync").unwrap().info().command,
            "kafka-peer start --fsync"
        );
        let own = parse("own.2=run --port={port}").unwrap();
        assert_eq!(
            (own.label.as_str(), own.start),
            ("own.2", Start::Shell("run --port={port}".into()))
        );
        for wrong in ["", "redpanda", "=x", "a/b=x", "..=x", "a= "] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_broker_that_ends_at_once_is_told_with_its_words_and_leaves_nothing() {
        let work = folder("ends");
        let side = Side::parse("x=sh -c 'echo no such luck; exit 7'", Path::new("")).unwrap();
        let told = side
            .start(&work, &[0], &AtomicBool::new(false))
            .err()
            .unwrap()
            .to_string();
        assert!(
            told.contains("no such luck") && told.contains("7"),
            "{told}"
        );
        fs::remove_dir_all(work).unwrap();
    }

    #[test]
    fn a_broker_that_never_answers_is_ended_with_the_comparison() {
        let work = folder("mute");
        let pid_file = work.join("pid");
        let line = format!("x=sh -c 'echo $$ > {}; exec sleep 600'", pid_file.display());
        let side = Side::parse(&line, Path::new("")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !fs::read_to_string(&pid_file).is_ok_and(|t| t.ends_with('\n')) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert!(matches!(
                side.start(&work, &[], &stop),
                Err(Error::Interrupted)
            ));
        });
        let pid = fs::read_to_string(&pid_file).unwrap();
        assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists());
        fs::remove_dir_all(work).unwrap();
    }
}
