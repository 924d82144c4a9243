//! A start: every journal and checkpoint of the data directory is read, and each replica's state is put together for the shard that owns it now (L12).
//!
//! Blocks are taken from all journals in the order of their boot epochs; within one start a replica wrote to one journal only, so that each
//! replica sees its records by (boot epoch, lsn). A replica begins from its newest checkpoint frame. Journals and checkpoints of shards that no longer exist
//! are read like the others, and removed once synced checkpoints of this start cover every replica ([`Covered`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::block::Seed;
use super::checkpoint::{self, Loaded, Owner};
use super::directory::{Directory, Run};
use super::files::{
    TRASH_PREFIX, directory_name, io_error, partitions_dir, read_whole_synced, replica_of_directory,
};
use super::node_file::{self, NodeFile};
use super::record::{self, Record};
use super::recovered::RecoveredReplica;
use super::replay::{JournalScan, Step};
use super::space::Space;
use super::superblock::{ChainPoint, Superblock};
use super::{LogError, StoreConfig};
use crate::rt;
use crate::types::*;

/// How far the shards have come in making what earlier starts left unneeded. Nothing of it goes before all of them have done the step before.
#[derive(Debug)]
pub(crate) struct Covered {
    /// Shards whose replicas aren't all in a synced base of this start.
    bases: AtomicUsize,
    /// Shards whose superblock doesn't vouch for that base.
    vouched: AtomicUsize,
    /// Shards that haven't flushed their journals for the last time.
    working: AtomicUsize,
    /// Shards that haven't removed their older checkpoint files.
    files: AtomicUsize,
}

impl Covered {
    fn new(shards: u16) -> Covered {
        Covered {
            bases: AtomicUsize::new(usize::from(shards)),
            vouched: AtomicUsize::new(usize::from(shards)),
            working: AtomicUsize::new(usize::from(shards)),
            files: AtomicUsize::new(usize::from(shards)),
        }
    }

    /// This shard's base is synced, and everything its replicas need is there or in its own journal.
    pub fn base_done(&self) {
        assert!(
            self.bases.fetch_sub(1, Ordering::AcqRel) > 0,
            "a shard reports once"
        );
    }

    pub fn all_bases(&self) -> bool {
        self.bases.load(Ordering::Acquire) == 0
    }

    /// A start that can't read this shard's base will know it.
    pub fn base_vouched(&self) {
        assert!(
            self.vouched.fetch_sub(1, Ordering::AcqRel) > 0,
            "a shard reports once"
        );
    }

    pub fn all_vouched(&self) -> bool {
        self.vouched.load(Ordering::Acquire) == 0
    }

    /// This shard needs nothing any more.
    pub fn shard_done(&self) {
        assert!(
            self.working.fetch_sub(1, Ordering::AcqRel) > 0,
            "a shard reports once"
        );
    }

    pub fn all_done(&self) -> bool {
        self.working.load(Ordering::Acquire) == 0
    }

    pub fn files_removed(&self) {
        assert!(
            self.files.fetch_sub(1, Ordering::AcqRel) > 0,
            "a shard reports once"
        );
    }

    /// From here on journals may let go of what earlier starts wrote.
    pub fn all_files(&self) -> bool {
        self.files.load(Ordering::Acquire) == 0
    }
}

/// What a start found, in numbers.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    pub replicas: u64,
    /// Entries that only the journals held.
    pub entries: u64,
    pub journal_blocks: u64,
    pub journal_bytes: u64,
    /// Journals that ended in a block that never became whole.
    pub torn_tails: u64,
    /// Commits that were durable once and can't be read.
    pub damaged_commits: u64,
    /// Entries named by a directory as lost.
    pub damaged_entries: u64,
    /// Replicas of which it isn't known what they lost.
    pub suspect_replicas: u64,
}

