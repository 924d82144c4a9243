//! What a thread of the load asks of helpers when brokers come and go: connections that take their time, and who leads now. The load's thread
//! itself never waits for either.
//!
//! Bounds: one helper per connection that is down, and one that asks for leaders.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::control::{Cluster, Control, connect};
use crate::error::Error;
use crate::limits;

/// What a helper has found.
pub enum Found {
    /// A connection, by the number that it was asked for with; none where the broker isn't reached.
    Connection(usize, Option<TcpStream>),
    /// The brokers that lead, if it is known.
    Leaders(Option<Vec<usize>>),
}

/// The questions of one thread.
pub struct Recovery {
    cluster: Arc<Cluster>,
    sender: Sender<Found>,
    found: Receiver<Found>,
    /// Connections that are down: number, broker, when to try, whether somebody is at it.
    down: Vec<(usize, usize, u64, bool)>,
    /// Who leads is to be asked from this moment on; whether somebody is at it.
    ask_from_ns: Option<u64>,
    asking: bool,
    next_broker: usize,
}

impl Recovery {
    pub fn new(cluster: Arc<Cluster>) -> Recovery {
        let (sender, found) = channel();
        Recovery {
            cluster,
            sender,
            found,
            down: Vec::new(),
            ask_from_ns: None,
            asking: false,
            next_broker: 0,
        }
    }

    /// Nothing is asked and nothing is down: there is nothing to look after.
    pub fn is_idle(&self) -> bool {
        self.down.is_empty() && self.ask_from_ns.is_none() && !self.asking
    }

    /// A connection to a broker is down.
    pub fn lost(&mut self, number: usize, broker: usize, now_ns: u64) {
        if self.down.iter().all(|d| d.0 != number) {
            let at = now_ns + limits::RETRY_AFTER_NS;
            self.down.push((number, broker, at, false));
        }
        self.stale(now_ns);
    }

    /// A broker says that it doesn't lead.
    pub fn stale(&mut self, now_ns: u64) {
        let at = now_ns + limits::RETRY_AFTER_NS;
        self.ask_from_ns.get_or_insert(at);
    }

    /// Sends helpers for what is due; what one has found.
    pub fn look(&mut self, now_ns: u64) -> Result<Option<Found>, Error> {
        for (number, broker, at, busy) in &mut self.down {
            if *busy || *at > now_ns {
                continue;
            }
            *busy = true;
            let (sender, number) = (self.sender.clone(), *number);
            let address = self.cluster.brokers[*broker].clone();
            help(move || {
                // Nobody listens any more when the run has ended.
                let _ = sender.send(Found::Connection(number, connect(&address).ok()));
            })?;
        }
        if !self.asking && self.ask_from_ns.is_some_and(|at| at <= now_ns) {
            (self.asking, self.ask_from_ns) = (true, None);
            let (sender, cluster) = (self.sender.clone(), self.cluster.clone());
            let broker = self.next_broker % cluster.brokers.len();
            self.next_broker += 1;
            help(move || {
                let address = &cluster.brokers[broker];
                let leaders = Control::connect_with(address, false, limits::LEADERS_TIMEOUT_S)
                    .and_then(|mut control| control.leaders(&cluster));
                let _ = sender.send(Found::Leaders(leaders.ok().flatten()));
            })?;
        }
        let Ok(found) = self.found.try_recv() else {
            return Ok(None);
        };
        match &found {
            Found::Connection(number, Some(_)) => self.down.retain(|d| d.0 != *number),
            Found::Connection(number, None) => {
                let retry = now_ns + limits::RETRY_AFTER_NS;
                let mine = self.down.iter_mut().filter(|d| d.0 == *number);
                mine.for_each(|d| (d.2, d.3) = (retry, false));
            }
            Found::Leaders(leaders) => {
                self.asking = false;
                if leaders.is_none() {
                    self.stale(now_ns);
                }
            }
        }
        Ok(Some(found))
    }
}

fn help(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let helper = std::thread::Builder::new().name("bench-help".into());
    helper.spawn(work).map(drop).map_err(Error::io("a thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until_found(recovery: &mut Recovery, now_ns: u64) -> Found {
        for _ in 0..1_000 {
            if let Some(found) = recovery.look(now_ns).unwrap() {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("nothing is found");
    }

    #[test]
    fn a_lost_connection_is_made_again_when_its_broker_is_back() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let cluster = Cluster {
            brokers: vec![address.to_string()],
            ..Cluster::default()
        };
        let mut recovery = Recovery::new(Arc::new(cluster));
        assert!(recovery.is_idle());
        recovery.lost(7, 0, 0);
        assert!(recovery.look(limits::RETRY_AFTER_NS - 1).unwrap().is_none());
        let mut now = limits::RETRY_AFTER_NS;
        let mut gone = 0;
        while gone < 2 {
            match until_found(&mut recovery, now) {
                Found::Connection(7, None) => gone += 1,
                Found::Leaders(None) => {}
                _ => panic!("nobody is there"),
            }
            now += limits::RETRY_AFTER_NS;
        }
        let _listener = std::net::TcpListener::bind(address).unwrap();
        loop {
            now += limits::RETRY_AFTER_NS;
            match until_found(&mut recovery, now) {
                Found::Connection(7, Some(_)) => break,
                Found::Connection(7, None) | Found::Leaders(None) => {}
                _ => panic!("nobody else is asked for"),
            }
        }
        assert!(recovery.down.is_empty());
    }
}
