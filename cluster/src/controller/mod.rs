//! The metadata group's shell, on shard 0: checks requests, proposes commands, waits until they are applied, publishes what changed.
//!
//! Whoever applies decides: [`Metadata::apply`] runs in log order, so of two concurrent creates of one name the second is refused there, whatever was
//! checked before. A request is answered when its change has reached every shard of this node, so that what a client asks next, on any
//! connection, knows of it.
//!
//! The metadata group's log doesn't grow without bound: the log layer captures [`Controller::snapshot`] in its checkpoints and hands it to
//! [`Controller::restore`] at the next start.
//!
//! Everything here runs on one shard; no borrow lasts over an await. Every wait may be dropped: the command may still be applied. Bounds:
//! [`limits::COMMANDS_IN_FLIGHT`], [`limits::CHANGES_WAITING`]. Callers put deadlines round the requests.

mod requests;
mod room;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use engine::types::{NodeId, RaftIndex};
use raftgroup::{Group, ProduceError};

pub use requests::{AlterTopic, CreatedTopic, NewPartitions, NewTopic, ProducerIds, TopicRef};

use crate::command::{Command, DecodeError, Envelope};
use crate::error::{Refusal, Refused};
use crate::limits;
use crate::metadata::{Answer, Change, Metadata, SnapshotDraft};
use crate::signal::Signal;
use room::Room;

/// Takes commands into the metadata group's log.
pub trait Proposer {
    /// Proposes; the future ends when the command is committed or never will be, as far as this replica can tell.
    fn propose(&self, command: Bytes) -> Result<Committed, ProduceError>;
}

/// See [`Proposer::propose`].
pub type Committed = Pin<Box<dyn Future<Output = Result<(), ProduceError>>>>;

impl Proposer for Group {
    fn propose(&self, command: Bytes) -> Result<Committed, ProduceError> {
        let wait = self.propose_command(command)?;
        Ok(Box::pin(async move { wait.await.map(|_| ()) }))
    }
}

/// What topics get that don't say.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    pub num_partitions: i32,
    pub replication_factor: i16,
}

/// The controller of a node.
pub struct Controller {
    node: NodeId,
    defaults: Defaults,
    room: Room,
    random: Box<dyn Fn() -> u64>,
    /// Marks the commands of this process.
    proposer: u64,
    next_ticket: Cell<u64>,
    group: RefCell<Option<Rc<dyn Proposer>>>,
    metadata: RefCell<Metadata>,
    snapshot: RefCell<SnapshotDraft>,
    /// Commands proposed and not answered yet.
    waiting: RefCell<BTreeMap<u64, Option<Applied>>>,
    outbox: RefCell<Outbox>,
    applied: Signal,
    published: Signal,
    to_publish: Signal,
}

/// What became of a command.
struct Applied {
    answer: Result<Answer, Refused>,
    /// The change's number in the outbox: when it is published, everybody knows.
    change: u64,
}

/// Changes on their way to the shards.
#[derive(Default)]
struct Outbox {
    changes: VecDeque<Change>,
    /// Number of the newest change, counted from 1.
    newest: u64,
    /// All up to this one are with every shard.
    published: u64,
}

impl Controller {
    /// `memory_bytes` is what the node's shards have together; `random` is the runtime's own.
    pub fn new(
        node: NodeId,
        defaults: Defaults,
        memory_bytes: u64,
        random: impl Fn() -> u64 + 'static,
    ) -> Rc<Controller> {
        let proposer = random();
        Rc::new(Controller {
            node,
            defaults,
            room: Room::new(memory_bytes),
            random: Box::new(random),
            proposer,
            next_ticket: Cell::new(0),
            group: RefCell::new(None),
            metadata: RefCell::new(Metadata::default()),
            snapshot: RefCell::default(),
            waiting: RefCell::new(BTreeMap::new()),
            outbox: RefCell::new(Outbox::default()),
            applied: Signal::default(),
            published: Signal::default(),
            to_publish: Signal::default(),
        })
    }

    /// Gives the controller the metadata group, once that is there.
    pub fn attach(&self, group: Rc<dyn Proposer>) {
        *self.group.borrow_mut() = Some(group);
    }

    /// Reads the state, synchronously.
    pub fn read<T>(&self, f: impl FnOnce(&Metadata) -> T) -> T {
        f(&self.metadata.borrow())
    }

    /// The metadata group applied a command. From `GroupSink::command_applied`, for group 0.
    ///
    /// An error says that the log holds what this build can't read: the node must stop, it would decide on half the truth.
    pub fn command_applied(&self, index: RaftIndex, command: &[u8]) -> Result<(), DecodeError> {
        let envelope = Envelope::decode(command)?;
        let mine = envelope.proposer == self.proposer;
        let result = self.metadata.borrow_mut().apply(index, envelope.command);
        let (answer, change) = match result {
            Ok(outcome) => (Ok(outcome.answer), outcome.change),
            Err(refused) => (Err(refused), None),
        };
        if let Some(change) = change {
            self.enqueue(change);
        }
        if mine && let Some(slot) = self.waiting.borrow_mut().get_mut(&envelope.ticket) {
            *slot = Some(Applied {
                answer,
                change: self.outbox.borrow().newest,
            });
        }
        self.applied.notify();
        Ok(())
    }

