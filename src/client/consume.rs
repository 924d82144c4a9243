//! `tailrace consume`: prints the records of a topic, without a consumer group.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};

use super::cluster::{Cluster, topic_name};
use super::records::{Record, decode};
use super::{ClientError, check};
use crate::cli::ConsumeArgs;
use crate::exit::Fatal;

/// The last version of Fetch that names topics rather than numbering them.
const FETCH_BY_NAME: i16 = 12;
/// Largest answer, in bytes; a first batch may be larger.
const FETCH_BYTES: i32 = 16 << 20;
const PARTITION_BYTES: i32 = 4 << 20;
/// How long the broker holds a fetch for which it has nothing, in milliseconds.
const MAX_WAIT_MS: i32 = 500;

pub fn run(args: ConsumeArgs) -> Result<(), Fatal> {
    match consume(&args) {
        // Whoever read our output has had enough.
        Err(Stop::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(Stop::Output(e)) => Err(Fatal::new(
            crate::exit::Exit::Failure,
            format!("can't write the output: {e}"),
        )),
        Err(Stop::Client(e)) => Err(e.into()),
        Ok(()) => Ok(()),
    }
}

enum Stop {
    Client(ClientError),
    Output(std::io::Error),
}

impl From<ClientError> for Stop {
    fn from(e: ClientError) -> Stop {
        Stop::Client(e)
    }
}

impl From<std::io::Error> for Stop {
    fn from(e: std::io::Error) -> Stop {
        Stop::Output(e)
    }
}

/// Where to begin in each partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Beginning,
    End,
    Offset(i64),
    BeforeEnd(i64),
    Timestamp(i64),
}

fn parse_offset(text: &str) -> Result<Start, ClientError> {
    let parsed = match text {
        "beginning" | "earliest" => Some(Start::Beginning),
        "end" | "latest" => Some(Start::End),
        _ => match (text.strip_prefix('@'), text.strip_prefix('-')) {
            (Some(ms), _) => ms.parse().ok().map(Start::Timestamp),
            (_, Some(n)) => n.parse().ok().map(Start::BeforeEnd),
            _ => text.parse().ok().filter(|n| *n >= 0).map(Start::Offset),
        },
    };
    parsed.ok_or_else(|| {
        ClientError::Usage(format!(
            "the offset '{text}' is none of: beginning, end, a number, -N, @MILLISECONDS"
        ))
    })
}

/// One partition that is read.
struct Position {
    leader: i32,
    next: i64,
    /// With `--exit`: read up to here.
    end: i64,
}

fn consume(args: &ConsumeArgs) -> Result<(), Stop> {
    let from = parse_offset(&args.offset)?;
    let mut cluster = Cluster::open(&args.broker)?;
    let mut positions = cluster.retry(|c| begin(c, args, from))?;
    let printer = Printer::new(args)?;
    let mut output = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 && !(args.exit && positions.values().all(|p| p.next >= p.end)) {
        let mut leaders: Vec<i32> = positions.values().map(|p| p.leader).collect();
        leaders.sort_unstable();
        leaders.dedup();
        for leader in leaders {
            let fetched = match fetch(&mut cluster, args, &positions, leader) {
                Err(e) if e.is_retriable() => {
                    refresh(&mut cluster, args, &mut positions)?;
                    continue;
                }
                fetched => fetched?,
            };
            for (partition, records, next) in fetched {
                let Some(position) = positions.get_mut(&partition) else {
                    continue;
                };
                for record in records.iter().filter(|r| r.offset >= position.next) {
                    if left == 0 || (args.exit && record.offset >= position.end) {
                        break;
                    }
                    printer.print(&mut output, partition, record)?;
                    left -= 1;
                }
                position.next = next.max(position.next);
            }
        }
        output.flush()?;
    }
    output.flush()?;
    Ok(())
}

