//! `tailrace bench`: what a Kafka-compatible broker's latency is, measured so that one can trust it.
//!
//! Records are due on a schedule that never looks at the broker, and latency counts from the scheduled moment: a stall is charged to every
//! record that it delayed. A run says itself when it isn't a result: the generator fell behind, records were lost or refused, or Little's law doesn't hold.
//!
//! The crate stands alone: it knows the protocol and nothing of Tailrace's other crates. Read in this order: [`workload`] (what is asked for),
//! [`schedule`] (when records are due), [`producer`] and [`consumer`] (pure: batches, requests, answers), [`measure`] and [`little`] (what is counted),
//! [`worker`] (one thread of the load), [`run`] (a whole run), [`result`] (what it leaves), [`report`] and [`compare`] (the same for people), [`self_check`] (whether the instrument itself can be trusted).
//! [`batch`], [`wire`], [`protocol`], [`connection`], [`control`] and [`poll`] are the client's lower half; every bound is in [`limits`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a client on threads of its own: it runs on no shard"
)]

pub mod batch;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod connection;
pub mod consumer;
pub mod control;
pub mod error;
pub mod hlog;
pub mod limits;
pub mod little;
pub mod machine;
pub mod measure;
pub mod null;
pub mod poll;
pub mod process;
pub mod producer;
pub mod protocol;
pub mod report;
pub mod result;
pub mod run;
pub mod schedule;
pub mod self_check;
pub mod wire;
pub mod worker;
pub mod workload;

pub use error::Error;

/// The workloads that come with the instrument, by name.
pub const SHIPPED: &[(&str, &str)] = &[
    ("clients-50", include_str!("../workloads/clients-50.toml")),
    ("end-to-end", include_str!("../workloads/end-to-end.toml")),
    (
        "flat-out-100b",
        include_str!("../workloads/flat-out-100b.toml"),
    ),
    ("flat-out-1k", include_str!("../workloads/flat-out-1k.toml")),
    (
        "flat-out-64k",
        include_str!("../workloads/flat-out-64k.toml"),
    ),
    (
        "latency-1000",
        include_str!("../workloads/latency-1000.toml"),
    ),
    (
        "latency-1000-20k",
        include_str!("../workloads/latency-1000-20k.toml"),
    ),
    ("latency-12", include_str!("../workloads/latency-12.toml")),
    (
        "latency-12-20k",
        include_str!("../workloads/latency-12-20k.toml"),
    ),
    ("low-rate", include_str!("../workloads/low-rate.toml")),
    (
        "one-at-a-time",
        include_str!("../workloads/one-at-a-time.toml"),
    ),
    (
        "partitions-1",
        include_str!("../workloads/partitions-1.toml"),
    ),
    (
        "partitions-100",
        include_str!("../workloads/partitions-100.toml"),
    ),
    ("poisson-12", include_str!("../workloads/poisson-12.toml")),
];

/// The text of a shipped workload.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, text)| *text)
}
