//! `tailrace consume`: prints the records of a topic, without a consumer group.
//!
//! A partition that can't be read for a reason that may pass is asked for again, with fresh metadata, while the others are read on; the command ends with
//! its error when it couldn't be read for the command's whole time (`--timeout-ms`).

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::time::Instant;

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};

use super::cluster::{Cluster, RETRY_PAUSE, topic_name};
use super::printer::Printer;
use super::records::{Record, decode};
use super::{ClientError, at, check};
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
        Err(ClientError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Whether nobody reads our output any more; a write would tell, but there may be nothing to write for a long time.
fn reader_is_gone() -> bool {
    let mut poll = libc::pollfd {
        fd: 1,
        events: 0,
        revents: 0,
    };
    // SAFETY: one descriptor of ours, asked without waiting.
    let found = unsafe { libc::poll(&mut poll, 1, 0) };
    found == 1 && poll.revents & (libc::POLLERR | libc::POLLHUP) != 0
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
    /// Since when it can't be read, and why.
    failing: Option<(Instant, ClientError)>,
}

impl Position {
    /// Notes a failure; the first of a row counts.
    fn fails(&mut self, e: ClientError) {
        let since = self.failing.take().map_or_else(Instant::now, |(at, _)| at);
        self.failing = Some((since, e));
    }
}

fn consume(args: &ConsumeArgs) -> Result<(), ClientError> {
    let from = parse_offset(&args.offset)?;
    let printer = Printer::new(args)?;
    let mut cluster = Cluster::open(&args.broker)?;
    let mut positions = cluster.retry(|c| begin(c, args, from))?;
    let mut output = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0
        && !(args.exit && positions.values().all(|p| p.next >= p.end))
        && !reader_is_gone()
    {
        let mut leaders: Vec<i32> = positions.values().map(|p| p.leader).collect();
        leaders.sort_unstable();
        leaders.dedup();
        for leader in leaders {
            for (partition, fetched) in fetch(&mut cluster, args, &mut positions, leader)? {
                let Some(position) = positions.get_mut(&partition) else {
                    continue;
                };
                let (records, next) = match fetched {
                    Ok(fetched) => fetched,
                    Err(e) if e.is_retriable() => {
                        position.fails(e);
                        continue;
                    }
                    Err(e) => {
                        // What came before it is printed.
                        output.flush().map_err(ClientError::Output)?;
                        return Err(at(&unreadable(args, partition, position.next), e));
                    }
                };
                position.failing = None;
                for record in records.iter().filter(|r| r.offset >= position.next) {
                    if left == 0 || (args.exit && record.offset >= position.end) {
                        break;
                    }
                    printer
                        .print(&mut output, partition, record)
                        .map_err(ClientError::Output)?;
                    left -= 1;
                }
                position.next = next.max(position.next);
            }
        }
        output.flush().map_err(ClientError::Output)?;
        if positions.values().any(|p| p.failing.is_some()) {
            recover(&mut cluster, args, &mut positions)?;
        }
    }
    Ok(())
}

/// Where reading stopped, for an error.
fn unreadable(args: &ConsumeArgs, partition: i32, offset: i64) -> String {
    format!("'{}', partition {partition} at offset {offset}", args.topic)
}

/// Some partitions failed: gives up those that did so for the whole time, else waits a moment and asks anew who leads.
fn recover(
    cluster: &mut Cluster,
    args: &ConsumeArgs,
    positions: &mut BTreeMap<i32, Position>,
) -> Result<(), ClientError> {
    let mut broken = false;
    for (partition, position) in positions.iter_mut() {
        match position.failing.take() {
            Some((since, e)) if since.elapsed() >= cluster.timeout() => {
                return Err(give_up(args, *partition, position.next, e));
            }
            failing => position.failing = failing,
        }
        broken |= matches!(position.failing, Some((_, ClientError::Connection(_))));
    }
    if broken {
        cluster.disconnect();
    }
    std::thread::sleep(RETRY_PAUSE);
    match cluster.topic_now(&args.topic, false) {
        Ok(topic) => {
            for p in &topic.partitions {
                if let Some(position) = positions.get_mut(&p.partition_index) {
                    position.leader = p.leader_id.0;
                }
            }
            Ok(())
        }
        Err(e) if e.is_retriable() => Ok(()),
        Err(e) => Err(e),
    }
}

fn give_up(args: &ConsumeArgs, partition: i32, offset: i64, e: ClientError) -> ClientError {
    /// KAFKA_STORAGE_ERROR: the broker is there and this range of its log isn't.
    const DAMAGED: i16 = 56;
    let place = unreadable(args, partition, offset);
    match e {
        ClientError::Refused { code: DAMAGED, .. } => ClientError::Missing(format!(
            "{place}: the broker can't read this from its disk (KafkaStorageError, error 56). Its log names the damaged offsets; \
             to read on behind them: tailrace consume {} --partition {partition} --offset N",
            args.topic
        )),
        e => at(&place, e),
    }
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
            Start::Offset(n) => {
                let start = at(-2)?;
                if !(start..=end).contains(&n) {
                    return Err(ClientError::Missing(format!(
                        "there is no offset {n}: partition {number} of '{}' has offsets {start} to {end} (not included); \
                         --partition reads only one partition",
                        args.topic
                    )));
                }
                n
            }
            Start::BeforeEnd(n) => (end - n).max(at(-2)?),
            Start::Timestamp(ms) => match at(ms)? {
                -1 => end,
                found => found,
            },
        };
        positions.insert(
            number,
            Position {
                leader,
                next,
                end,
                failing: None,
            },
        );
    }
    if let Some(missing) = args.partitions.iter().find(|p| !positions.contains_key(p)) {
        return Err(ClientError::Missing(format!(
            "there is no partition {missing}: topic '{}' has partitions 0 to {}",
            args.topic,
            topic.partitions.len() as i64 - 1
        )));
    }
    Ok(positions)
}

/// Records and the offset after them, or why there are none, by partition.
type Fetched = Vec<(i32, Result<(Vec<Record>, i64), ClientError>)>;

/// One fetch from one leader. What failed and may pass is noted with all partitions that were asked for.
fn fetch(
    cluster: &mut Cluster,
    args: &ConsumeArgs,
    positions: &mut BTreeMap<i32, Position>,
    leader: i32,
) -> Result<Fetched, ClientError> {
    let wanted = |p: &Position| p.leader == leader && !(args.exit && p.next >= p.end);
    match ask(cluster, args, positions, leader, wanted) {
        Err(e) if e.is_retriable() => {
            let text = e.to_string();
            for position in positions.values_mut().filter(|p| wanted(p)) {
                position.fails(match &e {
                    ClientError::Refused { code, message } => {
                        ClientError::refused(*code, message.as_deref())
                    }
                    _ => ClientError::Connection(text.clone()),
                });
            }
            Ok(Vec::new())
        }
        fetched => fetched,
    }
}

fn ask(
    cluster: &mut Cluster,
    args: &ConsumeArgs,
    positions: &BTreeMap<i32, Position>,
    leader: i32,
    wanted: impl Fn(&Position) -> bool,
) -> Result<Fetched, ClientError> {
    let partitions = positions
        .iter()
        .filter(|(_, p)| wanted(p))
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
        let result = check(p.error_code, None).and_then(|()| decode(p.records.unwrap_or_default()));
        let result = match result {
            Ok((records, Some(next))) => Ok((records, next)),
            // Nothing new: it can be read all the same.
            Ok((_, None)) => Ok((Vec::new(), 0)),
            Err(e) => Err(e),
        };
        fetched.push((p.partition_index, result));
    }
    Ok(fetched)
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
}
