//! powercut: a disk that forgets what was not flushed when its power is cut.
//!
//! `powercut MOUNTPOINT SIZE_MIB FLUSH_US` mounts a filesystem with one file, `disk`, for a loop device. A flush takes
//! FLUSH_US microseconds: the longer, the likelier a cut falls between a write and its flush. It is steered by lines
//! on standard input and answers each with one line:
//!
//! - `cut`: forget every write since the last flush; every read, write and flush fails until `resume`.
//! - `cut PERCENT SEED`: the same, but each unflushed 4 KiB block survives with that chance, half of these torn
//!   at 512 bytes, as a real disk may do.
//! - `resume`: power on again.
//! - `stats`: counters as `name=value` pairs.
//!
//! It unmounts and ends when standard input ends: it can't outlive the test that started it.

mod disk;
mod image;

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk::{Disk, Mercy};
use image::Image;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mount_point, size_mib, flush_us] = arguments.as_slice() else {
        return Err("usage: powercut MOUNTPOINT SIZE_MIB FLUSH_US".into());
    };
    let disk = Arc::new(Mutex::new(Disk::new(size_mib.parse::<u64>()? << 20)));
    let mut config = fuser::Config::default();
    config
        .mount_options
        .push(fuser::MountOption::FSName("powercut".into()));
    // Writes and reads go on while flushes take their time.
    config.n_threads = Some(4);
    let image = Image {
        disk: disk.clone(),
        flush_time: Duration::from_micros(flush_us.parse()?),
    };
    let session = fuser::spawn_mount(image, mount_point, &config)?;
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        say(&obey(&line?, &disk))?;
    }
    session.umount_and_join()?;
    Ok(())
}

fn obey(line: &str, disk: &Mutex<Disk>) -> String {
    let mut disk = disk.lock().expect("no thread panics holding the disk");
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["cut"] => disk.cut(None),
        ["cut", percent, seed] => match (percent.parse(), seed.parse()) {
            (Ok(percent), Ok(seed)) => disk.cut(Some(Mercy { percent, seed })),
            _ => return "error: cut PERCENT SEED takes numbers".into(),
        },
        ["resume"] => disk.resume(),
        ["stats"] => {}
        _ => return format!("error: unknown command {line:?}"),
    }
    let counters = disk.counters();
    format!(
        "writes={} flushes={} cuts={} unflushed_blocks={} kept_blocks={}",
        counters.writes,
        counters.flushes,
        counters.cuts,
        counters.unflushed_blocks,
        counters.kept_blocks
    )
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