/// The partitions to read and where to begin in them.
fn begin(
    cluster: &mut Cluster,
    args: &ConsumeArgs,
    from: Start,
) -> Result<BTreeMap<i32, Position>, ClientError> {
    let topic = cluster.topic(&args.topic, false)?;
    let mut positions = BTreeMap::new();
    for p in &topic.partitions {
        let number = p.partition_index;
        if !args.partitions.is_empty() && !args.partitions.contains(&number) {
            continue;
        }
        let leader = p.leader_id.0;
        let mut at = |timestamp| cluster.offset(leader, &args.topic, number, timestamp);
        let end = at(-1)?;
        let next = match from {
            Start::Beginning => at(-2)?,
            Start::End => end,
            Start::Offset(n) => n,
            Start::BeforeEnd(n) => (end - n).max(at(-2)?),
            Start::Timestamp(ms) => match at(ms)? {
                -1 => end,
                found => found,
            },
        };
        positions.insert(number, Position { leader, next, end });
    }
    if let Some(missing) = args.partitions.iter().find(|p| !positions.contains_key(p)) {
        return Err(ClientError::Usage(format!(
            "there is no partition {missing}: topic '{}' has partitions 0 to {}",
            args.topic,
            topic.partitions.len() as i64 - 1
        )));
    }
    Ok(positions)
}

/// Asks anew who leads.
fn refresh(
    cluster: &mut Cluster,
    args: &ConsumeArgs,
    positions: &mut BTreeMap<i32, Position>,
) -> Result<(), ClientError> {
    let topic = cluster.retry(|c| {
        // A retry only begins with an error, and what failed was a connection or a leader: so the connections go too.
        c.disconnect();
        c.topic(&args.topic, false)
    })?;
    for p in &topic.partitions {
        if let Some(position) = positions.get_mut(&p.partition_index) {
            position.leader = p.leader_id.0;
        }
    }
    Ok(())
}

type Fetched = Vec<(i32, Vec<Record>, i64)>;

fn fetch(
    cluster: &mut Cluster,
    args: &ConsumeArgs,
    positions: &BTreeMap<i32, Position>,
    leader: i32,
) -> Result<Fetched, ClientError> {
    let partitions = positions
        .iter()
        .filter(|(_, p)| p.leader == leader && !(args.exit && p.next >= p.end))
        .map(|(number, p)| {
            FetchPartition::default()
                .with_partition(*number)
                .with_current_leader_epoch(-1)
                .with_last_fetched_epoch(-1)
                .with_fetch_offset(p.next)
                .with_log_start_offset(-1)
                .with_partition_max_bytes(PARTITION_BYTES)
        })
        .collect();
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(MAX_WAIT_MS)
        .with_min_bytes(1)
        .with_max_bytes(FETCH_BYTES)
        .with_isolation_level(1)
        .with_session_epoch(-1)
        .with_topics(vec![
            FetchTopic::default()
                .with_topic(topic_name(&args.topic))
                .with_partitions(partitions),
        ]);
    let answer = cluster.broker(leader)?.call(&request, FETCH_BY_NAME)?;
    check(answer.error_code, None)?;
    let mut fetched = Vec::new();
    for p in answer.responses.into_iter().flat_map(|t| t.partitions) {
        check(p.error_code, None)?;
        let (records, next) = decode(p.records.unwrap_or_default())?;
        if let Some(next) = next {
            fetched.push((p.partition_index, records, next));
        }
    }
    Ok(fetched)
}

/// A piece of the output format.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Key,
    Value,
    Headers,
    Topic,
    Partition,
    Offset,
    Timestamp,
    KeyLength,
    ValueLength,
}

struct Printer<'a> {
    args: &'a ConsumeArgs,
    pieces: Vec<Piece>,
}

