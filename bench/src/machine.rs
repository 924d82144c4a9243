//! The machine that a run was made on, as far as Linux tells.

use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    pub hostname: String,
    pub kernel: String,
    pub cpu: String,
    /// CPUs of the machine.
    pub cpus: usize,
    /// CPUs that the load may use, and those that its threads were pinned to.
    pub cpus_allowed: String,
    pub pinned_to: Vec<usize>,
    pub memory_bytes: u64,
    /// 1, 5 and 15 minutes, before the run.
    pub load_average: [f64; 3],
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The value behind `name` and a colon, in a file of such lines.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// A field of /proc in kB, as bytes.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    let number = field(text, name)?.split_whitespace().next()?;
    Some(number.parse::<u64>().ok()? * 1024)
}

pub fn look(pinned_to: &[usize]) -> Machine {
    let cpuinfo = read("/proc/cpuinfo");
    let load = read("/proc/loadavg");
    let mut averages = load.split_whitespace().map(|n| n.parse().unwrap_or(0.0));
    Machine {
        hostname: read("/proc/sys/kernel/hostname"),
        kernel: read("/proc/sys/kernel/osrelease"),
        cpu: field(&cpuinfo, "model name")
            .unwrap_or("unknown")
            .to_owned(),
        cpus: cpuinfo
            .lines()
            .filter(|l| l.starts_with("processor"))
            .count(),
        cpus_allowed: field(&read("/proc/self/status"), "Cpus_allowed_list")
            .unwrap_or("")
            .to_owned(),
        pinned_to: pinned_to.to_vec(),
        memory_bytes: kib(&read("/proc/meminfo"), "MemTotal").unwrap_or(0),
        load_average: std::array::from_fn(|_| averages.next().unwrap_or(0.0)),
    }
}
