//! What the kernel says about the disk below a file (`/sys/dev/block`, `Documentation/ABI/stable/sysfs-block`). Called when a journal is opened, off the
//! shard's thread.

use std::path::PathBuf;

use super::ring::Durable;

/// How synced writes to the block device `device` (a `st_dev`) are best made. What can't be told, as on filesystems of several devices, is left to the
/// write itself.
pub fn durable(device: libc::dev_t) -> Durable {
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    let device = PathBuf::from("/sys/dev/block").join(device);
    // A partition's queue is its disk's.
    let queue = ["queue", "../queue"].map(|q| device.join(q));
    let Some(queue) = queue.iter().find(|q| q.is_dir()) else {
        return Durable::WithIt;
    };
    let says = |name: &str, value: &str| {
        std::fs::read_to_string(queue.join(name)).is_ok_and(|found| found.trim() == value)
    };
    if says("write_cache", "write back") && says("fua", "0") {
        Durable::Behind
    } else {
        Durable::WithIt
    }
}
