//! How the process ends, as its user sees it: the codes' explanation, and errors of the command line. The codes themselves are the node's.

pub use node::exit::{Exit, Fatal, advice, cannot_listen};

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

/// What was asked for can't be printed.
pub fn cannot_print(e: &std::io::Error) -> Fatal {
    Fatal::new(
        Exit::Failure,
        format!("can't write to standard output: {e}"),
    )
}

impl From<crate::settings::SettingsError> for Fatal {
    fn from(e: crate::settings::SettingsError) -> Fatal {
        Fatal::new(Exit::Usage, e.to_string())
    }
}
