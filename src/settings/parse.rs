//! From the text of settings to [`Settings`]: types, ranges, and what goes together.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use cluster::broker_config::{BrokerConfig, GroupConfig, overrides_text, parse_overrides};

use engine::types::ShardId;
use kafka_api::faces::{NODE_ID_MAX, port_of};

use super::{KEYS, Layer, Machine, Settings, SettingsError, Source, log_filter};

/// Shards of a process. Every two of them have rings, whose memory grows with the square.
const SHARDS_MAX: u16 = 256;
/// The least memory a shard works with, in bytes.
const MEMORY_PER_SHARD_MIN: u64 = 32 << 20;

/// A committed offset and its metadata must fit a record.
const OFFSET_METADATA_MAX: i32 = 32_767;
/// Samples of a rate: each client's window has memory for them.
const SAMPLES_MAX: i64 = 1_000;
/// Length of one, in seconds.
const SAMPLE_SECONDS_MAX: i64 = 86_400;

struct Reader<'a> {
    layer: &'a Layer,
    shown: Vec<(&'static str, Option<String>, Source)>,
}

impl Reader<'_> {
    /// Parses one setting, or takes the default; keeps what is shown for it.
    fn get<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
        default: impl FnOnce() -> T,
        show: impl FnOnce(&T) -> Option<String>,
    ) -> Result<T, SettingsError> {
        let (value, source) = match self.layer.get(name) {
            None => (default(), Source::Default),
            Some((text, source)) => {
                let value = parse(text.trim()).map_err(|why| {
                    SettingsError(format!("{name} can't be '{text}' ({source}): {why}"))
                })?;
                (value, source.clone())
            }
        };
        self.shown.push((name, show(&value), source));
        Ok(value)
    }
}

