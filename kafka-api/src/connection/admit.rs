//! Connections that must be let in: those of a node that limits them. Who is turned away is closed, at once or a little later, counted, and named in the log once a second.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::line_limit::LineLimit;
use engine::rt::{self, Queue, TcpStream};

use crate::limits;
use crate::quotas::admission::Verdict;
use crate::shard::Shard;

impl Shard {
    /// Asks for leave for a connection that was accepted; its address, under which it is counted, or nothing if it was turned away.
    pub(super) async fn admit(
        self: &Rc<Self>,
        stream: &TcpStream,
        lines: &LineLimit,
    ) -> Option<IpAddr> {
        // Without an address it is gone already.
        let ip = stream.peer_addr().ok()?.ip().to_canonical();
        match self.ask_to_enter(ip).await {
            Verdict::Enter => return Some(ip),
            Verdict::TooMany => {
                self.turned_away(lines, ip, "its address has too many");
                stream.shutdown();
            }
            Verdict::TooFast(wait_ms) => {
                self.turned_away(lines, ip, "its address opens too many a second");
                self.close_later(stream.clone(), wait_ms);
            }
        }
        None
    }

    fn turned_away(&self, lines: &LineLimit, ip: IpAddr, why: &str) {
        self.metrics.refused_connections.increment();
        if let Some(kept_back) = lines.pass(rt::now()) {
            tracing::warn!(%ip, why, kept_back, "a connection was refused");
        }
    }

    /// Closes a connection of an address that opens too many, so late that the next one isn't too early; at once if too many wait for that.
    fn close_later(self: &Rc<Self>, stream: TcpStream, wait_ms: u32) {
        let waiting = &self.connections.closing;
        if waiting.get() >= limits::CONNECTIONS_CLOSING {
            stream.shutdown();
            return;
        }
        waiting.set(waiting.get() + 1);
        let shard = self.clone();
        rt::spawn(Queue::Background, async move {
            rt::sleep(Duration::from_millis(u64::from(wait_ms))).await;
            stream.shutdown();
            let waiting = &shard.connections.closing;
            waiting.set(waiting.get() - 1);
        })
        .detach();
    }
}
