//! Log lines go to stderr, coloured only for a terminal.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Fatal};

/// Starts logging; `filter` is the setting `log`.
pub fn start(filter: &str) -> Result<(), Fatal> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| Fatal::new(Exit::Usage, format!("log can't be '{filter}': {e}")))?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .init();
    Ok(())
}
