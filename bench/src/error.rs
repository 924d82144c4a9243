//! What can go wrong in a run, one type for the crate.

/// Why a command of `bench` ended without success.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or a workload file is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file or a socket of this machine.
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
    /// The broker refused, wasn't reached, or answered what isn't the protocol.
    #[error("the broker: {0}")]
    Broker(String),
    /// A connection ended; what was under way on it may be sent again on another.
    #[error("the broker: {0}")]
    Lost(String),
    /// The run was carried out, and its figures must not be used.
    #[error("NOT A RESULT: {}", .0.join("; "))]
    NotAResult(Vec<String>),
    /// It was ended before there was anything to keep.
    #[error("ended early")]
    Interrupted,
    /// The instrument failed its own check.
    #[error("the self-check failed: {}", .0.join("; "))]
    SelfCheck(Vec<String>),
}

impl Error {
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |error| Error::Io { what, error }
    }
}