pub(super) fn settings(layer: &Layer, machine: Machine) -> Result<Settings, SettingsError> {
    let mut r = Reader {
        layer,
        shown: Vec::new(),
    };
    let quoted = |s: &str| Some(toml::Value::String(s.to_string()).to_string());
    let path = |p: &PathBuf| quoted(&p.to_string_lossy());
    let data_dir = r.get("data-dir", directory, || PathBuf::from("./data"), path)?;
    let journal_dir = r.get(
        "journal-dir",
        |t| directory(t).map(Some),
        || None,
        |d| d.as_ref().and_then(path),
    )?;
    let kafka_addr = r.get(
        "kafka-addr",
        address,
        || SocketAddr::from(([127, 0, 0, 1], 9092)),
        |a| quoted(&a.to_string()),
    )?;
    let shard_direct = r.get("shard-direct", switch, || false, |b| Some(b.to_string()))?;
    let advertise = r.get(
        "advertise",
        host_and_port,
        || (kafka_addr.ip().to_string(), kafka_addr.port()),
        |(host, port)| quoted(&join(host, *port)),
    )?;
    let admin_addr = r.get(
        "admin-addr",
        |t| address(t).map(Some),
        || None,
        |a| a.and_then(|a| quoted(&a.to_string())),
    )?;
    let shards = r.get(
        "shards",
        |t| number(t, 1, i64::from(SHARDS_MAX)).map(|n| n as u16),
        || machine.cpus.clamp(1, SHARDS_MAX),
        |n| Some(n.to_string()),
    )?;
    let memory_bytes = r.get(
        "memory",
        size,
        || whole_mib(machine.memory_bytes / 2).max(u64::from(shards) * MEMORY_PER_SHARD_MIN),
        |n| quoted(&show_size(*n)),
    )?;
    let overprovisioned = r.get("overprovisioned", switch, || false, |b| Some(b.to_string()))?;
    let node_id = r.get(
        "node-id",
        |t| number(t, 0, i64::from(i32::MAX)).map(|n| n as i32),
        || 1,
        |n| Some(n.to_string()),
    )?;
    let rack = r.get(
        "rack",
        |t| Ok((!t.is_empty()).then(|| t.to_string())),
        || None,
        |t| t.as_deref().and_then(quoted),
    )?;
    let auto_create_topics = r.get(
        "auto-create-topics",
        switch,
        || true,
        |b| Some(b.to_string()),
    )?;
    let partitions_max = i64::from(cluster::limits::PARTITIONS_PER_TOPIC);
    let num_partitions = r.get(
        "num-partitions",
        |t| number(t, 1, partitions_max).map(|n| n as i32),
        || 1,
        |n| Some(n.to_string()),
    )?;
    let plain = BrokerConfig::default();
    let groups = groups(&mut r)?;
    let mut limit = |name, least, most, default: i32| {
        r.get(
            name,
            |t| number(t, least, most).map(|n| n as i32),
            || default,
            |n| Some(n.to_string()),
        )
    };
    let most = i64::from(i32::MAX);
    let max_connections = limit("max-connections", 0, most, plain.max_connections)?;
    let per_ip = plain.max_connections_per_ip;
    let max_connections_per_ip = limit("max-connections-per-ip", 0, most, per_ip)?;
    let max_connections_per_ip_overrides = r.get(
        "max-connections-per-ip-overrides",
        parse_overrides,
        Vec::new,
        |list| quoted(&overrides_text(list)),
    )?;
    let mut limit = |name, least, most, default: i32| {
        r.get(
            name,
            |t| number(t, least, most).map(|n| n as i32),
            || default,
            |n| Some(n.to_string()),
        )
    };
    let rate = plain.max_connection_creation_rate;
    let max_connection_creation_rate = limit("max-connection-creation-rate", 0, most, rate)?;
    let samples = plain.quota_window_num;
    let quota_window_num = limit("quota-window-num", 1, SAMPLES_MAX, samples)?;
    let seconds = plain.quota_window_size_seconds;
    let quota_window_size_seconds = limit("quota-window-size", 1, SAMPLE_SECONDS_MAX, seconds)?;
    let samples = plain.controller_quota_window_num;
    let controller_quota_window_num =
        limit("controller-quota-window-num", 1, SAMPLES_MAX, samples)?;
    let seconds = plain.controller_quota_window_size_seconds;
    let controller_quota_window_size_seconds = limit(
        "controller-quota-window-size",
        1,
        SAMPLE_SECONDS_MAX,
        seconds,
    )?;
    let log = r.get(
        "log",
        log_filter::parse,
        || "info".to_string(),
        |t| quoted(t),
    )?;

    if memory_bytes < u64::from(shards) * MEMORY_PER_SHARD_MIN {
        return Err(SettingsError(format!(
            "memory is {}, but {shards} shards need {} each: give more memory or fewer shards",
            show_size(memory_bytes),
            show_size(MEMORY_PER_SHARD_MIN)
        )));
    }
    if memory_bytes > machine.memory_bytes {
        return Err(SettingsError(format!(
            "{shards} shards are to have {} of memory together, but this machine has {} MiB: give less memory, or fewer shards",
            show_size(memory_bytes),
            machine.memory_bytes >> 20
        )));
    }
    // Kafka takes a limit of 0 for addresses where others are excepted from it.
    let of_addresses = max_connections_per_ip == 0 && max_connections_per_ip_overrides.is_empty();
    for (name, keeps_out) in [
        ("max-connections", max_connections == 0),
        ("max-connections-per-ip", of_addresses),
        (
            "max-connection-creation-rate",
            max_connection_creation_rate == 0,
        ),
    ] {
        if keeps_out {
            return Err(SettingsError(format!(
                "{name} is 0: no client could ever connect. Set it to 1 or more, or leave it out for no limit"
            )));
        }
    }
    if shard_direct {
        check_direct(
            &[kafka_addr.port(), advertise.1],
            admin_addr,
            shards,
            node_id,
        )?;
    }
    if let Some(admin) = admin_addr.filter(|admin| collide(*admin, kafka_addr)) {
        return Err(SettingsError(format!(
            "kafka-addr ({kafka_addr}) and admin-addr ({admin}) want the same port: give each its own"
        )));
    }
    if advertise
        .0
        .parse()
        .is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified())
    {
        return Err(SettingsError(format!(
            "clients can't connect to {}: set advertise to a host and port at which they reach this node",
            advertise.0
        )));
    }
    assert_eq!(
        r.shown.len(),
        KEYS.len(),
        "every setting of the table is read"
    );
    Ok(Settings {
        data_dir,
        journal_dir,
        kafka_addr,
        shard_direct,
        advertise,
        admin_addr,
        shards,
        memory_bytes,
        overprovisioned,
        node_id,
        rack,
        auto_create_topics,
        num_partitions,
        groups,
        max_connections,
        max_connections_per_ip,
        max_connections_per_ip_overrides,
        max_connection_creation_rate,
        quota_window_num,
        quota_window_size_seconds,
        controller_quota_window_num,
        controller_quota_window_size_seconds,
        log,
        shown: r.shown,
    })
}