/// The outcome of [`recover`]; its parts go to the shards.
pub struct Recovery {
    pub boot_epoch: BootEpoch,
    /// Drawn once, when the directory was made.
    pub directory_id: u64,
    pub report: RecoveryReport,
    /// One for each shard of this start.
    pub shards: Vec<RecoveredShard>,
}

/// What a shard begins with.
pub struct RecoveredShard {
    pub(crate) node: NodeFile,
    pub(crate) replicas: Vec<RecoveredReplica>,
    pub(crate) journal: Option<RecoveredJournal>,
    pub(crate) checkpoint: (u64, u64),
    pub(crate) covered: Arc<Covered>,
    pub(crate) space: Arc<Space>,
    /// Replicas that are no more, and of whose lives journals or older checkpoints still tell: every base of shard 0 says so.
    pub(crate) dead: Vec<ReplicaId>,
    /// Checkpoint files of earlier starts, to be removed once every shard has a base of this one.
    pub(crate) old_checkpoints: Vec<PathBuf>,
    /// Shards that are no more: what is left of them is removed after that.
    pub(crate) orphans: Vec<Orphan>,
    /// Names of directories that belong to no replica.
    pub(crate) strays: Vec<String>,
}

/// A shard of an earlier start that this one doesn't have.
pub(crate) struct Orphan {
    pub number: u32,
    pub journal: PathBuf,
    /// Its newest checkpoint file's generation, and the checkpoint that its journal vouches for.
    pub generation: u64,
    pub sequence: u64,
}

pub(crate) struct RecoveredJournal {
    pub superblock: Superblock,
    pub end: ChainPoint,
    pub live: Vec<ChainPoint>,
    /// What the commit before `end` held: the next one repeats it (L4).
    pub last_directory: Directory,
}

struct Assembly {
    replicas: BTreeMap<ReplicaId, RecoveredReplica>,
    report: RecoveryReport,
    /// Replicas that were removed. Ids are never reused: whatever tells of them is from before (L12).
    dead: BTreeSet<ReplicaId>,
    /// Those among them that something told of.
    told_of: BTreeSet<ReplicaId>,
    /// Entries that may yet be found missing: no more than the journals have room for. Each takes memory.
    losable: u64,
}

impl Assembly {
    fn block(
        &mut self,
        journal: u32,
        boot_epoch: BootEpoch,
        lsn: Lsn,
        records: Bytes,
        path: &Path,
    ) -> Result<(), LogError> {
        for record in record::records(records) {
            let Ok((id, record)) = record else {
                let why = format!(
                    "commit {lsn} has a record that this Tailrace can't read; it was written by a newer version, or the journal is to be restored from a backup"
                );
                return Err(LogError::Format {
                    path: path.to_owned(),
                    why,
                });
            };
            let at = (boot_epoch, lsn);
            if self.dead.contains(&id) {
                self.told_of.insert(id);
                continue;
            }
            if let Record::Created { group, state } = record {
                let new = || RecoveredReplica::created(id, group, state, at, journal);
                self.replicas.entry(id).or_insert_with(new);
                continue;
            }
            // Records of a replica that isn't alive at that point are ignored (design §4).
            let Some(r) = self.replicas.get_mut(&id) else {
                continue;
            };
            match record {
                Record::Removed => self.ends(id),
                Record::HardState(h) => {
                    r.commit = r.commit.max(h.commit);
                    if at >= r.frame.captured {
                        r.frame.hard_state = h;
                    }
                }
                Record::Append { commit, entry } => {
                    take(&mut self.losable, r.missing_before(entry.index), path)?;
                    r.commit = r.commit.max(commit);
                    r.moved_to(journal);
                    r.append(&entry, at);
                }
                Record::Carry { commit, entry } => {
                    take(&mut self.losable, r.missing_before(entry.index), path)?;
                    r.commit = r.commit.max(commit);
                    r.moved_to(journal);
                    r.carry(&entry, at);
                }
                Record::Created { .. } => unreachable!("handled above"),
            }
        }
        Ok(())
    }

