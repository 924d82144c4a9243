//! What the machine gives this process: CPUs and memory.

use crate::settings::Machine;

/// The CPUs this process may use and the memory it may have, control groups counted.
pub fn look() -> Machine {
    Machine {
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get().min(1024) as u16),
        memory_bytes: memory_bytes(),
    }
}

fn memory_bytes() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_of(&text))
        .unwrap_or(2 << 30);
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(u64::MAX);
    total.min(limit)
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24576 kB\nMemFree:  1 kB\n";
        assert_eq!(total_of(text), Some(24 << 20));
        assert_eq!(total_of("nothing"), None);
    }
}
