//! Whether this machine can run a node, asked before anything is touched, so that the answer is a sentence and not an errno from the depths.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use engine::rt::{AlignedBuf, OLDEST_LINUX};

use crate::data_dir::cannot;
use crate::exit::{Exit, Fatal, cannot_listen};

/// One block of direct I/O, in bytes.
const BLOCK: usize = engine::limits::BLOCK_BYTES;

/// The kernel gives us an io_uring.
pub fn check_io_uring() -> Result<(), Fatal> {
    engine::rt::probe().map_err(|e| {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        Fatal::new(Exit::Unfit, why_no_io_uring(&e, disabled.as_deref()))
    })
}

/// Why there is none, by what the kernel answered and by what the setting `kernel.io_uring_disabled` says, where there is such a setting.
fn why_no_io_uring(e: &std::io::Error, disabled: Option<&str>) -> String {
    match e.raw_os_error() {
        Some(libc::ENOSYS) => format!(
            "this kernel has no io_uring: Tailrace needs Linux {OLDEST_LINUX} or newer, and a container runtime that passes io_uring on"
        ),
        Some(libc::EPERM) => match disabled {
            Some(text) if text.trim() != "0" => format!(
                "io_uring is disabled (kernel.io_uring_disabled = {}): run `sysctl -w kernel.io_uring_disabled=0` as root, or as 1 add the user to the group of kernel.io_uring_group",
                text.trim()
            ),
            _ => "io_uring is forbidden, most likely by a container's seccomp profile: allow io_uring_setup, io_uring_enter and io_uring_register".to_string(),
        },
        Some(libc::ENOMEM) => {
            "there is not enough locked memory for io_uring: raise it with `ulimit -l unlimited`, or LimitMEMLOCK=infinity in a systemd unit".to_string()
        }
        _ => format!("io_uring can't be set up: {e}"),
    }
}

/// Every shard gets a CPU of its own, unless they are to share.
pub fn check_cpus(shards: u16, overprovisioned: bool) -> Result<(), Fatal> {
    let cpus = allowed_cpus();
    if overprovisioned || usize::from(shards) <= cpus {
        return Ok(());
    }
    Err(Fatal::new(
        Exit::Usage,
        format!(
            "{shards} shards need a CPU each, and this process may use {cpus}: use --shards {cpus} or fewer, or --overprovisioned to let them share"
        ),
    ))
}

/// By the affinity of this process; a quota of CPU time doesn't count, as shards can be pinned all the same.
fn allowed_cpus() -> usize {
    // SAFETY: all-zero is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes one set, which is ours.
    match unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } {
        // SAFETY: reads the set that was just written.
        0 => unsafe { libc::CPU_COUNT(&set) }.unsigned_abs() as usize,
        // More CPUs than the set can tell: the shards' launch looks again.
        _ => usize::MAX,
    }
}

/// Locked memory that a shard's runtime insists on, in bytes.
const LOCKED_BYTES: u64 = 512 << 10;

/// Enough memory can be locked. The runtime raises the limit as far as it may, so that the hard limit counts.
pub fn check_locked_memory() -> Result<(), Fatal> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    match hard_limit(&limits, "Max locked memory") {
        Some(bytes) if bytes < LOCKED_BYTES => Err(Fatal::new(
            Exit::Unfit,
            format!(
                "only {} KiB of memory may be locked, and io_uring needs {} KiB: raise it with `ulimit -l unlimited` as root, \
                 LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container, or in /etc/security/limits.conf",
                bytes >> 10,
                LOCKED_BYTES >> 10
            ),
        )),
        _ => Ok(()),
    }
}

/// A row of `/proc/self/limits`: name, soft limit, hard limit, unit. `None` when there is no limit or no such row.
fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let row = limits.lines().find_map(|l| l.strip_prefix(name))?;
    row.split_whitespace().nth(1)?.parse().ok()
}

