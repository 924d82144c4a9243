//! Several replicas of one group on a network and disks that lose things, driven by one seed: the machine's rules under every order of
//! events that a run happens to find. The journal is [`MemoryLog`]; a crash keeps what was durable and nothing else.
//!
//! Checked all the time: one leader per term, committed entries equal everywhere and for ever, offsets dense. Checked at the end, healed:
//! every acknowledged batch is there, once, where its acknowledgement said; nothing is there twice.
//!
//! `TAILRACE_SEEDS=<from>..<to>` runs those seeds instead of the default ones.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::batch::{BatchHeader, testing};
use engine::types::{EntryKind, Lsn, Offset, RaftIndex, ReplicaId, Term};
use raft::eraftpb::Message;

use crate::codec;
use crate::group::{Effects, Machine};
use crate::memory_log::MemoryLog;
use crate::producers::Producers;
use crate::random::Random;
use crate::store::Store;

pub(crate) fn group_of(voters: &[u64], learners: &[u64]) -> codec::GroupState {
    let mut conf = codec::voters(voters);
    conf.learners = learners.to_vec();
    codec::GroupState {
        conf,
        producers: Producers::default(),
        sink: Bytes::new(),
    }
}

/// A replica, its disk and what it has told.
pub(crate) struct Replica {
    pub log: MemoryLog,
    pub machine: Machine<MemoryLog>,
    pub durable: Lsn,
    pub fx: Effects,
    pub commands: Vec<(RaftIndex, Bytes)>,
    pub leaderships: Vec<(Term, Option<ReplicaId>)>,
}

impl Replica {
    pub fn new(
        id: u64,
        log: MemoryLog,
        state: codec::GroupState,
        at: RaftIndex,
        seed: u64,
    ) -> Replica {
        let durable = log.newest();
        let machine = Machine::new(ReplicaId(id), log.clone(), state, at, seed, 0)
            .expect("a log that a replica wrote is sound");
        Replica {
            log,
            machine,
            durable,
            fx: Effects::default(),
            commands: Vec::new(),
            leaderships: Vec::new(),
        }
    }

    /// One turn; gives the messages it may send.
    pub fn turn(&mut self) -> Vec<Message> {
        self.fx.clear();
        self.machine.turn(self.durable, 0, &mut self.fx);
        self.commands
            .extend(self.fx.commands.drain(..).map(|c| (c.index, c.data)));
        self.leaderships.extend(self.fx.leadership.take());
        for fetch in std::mem::take(&mut self.fx.fetches) {
            let all = self.log.entries();
            let range = fetch.low.0 as usize - 1..fetch.high.0 as usize - 1;
            self.machine.fetched(fetch, &all[range]);
        }
        std::mem::take(&mut self.fx.messages)
    }

    /// Everything written is durable, and what follows from it has happened.
    pub fn settle(&mut self) -> Vec<Message> {
        let mut out = self.turn();
        while self.durable < self.log.newest() {
            self.durable = self.log.newest();
            out.extend(self.turn());
        }
        out
    }
}

/// Replicas 1 to n and what is on its way between them.
pub(crate) struct Cluster {
    pub replicas: Vec<Replica>,
    pub network: Vec<Message>,
    seed: u64,
    restarts: u64,
}

impl Cluster {
    pub fn new(n: u64, seed: u64) -> Cluster {
        let ids: Vec<u64> = (1..=n).collect();
        let replicas = ids
            .iter()
            .map(|id| {
                let state = group_of(&ids, &[]);
                Replica::new(
                    *id,
                    MemoryLog::default(),
                    state,
                    RaftIndex(0),
                    seed ^ id << 32,
                )
            })
            .collect();
        Cluster {
            replicas,
            network: Vec::new(),
            seed,
            restarts: 0,
        }
    }

    pub fn at(&mut self, id: u64) -> &mut Replica {
        &mut self.replicas[id as usize - 1]
    }

    pub fn deliver(&mut self, m: Message) {
        if m.to >= 1 && m.to as usize <= self.replicas.len() {
            self.at(m.to).machine.step(m, 0);
        }
    }

    /// Power cut and restart: what was durable is there, the state is that of `captured` or none.
    pub fn restart(&mut self, id: u64, captured: Option<&(RaftIndex, Bytes)>) {
        self.restarts += 1;
        let seed = self.seed ^ self.restarts << 16;
        let ids: Vec<u64> = (1..=self.replicas.len() as u64).collect();
        let old = self.at(id);
        let log = old.log.crash(old.durable);
        let (at, state) = match captured {
            Some((at, bytes)) => (*at, codec::decode_state(bytes).expect("encoded here")),
            None => (RaftIndex(0), group_of(&ids, &[])),
        };
        *self.at(id) = Replica::new(id, log, state, at, seed);
    }

    /// Everybody's disk keeps up and every message arrives, with `ticks` of the clock, but for the replicas in `cut`.
    pub fn calm(&mut self, ticks: usize, cut: &[u64]) {
        for _ in 0..ticks {
            for r in self.replicas.iter_mut() {
                r.machine.tick(0);
            }
            self.exchange(cut);
        }
    }

