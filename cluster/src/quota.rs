//! Quotas of clients and addresses: whom they are for, what they limit, and which one is in force for a client.
//!
//! An entity is a user, a client id, both, or an address; each part a name or the default, which stands for every name without an entry of its own. The most
//! specific entry that sets a key is in force, in Kafka's order: user and client id, user and default client, user, default user and client id, default user and default client,
//! default user, client id, default client. The entry also says who shares: all clients of a user have one limit together where it is the user's.
//!
//! [`check`] is the controller's, before it proposes; [`Quotas`] is a part of the metadata and of each shard's view. What is bounded: [`crate::limits::QUOTA_ENTITIES`],
//! [`crate::limits::QUOTA_NAME_BYTES`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::error::{Refusal, Refused};
use crate::limits;

/// A part of an entity: a name, or the default of its kind.
pub type Name = Option<String>;

/// Whom a quota is for. A part that isn't there is not spoken of.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entity {
    pub user: Option<Name>,
    pub client: Option<Name>,
    pub ip: Option<Name>,
}

/// What a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Key {
    /// Bytes of Produce requests a second.
    ProducerByteRate,
    /// Bytes of answers to Fetch a second.
    ConsumerByteRate,
    /// Time of a shard that requests take, in percent of one.
    RequestPercentage,
    /// Partitions created and deleted a second.
    ControllerMutationRate,
    /// Connections of an address a second.
    ConnectionCreationRate,
}

impl Key {
    pub const ALL: [Key; 5] = [
        Key::ProducerByteRate,
        Key::ConsumerByteRate,
        Key::RequestPercentage,
        Key::ControllerMutationRate,
        Key::ConnectionCreationRate,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Key::ProducerByteRate => "producer_byte_rate",
            Key::ConsumerByteRate => "consumer_byte_rate",
            Key::RequestPercentage => "request_percentage",
            Key::ControllerMutationRate => "controller_mutation_rate",
            Key::ConnectionCreationRate => "connection_creation_rate",
        }
    }

    /// Whether only whole numbers are taken.
    fn whole(self) -> bool {
        matches!(
            self,
            Key::ProducerByteRate | Key::ConsumerByteRate | Key::ConnectionCreationRate
        )
    }
}

/// A limit as its bits, so that it can be compared: the command that sets it must come out of the log as it went in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit(u64);

impl From<f64> for Limit {
    fn from(value: f64) -> Limit {
        Limit(value.to_bits())
    }
}

impl Limit {
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The limits of one entity.
pub type Limits = BTreeMap<Key, Limit>;

/// A change of an entity's limits, decided: each key with its new limit, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub entity: Entity,
    pub ops: Vec<(Key, Option<Limit>)>,
}

impl Change {
    /// About what it takes in a command, in bytes.
    pub fn bytes(&self) -> usize {
        let parts = [&self.entity.user, &self.entity.client, &self.entity.ip];
        let names = parts.into_iter().flatten().flatten();
        16 + names.map(String::len).sum::<usize>() + 16 * self.ops.len()
    }
}

/// A change as a client asks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Types and names as they were sent.
    pub entity: Vec<(String, Name)>,
    /// Keys, each with a value or without one, which removes it.
    pub ops: Vec<(String, Option<f64>)>,
}

