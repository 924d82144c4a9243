//! The cluster as a client knows it: brokers, leaders, one connection to each broker; retries with fresh metadata until the time is up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, MetadataResponse, ProducerId,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::connection::{Connection, connect};
use super::{ClientError, at, check};
use crate::cli::BrokerArgs;
use crate::settings::{host_and_port, join};

/// Pause before something is tried again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(100);

pub struct Cluster {
    bootstrap: String,
    timeout: Duration,
    connections: BTreeMap<String, Connection>,
    /// Addresses at which there was a broker at some time of this command.
    reached: BTreeSet<String>,
    brokers: BTreeMap<i32, String>,
    controller: Option<i32>,
}

/// A name as the protocol has it.
pub fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

pub fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_string())
}

/// What to do when an address can't be connected to; `reached` if it could before.
fn advise(bootstrap: &str, address: &str, reached: bool, e: &std::io::Error) -> String {
    let what = format!("can't connect to a broker at {address}: {e}");
    if reached {
        return format!("{what}. It was there a moment ago: does it still run?");
    }
    if address == bootstrap {
        return format!("{what}. Is it running, and is --broker right?");
    }
    format!(
        "{what}. The broker at {bootstrap} says that clients reach it there: if it runs, set its advertise (Kafka: advertised.listeners) to an address that this machine reaches"
    )
}

impl Cluster {
    pub fn open(args: &BrokerArgs) -> Result<Cluster, ClientError> {
        host_and_port(&args.broker).map_err(|why| {
            ClientError::Usage(format!(
                "--broker can't be '{}': {why}, for instance localhost:9092",
                args.broker
            ))
        })?;
        let mut cluster = Cluster {
            bootstrap: args.broker.clone(),
            timeout: args.timeout(),
            connections: BTreeMap::new(),
            reached: BTreeSet::new(),
            brokers: BTreeMap::new(),
            controller: None,
        };
        cluster.any()?;
        Ok(cluster)
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn timeout_ms(&self) -> i32 {
        i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX)
    }

    /// The broker that was named on the command line.
    pub fn any(&mut self) -> Result<&mut Connection, ClientError> {
        let address = self.bootstrap.clone();
        self.at(&address)
    }

    /// The controller, as far as it is known; else any broker.
    pub fn controller(&mut self) -> Result<&mut Connection, ClientError> {
        if self.controller.is_none() {
            self.metadata(Some(&[]), false)?;
        }
        match self.controller.filter(|id| self.brokers.contains_key(id)) {
            Some(id) => self.broker(id),
            None => self.any(),
        }
    }

    pub fn broker(&mut self, id: i32) -> Result<&mut Connection, ClientError> {
        let address = self
            .brokers
            .get(&id)
            .cloned()
            .ok_or_else(|| ClientError::refused(5, None))?;
        self.at(&address)
    }

    /// The broker at an address, connected to when it wasn't yet.
    pub fn at(&mut self, address: &str) -> Result<&mut Connection, ClientError> {
        if !self.connections.contains_key(address) {
            let stream = connect(address, self.timeout)
                .map_err(|e| ClientError::Connection(self.advise(address, &e)))?;
            let connection = Connection::open(address, stream, self.timeout)?;
            self.reached.insert(address.to_string());
            self.connections.insert(address.to_string(), connection);
        }
        Ok(self.connections.get_mut(address).expect("it was put there"))
    }

    fn advise(&self, address: &str, e: &std::io::Error) -> String {
        advise(&self.bootstrap, address, self.reached.contains(address), e)
    }

    /// Metadata of some topics, or of all.
    pub fn metadata(
        &mut self,
        topics: Option<&[&str]>,
        create: bool,
    ) -> Result<MetadataResponse, ClientError> {
        let topics = topics.map(|names| {
            names
                .iter()
                .map(|n| MetadataRequestTopic::default().with_name(Some(topic_name(n))))
                .collect()
        });
        let request = MetadataRequest::default()
            .with_topics(topics)
            .with_allow_auto_topic_creation(create);
        let answer = self.any()?.call(&request, i16::MAX)?;
        self.brokers = answer
            .brokers
            .iter()
            .map(|b| (b.node_id.0, join(&b.host, b.port as u16)))
            .collect();
        self.controller = Some(answer.controller_id.0);
        Ok(answer)
    }

