//! What one core does: the runtime seam, message rings, memory budgets and the log.
//!
//! The crate knows nothing of Raft, Kafka requests or clusters. It stores entries ([`types::Entry`]) for replicas, tells when they are
//! durable, and gives them back. Read the modules in this order: [`types`], [`limits`], [`batch`], [`rt`], [`ring`], [`memory`], [`log`].

#![cfg(not(loom))] // The rings alone are checked there: see tests/loom.rs.

pub mod batch;
pub mod descriptors;
pub mod limits;
pub mod line_limit;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod ring;
pub mod rt;
pub mod types;
