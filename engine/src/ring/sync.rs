//! The atomics of the rings: the real ones, or loom's under `--cfg loom`.

#[cfg(not(loom))]
pub use atomic_waker::AtomicWaker;
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    future::AtomicWaker,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
};

/// std's cell with loom's interface.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
