//! How the process ends. The codes are part of the command's interface (README) and don't change.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;

/// An exit code with a meaning. 0 is success, and a clean shutdown; 101 and signals are defects of Tailrace itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Exit {
    /// Something failed that has no code of its own.
    Failure = 1,
    /// The command line, the config file or a setting is wrong.
    Usage = 2,
    /// Another process works on the data directory.
    Locked = 3,
    /// The machine isn't fit: io_uring, locked memory, the filesystem, permissions.
    Unfit = 4,
    /// The data is of a newer version, or damaged where nothing can be done.
    Data = 5,
    /// A port is taken.
    AddressInUse = 6,
    /// The disk failed or is full.
    Disk = 7,
    /// A second signal came before the shutdown was done.
    Forced = 8,
    /// Client commands: the broker refused, or doesn't have what was asked for.
    Refused = 9,
    /// Client commands: no broker was reached, it went away, or it didn't answer in time.
    Unreachable = 10,
}

/// An error that ends the process, with its code.
#[derive(Debug)]
pub struct Fatal {
    pub exit: Exit,
    pub message: String,
}

impl Fatal {
    pub fn new(exit: Exit, message: impl Into<String>) -> Fatal {
        Fatal {
            exit,
            message: message.into(),
        }
    }

    /// Ends the process here and now, from a shard: the others don't matter any more.
    pub fn end(&self) -> ! {
        say(format_args!("tailrace: {self}"));
        engine::rt::exit(self.exit as i32)
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fatal {}

/// Says something on standard error. That nobody hears it is no reason to fail.
pub fn say(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The exit code of an error of the filesystem at a start, and what to do about it where that is known.
pub fn advice(e: &io::Error) -> (Exit, &'static str) {
    match e.raw_os_error() {
        Some(libc::EIO) => {
            return (
                Exit::Disk,
                ": the disk failed; look at the kernel's log (dmesg) and at the disk before starting again",
            );
        }
        Some(libc::EDQUOT) => {
            return (
                Exit::Disk,
                ": the user's quota is used up; raise it, free some space, or choose another --data-dir",
            );
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            return (
                Exit::Unfit,
                ": too many open files; raise the limit with `ulimit -n 65536`, or LimitNOFILE in a systemd unit",
            );
        }
        _ => {}
    }
    let advice = match e.kind() {
        ErrorKind::StorageFull => {
            return (
                Exit::Disk,
                ": the disk is full; free some space on it, or choose another --data-dir. Nothing that was acknowledged is lost",
            );
        }
        ErrorKind::PermissionDenied => {
            ": give the user that runs Tailrace permission to read and write it, or choose another --data-dir"
        }
        ErrorKind::ReadOnlyFilesystem => {
            ": the filesystem is mounted read-only; choose another --data-dir"
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            ": something that is no directory is in the way; choose another --data-dir"
        }
        _ => "",
    };
    (Exit::Unfit, advice)
}

/// Why an address can't be listened on, and what to do.
pub fn cannot_listen(addr: SocketAddr, setting: &str, e: &io::Error) -> Fatal {
    let (exit, why) = match e.kind() {
        ErrorKind::AddrInUse => (
            Exit::AddressInUse,
            "another process listens there: stop it, or choose another address".to_string(),
        ),
        ErrorKind::AddrNotAvailable => (
            Exit::Unfit,
            "this machine has no such address: choose one of its own, or 0.0.0.0 for all"
                .to_string(),
        ),
        ErrorKind::PermissionDenied => (
            Exit::Unfit,
            "it takes more privileges (ports below 1024 do): choose a higher port".to_string(),
        ),
        _ => (Exit::Failure, e.to_string()),
    };
    Fatal::new(exit, format!("can't listen on {addr} ({setting}): {why}"))
}
