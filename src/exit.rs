//! How the process ends. The codes are part of the command's interface (README) and don't change.

use std::fmt;

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

/// The codes as `--help` tells them; README has the same table.
pub const HELP: &str = "\
Exit codes:
   0  done; for a node, a clean stop
   1  something failed that has no code of its own
   2  the command line, the config file, a setting or the input is wrong
   3  another process works on the data directory
   4  the machine isn't fit: io_uring, locked memory, direct I/O, permissions
   5  the data is of a newer version, or damaged where nothing can be done
   6  a port is taken
   7  the disk failed or is full
   8  a second signal came before the stop was done
   9  client commands: the broker refused, or doesn't have what was asked for
  10  client commands: no broker was reached, it went away, or it didn't answer in time";

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
        crate::say(format_args!("tailrace: {self}"));
        engine::rt::exit(self.exit as i32)
    }
}

/// What was asked for can't be printed.
pub fn cannot_print(e: &std::io::Error) -> Fatal {
    Fatal::new(
        Exit::Failure,
        format!("can't write to standard output: {e}"),
    )
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fatal {}

impl From<crate::settings::SettingsError> for Fatal {
    fn from(e: crate::settings::SettingsError) -> Fatal {
        Fatal::new(Exit::Usage, e.to_string())
    }
}