    pub fn exchange(&mut self, cut: &[u64]) {
        for _ in 0..100 {
            let mut messages = std::mem::take(&mut self.network);
            for r in self.replicas.iter_mut() {
                messages.extend(r.settle());
            }
            messages.retain(|m| !cut.contains(&m.from) && !cut.contains(&m.to));
            if messages.is_empty() {
                return;
            }
            messages.into_iter().for_each(|m| self.deliver(m));
        }
    }

    pub fn leader(&self) -> Option<u64> {
        let leads = |r: &&Replica| r.machine.serves();
        let newest = self
            .replicas
            .iter()
            .filter(leads)
            .max_by_key(|r| r.machine.term());
        newest.map(|r| r.machine.id.0)
    }

    pub fn elect(&mut self) -> u64 {
        for _ in 0..50 {
            self.calm(10, &[]);
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("no leader after 500 ticks");
    }
}

/// A producer with one batch in flight, which it sends until it is acknowledged.
struct Client {
    id: i64,
    sequence: i32,
    records: i32,
    /// Replica, its term, the entry to wait for and the offset promised.
    waits: Option<(u64, Term, RaftIndex, Offset)>,
    acked: Vec<(i32, Offset)>,
}

#[derive(Debug, Default)]
struct Counts {
    acked: u64,
    repeats: u64,
    pending_repeats: u64,
    crashes: u64,
    records_lost: u64,
    terms: u64,
    cut_off: u64,
}

struct Run {
    cluster: Cluster,
    random: Random,
    clients: Vec<Client>,
    leaders: BTreeMap<Term, u64>,
    committed: Vec<(Term, Offset, Bytes)>,
    captured: Vec<Option<(RaftIndex, Bytes)>>,
    isolated: Option<u64>,
    counts: Counts,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed);
        let n = [1, 3, 3, 5][random.below(4) as usize];
        let clients = (0..3)
            .map(|id| Client {
                id,
                sequence: if id == 0 { i32::MAX - 5 } else { 0 },
                records: 1,
                waits: None,
                acked: Vec::new(),
            })
            .collect();
        Run {
            cluster: Cluster::new(n, seed),
            clients,
            leaders: BTreeMap::new(),
            committed: Vec::new(),
            captured: vec![None; n as usize],
            isolated: None,
            counts: Counts::default(),
            random,
        }
    }

    fn any(&mut self) -> u64 {
        let n = self.cluster.replicas.len() as u64;
        1 + self.random.below(n)
    }

    fn step(&mut self) {
        let id = self.any();
        match self.random.below(100) {
            0..30 => self.turn(id),
            30..55 => self.deliver(),
            55..70 => {
                let span = {
                    let r = self.cluster.at(id);
                    r.log.newest().0 - r.durable.0
                };
                let more = self.random.below(span + 1);
                self.cluster.at(id).durable.0 += more;
            }
            70..82 => self.cluster.at(id).machine.tick(0),
            82..96 => {
                let which = self.random.below(self.clients.len() as u64) as usize;
                self.produce(which, id);
            }
            96 => self.crash(id),
            97 => self.capture(id),
            98 => {
                self.isolated = match self.isolated {
                    Some(_) => None,
                    None => Some(id),
                }
            }
            _ => {
                let commit = self.cluster.at(id).log.commit();
                self.cluster.at(id).log.write_out(commit);
            }
        }
        self.check(id);
    }

    fn turn(&mut self, id: u64) {
        let log = self.cluster.at(id).log.clone();
        let (last, newest) = (log.last_index(), log.newest());
        let sent = self.cluster.at(id).turn();
        let cut = log
            .first_of_newest()
            .is_some_and(|i| log.newest() > newest && i <= last);
        self.counts.cut_off += u64::from(cut);
        self.cluster.network.extend(sent);
        // A network holds so much and no more.
        while self.cluster.network.len() > 200 {
            let at = self.random.below(200) as usize;
            self.cluster.network.swap_remove(at);
        }
    }

    fn deliver(&mut self) {
        if self.cluster.network.is_empty() {
            return;
        }
        let at = self.random.below(self.cluster.network.len() as u64) as usize;
        let m = self.cluster.network[at].clone();
        // One in ten stays: it arrives again. One in twenty is lost.
        if self.random.below(10) != 0 {
            self.cluster.network.swap_remove(at);
        }
        let cut = self.isolated.is_some_and(|i| m.from == i || m.to == i);
        if !cut && self.random.below(20) != 0 {
            self.cluster.deliver(m);
        }
    }

    fn crash(&mut self, id: u64) {
        let r = self.cluster.at(id);
        let lost = r.log.newest().0 - r.durable.0;
        self.counts.records_lost += lost;
        self.counts.crashes += 1;
        let captured = self.captured[id as usize - 1].clone();
        self.cluster.restart(id, captured.as_ref());
    }

    fn capture(&mut self, id: u64) {
        let machine = &self.cluster.at(id).machine;
        let state = codec::encode_state(machine.conf(), &machine.state().producers, &[]);
        self.captured[id as usize - 1] = Some((machine.applied(), state));
    }

    fn produce(&mut self, which: usize, id: u64) {
        let client = &mut self.clients[which];
        if let Some((at, term, index, offset)) = client.waits {
            let waited = &self.cluster.replicas[at as usize - 1];
            let machine = &waited.machine;
            if machine.is_leader() && machine.term() == term {
                if machine.commit() >= index {
                    client.acked.push((client.sequence, offset));
                    client.sequence = engine::batch::add_sequence(client.sequence, client.records);
                    client.records = 1 + self.random.below(4) as i32;
                    client.waits = None;
                    self.counts.acked += 1;
                }
                return;
            }
            client.waits = None;
        }
        let replica = &mut self.cluster.replicas[id as usize - 1];
        let batch = testing::batch(client.records, 8, Some((client.id, 0, client.sequence)));
        match replica.machine.produce_batch(&batch, 0, true) {
            Ok(taken) => {
                let term = replica.machine.term();
                let index = taken.pending.unwrap_or(RaftIndex(0));
                client.waits = Some((id, term, index, taken.base_offset));
                let newest = replica.machine.state().last().0;
                let repeat = taken.pending != Some(newest);
                self.counts.repeats += u64::from(repeat);
                self.counts.pending_repeats += u64::from(repeat && taken.pending.is_some());
            }
            Err(crate::ProduceError::NotLeader) => {}
            Err(why) => panic!("client {} at {}: {why}", client.id, client.sequence),
        }
    }

    fn check(&mut self, id: u64) {
        let r = &self.cluster.replicas[id as usize - 1];
        if r.machine.is_leader() {
            let leader = *self.leaders.entry(r.machine.term()).or_insert(id);
            assert_eq!(leader, id, "two leaders in term {}", r.machine.term());
        }
        let entries = r.log.entries();
        for e in &entries[..r.machine.commit().0 as usize] {
            let at = e.index.0 as usize - 1;
            let this = (e.term, e.base_offset, e.data.clone());
            if at == self.committed.len() {
                self.committed.push(this);
            } else {
                assert_eq!(self.committed[at], this, "entry {} differs", e.index);
            }
        }
    }

    fn finish(&mut self) {
        self.isolated = None;
        let leader = self.cluster.elect();
        self.cluster.calm(20, &[]);
        for id in 1..=self.cluster.replicas.len() as u64 {
            self.check(id);
        }
        let log = self.cluster.at(leader).log.clone();
        assert_eq!(log.commit(), log.last_index(), "all is committed");
        for r in &self.cluster.replicas {
            assert_eq!(r.log.entries(), log.entries(), "replicas are equal");
        }
        let mut found: BTreeMap<(i64, i32), Offset> = BTreeMap::new();
        let mut end = Offset(0);
        for e in log.entries() {
            assert_eq!(e.base_offset, end, "offsets are dense");
            end = e.next_offset;
            if e.kind == EntryKind::Batch {
                let h = BatchHeader::parse(&e.data).expect("a batch");
                assert_eq!(h.base_offset, e.base_offset);
                assert_eq!(h.leader_epoch, e.term.leader_epoch().expect("small terms"));
                let twice = found.insert((h.producer_id, h.base_sequence), e.base_offset);
                assert_eq!(twice, None, "a batch is in the log twice");
            }
        }
        for client in &self.clients {
            for (sequence, offset) in &client.acked {
                let at = found.get(&(client.id, *sequence));
                assert_eq!(at, Some(offset), "acknowledged and not there");
            }
        }
        self.counts.terms = self.leaders.len() as u64;
    }
}