impl Printer<'_> {
    fn new(args: &ConsumeArgs) -> Result<Printer<'_>, ClientError> {
        let pieces = match (&args.format, &args.key_separator) {
            (Some(format), _) => parse_format(format)?,
            (None, Some(separator)) => vec![
                Piece::Key,
                Piece::Text(separator.clone().into_bytes()),
                Piece::Value,
                Piece::Text(b"\n".to_vec()),
            ],
            (None, None) => vec![Piece::Value, Piece::Text(b"\n".to_vec())],
        };
        Ok(Printer { args, pieces })
    }

    fn print(&self, out: &mut impl Write, partition: i32, record: &Record) -> std::io::Result<()> {
        let null = self.args.null.as_bytes();
        let length = |b: &Option<bytes::Bytes>| b.as_ref().map_or(-1, |b| b.len() as i64);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Key => out.write_all(record.key.as_deref().unwrap_or(null))?,
                Piece::Value => out.write_all(record.value.as_deref().unwrap_or(null))?,
                Piece::Headers => {
                    for (i, (name, value)) in record.headers.iter().enumerate() {
                        if i > 0 {
                            out.write_all(b",")?;
                        }
                        out.write_all(name)?;
                        out.write_all(b"=")?;
                        out.write_all(value.as_deref().unwrap_or(null))?;
                    }
                }
                Piece::Topic => out.write_all(self.args.topic.as_bytes())?,
                Piece::Partition => write!(out, "{partition}")?,
                Piece::Offset => write!(out, "{}", record.offset)?,
                Piece::Timestamp => write!(out, "{}", record.timestamp_ms)?,
                Piece::KeyLength => write!(out, "{}", length(&record.key))?,
                Piece::ValueLength => write!(out, "{}", length(&record.value))?,
            }
        }
        Ok(())
    }
}

fn parse_format(format: &str) -> Result<Vec<Piece>, ClientError> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        let piece = match c {
            '\\' => {
                match chars.next() {
                    Some('n') => text.push(b'\n'),
                    Some('r') => text.push(b'\r'),
                    Some('t') => text.push(b'\t'),
                    Some('0') => text.push(0),
                    Some('\\') => text.push(b'\\'),
                    other => return Err(unknown('\\', other)),
                }
                continue;
            }
            '%' => match chars.next() {
                Some('%') => {
                    text.push(b'%');
                    continue;
                }
                Some('k') => Piece::Key,
                Some('v' | 's') => Piece::Value,
                Some('h') => Piece::Headers,
                Some('t') => Piece::Topic,
                Some('p') => Piece::Partition,
                Some('o') => Piece::Offset,
                Some('T') => Piece::Timestamp,
                Some('K') => Piece::KeyLength,
                Some('V' | 'S') => Piece::ValueLength,
                other => return Err(unknown('%', other)),
            },
            c => {
                text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(piece);
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn unknown(start: char, next: Option<char>) -> ClientError {
    let next = next.map(String::from).unwrap_or_default();
    ClientError::Usage(format!(
        "the format has '{start}{next}', which means nothing; see --help"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read() {
        assert_eq!(parse_offset("beginning").unwrap(), Start::Beginning);
        assert_eq!(parse_offset("17").unwrap(), Start::Offset(17));
        assert_eq!(parse_offset("-5").unwrap(), Start::BeforeEnd(5));
        assert_eq!(
            parse_offset("@1700000000000").unwrap(),
            Start::Timestamp(1_700_000_000_000)
        );
        assert!(parse_offset("soon").is_err() && parse_offset("@").is_err());
    }

    #[test]
    fn formats_are_read() {
        let text = |s: &str| Piece::Text(s.as_bytes().to_vec());
        assert_eq!(
            parse_format(r"%p:%o\t%k=%v%%\n").unwrap(),
            [
                Piece::Partition,
                text(":"),
                Piece::Offset,
                text("\t"),
                Piece::Key,
                text("="),
                Piece::Value,
                text("%\n")
            ]
        );
        assert!(parse_format("%x").is_err() && parse_format("%").is_err());
    }
}
