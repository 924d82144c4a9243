//! Waiting for sockets with a bound in nanoseconds: epoll by hand, as `epoll_pwait2` is the one call that has such a bound.
//!
//! `unsafe` is system calls with pointers to local values that outlive them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const EVENTS: usize = 64;

pub struct Poll {
    epoll: OwnedFd,
    events: [libc::epoll_event; EVENTS],
    ready: usize,
}

/// A socket that has something: `token` is what it was added with.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: usize,
    pub readable: bool,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn interest(write: bool) -> u32 {
    (libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 }) as u32
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: no pointer is passed; the descriptor is new and owned from here on.
        let epoll =
            unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Poll {
            epoll,
            events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS],
            ready: 0,
        })
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: &impl AsRawFd,
        token: usize,
        write: bool,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest(write),
            u64: token as u64,
        };
        // SAFETY: both descriptors are open, and the kernel copies the event.
        check(unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                operation,
                socket.as_raw_fd(),
                &mut event,
            )
        })?;
        Ok(())
    }

    pub fn add(&self, socket: &impl AsRawFd, token: usize) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, false)
    }

    /// Says whether room for writing is waited for, beside something to read.
    pub fn want_write(&self, socket: &impl AsRawFd, token: usize, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, write)
    }

    /// Waits until a socket is ready or `timeout_ns` has passed. A signal ends the wait.
    pub fn wait(&mut self, timeout_ns: u64) -> io::Result<()> {
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (timeout_ns % 1_000_000_000) as _,
        };
        // SAFETY: the array has room for EVENTS events; timeout lives until the call returns; there is no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS as libc::c_int,
                &timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        self.ready = match check(count as libc::c_int) {
            Ok(count) => count as usize,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(e),
        };
        Ok(())
    }

    pub fn ready(&self) -> usize {
        self.ready
    }

    pub fn event(&self, index: usize) -> Ready {
        assert!(index < self.ready, "only what is ready is asked for");
        let event = self.events[index];
        Ready {
            token: event.u64 as usize,
            readable: event.events & !(libc::EPOLLOUT as u32) != 0,
        }
    }
}

/// Wakes this thread from a sleep when it asked to be, not up to 50 µs later.
pub fn precise_sleep() {
    // SAFETY: no pointers; the slack of the calling thread alone is changed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}