    /// One topic's partitions, once all of them have leaders. With `create` a missing topic is created, if the broker does so.
    pub fn topic(
        &mut self,
        name: &str,
        create: bool,
    ) -> Result<MetadataResponseTopic, ClientError> {
        self.retry(|cluster| cluster.topic_now(name, create))
    }

    /// The same, asked once.
    pub fn topic_now(
        &mut self,
        name: &str,
        create: bool,
    ) -> Result<MetadataResponseTopic, ClientError> {
        let topic = self.topic_as_it_is(name, create)?;
        if topic.partitions.iter().any(|p| p.leader_id.0 < 0) {
            return Err(at(
                &format!("topic '{name}'"),
                ClientError::refused(5, None),
            ));
        }
        Ok(topic)
    }

    /// One topic, asked once, with leaders or without.
    pub fn topic_as_it_is(
        &mut self,
        name: &str,
        create: bool,
    ) -> Result<MetadataResponseTopic, ClientError> {
        let answer = self.metadata(Some(&[name]), create)?;
        let topic = answer
            .topics
            .into_iter()
            .next()
            .ok_or_else(|| ClientError::Protocol("the answer has no topic".into()))?;
        // Without creation, a topic that isn't there won't come.
        if topic.error_code == 3 && !create {
            return Err(ClientError::Missing(format!(
                "there is no topic '{name}' at {}: `tailrace topic list` shows what there is, `tailrace topic create` creates it",
                self.bootstrap
            )));
        }
        check(topic.error_code, None).map_err(|e| at(&format!("topic '{name}'"), e))?;
        Ok(topic)
    }

    /// Ids of the brokers that the last metadata named, in order.
    pub fn broker_ids(&self) -> Vec<i32> {
        self.brokers.keys().copied().collect()
    }

    /// Gives up all connections; new ones are made when they are needed.
    pub fn disconnect(&mut self) {
        self.connections.clear();
    }

    /// Does something again, with fresh connections, while its errors are of the kind that pass and there is time.
    pub fn retry<T>(
        &mut self,
        mut f: impl FnMut(&mut Cluster) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let start = Instant::now();
        loop {
            match f(self) {
                Err(e) if e.is_retriable() && start.elapsed() + RETRY_PAUSE < self.timeout => {
                    if matches!(e, ClientError::Connection(_)) {
                        self.connections.clear();
                    }
                    std::thread::sleep(RETRY_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// The offset that Kafka gives for a timestamp (or -1 for the end, -2 for the beginning), and the record's own timestamp.
    pub fn offset(
        &mut self,
        leader: i32,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> Result<i64, ClientError> {
        let request = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            // As what we fetch: where a transaction is open, the end is before it.
            .with_isolation_level(1)
            .with_topics(vec![
                ListOffsetsTopic::default()
                    .with_name(topic_name(topic))
                    .with_partitions(vec![
                        ListOffsetsPartition::default()
                            .with_partition_index(partition)
                            .with_current_leader_epoch(-1)
                            .with_timestamp(timestamp),
                    ]),
            ]);
        let answer = self.broker(leader)?.call(&request, i16::MAX)?;
        let partition = answer
            .topics
            .first()
            .and_then(|t| t.partitions.first())
            .ok_or_else(|| ClientError::Protocol("the answer has no partition".into()))?;
        check(partition.error_code, None).map_err(|e| {
            at(
                &format!("partition {} of '{topic}'", partition.partition_index),
                e,
            )
        })?;
        Ok(partition.offset)
    }

    /// An id and epoch for an idempotent producer.
    pub fn producer_id(&mut self) -> Result<(i64, i16), ClientError> {
        self.retry(|cluster| {
            let request = InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_transaction_timeout_ms(i32::MAX)
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1);
            let answer = cluster.any()?.call(&request, i16::MAX)?;
            check(answer.error_code, None)?;
            Ok((answer.producer_id.0, answer.producer_epoch))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_went_away_is_not_told_to_be_advertised_wrongly() {
        let e = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let gone = advise("localhost:9092", "127.0.0.1:9092", true, &e);
        assert!(gone.ends_with("does it still run?"), "{gone}");
        let never = advise("localhost:9092", "10.0.0.1:9092", false, &e);
        assert!(never.contains("set its advertise"), "{never}");
        let first = advise("localhost:9092", "localhost:9092", false, &e);
        assert!(first.ends_with("is --broker right?"), "{first}");
    }
}