    /// The state for a checkpoint. From `GroupSink::snapshot_state`, for group 0.
    pub fn snapshot(&self) -> Vec<Bytes> {
        let mut draft = self.snapshot.borrow_mut();
        self.metadata.borrow().finish_snapshot(&mut draft)
    }

    /// A slice of it ahead of time. From `GroupSink::prepare_snapshot`, for group 0.
    pub fn prepare_snapshot(&self) -> bool {
        let mut draft = self.snapshot.borrow_mut();
        self.metadata.borrow().prepare_snapshot(&mut draft)
    }

    /// Takes a checkpoint's state over. From `GroupSink::restore_state`, for group 0; empty bytes are a group that never had one.
    pub fn restore(&self, state: &[u8]) -> Result<(), DecodeError> {
        if state.is_empty() {
            return Ok(());
        }
        *self.metadata.borrow_mut() = Metadata::restore(state)?;
        self.enqueue_everything();
        self.applied.notify();
        Ok(())
    }

    /// Publishes changes for ever: `send` hands a batch, in order, to every shard and ends when all have taken it over. One task runs this.
    pub async fn publish(&self, send: impl AsyncFn(Vec<Change>)) {
        loop {
            let (changes, newest) = self
                .to_publish
                .until(|| {
                    let mut outbox = self.outbox.borrow_mut();
                    let changes: Vec<Change> = outbox.changes.drain(..).collect();
                    (!changes.is_empty()).then_some((changes, outbox.newest))
                })
                .await;
            send(changes).await;
            self.outbox.borrow_mut().published = newest;
            self.published.notify();
        }
    }

    /// Waits until every shard has what was applied by now.
    pub async fn settled(&self) {
        let newest = self.outbox.borrow().newest;
        self.until_published(newest).await;
    }

    async fn until_published(&self, change: u64) {
        self.published
            .until(|| (self.outbox.borrow().published >= change).then_some(()))
            .await;
    }

    fn enqueue(&self, change: Change) {
        let full = self.outbox.borrow().changes.len() >= limits::CHANGES_WAITING;
        if full {
            self.enqueue_everything();
            return;
        }
        let mut outbox = self.outbox.borrow_mut();
        outbox.changes.push_back(change);
        outbox.newest += 1;
        drop(outbox);
        self.to_publish.notify();
    }

    /// One image in place of all changes that wait.
    fn enqueue_everything(&self) {
        let image = self.metadata.borrow().image();
        let mut outbox = self.outbox.borrow_mut();
        outbox.changes.clear();
        outbox.changes.push_back(Change::Reset(Box::new(image)));
        outbox.newest += 1;
        drop(outbox);
        self.to_publish.notify();
    }

    /// Proposes a command and waits until it is applied and its change is with every shard of this node.
    async fn carry_out(&self, command: Command) -> Result<Answer, Refused> {
        let group = self.group.borrow().clone().ok_or_else(not_ready)?;
        if self.waiting.borrow().len() >= limits::COMMANDS_IN_FLIGHT {
            return Err(Refused::new(
                Refusal::RequestTimedOut,
                "Too many changes of the metadata are under way; try again.",
            ));
        }
        let ticket = Ticket::new(self);
        let envelope = Envelope {
            proposer: self.proposer,
            ticket: ticket.number,
            command,
        };
        let committed = group.propose(envelope.encode()).map_err(not_proposed)?;
        committed.await.map_err(not_proposed)?;
        let applied = self.applied.until(|| ticket.take()).await;
        self.until_published(applied.change).await;
        applied.answer
    }
}

/// A place in the list of waiting commands; leaves it when dropped.
struct Ticket<'a> {
    controller: &'a Controller,
    number: u64,
}

impl Ticket<'_> {
    fn new(controller: &Controller) -> Ticket<'_> {
        let number = controller.next_ticket.get();
        controller.next_ticket.set(number + 1);
        controller.waiting.borrow_mut().insert(number, None);
        Ticket { controller, number }
    }

    fn take(&self) -> Option<Applied> {
        let mut waiting = self.controller.waiting.borrow_mut();
        waiting.get_mut(&self.number)?.take()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.controller.waiting.borrow_mut().remove(&self.number);
    }
}

fn not_ready() -> Refused {
    Refused::new(
        Refusal::NotController,
        "The metadata group is not ready yet; try again.",
    )
}

fn not_proposed(e: ProduceError) -> Refused {
    let refusal = match e {
        ProduceError::NotLeader | ProduceError::Removed => Refusal::NotController,
        ProduceError::Overloaded => Refusal::RequestTimedOut,
        ProduceError::Storage => Refusal::StorageError,
        _ => Refusal::UnknownServerError,
    };
    Refused::new(
        refusal,
        format!("The metadata group refused the change: {e}."),
    )
}
