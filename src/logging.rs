//! Log lines go to stderr, coloured only for a terminal. Levels can be changed while the node runs: a thread of its own, which sleeps until a shard wakes it, gives the logging
//! library the new ones, as that takes a lock.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use cluster::loggers::Loggers;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::exit::{Exit, Fatal};

/// Starts logging; `filter` is the setting `log`.
pub fn start(filter: &str) -> Result<Arc<Loggers>, Fatal> {
    let begin = EnvFilter::try_new(filter)
        .map_err(|e| Fatal::new(Exit::Usage, format!("log can't be '{filter}': {e}")))?;
    let (level, handle) = reload::Layer::new(begin);
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry()
        .with(level)
        .with(lines)
        .init();
    // One that waits stands for all that came before it was seen.
    let (wake, woken) = sync_channel(1);
    let loggers = Arc::new(Loggers::new(filter, move || {
        let _ = wake.try_send(());
    }));
    let levels = Arc::downgrade(&loggers);
    std::thread::Builder::new()
        .name("log-levels".into())
        .spawn(move || {
            while woken.recv().is_ok() {
                let Some(levels) = levels.upgrade() else {
                    return;
                };
                let filter = levels.filter();
                let changed = EnvFilter::try_new(&filter).is_ok_and(|f| handle.reload(f).is_ok());
                if changed {
                    tracing::info!("what is logged is now {filter}");
                } else {
                    tracing::error!("what is logged can't be changed to {filter}");
                }
            }
        })
        .map_err(|e| Fatal::new(Exit::Failure, format!("can't start a thread: {e}")))?;
    Ok(loggers)
}
