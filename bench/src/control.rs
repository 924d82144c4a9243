//! The set-up of a run over one blocking connection: what the broker speaks, the run's topics, who leads their partitions.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::limits;
use crate::protocol::{self, Metadata};
use crate::wire::{Malformed, Reader};
use crate::workload::Topics;

/// Opens a connection to `host:port` with Nagle's delay off.
pub fn connect(address: &str) -> Result<TcpStream, Error> {
    let unreachable = |e: std::io::Error| Error::Broker(format!("{address} isn't reached: {e}"));
    let mut last = std::io::Error::other("the name has no address");
    for one in address.to_socket_addrs().map_err(unreachable)? {
        match TcpStream::connect_timeout(&one, Duration::from_secs(10)) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(unreachable)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(unreachable(last))
}

/// One partition of the run: the list of them is in order of topic and index.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Index in `Cluster::topics`.
    pub topic: usize,
    pub index: i32,
    /// Index in `Cluster::brokers`.
    pub leader: usize,
}

/// What a run needs to know of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub cluster_id: Option<String>,
    pub topics: Vec<String>,
    pub partitions: Vec<Partition>,
    /// Addresses of the brokers.
    pub brokers: Vec<String>,
}

pub struct Control {
    stream: TcpStream,
}

impl Control {
    /// Connects and makes sure that the broker speaks what the instrument does; Fetch only if there are `consumers`.
    pub fn connect(address: &str, consumers: bool) -> Result<Control, Error> {
        Control::connect_with(address, consumers, limits::CONTROL_TIMEOUT_S)
    }

    /// The same, each request answered within so many seconds.
    pub fn connect_with(address: &str, consumers: bool, within_s: u64) -> Result<Control, Error> {
        let stream = connect(address)?;
        let timeout = Some(Duration::from_secs(within_s));
        stream
            .set_read_timeout(timeout)
            .map_err(Error::io("a socket"))?;
        stream
            .set_write_timeout(timeout)
            .map_err(Error::io("a socket"))?;
        let mut control = Control { stream };
        let spoken = control.call(protocol::api_versions, protocol::read_api_versions)?;
        let needed = [
            protocol::PRODUCE,
            protocol::LIST_OFFSETS,
            protocol::METADATA,
            protocol::CREATE_TOPICS,
            protocol::DELETE_TOPICS,
            protocol::FETCH,
        ];
        for (key, version) in needed.into_iter().take(if consumers { 6 } else { 5 }) {
            let fits =
                |(k, low, high): &(i16, i16, i16)| *k == key && (*low..=*high).contains(&version);
            if !spoken.iter().any(fits) {
                return Err(Error::Broker(format!(
                    "it doesn't speak version {version} of request {key}"
                )));
            }
        }
        Ok(control)
    }