/// A block can be written to this directory past the page cache.
pub fn check_direct_io(dir: &Path) -> Result<(), Fatal> {
    let probe = dir.join("probe.tmp");
    let result = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&probe)
        .and_then(|mut f| f.write_all(&AlignedBuf::zeroed(BLOCK)));
    let _ = std::fs::remove_file(&probe);
    match result {
        Ok(()) => Ok(()),
        // Says nothing against direct I/O; a node starts on a full disk, to be read and to have topics deleted.
        Err(e) if e.kind() == ErrorKind::StorageFull => Ok(()),
        Err(e) if e.kind() == ErrorKind::InvalidInput => Err(Fatal::new(
            Exit::Unfit,
            format!(
                "the filesystem of {} can't do direct I/O (O_DIRECT) in blocks of {BLOCK} bytes: \
                 use a directory on ext4 or XFS (tmpfs, overlay and network filesystems often can't)",
                dir.display()
            ),
        )),
        Err(e) => Err(cannot("write to", dir, &e)),
    }
}

/// Says so where a power cut would take everything: what is acknowledged is only as durable as its filesystem.
pub fn warn_of_memory_filesystem(dir: &Path) {
    if filesystem_type(dir).is_some_and(in_memory) {
        tracing::warn!(
            "{} is on a filesystem in memory (tmpfs): its data goes with the machine's power. Choose a --data-dir on a disk for data that must stay",
            dir.display()
        );
    }
}

fn in_memory(filesystem: i64) -> bool {
    const RAMFS: i64 = 0x8584_58F6;
    [libc::TMPFS_MAGIC, RAMFS].contains(&filesystem)
}

/// The kernel's number for the type of a directory's filesystem.
fn filesystem_type(dir: &Path) -> Option<i64> {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a path that ends in zero, and one struct of ours that is written.
    let result = unsafe { libc::statfs(path.as_ptr(), &mut found) };
    (result == 0).then_some(found.f_type)
}

/// How long a port may be taken. A process that was killed keeps its sockets until the kernel has taken its io_uring down, some milliseconds later.
const PORT_WAIT: Duration = Duration::from_secs(1);
const PORT_PAUSE: Duration = Duration::from_millis(2);

/// Nobody listens where we want to.
pub fn check_port(addr: SocketAddr, setting: &str) -> Result<(), Fatal> {
    once_free(addr, setting, || engine::rt::check_port_free(addr))
}

/// Does something that needs a free address; waits a moment for one that is being given up.
pub fn once_free<T>(
    addr: SocketAddr,
    setting: &str,
    mut listen: impl FnMut() -> std::io::Result<T>,
) -> Result<T, Fatal> {
    let start = Instant::now();
    loop {
        match listen() {
            Err(e) if e.kind() == ErrorKind::AddrInUse && start.elapsed() < PORT_WAIT => {
                std::thread::sleep(PORT_PAUSE);
            }
            result => return result.map_err(|e| cannot_listen_here(addr, setting, &e)),
        }
    }
}

/// Why an address can't be listened on. A port may also be in use as this machine's own end of an outgoing connection, which no process needs to have any more.
fn cannot_listen_here(addr: SocketAddr, setting: &str, e: &std::io::Error) -> Fatal {
    let outgoing = e.kind() == ErrorKind::AddrInUse && {
        let table = |path| std::fs::read_to_string(path).unwrap_or_default();
        held_by_outgoing(
            &(table("/proc/net/tcp") + &table("/proc/net/tcp6")),
            addr.port(),
        )
    };
    if !outgoing {
        return cannot_listen(addr, setting, e);
    }
    Fatal::new(
        Exit::AddressInUse,
        format!(
            "can't listen on {addr} ({setting}): nobody listens there, but the port is this machine's end of an outgoing connection, which may be closed already (TIME-WAIT): \
             try again in a minute, choose another port, or keep the port out of outgoing connections with `sysctl -w net.ipv4.ip_local_reserved_ports={}`",
            addr.port()
        ),
    )
}