    fn damaged(
        &mut self,
        journal: u32,
        boot_epoch: BootEpoch,
        first: Lsn,
        last: Lsn,
        directory: Option<&Directory>,
        path: &Path,
    ) -> Result<(), LogError> {
        self.report.damaged_commits += last.0 + 1 - first.0;
        // The directory speaks of the last lost commit only.
        if first < last || directory.is_none() {
            tracing::error!(path = %path.display(), %first, %last, "these commits are damaged and nothing says what all of them held: every replica of this journal is suspect");
            for r in self.replicas.values_mut().filter(|r| r.journal == journal) {
                r.suspect = r.suspect.max(Some(boot_epoch));
            }
        }
        let Some(d) = directory else { return Ok(()) };
        tracing::error!(path = %path.display(), commit = %last, runs = d.runs.len(), "this commit is damaged; what it held is known");
        let at = (boot_epoch, last);
        for (id, group, state) in &d.created {
            if self.dead.contains(id) {
                self.told_of.insert(*id);
                continue;
            }
            let new = || RecoveredReplica::created(*id, *group, state.clone(), at, journal);
            self.replicas.entry(*id).or_insert_with(new);
        }
        for run in &d.runs {
            if let Some(r) = self.replicas.get_mut(&run.replica) {
                let missing = r.missing_before(run.last.next());
                take(&mut self.losable, missing, path)?;
                r.moved_to(journal);
                let lost = r.lose_run(run, at);
                self.report.damaged_entries += lost;
                if lost > 0 {
                    tracing::error!(group = %r.frame.group, first = %run.first, last = %run.last, up_to = %run.next_offset, "entries lost to damage in the journal");
                }
            }
        }
        for id in &d.removed {
            self.ends(*id);
        }
        Ok(())
    }

    fn ends(&mut self, id: ReplicaId) {
        self.dead.insert(id);
        if self.replicas.remove(&id).is_some() {
            self.told_of.insert(id);
        }
    }

    /// What the commit with these records held, as the commit after it has to say it.
    fn directory_of(&self, records: Bytes) -> Directory {
        let mut d = Directory::default();
        for (id, record) in record::records(records).map_while(Result::ok) {
            let (commit, entry) = match record {
                Record::Created { group, state } => {
                    d.created.push((id, group, state));
                    continue;
                }
                Record::Removed => {
                    d.removed.push(id);
                    continue;
                }
                Record::HardState(h) => (h.commit, None),
                Record::Append { commit, entry } | Record::Carry { commit, entry } => {
                    (commit, Some(entry))
                }
            };
            let Some(r) = self.replicas.get(&id) else {
                continue;
            };
            // The replica's hard state has been read up to here; what another journal may have added comes later there too.
            let mut hard_state = r.frame.hard_state;
            hard_state.commit = commit;
            let Some(e) = entry else {
                d.runs.push(Run {
                    replica: id,
                    term: hard_state.term,
                    first: r.last().next(),
                    last: r.last(),
                    next_offset: r.log_end(),
                    hard_state,
                });
                continue;
            };
            let extended = d.runs.iter_mut().rfind(|run| run.replica == id);
            match extended.filter(|run| run.term == e.term && run.last.next() == e.index) {
                Some(run) => {
                    run.last = e.index;
                    run.next_offset = e.next_offset;
                    run.hard_state = hard_state;
                }
                None => d.runs.push(Run {
                    replica: id,
                    term: e.term,
                    first: e.index,
                    last: e.index,
                    next_offset: e.next_offset,
                    hard_state,
                }),
            }
        }
        d
    }
}

/// Takes missing entries from what there can have been.
fn take(losable: &mut u64, missing: u64, path: &Path) -> Result<(), LogError> {
    let Some(left) = losable.checked_sub(missing) else {
        let why = format!(
            "{missing} entries are missing, and no journal has room for so many; restore the journals from a backup"
        );
        return Err(LogError::Format {
            path: path.to_owned(),
            why,
        });
    };
    *losable = left;
    Ok(())
}