    fn call<T>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
        read: impl FnOnce(&mut Reader) -> Result<T, Malformed>,
    ) -> Result<T, Error> {
        let failed =
            |e: std::io::Error| Error::Broker(format!("a request of the set-up failed: {e}"));
        let mut out = Vec::new();
        write(&mut out);
        self.stream.write_all(&out).map_err(failed)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(failed)?;
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=limits::MAX_FRAME_BYTES).contains(&length) {
            return Err(Error::Broker(format!("an answer of {length} bytes")));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).map_err(failed)?;
        let mut reader = Reader(&answer[4..]);
        read(&mut reader)
            .map_err(|Malformed| Error::Broker("an answer that isn't the protocol".into()))
    }

    /// Makes the topics and waits until every partition has a leader that serves it.
    pub fn create(&mut self, names: &[String], topics: &Topics) -> Result<Cluster, Error> {
        let timeout_ms = limits::CONTROL_TIMEOUT_S as i32 * 500;
        let made = self.call(
            |out| protocol::create_topics(out, names, topics, timeout_ms),
            protocol::read_create_topics,
        )?;
        for (name, error, message) in made {
            if error != 0 {
                let error = protocol::error_name(error);
                return Err(Error::Broker(format!(
                    "topic {name} isn't made: {error} {message}"
                )));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(limits::LEADERS_WITHIN_S);
        loop {
            let metadata = self.call(
                |out| protocol::metadata(out, names),
                protocol::read_metadata,
            )?;
            if let Some(cluster) = cluster(&metadata, names, topics.partitions as usize)
                && serves(&cluster)?
            {
                return Ok(cluster);
            }
            if Instant::now() > deadline {
                return Err(Error::Broker(
                    "not every partition has a leader that serves it".into(),
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Who leads the partitions now, by the numbers that the brokers have in `known`; none while one is led by nobody that is known.
    pub fn leaders(&mut self, known: &Cluster) -> Result<Option<Vec<usize>>, Error> {
        let names = &known.topics;
        let metadata = self.call(
            |out| protocol::metadata(out, names),
            protocol::read_metadata,
        )?;
        let most = |topic: usize| known.partitions.iter().filter(|p| p.topic == topic).count();
        let Some(now) = cluster(&metadata, names, most(0)) else {
            return Ok(None);
        };
        let number = |p: &Partition| {
            let address = &now.brokers[p.leader];
            known.brokers.iter().position(|b| b == address)
        };
        Ok(now.partitions.iter().map(number).collect())
    }

    /// Ids for so many idempotent producers.
    pub fn producer_ids(&mut self, count: usize) -> Result<Vec<(i64, i16)>, Error> {
        let deadline = Instant::now() + Duration::from_secs(limits::LEADERS_WITHIN_S);
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            let (error, id, epoch) =
                self.call(protocol::init_producer_id, protocol::read_init_producer_id)?;
            match error {
                0 => ids.push((id, epoch)),
                // A broker that has just started: loading, not available, not the coordinator.
                14..=16 if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => {
                    let error = protocol::error_name(error);
                    return Err(Error::Broker(format!("it gives no producer id: {error}")));
                }
            }
        }
        Ok(ids)
    }

    pub fn delete(&mut self, names: &[String]) -> Result<(), Error> {
        let timeout_ms = limits::CONTROL_TIMEOUT_S as i32 * 500;
        let gone = self.call(
            |out| protocol::delete_topics(out, names, timeout_ms),
            protocol::read_delete_topics,
        )?;
        match gone.iter().find(|(_, error)| *error != 0) {
            Some((name, error)) => {
                let error = protocol::error_name(*error);
                Err(Error::Broker(format!(
                    "topic {name} isn't deleted: {error}"
                )))
            }
            None => Ok(()),
        }
    }
}

/// Whether every leader serves its partitions: it may be named before it does.
fn serves(cluster: &Cluster) -> Result<bool, Error> {
    for (broker, address) in cluster.brokers.iter().enumerate() {
        let led = cluster.partitions.iter().filter(|p| p.leader == broker);
        let led: Vec<(&str, i32)> = led
            .map(|p| (cluster.topics[p.topic].as_str(), p.index))
            .collect();
        if led.is_empty() {
            continue;
        }
        let mut control = Control::connect(address, false)?;
        let errors = control.call(
            |out| protocol::list_offsets(out, &led),
            protocol::read_list_offsets,
        )?;
        if errors.len() != led.len() || errors.iter().any(|e| *e != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The cluster of a run, if all its partitions are there and led.
fn cluster(metadata: &Metadata, names: &[String], partitions: usize) -> Option<Cluster> {
    let mut cluster = Cluster {
        cluster_id: metadata.cluster_id.clone(),
        topics: names.to_vec(),
        brokers: metadata.brokers.iter().map(|b| b.1.clone()).collect(),
        partitions: Vec::with_capacity(names.len() * partitions),
    };
    for (topic, name) in names.iter().enumerate() {
        let (_, error, leaders) = metadata.topics.iter().find(|t| t.0 == *name)?;
        if *error != 0 || leaders.len() != partitions {
            return None;
        }
        for (index, id) in leaders.iter().enumerate() {
            cluster.partitions.push(Partition {
                topic,
                index: index as i32,
                leader: metadata.brokers.iter().position(|b| b.0 == *id)?,
            });
        }
    }
    Some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_whole_or_not_yet() {
        let mut metadata = Metadata {
            brokers: vec![(5, "a:1".into()), (9, "b:2".into())],
            topics: vec![("t".into(), 0, vec![9, 5])],
            ..Metadata::default()
        };
        let found = cluster(&metadata, &["t".into()], 2).unwrap();
        let leaders: Vec<usize> = found.partitions.iter().map(|p| p.leader).collect();
        assert_eq!(leaders, [1, 0]);
        assert!(cluster(&metadata, &["t".into()], 3).is_none());
        assert!(cluster(&metadata, &["u".into()], 2).is_none());
        metadata.topics[0].2[0] = -1;
        assert!(cluster(&metadata, &["t".into()], 2).is_none());
    }
}