/// Whether connections have a port and nobody listens at it, by the text of `/proc/net/tcp` and `tcp6`.
fn held_by_outgoing(tables: &str, port: u16) -> bool {
    const LISTENS: &str = "0A";
    let states = tables.lines().filter_map(|line| {
        // The row's number, the local address, the other's, the state.
        let mut fields = line.split_whitespace().skip(1);
        let (_, local) = fields.next()?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        (u16::from_str_radix(local, 16) == Ok(port)).then_some(state)
    });
    let states: Vec<&str> = states.collect();
    !states.is_empty() && !states.contains(&LISTENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_told_with_its_setting() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let e = check_port(taken.local_addr().unwrap(), "kafka-addr").unwrap_err();
        assert_eq!(e.exit, Exit::AddressInUse);
        assert!(e.message.contains("kafka-addr"), "{e}");
        let foreign = check_port("192.0.2.1:9092".parse().unwrap(), "admin-addr").unwrap_err();
        assert_eq!(foreign.exit, Exit::Unfit);
    }

    #[test]
    fn a_port_of_an_outgoing_connection_is_not_another_process_that_listens() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:2384 0100007F:1F90 06 00000000:00000000 03:00000BB8 00000000     0        0 0 3 0000000000000000\n   \
             1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7 1 0000000000000000\n   \
             2: 0100007F:1F90 0100007F:2384 01 00000000:00000000 00:00000000 00000000     0        0 8 1 0000000000000000\n";
        assert!(held_by_outgoing(table, 9_092));
        assert!(!held_by_outgoing(table, 8_080), "somebody listens");
        assert!(!held_by_outgoing(table, 9_093), "nobody has it");

        // An outgoing connection whose own port is wanted.
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let outgoing = std::net::TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let e = check_port(outgoing.local_addr().unwrap(), "kafka-addr").unwrap_err();
        assert_eq!(e.exit, Exit::AddressInUse);
        assert!(e.message.contains("outgoing connection"), "{e}");
        assert!(!e.message.contains("another process"), "{e}");
    }

    #[test]
    fn more_shards_than_cpus_must_be_meant() {
        let cpus = u16::try_from(allowed_cpus()).expect("a machine of tests has fewer");
        assert!(check_cpus(cpus, false).is_ok());
        assert!(check_cpus(cpus + 1, true).is_ok());
        let e = check_cpus(cpus + 1, false).unwrap_err();
        assert_eq!(e.exit, Exit::Usage);
        assert!(e.message.contains("--overprovisioned"), "{e}");
    }

    #[test]
    fn filesystems_in_memory_are_known() {
        assert!(in_memory(0x0102_1994));
        assert!(!in_memory(libc::EXT4_SUPER_MAGIC));
        // Of every Linux.
        assert!(filesystem_type(Path::new("/proc")).is_some_and(|t| !in_memory(t)));
        assert_eq!(filesystem_type(Path::new("/nonexistent")), None);
    }

    #[test]
    fn limits_are_read() {
        let text = "Limit   Soft Limit  Hard Limit  Units\nMax locked memory         65536    131072    bytes\nMax open files  1 unlimited files\n";
        assert_eq!(hard_limit(text, "Max locked memory"), Some(131_072));
        assert_eq!(hard_limit(text, "Max open files"), None);
        assert_eq!(hard_limit("", "Max open files"), None);
    }

    #[test]
    fn what_keeps_io_uring_away_is_told_with_what_to_do() {
        let why =
            |code, disabled| why_no_io_uring(&std::io::Error::from_raw_os_error(code), disabled);
        for (code, disabled, words) in [
            (
                libc::EPERM,
                Some("2\n"),
                [
                    "kernel.io_uring_disabled = 2",
                    "sysctl -w kernel.io_uring_disabled=0",
                ],
            ),
            (
                libc::EPERM,
                Some("1\n"),
                ["kernel.io_uring_disabled = 1", "kernel.io_uring_group"],
            ),
            (libc::EPERM, Some("0\n"), ["seccomp", "io_uring_setup"]),
            (libc::EPERM, None, ["seccomp", "io_uring_setup"]),
            (libc::ENOSYS, None, [OLDEST_LINUX, "container"]),
            (libc::ENOMEM, Some("0\n"), ["ulimit -l", "LimitMEMLOCK"]),
            (
                libc::EINVAL,
                Some("0\n"),
                ["can't be set up", "Invalid argument"],
            ),
        ] {
            let text = why(code, disabled);
            assert!(words.iter().all(|w| text.contains(w)), "{text}");
        }
    }

    #[test]
    fn this_machine_is_fit_or_the_sentence_says_why() {
        if let Err(e) = check_io_uring() {
            assert!(e.message.contains("io_uring"), "{e}");
        }
        if let Err(e) = check_direct_io(&std::env::temp_dir()) {
            assert!(e.message.contains("direct I/O"), "{e}");
        }
        let missing = check_direct_io(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(missing.exit, Exit::Unfit);
    }
}