/// This start's number is above every other one: else the node file is from before what lies here, and numbers would be used twice.
fn is_before(
    found: BootEpoch,
    node: &NodeFile,
    cfg: &StoreConfig,
    by: &Path,
) -> Result<(), LogError> {
    if found < node.boot_epoch {
        return Ok(());
    }
    let why = format!(
        "it says that this is start {}, and {} was written by start {found}: one of them is from before; put back those that belong together",
        node.boot_epoch,
        by.display()
    );
    Err(LogError::Format {
        path: cfg.data_dir.join("node"),
        why,
    })
}

pub(crate) fn journal_path(cfg: &StoreConfig, shard: u32) -> PathBuf {
    cfg.journal_dir().join(format!("journal-{shard}"))
}

/// The numbers in the names of a directory's files that begin with `prefix` (and end there or at a dash), in order, each once.
fn numbered(names: &[String], prefix: &str) -> Vec<u32> {
    let number = |n: &String| n.strip_prefix(prefix)?.split('-').next()?.parse().ok();
    let mut found: Vec<u32> = names.iter().filter_map(number).collect();
    found.sort_unstable();
    found.dedup();
    found
}

async fn list(dir: &Path) -> Result<Vec<String>, LogError> {
    rt::fs::read_dir(dir)
        .await
        .map_err(io_error("cannot list", dir))
}

async fn load_checkpoints(
    cfg: &StoreConfig,
    names: &[String],
    owner: Owner,
) -> Result<Loaded, LogError> {
    let mut loaded = Loaded::default();
    for generation in checkpoint::generations(names, owner.shard) {
        let path = checkpoint::path(&cfg.data_dir, owner.shard, generation);
        let bytes = read_whole_synced(&path)
            .await
            .map_err(io_error("cannot read", &path))?;
        checkpoint::load(&bytes, owner, &mut loaded);
    }
    Ok(loaded)
}

/// What a start before was removing.
async fn remove_trash(dir: &Path) -> Result<(), LogError> {
    for name in list(dir)
        .await?
        .iter()
        .filter(|n| n.starts_with(TRASH_PREFIX))
    {
        let path = dir.join(name);
        rt::fs::remove_file(&path)
            .await
            .map_err(io_error("cannot remove", &path))?;
    }
    Ok(())
}

/// Creates a directory so that a power cut can't take its name back. The parent is synced also when the directory was there: an earlier start may have
/// ended between the two.
async fn create_durably(dir: &Path) -> Result<(), LogError> {
    let mut parents = Vec::new();
    for d in dir.ancestors() {
        if d.as_os_str().is_empty() {
            break;
        }
        let there = rt::fs::exists(d)
            .await
            .map_err(io_error("cannot look for", d))?;
        if there && d != dir {
            break;
        }
        if let Some(parent) = d.parent() {
            parents.push(if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            });
        }
    }
    rt::fs::create_dir_all(dir)
        .await
        .map_err(io_error("cannot create", dir))?;
    for parent in parents {
        rt::fs::sync_dir(parent)
            .await
            .map_err(io_error("cannot sync", parent))?;
    }
    Ok(())
}

