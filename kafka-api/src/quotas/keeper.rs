//! The books of those payers whose owner a shard is.
//!
//! Bounded by memory ([`Keeper::new`]): when there is no room, payers go whose windows are as good as new; if that isn't enough, newcomers are counted together, as one payer, against the limit of each.
//! So that nobody gets fresh windows by changing names, and those who were there first keep theirs.

use super::window::{Bucket, Shape, Window};
use super::{Charge, Kind, Payer};
use crate::limits;
use crate::shard::{Map, map};

/// How the node measures.
#[derive(Clone, Copy, Debug)]
pub struct Shapes {
    pub clients: Shape,
    /// Of changes of the metadata.
    pub controller: Shape,
}

/// See the module.
pub struct Keeper {
    shapes: Shapes,
    accounts: Map<(Payer, Of), Account>,
    bytes: usize,
    most_bytes: usize,
    swept_ms: u64,
    /// The place of the account that is looked at next.
    swept_to: usize,
}

/// What an account counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    Produced,
    Fetched,
    Time,
    Mutations,
    Accepted,
    Connected,
}

#[derive(Debug)]
enum Account {
    Window(Window),
    Bucket { bucket: Bucket, limit: f64 },
}

/// The shard that keeps a payer's books.
pub fn owner(payer: &Payer, shards: u16) -> u16 {
    let hash = ahash::RandomState::with_seeds(9, 10, 11, 12).hash_one(payer);
    (hash % u64::from(shards)) as u16
}

impl Keeper {
    /// `cache_bytes` is what the shard has for all that it may keep.
    pub fn new(shapes: Shapes, cache_bytes: u64) -> Keeper {
        let most = (cache_bytes / limits::QUOTA_PART_OF_CACHE).min(limits::QUOTA_BYTES);
        Keeper {
            shapes,
            accounts: map(),
            bytes: 0,
            most_bytes: most as usize,
            swept_ms: 0,
            swept_to: 0,
        }
    }

    /// Memory that it stands for.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub fn clients(&self) -> Shape {
        self.shapes.clients
    }

    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Charges; for how many milliseconds the payer is throttled.
    pub fn enter(&mut self, charge: Charge, now_ms: u64) -> u32 {
        let Shapes {
            clients,
            controller,
        } = self.shapes;
        let Charge {
            payer,
            kind,
            amount,
            limit,
        } = charge;
        match (self.account(payer, kind, limit, now_ms), kind) {
            (Account::Window(window), _) => {
                window.add(clients, amount, now_ms);
                let throttle_ms = window.throttle_ms(clients, limit, now_ms);
                match kind {
                    Kind::Fetched if throttle_ms > 0 => {
                        window.add(clients, -amount, now_ms);
                        throttle_ms
                    }
                    Kind::Connected if throttle_ms > 0 => {
                        window.add(clients, -amount, now_ms);
                        throttle_ms.min(clients.sample_ms as u32)
                    }
                    // Nobody is kept out for longer than one sample of these, as in Kafka.
                    Kind::Time | Kind::Accepted => throttle_ms.min(clients.sample_ms as u32),
                    _ => throttle_ms,
                }
            }
            (Account::Bucket { bucket, limit: was }, Kind::Mutations { strict: true }) => {
                *was = limit;
                let throttle_ms = bucket.throttle_ms(controller, limit, now_ms);
                if throttle_ms == 0 {
                    bucket.take(controller, limit, amount, now_ms);
                }
                throttle_ms
            }
            (Account::Bucket { bucket, limit: was }, _) => {
                *was = limit;
                bucket.take(controller, limit, amount, now_ms);
                bucket.throttle_ms(controller, limit, now_ms)
            }
        }
    }

    /// Looks at so many accounts at most, where it left off, and lets go of those that are as good as new.
    pub fn sweep(&mut self, now_ms: u64, most: usize) {
        self.swept_ms = now_ms;
        for _ in 0..most.min(self.accounts.len()) {
            if self.swept_to >= self.accounts.len() {
                self.swept_to = 0;
            }
            let Some(((payer, _), account)) = self.accounts.get_index(self.swept_to) else {
                return;
            };
            let idle = match account {
                Account::Window(w) => w.is_idle(self.shapes.clients, now_ms),
                Account::Bucket { bucket, limit } => {
                    bucket.is_idle(self.shapes.controller, *limit, now_ms)
                }
            };
            if idle {
                self.bytes -= account_bytes(payer, self.shapes);
                self.accounts.swap_remove_index(self.swept_to);
            } else {
                self.swept_to += 1;
            }
        }
    }

    fn account(&mut self, payer: Payer, kind: Kind, limit: f64, now_ms: u64) -> &mut Account {
        let of = match kind {
            Kind::Produced => Of::Produced,
            Kind::Fetched => Of::Fetched,
            Kind::Time => Of::Time,
            Kind::Mutations { .. } => Of::Mutations,
            Kind::Accepted => Of::Accepted,
            Kind::Connected => Of::Connected,
        };
        let mut key = (payer, of);
        if !self.accounts.contains_key(&key) {
            let needs = account_bytes(&key.0, self.shapes);
            // At most so often: a sweep that frees nothing costs as much as one that does.
            let again = now_ms.saturating_sub(self.swept_ms) >= limits::QUOTA_SWEEP_MS;
            if self.bytes + needs > self.most_bytes && again {
                self.sweep(now_ms, limits::QUOTA_SWEEP);
            }
            if self.bytes + needs > self.most_bytes {
                let (user, client) = (None, None);
                key.0 = Payer { user, client };
            }
        }
        let shapes = self.shapes;
        let bytes = &mut self.bytes;
        self.accounts.entry(key).or_insert_with_key(|(payer, of)| {
            *bytes += account_bytes(payer, shapes);
            match of {
                Of::Mutations => Account::Bucket {
                    bucket: Bucket::new(shapes.controller, limit, now_ms),
                    limit,
                },
                _ => Account::Window(Window::default()),
            }
        })
    }
}

