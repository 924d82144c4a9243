//! Waiting for a commit.
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::api::ProduceError;
use crate::handle::Group;

/// Ends with `T` when the entry it stands for is committed. Dropping it is fine at any time.
pub struct CommitWait<T> {
    _group: Rc<Group>,
    _value: T,
}

impl<T> std::fmt::Debug for CommitWait<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommitWait")
    }
}

impl<T> Future for CommitWait<T> {
    type Output = Result<T, ProduceError>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}
