//! Tables of what a coordinator does, step by step: each `golden/*.txt` is a list of commands (`> ...`) with what came of them beneath.
//! `GOLDEN=write` writes what comes of them now, to be looked at and committed.

use super::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;

struct Script {
    bench: Bench,
    /// Requests under way, by token.
    names: BTreeMap<Token, String>,
}

/// `key=value` words of a command.
fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words
        .iter()
        .find_map(|w| w.strip_prefix(key).and_then(|w| w.strip_prefix('=')))
}

fn short(id: &Name) -> String {
    // The ids of the bench differ in their last digits.
    match id.rsplit_once('-') {
        Some((_, end)) => {
            let prefix = id.split('-').next().unwrap_or_default();
            format!("{prefix}#{}", end.trim_start_matches('0'))
        }
        None => id.to_string(),
    }
}

impl Script {
    fn long(&self, short: &str) -> String {
        let Some((prefix, number)) = short.split_once('#') else {
            return short.to_string();
        };
        let number = u128::from_str_radix(number, 16).expect("a hexadecimal number");
        let uuid = uuid::Builder::from_random_bytes(number.to_be_bytes()).into_uuid();
        format!("{prefix}-{uuid}")
    }

    fn who(&self, words: &[&str]) -> Membership {
        Membership {
            group: own("g"),
            member: own(&self.long(value(words, "m").unwrap_or(""))),
            instance: value(words, "i").map(own),
            generation: value(words, "gen").map_or(-1, |g| g.parse().unwrap()),
        }
    }

