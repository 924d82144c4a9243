//! Message rings between the participants of a process (its shards and the side office), and calls with credits on top (design §3).
//!
//! - [`Mesh`] makes one bounded SPSC ring for each ordered pair of participants; a [`Port`] is one participant's end of all its rings (`mesh`, `spsc`).
//! - [`Rpc`] matches replies with calls, gives every pair and class credits, and never waits to answer (`rpc`).
//!
//! A full ring is back-pressure: who sends waits for room; nothing is dropped, nothing grows. Messages are owned values, payloads cross as `Bytes`.
//! Nothing here depends on a runtime: any executor's wakers will do. The sleep and wake protocol is checked with loom: `engine/tests/loom.rs`.

mod mesh;
mod rpc;
mod spsc;
mod sync;

pub use mesh::{Mesh, Port};
pub use rpc::{Class, Credits, Frame, Gone, Responder, Rpc};

#[cfg(test)]
mod tests;