/// What a client asks for, checked.
pub fn check(asked: &Asked) -> Result<Change, Refused> {
    let entity = check_entity(&asked.entity)?;
    let mut ops: Vec<(Key, Option<Limit>)> = Vec::with_capacity(asked.ops.len().min(8));
    // Not one by one against those before: a request may name a hundred thousand.
    let mut seen = BTreeSet::new();
    for (name, value) in &asked.ops {
        if !seen.insert(name) {
            return invalid(format!("The quota {} is named twice.", shown(name)));
        }
        let known = Key::ALL.into_iter().find(|k| k.name() == name);
        let key = known.filter(|k| (*k == Key::ConnectionCreationRate) == entity.ip.is_some());
        match (key, value) {
            // What was never set can be removed, whatever it is called.
            (None, None) => {}
            (None, Some(_)) => {
                return invalid(format!("Invalid configuration key {}", shown(name)));
            }
            (Some(key), None) => ops.push((key, None)),
            (Some(key), Some(value)) => {
                if key.whole() && (value.is_nan() || (value - (value + 1e-6).trunc()).abs() > 1e-6)
                {
                    return invalid(format!("Configuration {name} must be a whole number."));
                }
                if value.is_nan() || *value <= 0.0 {
                    return invalid(format!("Quota {name} must be greater than 0."));
                }
                if key == Key::ConnectionCreationRate && *value > f64::from(i32::MAX) {
                    return invalid(format!("Quota {name} is at most {}.", i32::MAX));
                }
                ops.push((key, Some(Limit::from(*value))));
            }
        }
    }
    Ok(Change { entity, ops })
}

fn check_entity(parts: &[(String, Name)]) -> Result<Entity, Refused> {
    let mut entity = Entity::default();
    for (kind, name) in parts {
        let slot = match kind.as_str() {
            "user" => &mut entity.user,
            "client-id" => &mut entity.client,
            "ip" => &mut entity.ip,
            _ => {
                return invalid(format!(
                    "Unhandled client quota entity type: {}",
                    shown(kind)
                ));
            }
        };
        if slot.is_some() {
            return invalid(format!("The entity has {kind} twice."));
        }
        if name.as_ref().is_some_and(String::is_empty) {
            return invalid(format!("Empty {kind} not supported"));
        }
        if name
            .as_ref()
            .is_some_and(|n| n.len() > limits::QUOTA_NAME_BYTES)
        {
            return Err(Refused::new(
                Refusal::PolicyViolation,
                format!(
                    "A name in a quota has at most {} bytes.",
                    limits::QUOTA_NAME_BYTES
                ),
            ));
        }
        *slot = Some(name.clone());
    }
    match (&entity.user, &entity.client, &mut entity.ip) {
        (None, None, Some(ip)) => {
            if let Some(text) = ip {
                // As it will be looked up: an address has several spellings. Names are not resolved.
                match text.parse::<IpAddr>() {
                    Ok(address) => *text = address.to_canonical().to_string(),
                    Err(_) => {
                        return invalid(format!("{} is not a valid IP address.", shown(text)));
                    }
                }
            }
        }
        (Some(_), _, None) | (None, Some(_), None) => {}
        _ => return invalid("Invalid empty client quota entity".into()),
    }
    Ok(entity)
}

fn invalid<T>(why: String) -> Result<T, Refused> {
    Err(Refused::new(Refusal::InvalidRequest, why))
}

/// A name as an answer and a log may show it.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

/// Something for names, and for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Names<T> {
    default: Option<T>,
    named: BTreeMap<String, T>,
}

impl<T> Default for Names<T> {
    fn default() -> Names<T> {
        Names {
            default: None,
            named: BTreeMap::new(),
        }
    }
}

impl<T: Default + PartialEq> Names<T> {
    /// Changes what a name has. Nothing is kept of what has nothing.
    fn change(&mut self, name: &Name, change: impl FnOnce(&mut T)) {
        let Some(name) = name else {
            let mut default = self.default.take().unwrap_or_default();
            change(&mut default);
            self.default = (default != T::default()).then_some(default);
            return;
        };
        let mut entry = self.named.remove(name).unwrap_or_default();
        change(&mut entry);
        if entry != T::default() {
            self.named.insert(name.clone(), entry);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct User {
    own: Limits,
    clients: Names<Limits>,
}

/// Who shares a limit: whoever has this user, this client id, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared<'a> {
    pub user: Option<&'a str>,
    pub client: Option<&'a str>,
}

/// All quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    entities: BTreeMap<Entity, Limits>,
    /// The same, to be looked up.
    users: Names<User>,
    clients: Names<Limits>,
    ips: Names<Limits>,
    /// How many entities set a key, by [`Key::ALL`].
    set: [usize; 5],
}

impl Quotas {
    pub fn new(entities: impl IntoIterator<Item = (Entity, Limits)>) -> Quotas {
        let mut quotas = Quotas::default();
        for (entity, limits) in entities {
            quotas.put(entity, limits);
        }
        quotas
    }

