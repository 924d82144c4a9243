//! `tailrace bench`: what a Kafka-compatible broker's latency is, measured so that one can trust it.
//!
//! Records are due on a schedule that never looks at the broker, and latency counts from the scheduled moment: a stall is charged to every
//! record that it delayed. A run says itself when it isn't a result: the generator fell behind, records were lost or refused, or Little's law doesn't hold.
//!
//! The crate stands alone: it knows the protocol and nothing of Tailrace's other crates. Read in this order: [`workload`] (what is asked for),
//! [`schedule`] (when records are due), [`producer`] and [`consumer`] (pure: batches, requests, answers), [`measure`] and [`little`] (what is counted),
//! [`worker`] (one thread of the load), [`run`] and [`watch`] (a whole run, from inside and from outside its threads), [`result`] (what it leaves), [`report`] and [`compare`] (the same for people),
//! [`side`] and [`versus`] (brokers in turns), [`slo`] and [`max`] (the highest rate that holds), [`probe`] (what the machine itself takes), [`self_check`] (whether the instrument itself can be trusted).
//! [`batch`], [`wire`], [`protocol`], [`codec`], [`connection`], [`control`], [`recovery`] and [`poll`] are the client's lower half; every bound is in [`limits`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a client on threads of its own: it runs on no shard"
)]

pub mod batch;
pub mod cli;
pub mod clock;
pub mod codec;
pub mod compare;
pub mod connection;
pub mod consumer;
pub mod control;
pub mod device;
pub mod error;
pub mod faults;
pub mod hlog;
#[cfg(feature = "librdkafka")]
pub mod librdkafka;
pub mod limits;
pub mod little;
pub mod machine;
pub mod max;
pub mod measure;
pub mod null;
pub mod poll;
pub mod probe;
pub mod process;
pub mod producer;
pub mod protocol;
pub mod records;
pub mod recovery;
pub mod report;
pub mod result;
pub mod run;
pub mod schedule;
pub mod self_check;
pub mod side;
pub mod slo;
pub mod summary;
pub mod versus;
pub mod watch;
pub mod wire;
pub mod worker;
pub mod workload;

pub use error::Error;

macro_rules! workloads {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../workloads/", $name, ".toml")))),*]
    };
}

/// The workloads that come with the instrument, by name.
pub const SHIPPED: &[(&str, &str)] = workloads![
    "backlog-drain",
    "clients-50-1",
    "clients-50-16",
    "clients-50-100",
    "clients-50-288",
    "clients-50-10000",
    "cold-replay",
    "driver-latency",
    "driver-throughput",
    "end-to-end",
    "flat-out-1k",
    "flat-out-64k",
    "flat-out-large",
    "flat-out-100b",
    "idempotent-12",
    "keyed-small",
    "latency-12",
    "latency-12-20k",
    "latency-1000",
    "latency-1000-20k",
    "leader-killed",
    "low-rate",
    "mixed-sizes",
    "one-at-a-time",
    "partitions-1",
    "partitions-16",
    "partitions-100",
    "partitions-288",
    "partitions-10000",
    "poisson-12",
    "ramp",
    "retention",
    "standstill",
];

/// The text of a shipped workload.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, text)| *text)
}
