//! A consumer in a group, on a thread of its own: tells what it is assigned and given, and commits and leaves when asked to.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use serde_json::{Value, json};

use crate::{Answer, LIMIT, consumer, number, say, text};

struct Tells;

impl ClientContext for Tells {}

impl ConsumerContext for Tells {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance {
            let mut mine: Vec<i32> = partitions
                .elements()
                .iter()
                .map(|p| p.partition())
                .collect();
            mine.sort_unstable();
            say(&json!({"assigned": mine}));
        }
    }
}

/// The way to the member's thread, and back.
pub struct Member {
    wishes: Sender<String>,
    done: Receiver<Result<(), String>>,
}

impl Member {
    pub fn ask(&self, wish: &str) -> Answer {
        self.wishes.send(wish.to_owned())?;
        self.done.recv_timeout(LIMIT)??;
        Ok(json!({}))
    }
}

pub fn begin(bootstrap: &str, command: &Value) -> Result<Member, Box<dyn std::error::Error>> {
    let mut config = consumer(bootstrap, &text(command, "group"));
    config
        .set(
            "session.timeout.ms",
            number(command, "session_ms").to_string(),
        )
        .set("heartbeat.interval.ms", "500");
    if let Some(instance) = command["instance"].as_str() {
        config.set("group.instance.id", instance);
    }
    let consumer: BaseConsumer<Tells> = config.create_with_context(Tells)?;
    consumer.subscribe(&[&text(command, "topic")])?;
    let (wishes, wished) = channel::<String>();
    let (told, done) = channel();
    std::thread::spawn(move || {
        loop {
            // Errors pass: a broker that restarts is waited for.
            if let Some(Ok(m)) = consumer.poll(Duration::from_millis(50)) {
                say(&json!({"got": [m.partition(), m.offset()]}));
            }
            match wished.try_recv().as_deref() {
                Ok("commit") => {
                    let result = match consumer.commit_consumer_state(CommitMode::Sync) {
                        // It has nothing.
                        Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => Ok(()),
                        other => other.map_err(|e| e.to_string()),
                    };
                    let _ = told.send(result);
                }
                Ok(_) => {
                    drop(consumer);
                    let _ = told.send(Ok(()));
                    return;
                }
                Err(_) => {}
            }
        }
    });
    Ok(Member { wishes, done })
}