    /// Carries changes out.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let known = self.entities.get(&change.entity);
            let mut limits = known.cloned().unwrap_or_default();
            for (key, limit) in &change.ops {
                match limit {
                    Some(limit) => limits.insert(*key, *limit),
                    None => limits.remove(key),
                };
            }
            self.put(change.entity.clone(), limits);
        }
    }

    /// The entity behind one, in their order, and its limits.
    pub fn after(&self, bound: Bound<Entity>) -> Option<(&Entity, &Limits)> {
        self.entities.range((bound, Bound::Unbounded)).next()
    }

    /// How many entities changes would add, at most.
    pub fn added(&self, changes: &[Change]) -> usize {
        let sets = |change: &&Change| change.ops.iter().any(|(_, limit)| limit.is_some());
        let changes = changes.iter().filter(sets);
        changes
            .filter(|change| !self.entities.contains_key(&change.entity))
            .count()
    }

    /// Gives an entity these limits and no others.
    fn put(&mut self, entity: Entity, limits: Limits) {
        let set = |slot: &mut Limits| slot.clone_from(&limits);
        match (&entity.user, &entity.client, &entity.ip) {
            (Some(user), Some(client), None) => {
                let of_client = |user: &mut User| user.clients.change(client, set);
                self.users.change(user, of_client);
            }
            (Some(user), None, None) => self.users.change(user, |user| set(&mut user.own)),
            (None, Some(client), None) => self.clients.change(client, set),
            (None, None, Some(ip)) => self.ips.change(ip, set),
            // Nothing that a check lets pass.
            _ => return,
        }
        for key in self
            .entities
            .get(&entity)
            .into_iter()
            .flat_map(Limits::keys)
        {
            self.set[*key as usize] -= 1;
        }
        for key in limits.keys() {
            self.set[*key as usize] += 1;
        }
        if limits.is_empty() {
            self.entities.remove(&entity);
        } else {
            self.entities.insert(entity, limits);
        }
    }

    /// In the order of their entities.
    pub fn entities(&self) -> impl Iterator<Item = (&Entity, &Limits)> {
        self.entities.iter()
    }

    pub fn len(&self) -> usize {
        self.entities.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entities.is_empty()
    }

    /// Whether anybody has a limit of this kind.
    pub fn any(&self, key: Key) -> bool {
        self.set[key as usize] > 0
    }

    /// The limit in force for a client, and with whom it shares it.
    pub fn limit<'a>(&self, key: Key, user: &'a str, client: &'a str) -> Option<(f64, Shared<'a>)> {
        if !self.any(key) {
            return None;
        }
        let of = |limits: Option<&Limits>| limits.and_then(|l| l.get(&key)).map(|l| l.get());
        let found = |limit: f64, user, client| Some((limit, Shared { user, client }));
        for entry in [self.users.named.get(user), self.users.default.as_ref()]
            .into_iter()
            .flatten()
        {
            let clients = &entry.clients;
            for limits in [clients.named.get(client), clients.default.as_ref()] {
                if let Some(limit) = of(limits) {
                    return found(limit, Some(user), Some(client));
                }
            }
            if let Some(limit) = of(Some(&entry.own)) {
                return found(limit, Some(user), None);
            }
        }
        for limits in [
            self.clients.named.get(client),
            self.clients.default.as_ref(),
        ] {
            if let Some(limit) = of(limits) {
                return found(limit, None, Some(client));
            }
        }
        None
    }

    /// The connections a second that an address may open, if that is limited.
    pub fn connection_rate(&self, ip: IpAddr) -> Option<f64> {
        let key = Key::ConnectionCreationRate;
        if !self.any(key) {
            return None;
        }
        let named = self.ips.named.get(&ip.to_canonical().to_string());
        let limits = named.or(self.ips.default.as_ref())?;
        limits.get(&key).map(|l| l.get())
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