/// Every shard has a port and an id of a broker.
fn check_direct(
    ports: &[u16],
    admin: Option<SocketAddr>,
    shards: u16,
    node_id: i32,
) -> Result<(), SettingsError> {
    let last = ShardId(shards - 1);
    if let Some(port) = ports.iter().find(|p| port_of(**p, last).is_none()) {
        return Err(SettingsError(format!(
            "with shard-direct {shards} ports follow after {port}, and there aren't so many: choose a lower one"
        )));
    }
    let taken = |admin: &u16| ports[0] != 0 && (1..=shards).any(|n| ports[0] + n == *admin);
    if let Some(port) = admin.map(|a| a.port()).filter(taken) {
        return Err(SettingsError(format!(
            "with shard-direct the ports {} to {} are the shards': give admin-addr another than {port}",
            ports[0] + 1,
            ports[0] + shards
        )));
    }
    if node_id > NODE_ID_MAX {
        return Err(SettingsError(format!(
            "with shard-direct node-id can be {NODE_ID_MAX} at most: brokers' ids are 1000 times it, and the shard"
        )));
    }
    Ok(())
}

fn groups(r: &mut Reader) -> Result<GroupConfig, SettingsError> {
    let mut whole = |name, least: i32, most: i32, default: i32| {
        r.get(
            name,
            |t| number(t, least.into(), most.into()).map(|n| n as i32),
            || default,
            |n| Some(n.to_string()),
        )
    };
    let plain = GroupConfig::default();
    let delay = plain.initial_rebalance_delay_ms;
    let (least, most) = (plain.min_session_timeout_ms, plain.max_session_timeout_ms);
    let groups = GroupConfig {
        initial_rebalance_delay_ms: whole("group-initial-rebalance-delay", 0, 600_000, delay)?,
        min_session_timeout_ms: whole("group-min-session-timeout", 1, i32::MAX, least)?,
        max_session_timeout_ms: whole("group-max-session-timeout", 1, i32::MAX, most)?,
        max_size: whole("group-max-size", 1, GroupConfig::MEMBERS, plain.max_size)?,
        offset_metadata_max_bytes: whole(
            "offset-metadata-max",
            0,
            OFFSET_METADATA_MAX,
            plain.offset_metadata_max_bytes,
        )?,
        offsets_retention_minutes: whole(
            "offsets-retention",
            1,
            i32::MAX,
            plain.offsets_retention_minutes,
        )?,
    };
    if groups.min_session_timeout_ms > groups.max_session_timeout_ms {
        return Err(SettingsError(format!(
            "group-min-session-timeout ({}) is longer than group-max-session-timeout ({}): no member could join",
            groups.min_session_timeout_ms, groups.max_session_timeout_ms
        )));
    }
    Ok(groups)
}

/// Whether both can't be listened on: one port on one address, or on all addresses and one of them.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (any || a.ip() == b.ip())
}

fn directory(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    Ok(PathBuf::from(text))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    host_and_port(text)?;
    let found = text
        .to_socket_addrs()
        .map_err(|e| format!("the host can't be resolved: {e}"))?
        .next();
    found.ok_or_else(|| "the host has no address".into())
}

/// `host:port`; an IPv6 address stands in brackets.
pub(crate) fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let wanted = "it must be host:port";
    let (host, port) = text.rsplit_once(':').ok_or(wanted)?;
    let port = port.parse().map_err(|_| wanted)?;
    let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6,
        None if host.contains(':') => return Err("an IPv6 address must stand in brackets".into()),
        None => host,
    };
    if host.is_empty() || host.len() > cluster::limits::HOST_BYTES {
        return Err(wanted.into());
    }
    Ok((host.to_string(), port))
}

/// The opposite of [`host_and_port`].
pub(crate) fn join(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn number(text: &str, low: i64, high: i64) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(format!("it must be a number from {low} to {high}")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    yes_or_no(text).ok_or_else(|| "it must be true or false".into())
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Whether it is a switch's value.
pub(crate) fn is_yes_or_no(text: &str) -> bool {
    yes_or_no(text).is_some()
}

const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
];

fn size(text: &str) -> Result<u64, String> {
    let wanted = "it must be a size like 512MiB, 4GiB or a number of bytes";
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| lower.strip_suffix(suffix).map(|d| (d, *unit)))
        .unwrap_or((lower.strip_suffix('b').unwrap_or(&lower), 1));
    let n: u64 = digits.trim().parse().map_err(|_| wanted)?;
    n.checked_mul(unit).ok_or_else(|| wanted.to_string())
}

fn whole_mib(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

fn show_size(bytes: u64) -> String {
    for (suffix, unit) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{suffix}", bytes / unit);
        }
    }
    bytes.to_string()
}
