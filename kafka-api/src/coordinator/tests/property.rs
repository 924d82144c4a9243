//! Random members, commits, times and failures of writes, and what must hold after each step:
//! every request is answered once; in one generation no two members own the same partition, and a member is told what its leader gave it;
//! what was committed and written is told, and no offset goes backwards; a coordinator rebuilt from what was written says the same.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const GROUPS: [&str; 2] = ["g", "h"];

#[derive(Clone, Debug)]
enum Step {
    Join {
        group: usize,
        slot: usize,
        instance: bool,
        topics: bool,
    },
    Sync {
        group: usize,
        slot: usize,
    },
    Heartbeat {
        group: usize,
        slot: usize,
    },
    Leave {
        group: usize,
        slot: usize,
    },
    /// Its connection is lost: what it waits for is told to nobody.
    Lose {
        group: usize,
        slot: usize,
    },
    Commit {
        group: usize,
        slot: usize,
        partition: i32,
    },
    Delete {
        group: usize,
    },
    Pass {
        ms: u64,
    },
    Settle {
        ok: bool,
    },
    Expire,
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    let who = || (0usize..2, 0usize..5);
    prop_oneof![
        6 => (who(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(|((group, slot), instance, topics)| Step::Join { group, slot, instance, topics }),
        6 => who().prop_map(|(group, slot)| Step::Sync { group, slot }),
        2 => who().prop_map(|(group, slot)| Step::Heartbeat { group, slot }),
        1 => who().prop_map(|(group, slot)| Step::Leave { group, slot }),
        2 => who().prop_map(|(group, slot)| Step::Lose { group, slot }),
        4 => (who(), 0i32..3).prop_map(|((group, slot), partition)| Step::Commit { group, slot, partition }),
        1 => (0usize..2).prop_map(|group| Step::Delete { group }),
        4 => (1u64..15_000).prop_map(|ms| Step::Pass { ms }),
        6 => prop::bool::weighted(0.9).prop_map(|ok| Step::Settle { ok }),
        1 => Just(Step::Expire),
        1 => Just(Step::Reload),
    ]
}

/// What one client believes.
#[derive(Clone, Debug, Default)]
struct Client {
    member: Name,
    instance: Option<Name>,
    generation: i32,
    leads: bool,
    everybody: Vec<Name>,
}

#[derive(Clone, Debug)]
enum Asked {
    Join(usize, usize),
    Sync(usize, usize, Name, i32),
    Commit(usize, i32, i64),
    Other,
}

struct World {
    bench: Bench,
    clients: Vec<Vec<Client>>,
    asked: BTreeMap<Token, Asked>,
    /// What leaders gave, by group and generation.
    given: BTreeMap<(usize, i32), BTreeMap<Name, Bytes>>,
    /// The same, before the coordinator was read back: of those that were written, static members are told again.
    before: BTreeMap<(usize, i32), BTreeMap<Name, Bytes>>,
    /// What members were told: group, generation, member.
    told: BTreeMap<(usize, i32), BTreeMap<Name, Bytes>>,
    /// Offsets that clients were told are committed.
    committed: BTreeMap<(usize, i32), i64>,
    next_offset: i64,
}

impl World {
    fn new() -> World {
        World {
            bench: Bench::new(Settings::default()),
            clients: vec![vec![Client::default(); 5]; 2],
            asked: BTreeMap::new(),
            given: BTreeMap::new(),
            before: BTreeMap::new(),
            told: BTreeMap::new(),
            committed: BTreeMap::new(),
            next_offset: 0,
        }
    }

    fn ask(&mut self, asked: Asked, request: Request) {
        self.asked.insert(self.bench.next_token + 1, asked);
        let (_, answers) = self.bench.ask(request);
        self.take(answers);
    }

    fn take(&mut self, answers: Vec<(Token, Reply)>) {
        for (token, reply) in answers {
            let asked = self
                .asked
                .remove(&token)
                .expect("a question is answered once");
            match (asked, reply) {
                (Asked::Join(group, slot), Reply::Joined(j)) => self.joined(group, slot, *j),
                (Asked::Sync(group, _, member, generation), Reply::Synced(s)) => {
                    if s.error == ErrorCode::None {
                        let key = (group, generation);
                        let given = self.given.get(&key).or_else(|| self.before.get(&key));
                        let given = given.expect("what members are told a leader gave");
                        let told = self.told.entry(key).or_default();
                        if let Some(want) = given.get(&member) {
                            assert_eq!(s.assignment, want, "{}", &*member);
                        } else if !s.assignment.is_empty() {
                            // A static member that came back under another id has what the one before it had.
                            assert!(given.values().any(|a| *a == s.assignment), "{s:?}");
                            told.retain(|_, a| *a != s.assignment);
                        }
                        told.insert(member, s.assignment);
                        // No partition has two owners.
                        let mut owned: Vec<u8> = told.values().flatten().copied().collect();
                        let all = owned.len();
                        owned.sort_unstable();
                        owned.dedup();
                        assert_eq!(owned.len(), all);
                    }
                }
                (Asked::Commit(group, partition, offset), Reply::Committed(e)) => {
                    if e[0] == ErrorCode::None {
                        self.committed.insert((group, partition), offset);
                    }
                }
                (Asked::Other, _) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn joined(&mut self, group: usize, slot: usize, j: requests::Joined) {
        let client = &mut self.clients[group][slot];
        match j.error {
            ErrorCode::None => {
                client.leads = j.leader == j.member && !j.skip_assignment;
                client.everybody = j.members.into_iter().map(|m| m.member).collect();
                client.member = j.member;
                client.generation = j.generation;
            }
            ErrorCode::MemberIdRequired => client.member = j.member,
            ErrorCode::RebalanceInProgress => {}
            _ => *client = Client::default(),
        }
    }

    fn is_asking(&self, group: usize, slot: usize) -> bool {
        self.asked.values().any(|a| match a {
            Asked::Join(g, s) | Asked::Sync(g, s, ..) => (*g, *s) == (group, slot),
            _ => false,
        })
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Join {
                group,
                slot,
                instance,
                topics,
            } => {
                if self.is_asking(group, slot) {
                    return;
                }
                let client = &mut self.clients[group][slot];
                if client.member.is_empty() && instance {
                    client.instance = Some(own(&format!("i{slot}")));
                }
                let mut join = join(GROUPS[group], &client.member);
                join.instance = client.instance.clone();
                join.needs_known_member = client.instance.is_none();
                if topics {
                    join.protocols[0].1 = subscription(&["t", "u"]);
                }
                self.ask(Asked::Join(group, slot), Request::Join(Box::new(join)));
            }
            Step::Sync { group, slot } => {
                let client = self.clients[group][slot].clone();
                if self.is_asking(group, slot) || client.generation == 0 {
                    return;
                }
                let mut given = Vec::new();
                if client.leads && !self.given.contains_key(&(group, client.generation)) {
                    // Partitions 0, 1, 2, ... one each.
                    for (i, member) in client.everybody.iter().enumerate() {
                        given.push((member.clone(), Bytes::copy_from_slice(&[i as u8])));
                    }
                    let map = given.iter().cloned().collect();
                    self.given.insert((group, client.generation), map);
                } else if client.leads {
                    // It shares out anew, as it was not told that its first word was taken: that one holds all the same.
                    let first = &self.given[&(group, client.generation)];
                    let others = first.values().cycle().skip(1).cloned();
                    given.extend(first.keys().cloned().zip(others));
                }
                let mut who = membership(GROUPS[group], &client.member, client.generation);
                who.instance = client.instance.clone();
                let asked = Asked::Sync(group, slot, client.member, client.generation);
                self.ask(asked, sync_of(who, given));
            }
            Step::Heartbeat { group, slot } => {
                let client = &self.clients[group][slot];
                let who = membership(GROUPS[group], &client.member, client.generation);
                self.ask(Asked::Other, Request::Heartbeat(who));
            }
            Step::Leave { group, slot } => {
                let client = std::mem::take(&mut self.clients[group][slot]);
                let request = leave_of(GROUPS[group], vec![(client.member, client.instance)]);
                self.ask(Asked::Other, request);
            }
            Step::Lose { group, slot } => {
                for asked in self.asked.values_mut() {
                    let mine = match asked {
                        Asked::Join(g, s) | Asked::Sync(g, s, ..) => (*g, *s) == (group, slot),
                        _ => false,
                    };
                    if mine {
                        *asked = Asked::Other;
                    }
                }
            }
            Step::Commit {
                group,
                slot,
                partition,
            } => {
                let client = &self.clients[group][slot];
                let generation = if client.generation == 0 {
                    -1
                } else {
                    client.generation
                };
                let who = membership(GROUPS[group], &client.member, generation);
                self.next_offset += 1;
                let offset = self.next_offset;
                let request = commit_of(who, partition, offset);
                self.ask(Asked::Commit(group, partition, offset), request);
            }
            Step::Delete { group } => {
                // What was told before may go from here on.
                self.committed.retain(|(g, _), _| *g != group);
                // What is under way is in front of it in the log.
                for asked in self.asked.values_mut() {
                    if matches!(asked, Asked::Commit(g, ..) if *g == group) {
                        *asked = Asked::Other;
                    }
                }
                self.ask(Asked::Other, Request::Delete(own(GROUPS[group])));
            }
            Step::Pass { ms } => {
                let answers = self.bench.pass(ms);
                self.take(answers);
            }
            Step::Settle { ok } => {
                let result = if ok {
                    Ok(())
                } else {
                    Err(WriteError::Unavailable)
                };
                let answers = self.bench.settle(result);
                self.take(answers);
            }
            Step::Expire => {
                let answers = self.bench.handle(Event::Expire);
                self.take(answers);
            }
            Step::Reload => {
                // A write that was under way may be in the log or not: here it isn't.
                self.bench.coordinator = self.bench.reloaded();
                self.bench.writes.clear();
                // Its shell has answered everybody.
                self.asked.clear();
                // Generations that nothing was written of may come again.
                for client in self.clients.iter_mut().flatten() {
                    *client = Client::default();
                }
                self.before.append(&mut self.given);
                self.told.clear();
            }
        }
        self.look();
    }

    /// What was told to be committed is told to whoever asks, or something later.
    fn look(&self) {
        for ((group, partition), offset) in &self.committed {
            let asked = requests::OffsetsOf {
                group: own(GROUPS[*group]),
                topics: Some(vec![(own("t"), vec![*partition])]),
            };
            let Reply::Offsets(found) = self.bench.coordinator.offsets_of(&asked) else {
                panic!("offsets are always told");
            };
            assert!(
                found[0].partitions[0].offset >= *offset,
                "{group} {partition} {offset}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_happens(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        // All writes settle and all time passes: nobody waits for ever.
        for _ in 0..20 {
            for _ in 0..world.bench.writes.len() {
                world.step(Step::Settle { ok: true });
            }
            world.step(Step::Pass { ms: 301_000 });
        }
        prop_assert!(world.asked.is_empty(), "{:?}", world.asked);
        let offsets = |c: &Coordinator| {
            GROUPS.map(|g| c.offsets_of(&requests::OffsetsOf { group: own(g), topics: None }))
        };
        prop_assert_eq!(offsets(&world.bench.coordinator), offsets(&world.bench.reloaded()));
        // So is what one writes anew.
        let mut again = Coordinator::new(Settings::default());
        for name in world.bench.coordinator.names() {
            for record in world.bench.coordinator.records_of(&name, 0) {
                again.replay(&record, 0).unwrap();
            }
        }
        again.check();
        prop_assert_eq!(offsets(&world.bench.coordinator), offsets(&again));
    }
}
