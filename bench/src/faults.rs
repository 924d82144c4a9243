//! What happens to the broker during a run: signals and commands of the workload's timeline, each at its moment, and what became of them.
//!
//! A command runs beside the load, in a process group of its own; what still runs `limits::FAULT_WITHIN_S` after the run's end is killed.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::limits;
use crate::workload::{Fault, Signal};

/// What a command is told of the run.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub broker: String,
    pub pid: Option<u32>,
    pub data_dir: Option<std::path::PathBuf>,
}

/// One fault as it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultDone {
    /// Seconds from the beginning of the load: when it was to be, and when it was.
    pub due_s: f64,
    pub at_s: f64,
    pub what: String,
    /// "done", a command's exit, or why it couldn't be done.
    pub outcome: String,
}

/// The timeline.
pub struct Timeline {
    about: About,
    /// The next is last.
    waiting: Vec<Fault>,
    done: Vec<FaultDone>,
    /// Commands that run, with the index of their entry in `done`.
    running: Vec<(usize, Child)>,
    /// The broker stands still, and is to go on when the run ends.
    stopped: bool,
}

impl Timeline {
    /// A signal needs the broker's process.
    pub fn new(faults: &[Fault], about: About) -> Result<Timeline, Error> {
        if faults.iter().any(|f| f.signal.is_some()) && about.pid.is_none() {
            return Err(Error::Usage(
                "a fault that is a signal needs the broker's process: --pid".into(),
            ));
        }
        let mut waiting = faults.to_vec();
        waiting.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
        Ok(Timeline {
            about,
            waiting,
            done: Vec::new(),
            running: Vec::new(),
            stopped: false,
        })
    }

    /// Does what is due at a moment of the load, and looks after commands. Returns what has just begun, for the progress.
    pub fn look(&mut self, at_s: f64) -> Vec<String> {
        let mut said = Vec::new();
        while self.waiting.last().is_some_and(|f| f.at_s <= at_s) {
            let fault = self.waiting.pop().expect("it was looked at");
            let due_s = fault.at_s;
            let mut note = |what: String, outcome: String| {
                said.push(format!("{what}: {outcome}"));
                self.done.push(FaultDone {
                    due_s,
                    at_s,
                    what,
                    outcome,
                });
            };
            if let (Some(signal), Some(pid)) = (fault.signal, self.about.pid) {
                self.stopped = signal == Signal::Stop || self.stopped && signal == Signal::Term;
                let outcome = match send(pid, signal) {
                    Ok(()) => "done".to_owned(),
                    Err(e) => e.to_string(),
                };
                note(format!("SIG{signal:?}").to_uppercase(), outcome);
            }
            if let Some(command) = fault.command {
                match shell(&command, &self.about).spawn() {
                    Ok(child) => {
                        note(command, "running".into());
                        self.running.push((self.done.len() - 1, child));
                    }
                    Err(e) => note(command, e.to_string()),
                }
            }
        }
        let done = &mut self.done;
        self.running
            .retain_mut(|(index, child)| match child.try_wait() {
                Ok(None) => true,
                Ok(Some(status)) => {
                    done[*index].outcome = status.to_string();
                    false
                }
                Err(e) => {
                    done[*index].outcome = e.to_string();
                    false
                }
            });
        said
    }

    /// Ends what still runs; what happened.
    pub fn finish(mut self) -> Vec<FaultDone> {
        let deadline = Instant::now() + Duration::from_secs(limits::FAULT_WITHIN_S);
        while !self.running.is_empty() && Instant::now() < deadline {
            self.look(0.0);
            std::thread::sleep(Duration::from_millis(10));
        }
        for (index, mut child) in std::mem::take(&mut self.running) {
            kill_group(&mut child);
            self.done[index].outcome = "it ran on, and was killed".into();
        }
        std::mem::take(&mut self.done)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if let (true, Some(pid)) = (self.stopped, self.about.pid) {
            // It may be gone by now.
            let _ = send(pid, Signal::Cont);
        }
        for (_, child) in &mut self.running {
            kill_group(child);
        }
    }
}

fn send(pid: u32, signal: Signal) -> std::io::Result<()> {
    let number = match signal {
        Signal::Kill => libc::SIGKILL,
        Signal::Term => libc::SIGTERM,
        Signal::Stop => libc::SIGSTOP,
        Signal::Cont => libc::SIGCONT,
    };
    // SAFETY: no pointer is passed.
    match unsafe { libc::kill(pid as libc::pid_t, number) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A command of the shell, in a process group of its own.
pub fn shell(command: &str, about: &About) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env("BENCH_BROKER", &about.broker);
    if let Some(pid) = about.pid {
        shell.env("BENCH_PID", pid.to_string());
    }
    if let Some(dir) = &about.data_dir {
        shell.env("BENCH_DATA_DIR", dir);
    }
    // What it prints isn't the result's.
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    shell.process_group(0);
    shell
}

/// Kills a command and what it has started, unless it moved away from its group.
pub fn kill_group(child: &mut Child) {
    // SAFETY: no pointer is passed. The group is the child's own, and the child isn't reaped yet, so that its id isn't anybody else's.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(at_s: f64, command: &str) -> Fault {
        Fault {
            at_s,
            signal: None,
            command: Some(command.into()),
        }
    }

    #[test]
    fn faults_come_in_order_at_their_moments_and_are_told() {
        let folder = std::env::temp_dir().join(format!("bench-faults-{}", std::process::id()));
        let about = About {
            broker: "b:1".into(),
            pid: None,
            data_dir: Some(folder),
        };
        let faults = [
            fault(2.0, "exit 3"),
            fault(
                1.0,
                "test \"$BENCH_BROKER\" = b:1 && test -n \"$BENCH_DATA_DIR\"",
            ),
        ];
        let mut timeline = Timeline::new(&faults, about).unwrap();
        assert!(timeline.look(0.9).is_empty());
        assert_eq!(timeline.look(1.5).len(), 1);
        assert_eq!(timeline.look(2.5).len(), 1);
        let done = timeline.finish();
        assert_eq!(
            (done[0].due_s, done[0].at_s, done[1].due_s),
            (1.0, 1.5, 2.0)
        );
        assert!(
            done[0].outcome.contains(": 0") && done[1].outcome.contains(": 3"),
            "{done:?}"
        );
    }

    #[test]
    fn a_signal_goes_to_the_broker_and_to_nobody_else() {
        let stop = Fault {
            at_s: 0.0,
            signal: Some(Signal::Kill),
            command: None,
        };
        assert!(Timeline::new(std::slice::from_ref(&stop), About::default()).is_err());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let about = About {
            pid: Some(child.id()),
            ..About::default()
        };
        let mut timeline = Timeline::new(&[stop], about).unwrap();
        assert_eq!(timeline.look(0.0), ["SIGKILL: done"]);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_broker_that_was_stopped_goes_on_after_the_run() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
        };
        let stop = Fault {
            at_s: 0.0,
            signal: Some(Signal::Stop),
            command: None,
        };
        let about = About {
            pid: Some(child.id()),
            ..About::default()
        };
        let mut timeline = Timeline::new(&[stop], about).unwrap();
        timeline.look(0.0);
        let until = |wanted: bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while (state() == 'T') != wanted && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            (state() == 'T') == wanted
        };
        assert!(until(true));
        timeline.finish();
        assert!(until(false));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_command_that_goes_on_ends_with_the_run() {
        let mut timeline =
            Timeline::new(&[fault(0.0, "sleep 600 & sleep 600")], About::default()).unwrap();
        timeline.look(0.0);
        let began = Instant::now();
        drop(timeline);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