/// Reads everything that earlier starts left and raises the boot epoch durably. Run once, before any shard opens its log.
pub async fn recover(cfg: &StoreConfig) -> Result<Recovery, LogError> {
    create_durably(&cfg.data_dir).await?;
    let node = node_file::raise_boot_epoch(&cfg.data_dir).await?;
    create_durably(cfg.journal_dir()).await?;
    create_durably(&partitions_dir(&cfg.data_dir)).await?;
    for dir in [cfg.data_dir.as_path(), cfg.journal_dir()] {
        remove_trash(dir).await?;
    }
    let mut assembly = Assembly {
        replicas: BTreeMap::new(),
        report: RecoveryReport::default(),
        dead: BTreeSet::new(),
        told_of: BTreeSet::new(),
        losable: 0,
    };

    let shards = u32::from(cfg.shards);
    let names = list(&cfg.data_dir).await?;
    let checkpoint_numbers = numbered(&names, "checkpoint-");
    let journal_numbers = numbered(&list(cfg.journal_dir()).await?, "journal-");
    // Journals that shards had, and the last start of which they must know.
    let mut needed: BTreeMap<u32, BootEpoch> = BTreeMap::new();
    let mut checkpoints: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut readable: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for &number in &checkpoint_numbers {
        let owner = Owner {
            directory_id: node.directory_id,
            shard: number,
        };
        let l = load_checkpoints(cfg, &names, owner).await?;
        // A file without a commit has used up its generation too: it is among those to be removed.
        let generation = checkpoint::generations(&names, number)
            .pop()
            .unwrap_or(l.generation);
        checkpoints.insert(number, (generation, l.sequence));
        readable.insert(number, l.sequences);
        if l.by != checkpoint::RETIRED {
            needed.insert(number, l.by);
        }
        assembly.dead.extend(l.removed);
        for f in l.replicas.into_values() {
            let path = checkpoint::path(&cfg.data_dir, number, generation);
            is_before(f.captured.0, &node, cfg, &path)?;
            // Of two shards' frames the newer counts: a replica may have changed shards.
            let newer = assembly
                .replicas
                .get(&f.id)
                .is_none_or(|r| r.frame.captured < f.captured);
            if newer {
                assembly
                    .replicas
                    .insert(f.id, RecoveredReplica::of_frame(f, number));
            }
        }
    }

    // One shard's file may have the frame, and another's that it is no more.
    for id in assembly.dead.clone() {
        assembly.ends(id);
    }

    // Acknowledged batches may lie in the journal only: without it nothing may go on as if they had never been.
    let lost = |number: u32, what: &str| LogError::Format {
        path: journal_path(cfg, number),
        why: format!(
            "the journal of shard {number} is {what}, but its checkpoints are here; put the file back, or set journal-dir to where the journals are"
        ),
    };
    if let Some(number) = needed.keys().find(|n| !journal_numbers.contains(n)) {
        return Err(lost(*number, "missing"));
    }
    let mut scans = Vec::new();
    for &number in &journal_numbers {
        let seed = Seed {
            directory_id: node.directory_id,
            journal: number,
        };
        let path = journal_path(cfg, number);
        let needed = needed.get(&number);
        let Some(scan) = JournalScan::open(&path, seed).await? else {
            if needed.is_some() {
                return Err(lost(number, "empty"));
            }
            continue;
        };
        let last = scan.superblock.epochs.last().map(|e| e.last);
        if let Some(last) = last {
            is_before(last, &node, cfg, &path)?;
        }
        if needed > last.as_ref() {
            return Err(lost(number, "from before"));
        }
        assembly.losable += scan.superblock.size / record::APPEND_OVERHEAD_BYTES as u64;
        let wanted = scan.superblock.checkpoint_sequence;
        // Not a newer one either: with more shards or fewer, older files may hold what the newer ones don't speak of.
        let found = readable.get(&number).is_some_and(|r| r.contains(&wanted));
        if wanted > 0 && !found {
            return Err(LogError::Format {
                path: checkpoint::path(
                    &cfg.data_dir,
                    number,
                    checkpoints.get(&number).map_or(0, |c| c.0),
                ),
                why: format!(
                    "the checkpoints of shard {number} are damaged: number {wanted} was synced and can't be read; restore the checkpoint-{number} files from a backup"
                ),
            });
        }
        scans.push((number, scan));
    }
    let mut journals = replay(&mut assembly, scans).await?;

    let gone = journal_numbers.iter().filter(|n| **n >= shards);
    let mut orphans: Vec<Orphan> = gone
        .map(|&number| {
            let generation = checkpoints.get(&number).map_or(0, |c| c.0);
            let vouched = journals.get(&number).map(|j| &j.superblock);
            Orphan {
                number,
                journal: journal_path(cfg, number),
                generation,
                sequence: vouched.map_or(0, |s| s.checkpoint_sequence),
            }
        })
        .collect();
    let mut old_checkpoints: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    for &number in &checkpoint_numbers {
        let files = checkpoint::generations(&names, number);
        let paths = files
            .into_iter()
            .map(|g| checkpoint::path(&cfg.data_dir, number, g));
        // Those of shards that are no more are shard 0's to remove.
        let remover = if number < shards { number } else { 0 };
        old_checkpoints.entry(remover).or_default().extend(paths);
    }
    let covered = Arc::new(Covered::new(cfg.shards));
    let space = Arc::new(Space::open(&cfg.data_dir, cfg.shards).await?);
    let mut parts: Vec<RecoveredShard> = (0..shards)
        .map(|s| RecoveredShard {
            node,
            replicas: Vec::new(),
            journal: journals.remove(&s),
            checkpoint: checkpoints.get(&s).copied().unwrap_or((0, 0)),
            covered: covered.clone(),
            space: space.clone(),
            dead: if s == 0 {
                assembly.told_of.iter().copied().collect()
            } else {
                Vec::new()
            },
            old_checkpoints: old_checkpoints.remove(&s).unwrap_or_default(),
            orphans: if s == 0 {
                std::mem::take(&mut orphans)
            } else {
                Vec::new()
            },
            strays: Vec::new(),
        })
        .collect();
    let directories = list(&partitions_dir(&cfg.data_dir)).await?;
    for name in &directories {
        if let Some((group, replica)) = replica_of_directory(name)
            && !assembly.replicas.contains_key(&replica)
        {
            let owner = shard_of(group, cfg.shards);
            parts[usize::from(owner.0)].strays.push(name.clone());
        }
    }
    for r in assembly.replicas.values_mut() {
        name_lost_directory(r, &directories);
    }
    for mut r in assembly.replicas.into_values() {
        let state_at = r.frame.state_at;
        if r.frame.group == GroupId::METADATA && state_at > r.last() {
            let why = format!(
                "the metadata's log ends at {} and its state is of {state_at}: a journal was lost or put back from before; restore the one that belongs here",
                r.last()
            );
            return Err(LogError::Format {
                path: cfg.journal_dir().to_owned(),
                why,
            });
        }
        let lost = r.lost_below_state();
        if lost > 0 {
            take(&mut assembly.losable, lost, cfg.journal_dir())?;
            tracing::error!(
                group = %r.frame.group, entries = lost, from = %r.log_end(), to = %r.frame.state_next_offset,
                "entries of this partition were durable and no journal has them: their offsets (the last not included) are lost and answer an error; restore the journals that belong here, or delete the records"
            );
            assembly.report.damaged_entries += lost;
            r.lose_below_state();
        }
        if !r.finish(node.boot_epoch) {
            let why = format!(
                "the entries of replica {} ({}) contradict one another; restore the journals from a backup",
                r.frame.id, r.frame.group
            );
            return Err(LogError::Format {
                path: cfg.journal_dir().to_owned(),
                why,
            });
        }
        let owner = shard_of(r.frame.group, cfg.shards);
        r.moved_to(u32::from(owner.0));
        assembly.report.replicas += 1;
        assembly.report.entries += r.slots.len() as u64;
        assembly.report.suspect_replicas += u64::from(r.suspect.is_some());
        parts[usize::from(owner.0)].replicas.push(r);
    }
    Ok(Recovery {
        boot_epoch: node.boot_epoch,
        directory_id: node.directory_id,
        report: assembly.report,
        shards: parts,
    })
}

