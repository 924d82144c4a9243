//! Waiting for a descriptor: that the process or the system has none left says nothing of the disk, and passes when others close theirs (design §4, Faults).
//!
//! Whatever makes a descriptor on behalf of a file goes through [`when_free`]; nothing was begun yet then. Connections are bounded so that files have theirs
//! ([`crate::descriptors`]). A wait has no end of its own: it is a slow disk to whoever waits. `unsafe`: one system call.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{now, shard, sleep};

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(10);

/// Descriptors that this process may have open (RLIMIT_NOFILE).
pub fn descriptors() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes one rlimit, which is ours.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(got, 0, "every Linux has this limit");
    limit.rlim_cur
}

fn none_left(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Tries until there is a descriptor for it. Any other error is the caller's.
pub async fn when_free<T>(
    path: Option<&Path>,
    mut attempt: impl AsyncFnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let error = match attempt().await {
            Err(e) if none_left(&e) => e,
            other => return other,
        };
        if let Some(kept_back) = shard().no_descriptor.pass(now()) {
            let path = path.unwrap_or(Path::new("an open file"));
            tracing::warn!(
                path = %path.display(), kept_back,
                "a file waits until there is a descriptor for it ({error}): raise the limit (`ulimit -n`, LimitNOFILE in a systemd unit; sysctl fs.file-max)"
            );
        }
        sleep(AGAIN).await;
    }
}
