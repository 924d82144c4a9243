//! The driver of rust-rdkafka: carries out commands that come as lines of JSON on standard input and answers with lines of JSON,
//! until the input ends. What the commands are is in the README beside this folder.

mod admin;
mod member;

use std::io::BufRead;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};

/// What a command says about itself when it fails.
pub type Answer = Result<Value, Box<dyn std::error::Error>>;

pub const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let bootstrap = std::env::args().nth(1).expect("the address of a broker");
    let mut member = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of standard input");
        let command: Value = serde_json::from_str(&line).expect("a line of JSON");
        let verb = text(&command, "do");
        let answer = match verb.as_str() {
            "hello" => Ok(
                json!({"version": format!("0.39.0, librdkafka {}", rdkafka::util::get_rdkafka_version().1), "admin": admin::CALLS}),
            ),
            "produce" => produce(&bootstrap, &command),
            "read" => read(&bootstrap, &command),
            "replay" => replay(&bootstrap, &command),
            "member" => member::begin(&bootstrap, &command).map(|begun| {
                member = Some(begun);
                json!({})
            }),
            "commit" | "leave" => member.as_ref().expect("a member").ask(&verb),
            "admin" => admin::call(&bootstrap, &command).map(|answer| json!({"answer": answer})),
            other => panic!("no such command: {other}"),
        };
        match answer {
            Ok(mut answer) => {
                answer["done"] = json!(verb);
                say(&answer);
            }
            Err(error) => say(&json!({"error": error.to_string()})),
        }
    }
    // Threads of a client would be waited for; what ends like this is meant to end at once.
    std::process::exit(0);
}

/// One line to the script.
pub fn say(line: &Value) {
    println!("{line}");
}

pub fn text(command: &Value, name: &str) -> String {
    command[name].as_str().unwrap_or_default().to_owned()
}

pub fn number(command: &Value, name: &str) -> i64 {
    command[name].as_i64().unwrap_or_default()
}

pub fn partition(command: &Value) -> i32 {
    number(command, "partition") as i32
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    let text = value.as_str()?;
    Some(STANDARD.decode(text).expect("base64"))
}

fn encoded(data: Option<&[u8]>) -> Value {
    data.map_or(Value::Null, |data| json!(STANDARD.encode(data)))
}

/// What was told of each record: its offset, or why there is none.
#[derive(Default)]
struct Told(Arc<Mutex<Vec<Result<i64, String>>>>);

impl ClientContext for Told {}

impl ProducerContext for Told {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let told = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.to_string()),
        };
        self.0.lock().expect("nobody panics with it").push(told);
    }
}

fn produce(bootstrap: &str, command: &Value) -> Answer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("compression.type", text(command, "codec"))
        .set("linger.ms", "100")
        .set("enable.idempotence", "true");
    let told = Told::default();
    let results = told.0.clone();
    let producer: BaseProducer<Told> = BaseProducer::from_config_and_context(&config, told)?;
    let topic = text(command, "topic");
    for r in command["records"].as_array().expect("records") {
        let (key, value) = (bytes(&r["k"]), bytes(&r["v"]));
        let mut headers = OwnedHeaders::new();
        for pair in r["h"].as_array().expect("headers") {
            let data = bytes(&pair[1]);
            headers = headers.insert(Header {
                key: pair[0].as_str().expect("a name"),
                value: data.as_deref(),
            });
        }
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&topic)
            .partition(partition(command))
            .timestamp(number(r, "t"))
            .headers(headers);
        record.key = key.as_deref();
        record.payload = value.as_deref();
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.flush(LIMIT)?;
    let results = results.lock().expect("nobody panics with it");
    let offsets: Result<Vec<i64>, String> = results.iter().cloned().collect();
    Ok(json!({"offsets": offsets?}))
}

/// A consumer's settings, whatever it is for.
pub fn consumer(bootstrap: &str, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest");
    config
}

/// Hands over so many records, one after the other.
fn take(
    consumer: &BaseConsumer,
    count: usize,
    mut each: impl FnMut(&rdkafka::message::BorrowedMessage<'_>),
) -> Result<(), Box<dyn std::error::Error>> {
    let end = Instant::now() + LIMIT;
    let mut taken = 0;
    while taken < count {
        if let Some(message) = consumer.poll(Duration::from_millis(200)) {
            each(&message?);
            taken += 1;
        } else if Instant::now() > end {
            return Err(format!("{taken} of {count} records came").into());
        }
    }
    Ok(())
}

fn read(bootstrap: &str, command: &Value) -> Answer {
    let consumer: BaseConsumer = consumer(bootstrap, "nobody").create()?;
    let topic = text(command, "topic");
    let offset = match command["time_ms"].as_i64() {
        None => Offset::Offset(number(command, "offset")),
        Some(time_ms) => {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_offset(&topic, partition(command), Offset::Offset(time_ms))?;
            let found = consumer.offsets_for_times(asked, LIMIT)?;
            found
                .find_partition(&topic, partition(command))
                .ok_or("no answer for the partition")?
                .offset()
        }
    };
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(&topic, partition(command), offset)?;
    consumer.assign(&from)?;
    take(&consumer, number(command, "count") as usize, |m| {
        let headers: Vec<Value> = m
            .headers()
            .map(|headers| {
                headers
                    .iter()
                    .map(|h| json!([h.key, encoded(h.value)]))
                    .collect()
            })
            .unwrap_or_default();
        say(&json!({"record": {
            "o": m.offset(), "p": m.partition(), "k": encoded(m.key()), "v": encoded(m.payload()),
            "t": m.timestamp().to_millis(), "h": headers,
        }}));
    })?;
    Ok(json!({}))
}

fn replay(bootstrap: &str, command: &Value) -> Answer {
    let consumer: BaseConsumer = consumer(bootstrap, &text(command, "group")).create()?;
    let topic = text(command, "topic");
    consumer.subscribe(&[&topic])?;
    let count = number(command, "count") as usize;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    take(&consumer, count, |m| first.push(m.offset()))?;
    consumer.commit_consumer_state(CommitMode::Sync)?;
    consumer.seek(&topic, 0, Offset::Offset(0), LIMIT)?;
    take(&consumer, count, |m| second.push(m.offset()))?;
    Ok(json!({"first": first, "second": second}))
}
