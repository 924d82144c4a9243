//! What reaches the disk: counters of the block device that holds a directory, from /proc/diskstats.
//!
//! They count everything that goes to the device, other processes' work too; that is what they are for: what a broker leaves to the page cache
//! shows here when it is written. Flushes are counted by the kernel for whole devices only, so a partition is looked up as its disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A disk, found by a directory on it.
#[derive(Clone, Debug)]
pub struct Device {
    name: String,
    folder: PathBuf,
}

/// Counters since the machine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    writes: u64,
    written_bytes: u64,
    flushes: u64,
}

/// What the device did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFigures {
    pub device: String,
    /// Within the window.
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    /// From the load's beginning until, after its end, everything in the page cache was on the disk; and that per byte of values acknowledged.
    pub settled_written_bytes: u64,
    pub settled_per_produced: f64,
}

const SECTOR_BYTES: u64 = 512;

impl Device {
    /// The disk that holds a directory; none where it isn't on a block device of its own (a memory or network file system, an overlay).
    pub fn of(folder: &Path) -> Option<Device> {
        let device = fs::metadata(folder).ok()?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let real = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // A partition lies in the folder of its disk.
        let disk = match real.join("partition").exists() {
            true => real.parent()?,
            false => &real,
        };
        let device = Device {
            name: disk.file_name()?.to_str()?.to_owned(),
            folder: folder.to_owned(),
        };
        device.read().map(|_| device)
    }

    pub fn read(&self) -> Option<DeviceCounters> {
        of_text(&fs::read_to_string("/proc/diskstats").ok()?, &self.name)
    }

    /// Waits until what the page cache holds for this file system is on the disk, and reads.
    pub fn settled(&self) -> Result<Option<DeviceCounters>, Error> {
        use std::os::fd::AsRawFd;
        let name = self.folder.display().to_string();
        let folder = fs::File::open(&self.folder).map_err(Error::io(&name))?;
        // SAFETY: the descriptor is open until the call returns.
        if unsafe { libc::syncfs(folder.as_raw_fd()) } != 0 {
            return Err(Error::io(name)(std::io::Error::last_os_error()));
        }
        Ok(self.read())
    }

    /// Of the window's two readings and the whole load's two, beside so many bytes of values acknowledged by the whole load.
    pub fn figures(
        &self,
        window: (DeviceCounters, DeviceCounters),
        load: (DeviceCounters, DeviceCounters),
        produced: u64,
    ) -> DeviceFigures {
        let settled = load.1.written_bytes.saturating_sub(load.0.written_bytes);
        let (before, after) = window;
        DeviceFigures {
            device: self.name.clone(),
            writes: after.writes.saturating_sub(before.writes),
            written_bytes: after.written_bytes.saturating_sub(before.written_bytes),
            flushes: after.flushes.saturating_sub(before.flushes),
            settled_written_bytes: settled,
            settled_per_produced: settled as f64 / produced.max(1) as f64,
        }
    }
}

/// Of a device's line: name, then eleven numbers, four of discards, two of flushes.
fn of_text(text: &str, name: &str) -> Option<DeviceCounters> {
    let mut lines = text.lines().map(|l| l.split_whitespace().skip(2));
    let numbers = lines.find_map(|mut fields| (fields.next()? == name).then_some(fields))?;
    let numbers: Vec<u64> = numbers.map_while(|n| n.parse().ok()).collect();
    Some(DeviceCounters {
        writes: *numbers.get(4)?,
        written_bytes: numbers.get(6)?.saturating_mul(SECTOR_BYTES),
        // Since Linux 5.5.
        flushes: numbers.get(15).copied().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read() {
        let text = " 254 1 vda1 1 1 1 1 1 1 1 1 1 1 1\n 254 0 vda 4341018 111860 1688975270 13044396 14985600 730621 1016525048 5013451 0 1703640 18748963 627125 375 735290216 155919 5490637 535196\n 7 0 old 1 2 3 4 5 6 7 8 9 10 11\n";
        let expected = DeviceCounters {
            writes: 14_985_600,
            written_bytes: 1_016_525_048 * 512,
            flushes: 5_490_637,
        };
        assert_eq!(of_text(text, "vda"), Some(expected));
        assert_eq!(
            of_text(text, "old").map(|c| (c.writes, c.flushes)),
            Some((5, 0))
        );
        assert_eq!(of_text(text, "vdb"), None);
        assert_eq!(of_text(" 254 0 vda 1 2", "vda"), None);
    }

    #[test]
    fn what_is_written_shows_or_there_is_no_device() {
        let folder = std::env::temp_dir();
        let Some(device) = Device::of(&folder) else {
            return;
        };
        let before = device.settled().unwrap().unwrap();
        let path = folder.join(format!("bench-device-{}", std::process::id()));
        fs::write(&path, vec![7; 4 << 20]).unwrap();
        let after = device.settled().unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(after.written_bytes - before.written_bytes >= 4 << 20);
        assert!(Device::of(Path::new("/proc")).is_none());
    }
}
