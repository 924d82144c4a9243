//! Quotas of clients: what they use is charged to whoever shares the limit that is in force for them, and who is over it is throttled (KIP-219): the answer goes out at once and
//! tells for how long, and for that time nothing more is read from the connection, or carried out of what was read.
//!
//! **Who keeps count.** A client's traffic comes in on any shard. Each limit that is shared, as [`Payer`] says it, has one window on one shard of the node, found by hash: a shard that serves a request
//! asks the owner by ring, amount and limit in the question and the throttle time in the answer ([`Shard::charge`]). So the sum over all shards is exact, as if there were one thread, without a lock
//! and without shares that have to be moved about. The price is one hop for a request of a client that has such a limit; whoever has none pays a look at a table of zeros.
//!
//! [`window`] has the arithmetic, [`keeper`] an owner's books and their bound, [`mutations`] the quota of changes of the metadata, [`told`] where an answer has its throttle time, [`admission`] how many connections there may be.

pub mod admission;
pub mod keeper;
pub mod mutations;
pub mod told;
pub mod window;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use cluster::quota::{Key, Shared};
use engine::ring::Class;
use engine::rt;
use engine::types::ShardId;

use crate::frame::ClientId;
use crate::request::{ShardReply, ShardRequest};
use crate::shard::Shard;
pub use keeper::Keeper;

/// Who clients are until they can say so.
pub const ANONYMOUS: &str = "ANONYMOUS";

/// Who shares a limit: a user, a client id, or both; neither are all those that there is no room to tell apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Payer {
    pub user: Option<Box<str>>,
    pub client: Option<Box<str>>,
}

impl From<Shared<'_>> for Payer {
    fn from(shared: Shared<'_>) -> Payer {
        Payer {
            user: shared.user.map(Into::into),
            client: shared.client.map(Into::into),
        }
    }
}

/// What is charged. The kinds of one payer are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Produced,
    /// Taken back if it is too much: the answer goes out empty then.
    Fetched,
    /// Percent of one shard's second.
    Time,
    Mutations {
        /// Not charged if those before were too much already: the request is refused. Else it is charged and let through.
        strict: bool,
    },
    /// Connections of all addresses; of one, where what is too much is taken back.
    Accepted,
    Connected,
}

/// An amount to be charged, and the limit in force, a second.
#[derive(Clone, Debug)]
pub struct Charge {
    pub payer: Payer,
    pub kind: Kind,
    pub amount: f64,
    pub limit: f64,
}

impl Kind {
    fn key(self) -> Key {
        match self {
            Kind::Produced => Key::ProducerByteRate,
            Kind::Fetched => Key::ConsumerByteRate,
            Kind::Time => Key::RequestPercentage,
            Kind::Mutations { .. } => Key::ControllerMutationRate,
            Kind::Accepted | Kind::Connected => Key::ConnectionCreationRate,
        }
    }
}

impl Shard {
    /// Whether anybody has a limit of this kind. All that the path of a record asks where nobody has.
    pub(crate) fn has_quotas(&self, kind: Kind) -> bool {
        self.view.any_quota(kind.key())
    }

    /// The limit in force for a client, a second.
    pub(crate) fn quota(&self, kind: Kind, client: &ClientId) -> Option<f64> {
        let client = client.text();
        let quotas = self.view.quotas();
        let (limit, _) = quotas.limit(kind.key(), ANONYMOUS, &client)?;
        Some(limit)
    }

    /// Charges a client, if it has a limit; for how many milliseconds it is throttled. A shard that is gone is ending the process: nobody is throttled then.
    pub(crate) async fn charge(self: &Rc<Self>, kind: Kind, client: &ClientId, amount: f64) -> u32 {
        let charge = {
            let client = client.text();
            let quotas = self.view.quotas();
            let Some((limit, shared)) = quotas.limit(kind.key(), ANONYMOUS, &client) else {
                return 0;
            };
            Charge {
                payer: shared.into(),
                kind,
                amount,
                limit,
            }
        };
        let owner = ShardId(keeper::owner(&charge.payer, self.shards));
        let request = ShardRequest::Charge(Box::new(charge));
        let throttle_ms = match self.ask(owner, Class::Short, request).await {
            Ok(ShardReply::Throttled(ms)) => ms,
            _ => 0,
        };
        if throttle_ms > 0 {
            self.metrics.throttled_requests.increment();
        }
        throttle_ms
    }

    /// Enters a charge in the books of this shard.
    pub(crate) fn enter(&self, charge: Charge) -> u32 {
        let mut keeper = self.quotas.borrow_mut();
        let (before, now_ms) = (keeper.bytes(), rt::now().0 / 1_000_000);
        let throttle_ms = keeper.enter(charge, now_ms);
        let after = keeper.bytes();
        drop(keeper);
        self.count_quotas(before, after);
        throttle_ms
    }

    /// Lets go of what is as good as new.
    pub(crate) fn sweep_quotas(&self) {
        let mut keeper = self.quotas.borrow_mut();
        let before = keeper.bytes();
        keeper.sweep(rt::now().0 / 1_000_000, crate::limits::QUOTA_SWEEP);
        let after = keeper.bytes();
        drop(keeper);
        self.count_quotas(before, after);
    }

    fn count_quotas(&self, before: u64, after: u64) {
        let memory = self.budget.meter(engine::memory::MemoryClass::Cache);
        if after > before {
            memory.add(after - before);
        } else if after < before {
            memory.sub(before - after);
        }
    }
}

/// Runs a future and takes the time that the shard spends in it, in nanoseconds: what it waits for isn't counted, nor what other shards do for it.
pub(crate) async fn timed<F: Future>(future: F) -> (F::Output, u64) {
    let mut future = pin!(future);
    let mut spent = 0;
    let output = std::future::poll_fn(|cx| {
        let began = rt::now();
        let polled = future.as_mut().poll(cx);
        spent += began.elapsed().as_nanos() as u64;
        match polled {
            Poll::Ready(output) => Poll::Ready(output),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    (output, spent)
}

/// Time of a shard as a request is charged for it.
pub(crate) fn percent(spent_ns: u64) -> f64 {
    spent_ns as f64 * 100.0 / 1e9
}