fn run(seed: u64, steps: usize) -> (Counts, Vec<(Term, Offset, Bytes)>) {
    let mut run = Run::new(seed);
    for _ in 0..steps {
        run.step();
    }
    run.finish();
    (run.counts, run.committed)
}

fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("TAILRACE_SEEDS").ok().and_then(|s| {
        let (from, to) = s.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    given.unwrap_or(0..150)
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_written_twice() {
    let mut sum = Counts::default();
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| run(seed, 6000).0);
        let Ok(c) = outcome else {
            panic!(
                "seed {seed} failed; TAILRACE_SEEDS={seed}..{} runs it alone",
                seed + 1
            );
        };
        sum.acked += c.acked;
        sum.repeats += c.repeats;
        sum.pending_repeats += c.pending_repeats;
        sum.crashes += c.crashes;
        sum.records_lost += c.records_lost;
        sum.terms += c.terms;
        sum.cut_off += c.cut_off;
    }
    println!("{sum:?}");
    for (what, n) in [
        ("acknowledged batches", sum.acked),
        ("repeats", sum.repeats),
        ("repeats that waited", sum.pending_repeats),
        ("crashes", sum.crashes),
        ("records lost in crashes", sum.records_lost),
        ("terms with a leader", sum.terms),
        ("tails cut off", sum.cut_off),
    ] {
        assert!(n > 0, "no {what}: the runs prove nothing");
    }
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    for seed in 1000..1010 {
        assert_eq!(run(seed, 2000).1, run(seed, 2000).1, "G5: seed {seed}");
    }
}