/// Says what is lost when a replica's whole directory is: here, and not when somebody reads it.
fn name_lost_directory(r: &mut RecoveredReplica, directories: &[String]) {
    let f = &r.frame;
    let name = directory_name(f.group, f.id);
    let mut written = f.manifest.iter().filter(|m| m.end > 0);
    let (Some(first), Some(last)) = (written.clone().next(), written.next_back()) else {
        return;
    };
    if directories.binary_search(&name).is_ok() {
        return;
    }
    let from = first.base_offset.max(f.log_start);
    tracing::error!(
        group = %f.group, %from, to = %last.next_offset, directory = %name,
        "the directory of this partition is missing: these offsets (the last not included) are lost and answer an error; put the directory back, or delete the records"
    );
    r.lost_directory = true;
}

/// What is known of the last commit of a journal.
enum Held {
    Records(Bytes),
    Told(Directory),
}

/// Takes the blocks of all journals, the oldest start's first.
async fn replay(
    assembly: &mut Assembly,
    mut scans: Vec<(u32, JournalScan)>,
) -> Result<BTreeMap<u32, RecoveredJournal>, LogError> {
    let mut ended = BTreeMap::new();
    let mut newest: BTreeMap<u32, Held> = BTreeMap::new();
    // One step ahead of each: only a block itself says which start wrote it.
    let mut steps: Vec<Option<Step>> = Vec::new();
    steps.resize_with(scans.len(), || None);
    while !scans.is_empty() {
        for ((_, scan), step) in scans.iter_mut().zip(&mut steps) {
            if step.is_none() {
                *step = Some(scan.next().await?);
            }
        }
        let oldest = scans
            .iter()
            .zip(&steps)
            .map(|((_, scan), step)| step.as_ref().map(|s| scan.epoch_of(s)))
            .enumerate()
            .min_by_key(|(_, epoch)| *epoch);
        let (at, _) = oldest.expect("some journal is left");
        let (number, scan) = &mut scans[at];
        match steps[at].take().expect("every journal is a step ahead") {
            Step::Block {
                boot_epoch,
                lsn,
                records,
            } => {
                assembly.report.journal_blocks += 1;
                assembly.report.journal_bytes += records.len() as u64;
                newest.insert(*number, Held::Records(records.clone()));
                assembly.block(*number, boot_epoch, lsn, records, &scan.path)?;
            }
            Step::Damaged {
                boot_epoch,
                first,
                last,
                directory,
            } => {
                assembly.damaged(
                    *number,
                    boot_epoch,
                    first,
                    last,
                    directory.as_ref(),
                    &scan.path,
                )?;
                newest.insert(*number, Held::Told(directory.unwrap_or_default()));
            }
            Step::End { torn } => {
                assembly.report.torn_tails += u64::from(torn);
                let (end, tail) = (&scan.cursor, &scan.superblock.tail);
                let ahead = end.lap == tail.lap && end.position >= tail.position;
                let round = end.lap == tail.lap.wrapping_add(1) && end.position <= tail.position;
                if !ahead && !round {
                    return Err(LogError::Format {
                        path: scan.path.clone(),
                        why: "it ends where its blocks can't have led; restore this journal from a backup".into(),
                    });
                }
                let (number, scan) = scans.swap_remove(at);
                steps.swap_remove(at);
                let journal = RecoveredJournal {
                    superblock: scan.superblock.clone(),
                    end: scan.cursor,
                    live: scan.live.clone(),
                    last_directory: match newest.remove(&number) {
                        Some(Held::Records(records)) => assembly.directory_of(records),
                        Some(Held::Told(directory)) => directory,
                        None => Directory::default(),
                    },
                };
                scan.close().await?;
                ended.insert(number, journal);
            }
        }
        rt::yield_if_needed().await;
    }
    Ok(ended)
}