/// What an account takes at most: itself, its names, its samples, and its place in the map.
fn account_bytes(payer: &Payer, shapes: Shapes) -> usize {
    let names = [&payer.user, &payer.client].into_iter().flatten();
    let names: usize = names.map(|n| n.len()).sum();
    // Vectors grow by doubling.
    160 + names + 24 * (shapes.clients.samples as usize + 1).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape {
        samples: 11,
        sample_ms: 1000,
    };

    fn keeper(cache_bytes: u64) -> Keeper {
        let shapes = Shapes {
            clients: SHAPE,
            controller: SHAPE,
        };
        Keeper::new(shapes, cache_bytes)
    }

    fn charge(client: &str, kind: Kind, amount: f64, limit: f64) -> Charge {
        let payer = Payer {
            user: None,
            client: Some(client.into()),
        };
        Charge {
            payer,
            kind,
            amount,
            limit,
        }
    }

    #[test]
    fn payers_and_kinds_are_counted_apart() {
        let mut k = keeper(1 << 30);
        assert_eq!(
            k.enter(charge("a", Kind::Produced, 20_000.0, 1_000.0), 5),
            10_000
        );
        assert_eq!(
            k.enter(charge("b", Kind::Produced, 10_000.0, 1_000.0), 5),
            0
        );
        assert_eq!(k.enter(charge("a", Kind::Fetched, 10_000.0, 1_000.0), 5), 0);
        // A limit that is changed counts at once, for what came before as well.
        assert_eq!(k.enter(charge("a", Kind::Produced, 0.0, 4_000.0), 5), 0);
        assert_eq!(k.len(), 3);
    }

    #[test]
    fn a_fetch_that_is_too_much_is_not_charged_and_time_is_bounded() {
        let mut k = keeper(1 << 30);
        let first = k.enter(charge("a", Kind::Fetched, 30_000.0, 1_000.0), 5);
        assert_eq!(first, 20_000);
        assert_eq!(k.enter(charge("a", Kind::Fetched, 10_000.0, 1_000.0), 5), 0);
        assert_eq!(k.enter(charge("a", Kind::Time, 500.0, 1.0), 5), 1_000);
    }

    #[test]
    fn mutations_are_refused_or_let_through_by_version() {
        let mut k = keeper(1 << 30);
        let (strict, lax) = (
            Kind::Mutations { strict: true },
            Kind::Mutations { strict: false },
        );
        // A burst of 11; what passes it is still taken, once.
        assert_eq!(k.enter(charge("a", strict, 15.0, 1.0), 5), 0);
        assert_eq!(k.enter(charge("a", strict, 1.0, 1.0), 5), 4_000);
        assert_eq!(k.enter(charge("a", strict, 1.0, 1.0), 1_005), 3_000);
        assert_eq!(k.enter(charge("a", lax, 1.0, 1.0), 1_005), 4_000);
    }

    proptest! {
        /// However many names a client goes by: the memory is bounded, and those without room share one limit.
        #[test]
        fn changing_names_gains_nothing(names in prop::collection::vec(0u32..100_000, 200..400)) {
            let mut k = keeper(limits::QUOTA_PART_OF_CACHE * 20_000);
            let mut throttled = 0;
            for (i, name) in names.iter().enumerate() {
                let c = charge(&name.to_string(), Kind::Produced, 5_000.0, 1_000.0);
                throttled += u32::from(k.enter(c, i as u64) > 0);
                prop_assert!(k.bytes() <= 20_000 + 600);
            }
            prop_assert!(throttled > 100, "{throttled}");
            // When all have been silent they are forgotten.
            k.sweep(400 + SHAPE.memory_ms(), usize::MAX);
            prop_assert_eq!((k.len(), k.bytes()), (0, 0));
        }
    }
}
