//! The writing half of a connection: settles Produce requests, carries out all others when it is their turn, and writes the answers in the order of the
//! requests. It holds one answer of any size, or small ones up to a write together; their memory is given back when they are written. Begun by
//! [`super::serve`]; ends with the connection.

use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use engine::rt;

use super::throttle::carry_out;
use super::{Connection, End, Reply, bytes_of};
use crate::handlers::{fetch, produce};
use crate::limits;
use crate::shard::Shard;
use crate::sync::poll_once;

/// Answers that are encoded and not written yet.
#[derive(Default)]
struct Out {
    pieces: Vec<Bytes>,
    bytes: usize,
    held: Vec<fetch::Held>,
}

impl Out {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push(piece);
    }

    /// Writes everything, in portions, each with its own deadline.
    async fn write(&mut self, shard: &Shard, connection: &Connection) -> Result<(), End> {
        let mut pieces = std::mem::take(&mut self.pieces).into_iter().peekable();
        let mut portion: Vec<Bytes> = Vec::new();
        while pieces.peek().is_some() {
            portion.clear();
            let mut bytes = 0;
            while portion.len() < limits::WRITE_PARTS
                && bytes < limits::WRITE_BYTES
                && let Some(piece) = pieces.peek_mut()
            {
                let take = piece.len().min(limits::WRITE_BYTES - bytes);
                bytes += take;
                if take == piece.len() {
                    portion.extend(pieces.next());
                } else {
                    portion.push(piece.split_to(take));
                }
            }
            let due = rt::now() + limits::WRITE_STALL;
            connection.write_due.set(Some(due));
            connection.stream.write_all_vectored(&portion).await?;
            connection.write_due.set(None);
            connection.active.set(rt::now());
            shard.metrics.bytes_out.add(bytes as u64);
        }
        self.bytes = 0;
        self.held.clear();
        Ok(())
    }
}

/// Answers requests in their order until the reader has ended and all are answered, or something fails.
pub(super) async fn write_loop(shard: &Rc<Shard>, connection: &Connection) -> Result<(), End> {
    let mut out = Out::default();
    // The answer behind which nothing was taken in is in `out`.
    let mut answered = false;
    loop {
        let reply = match connection.replies.try_pop() {
            Some(reply) => reply,
            None => {
                out.write(shard, connection).await?;
                connection.busy.set(false);
                if std::mem::take(&mut answered) {
                    connection.is_free();
                }
                match connection.replies.pop().await {
                    Some(reply) => reply,
                    None => return Ok(()),
                }
            }
        };
        connection.busy.set(true);
        match reply {
            Reply::Ready(answer) => out.push(answer),
            Reply::Produce {
                mut pending,
                arrived,
                memory,
            } => {
                if !settled(&mut pending).await {
                    out.write(shard, connection).await?;
                    Box::pin(pending.settle_in_time()).await;
                }
                if let Some(delay) = shard.slow_down() {
                    out.write(shard, connection).await?;
                    rt::sleep(delay).await;
                }
                let refusals = pending.refusals();
                if !refusals.is_empty() {
                    shard.refused(&connection.refusals, pending.request(), &refusals);
                }
                if pending.is_answered() {
                    out.push(pending.encode(shard));
                    let took = arrived.elapsed();
                    shard.metrics.produce_seconds.record(took);
                } else if pending.failed() {
                    return Err(End::Unacknowledged);
                }
                let held = connection.producing.get() - bytes_of(&memory);
                connection.producing.set(held);
                drop(memory);
                if connection.wants_room.get() {
                    connection.wake_reader();
                }
            }
            Reply::Later {
                mut request,
                mut memory,
            } => {
                // It may take long; what is ready goes out first.
                out.write(shard, connection).await?;
                let answer = carry_out(shard, connection, &mut request, &mut memory)
                    .await
                    .map_err(|error| End::Malformed {
                        error,
                        client: request.client_id.clone(),
                    })?;
                drop(memory);
                if !answer.refusals.is_empty() {
                    shard.refused(&connection.refusals, &request, &answer.refusals);
                }
                for piece in answer.pieces {
                    out.push(piece);
                }
                out.held.extend(answer.held);
                answered = true;
            }
        }
        if out.bytes >= limits::WRITE_BYTES || out.pieces.len() >= limits::WRITE_PARTS {
            out.write(shard, connection).await?;
        }
    }
}

/// Whether everything that a Produce request waits for has happened already.
async fn settled(pending: &mut produce::Pending) -> bool {
    let mut settle = pin!(pending.settle());
    poll_once(&mut settle).await.is_some()
}