    fn command(&mut self, line: &str) -> Vec<(Token, Reply)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let who = self.who(&words);
        let number = |key: &str, default: i64| {
            value(&words, key).map_or(default, |v| v.parse::<i64>().unwrap())
        };
        let request = match words[0] {
            "join" => {
                let protocols = value(&words, "protocols").unwrap_or("range");
                let topics: Vec<&str> = value(&words, "topics").unwrap_or("t").split(',').collect();
                Request::Join(Box::new(Join {
                    instance: who.instance.clone(),
                    protocol_type: own(value(&words, "type").unwrap_or("consumer")),
                    protocols: protocols
                        .split(',')
                        .filter(|p| !p.is_empty())
                        .map(|p| (own(p), subscription(&topics)))
                        .collect(),
                    session_timeout_ms: number("session", 10_000) as i32,
                    rebalance_timeout_ms: number("rebalance", 60_000) as i32,
                    needs_known_member: !words.contains(&"old") && who.instance.is_none(),
                    can_skip_assignment: !words.contains(&"old"),
                    ..join("g", &who.member)
                }))
            }
            "sync" => {
                let given = value(&words, "give")
                    .unwrap_or("")
                    .split(',')
                    .filter(|g| !g.is_empty());
                let given = given.map(|g| {
                    let (id, what) = g.split_once(':').expect("member:assignment");
                    (own(&self.long(id)), Bytes::copy_from_slice(what.as_bytes()))
                });
                sync_of(who, given.collect())
            }
            "heartbeat" => Request::Heartbeat(who),
            "leave" => leave_of("g", vec![(who.member, who.instance)]),
            "commit" => {
                let mut request = commit_of(who, number("p", 0) as i32, number("at", 0));
                if let Request::Commit(c) = &mut request {
                    c.retention_ms = value(&words, "keep").map(|k| k.parse().unwrap());
                    let size = number("metadata", 0) as usize;
                    c.offsets[0].metadata = own(&"x".repeat(size));
                    if let Some(topic) = value(&words, "topic") {
                        c.offsets[0].topic = own(topic);
                    }
                }
                request
            }
            "offsets" => Request::Offsets(super::super::requests::OffsetsOf {
                group: own("g"),
                topics: None,
            }),
            "delete-offset" => Request::DeleteOffsets(super::super::requests::DeleteOffsets {
                group: own("g"),
                partitions: vec![(
                    own(value(&words, "topic").unwrap_or("t")),
                    number("p", 0) as i32,
                )],
            }),
            "describe" => Request::Describe(own("g")),
            "list" => Request::List(States::ALL),
            "delete" => Request::Delete(own("g")),
            "pass" => return self.bench.pass(number("ms", 0) as u64),
            "expire" => return self.bench.handle(Event::Expire),
            "topic-deleted" => return self.bench.handle(Event::TopicDeleted(own("t"))),
            "written" => return self.bench.settle(Ok(())),
            "not-written" => return self.bench.settle(Err(WriteError::Unavailable)),
            "reload" => {
                self.bench.coordinator = self.bench.reloaded();
                self.bench.writes.clear();
                return Vec::new();
            }
            other => panic!("no command {other}"),
        };
        let label = format!(
            "{}{}",
            words[0],
            value(&words, "m").map_or(String::new(), |m| format!(" {m}"))
        );
        self.names.insert(self.bench.next_token + 1, label);
        self.bench.ask(request).1
    }

    fn tell(&self, reply: &Reply) -> String {
        match reply {
            Reply::Joined(j) => {
                let mut out = format!("{:?} member={}", j.error, short(&j.member));
                if j.error == ErrorCode::None {
                    let members: Vec<String> = j.members.iter().map(|m| short(&m.member)).collect();
                    let _ = write!(
                        out,
                        " gen={} protocol={} leader={} members=[{}]{}",
                        j.generation,
                        j.protocol.as_deref().unwrap_or("-"),
                        short(&j.leader),
                        members.join(" "),
                        if j.skip_assignment { " skip" } else { "" }
                    );
                }
                out
            }
            Reply::Synced(s) => format!("{:?} {}", s.error, String::from_utf8_lossy(&s.assignment)),
            Reply::Offsets(topics) => {
                let mut out = String::new();
                for t in topics {
                    for p in &t.partitions {
                        let _ = write!(out, "{}-{}={} ", &*t.topic, p.partition, p.offset);
                    }
                }
                out
            }
            Reply::Described(d) => {
                let members: Vec<String> = d
                    .members
                    .iter()
                    .map(|m| {
                        format!(
                            "{}:{}",
                            short(&m.member),
                            String::from_utf8_lossy(&m.assignment)
                        )
                    })
                    .collect();
                format!("{} {} [{}]", d.state, &*d.protocol, members.join(" "))
            }
            Reply::Listed(l) => format!(
                "{:?}",
                l.iter()
                    .map(|l| (l.group.to_string(), l.state))
                    .collect::<Vec<_>>()
            ),
            other => format!("{other:?}"),
        }
    }

    fn run(text: &str) -> String {
        let mut script = Script {
            bench: Bench::new(Settings::default()),
            names: BTreeMap::new(),
        };
        let mut out = String::new();
        for line in text.lines() {
            if !line.starts_with('>') {
                if line.starts_with('#') || line.is_empty() {
                    out.push_str(line);
                    out.push('\n');
                }
                continue;
            }
            out.push_str(line);
            out.push('\n');
            let writes = script.bench.writes.len();
            for (token, reply) in script.command(&line[1..]) {
                let name = script
                    .names
                    .remove(&token)
                    .expect("a question is answered once");
                let _ = writeln!(out, "  {name}: {}", script.tell(&reply));
            }
            for write in script.bench.writes.iter().skip(writes) {
                let kinds: Vec<String> = write.records.iter().map(said).collect();
                let _ = writeln!(out, "  writes {}", kinds.join(", "));
            }
        }
        out
    }
}

fn said(r: &record::Record) -> String {
    match record::read(r).unwrap() {
        record::Said::Offset {
            topic,
            partition,
            committed,
            ..
        } => match committed {
            Some(c) => format!("{}-{partition}={}", &*topic, c.offset),
            None => format!("{}-{partition} gone", &*topic),
        },
        record::Said::Group { value, .. } => match value {
            Some(v) => format!("group gen={} members={}", v.generation, v.members.len()),
            None => "group gone".into(),
        },
        record::Said::Other => "other".into(),
    }
}

#[allow(clippy::disallowed_methods)] // Its tables are files, and it runs on no shard.
fn golden(name: &str) {
    let path = format!(
        "{}/src/coordinator/tests/golden/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let got = Script::run(&text);
    if std::env::var("GOLDEN").is_ok() {
        std::fs::write(&path, got).unwrap();
    } else {
        assert_eq!(got, text, "{name}");
    }
}

#[test]
fn rebalances() {
    golden("rebalances");
}

#[test]
fn assignments() {
    golden("assignments");
}

#[test]
fn nobody_left() {
    golden("nobody_left");
}

#[test]
fn timeouts() {
    golden("timeouts");
}

#[test]
fn static_members() {
    golden("static_members");
}

#[test]
fn commits() {
    golden("commits");
}

#[test]
fn expiry_and_deletion() {
    golden("expiry_and_deletion");
}

#[test]
fn pending_members() {
    golden("pending_members");
}
