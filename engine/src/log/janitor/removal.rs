//! Removing files: a bounded queue and a task of its own, so that write-out, checkpoints and reclaim go on while a large file shrinks; and a sweep, once a start,
//! for what a crash between a checkpoint and the removal left behind.
//!
//! What goes into the queue is named by no synced checkpoint any more (or, on a full disk, by none that is believed: [`Discarded::may_go_early`]). The janitor
//! alone puts it there. A crash forgets the queue: the next start's sweep finds the files.
//!
//! Bound: [`REMOVALS_QUEUED`]; what is beyond waits where it came from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::Janitor;
use crate::log::LogError;
use crate::log::extent::ExtentFileId;
use crate::log::files::{TRASH_PREFIX, io_error, partitions_dir, replica_of_directory};
use crate::log::replica::ReplicaState;
use crate::log::segment::{Segment, file_name, index_path};
use crate::log::shard::{Discarded, Inner, Trash};
use crate::rt::{self, File, OpenOptions, Queue};
use crate::types::*;

/// Files and directories that wait for their removal.
const REMOVALS_QUEUED: usize = 10_000;
/// What a file shrinks by before it is unlinked: a big unlink costs the journal milliseconds.
const SHRINK_BYTES: u64 = 1 << 20;
const SHRINK_PAUSE: Duration = Duration::from_millis(2);
/// How long a clean end waits for the queue.
const LAST_WAIT: Duration = Duration::from_secs(5);

impl Discarded {
    /// Whether it may go though a checkpoint still names it, because the disk has no room for the next one. A removed replica's files: once its removal is
    /// durable; the record stays in the journal until a checkpoint repeats it. A segment below the log's start: if that checkpoint says it is sealed; the entry
    /// that moved the start is in the journal too, and nothing is written to or read from the segment before that entry is applied again.
    fn may_go_early(&self, durable: Lsn) -> bool {
        match (self.removed_at, &self.trash) {
            (Some(lsn), _) => lsn <= durable,
            (None, Trash::Segment(s)) => s.said_sealed.get(),
            // Nothing is read or written there below the log's start, which is in the journal.
            (None, Trash::Extents(_)) => true,
            (None, Trash::Directory(_)) => false,
        }
    }
}

impl Janitor {
    /// Hands over the first `count` of what was discarded: the last checkpoint doesn't name them.
    pub(super) fn dispose(&self, count: usize) {
        let mut checkpoint = self.inner.checkpoint.borrow_mut();
        let mut removals = self.inner.removals.borrow_mut();
        let room = REMOVALS_QUEUED.saturating_sub(removals.len());
        let going = checkpoint.trash.drain(..count.min(room));
        removals.extend(going.map(|d| d.trash));
        self.inner.removal.notify();
    }

    /// The disk has no room for a checkpoint: what may go without one makes some.
    pub(super) fn dispose_early(&self) {
        let durable = self.inner.journal.borrow().durable_lsn();
        let mut checkpoint = self.inner.checkpoint.borrow_mut();
        let mut removals = self.inner.removals.borrow_mut();
        let (early, later): (Vec<_>, Vec<_>) = std::mem::take(&mut checkpoint.trash)
            .into_iter()
            .partition(|d| d.may_go_early(durable));
        checkpoint.trash = later;
        removals.extend(early.into_iter().map(|d| d.trash));
        self.inner.removal.notify();
    }

    /// Takes a file's name away, durably; its blocks are freed by and by.
    pub(super) async fn remove_file(&self, path: &Path) -> Result<(), LogError> {
        if let Some(aside) = set_aside(path).await? {
            self.inner.aside.borrow_mut().push_back(aside);
            self.inner.removal.notify();
        }
        Ok(())
    }

    /// A clean end leaves as little as it can to the next start's sweep.
    pub(super) async fn last_removals(&self) {
        let begun = rt::now();
        while !self.inner.removals_done() && begun.elapsed() < LAST_WAIT {
            rt::sleep(SHRINK_PAUSE).await;
        }
    }
}

impl Inner {
    fn removals_done(&self) -> bool {
        self.removals.borrow().is_empty() && self.aside.borrow().is_empty() && !self.removing.get()
    }
}

/// Starts the task. It ends when the janitor has.
pub(super) fn start(inner: &Rc<Inner>) {
    let inner = inner.clone();
    rt::spawn(Queue::Background, async move {
        if let Err(e) = run(&inner).await {
            inner.fail(e);
        }
    })
    .detach();
}

async fn run(inner: &Rc<Inner>) -> Result<(), LogError> {
    let mut swept = false;
    while !inner.closed.get() {
        let notified = inner.removal.notified();
        inner.removing.set(true);
        work(inner).await?;
        if inner.settled.get() && !swept {
            swept = true;
            sweep(inner).await?;
        }
        inner.removing.set(false);
        notified.await;
    }
    Ok(())
}

async fn work(inner: &Rc<Inner>) -> Result<(), LogError> {
    loop {
        // Borrows end with these lines.
        let aside = inner.aside.borrow_mut().pop_front();
        if let Some(path) = aside {
            shrink(&path).await?;
            continue;
        }
        let trash = inner.removals.borrow_mut().pop_front();
        match trash {
            None => return Ok(()),
            Some(Trash::Segment(s)) => {
                inner.files.forget(&s);
                shrink_and_remove(&s.path).await?;
                shrink_and_remove(&index_path(&s.path)).await?;
            }
            Some(Trash::Extents(path)) => shrink_and_remove(&path).await?,
            Some(Trash::Directory(d)) => remove_directory(&d).await?,
        }
    }
}

/// Files that a crash left unnamed go with it.
async fn remove_directory(dir: &Path) -> Result<(), LogError> {
    if !exists(dir).await? {
        return Ok(());
    }
    for name in list(dir).await? {
        shrink_and_remove(&dir.join(name)).await?;
    }
    rt::fs::remove_dir(dir)
        .await
        .map_err(io_error("cannot remove", dir))
}

async fn exists(path: &Path) -> Result<bool, LogError> {
    rt::fs::exists(path)
        .await
        .map_err(io_error("cannot look for", path))
}

async fn list(dir: &Path) -> Result<Vec<String>, LogError> {
    rt::fs::read_dir(dir)
        .await
        .map_err(io_error("cannot list", dir))
}

async fn shrink_and_remove(path: &Path) -> Result<(), LogError> {
    match set_aside(path).await? {
        Some(aside) => shrink(&aside).await,
        None => Ok(()),
    }
}

/// Gives a file a name that nobody reads: one that is half gone must not be taken for a whole one. `None` when it wasn't there, or is gone at once.
async fn set_aside(path: &Path) -> Result<Option<PathBuf>, LogError> {
    if !exists(path).await? {
        return Ok(None);
    }
    let directory = path.parent().expect("a file lies in a directory");
    let is_aside = path
        .file_name()
        .is_some_and(|n| n.to_string_lossy().starts_with(TRASH_PREFIX));
    if is_aside {
        return Ok(Some(path.to_owned()));
    }
    let aside = directory.join(format!("{TRASH_PREFIX}{:016x}", rt::random_u64()));
    let renamed = rt::fs::rename(path, &aside)
        .await
        .map_err(io_error("cannot rename", path));
    let gone = match renamed {
        Ok(()) => false,
        // Not even a name fits on the disk: then it goes whole.
        Err(e) if e.is_full() => {
            rt::fs::remove_file(path)
                .await
                .map_err(io_error("cannot remove", path))?;
            true
        }
        Err(e) => return Err(e),
    };
    rt::fs::sync_dir(directory)
        .await
        .map_err(io_error("cannot sync", directory))?;
    Ok((!gone).then_some(aside))
}

/// A big file is never unlinked at once.
async fn shrink(path: &Path) -> Result<(), LogError> {
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(path, options)
        .await
        .map_err(io_error("cannot open", path))?;
    let mut length = file.len().await.map_err(io_error("cannot stat", path))?;
    while length > SHRINK_BYTES {
        length -= SHRINK_BYTES;
        file.set_len(length)
            .await
            .map_err(io_error("cannot shrink", path))?;
        rt::sleep(SHRINK_PAUSE).await;
    }
    file.close().await.map_err(io_error("cannot close", path))?;
    rt::fs::remove_file(path)
        .await
        .map_err(io_error("cannot remove", path))
}

/// Those whose files a listing that was made since should have had, and hasn't.
fn missing<'a>(
    written: &'a [Rc<Segment>],
    found: &'a [String],
) -> impl Iterator<Item = &'a Rc<Segment>> {
    let gone = |s: &Segment| !found.contains(&file_name(&s.meta.borrow()));
    // Not by retention, meanwhile.
    written.iter().filter(move |s| !s.gone.get() && gone(s))
}

impl ReplicaState {
    /// Those of which something is written out, so that they have files.
    fn written_segments(&self) -> Vec<Rc<Segment>> {
        let written = |s: &&Rc<Segment>| s.meta.borrow().end > 0;
        self.segments.iter().filter(written).cloned().collect()
    }

    /// Every name in the replica's directory that means something: the sweep leaves those alone. What a replica keeps in files is added here.
    fn names_in_use(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for s in &self.segments {
            let name = file_name(&s.meta.borrow());
            let index = index_path(Path::new(&name));
            names.insert(index.to_string_lossy().into_owned());
            names.insert(name);
        }
        names.extend(self.extents.files.iter().map(|f| f.id.file_name()));
        names
    }

    /// Those of a directory's names that nothing means any more. Others of their generations are never made from here on, so that none of them comes into use
    /// while it is being removed. Names that aren't understood are nobody's to remove.
    fn unused_names(&mut self, found: Vec<String>, boot_epoch: BootEpoch) -> Vec<String> {
        let in_use = self.names_in_use();
        let mut unused = Vec::new();
        for name in found {
            if name.starts_with(TRASH_PREFIX) {
                unused.push(name);
            } else if let Some(generation) = generation_of(&name)
                && !in_use.contains(&name)
            {
                self.next_generation = self.next_generation.max(generation + 1);
                unused.push(name);
            } else if ExtentFileId::of_name(&name).is_some_and(|id| id.boot_epoch < boot_epoch)
                && !in_use.contains(&name)
            {
                // An extent file of an earlier start never gets another entry.
                unused.push(name);
            }
        }
        unused
    }
}

/// The generation in the name of a segment or its index.
fn generation_of(name: &str) -> Option<u64> {
    let stem = name
        .strip_suffix(".log")
        .or_else(|| name.strip_suffix(".index"))?;
    let mut parts = stem.split('-');
    let number = |p: Option<&str>| p?.parse::<u64>().ok();
    let (_, _, generation) = (
        number(parts.next())?,
        number(parts.next())?,
        number(parts.next())?,
    );
    (parts.next().is_none() && generation < u64::MAX).then_some(generation)
}

/// Removes what nothing names: directories that were there at the start and belong to no replica, and files in the directories of this shard's replicas.
async fn sweep(inner: &Rc<Inner>) -> Result<(), LogError> {
    let mut removed = 0u64;
    let strays = std::mem::take(&mut *inner.strays.borrow_mut());
    for name in strays {
        // Replica ids are never reused: none of these becomes one. But one may be made again whose log is gone, and then this is where it writes.
        if replica_of_directory(&name).is_none_or(|(_, id)| inner.replica(id).is_some()) {
            tracing::warn!(directory = %name, "this directory was there before the replica that uses it: what lies there of earlier starts is lost");
            continue;
        }
        let dir = partitions_dir(&inner.cfg.data_dir).join(name);
        tracing::info!(path = %dir.display(), "this directory belongs to no replica: it is removed");
        remove_directory(&dir).await?;
        removed += 1;
    }
    let ids: Vec<ReplicaId> = inner.replicas.borrow().keys().copied().collect();
    for id in ids {
        let Some(r) = inner.replica(id) else { continue };
        let dir = inner.files.directory(r.borrow().group, id);
        if !exists(&dir).await? {
            continue;
        }
        let written = r.borrow().written_segments();
        let found = list(&dir).await?;
        if r.borrow().removed {
            continue;
        }
        for lost in missing(&written, &found) {
            let m = lost.meta.borrow();
            tracing::error!(path = %lost.path.display(), from = m.base_offset.0, to = m.next_offset.0, "a segment's file is gone: reads of these offsets answer an error. Put the file back from a copy, or delete the records before the last of them (kafka-delete-records.sh)");
        }
        let discarded = inner.discarded_in(&dir);
        let unused = r.borrow_mut().unused_names(found, inner.boot_epoch);
        for name in unused.iter().filter(|n| !discarded.contains(*n)) {
            shrink_and_remove(&dir.join(name)).await?;
            removed += 1;
        }
        rt::yield_if_needed().await;
    }
    if removed > 0 {
        tracing::info!(shard = %inner.shard, removed, "files that an earlier end left behind are removed");
    }
    Ok(())
}

impl Inner {
    /// Names in a directory whose removal has its own order.
    fn discarded_in(&self, dir: &Path) -> BTreeSet<String> {
        let checkpoint = self.checkpoint.borrow();
        let removals = self.removals.borrow();
        let waiting = checkpoint.trash.iter().map(|d| &d.trash);
        let mut names = BTreeSet::new();
        for trash in waiting.chain(removals.iter()) {
            let paths = match trash {
                Trash::Segment(s) => vec![s.path.clone(), index_path(&s.path)],
                Trash::Extents(path) => vec![path.clone()],
                Trash::Directory(_) => continue,
            };
            for path in paths.iter().filter(|p| p.parent() == Some(dir)) {
                names.extend(path.file_name().map(|n| n.to_string_lossy().into_owned()));
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::replica::tests::replica;
    use crate::log::segment::SegmentMeta;

    fn meta(base: i64, generation: u64) -> SegmentMeta {
        SegmentMeta {
            base_offset: Offset(base),
            base_index: RaftIndex(base as u64 + 1),
            generation,
            end: 4096,
            extent_bytes: 0,
            last_index: RaftIndex(base as u64 + 9),
            next_offset: Offset(base + 9),
            max_timestamp: 1,
            created_ms: 1,
            sealed: true,
            rows: vec![],
        }
    }

    #[test]
    fn only_names_that_are_understood_and_unused_are_removed_and_never_made_again() {
        let mut r = replica();
        r.segments = vec![
            Segment::new(Path::new("/p"), meta(10, 3), false),
            Segment::new(Path::new("/p"), meta(20, 4), false),
        ];
        r.next_generation = 5;
        let used = file_name(&meta(10, 3));
        let index = used.replace(".log", ".index");
        let left = [
            file_name(&meta(1, 2)),
            file_name(&meta(40, 7)),
            "trash-00aa".into(),
            "4-0.extent".into(),
        ];
        r.extents
            .note(ExtentFileId::of_name("4-1.extent").unwrap(), RaftIndex(9));
        let others = [
            "4-1.extent",
            "5-0.extent",
            "12.extent",
            "notes.txt",
            "x-y-z.log",
            "1-2-3-4.log",
        ];
        let mut found: Vec<String> = vec![used, index];
        found.extend(left.iter().cloned());
        found.extend(others.iter().map(|o| o.to_string()));
        assert_eq!(r.unused_names(found, BootEpoch(5)), left);
        assert_eq!(r.next_generation, 8);
    }

    #[test]
    fn a_segment_without_its_file_is_named_unless_retention_took_it() {
        let mut r = replica();
        let segment =
            |base, generation| Segment::new(Path::new("/p"), meta(base, generation), false);
        r.segments = vec![
            segment(10, 3),
            segment(20, 4),
            segment(30, 5),
            segment(40, 6),
        ];
        r.segments[3].meta.borrow_mut().end = 0;
        let written = r.written_segments();
        r.segments[0].gone.set(true);
        let found = [file_name(&meta(30, 5)), file_name(&meta(30, 4))];
        let lost: Vec<i64> = missing(&written, &found)
            .map(|s| s.meta.borrow().base_offset.0)
            .collect();
        assert_eq!(lost, [20]);
    }

    #[test]
    fn on_a_full_disk_only_what_the_journal_answers_for_goes_early() {
        let segment = Segment::new(Path::new("/p"), meta(10, 3), false);
        let trimmed = Discarded::trimmed(segment.clone());
        assert!(
            !trimmed.may_go_early(Lsn(99)),
            "a checkpoint may still write to it"
        );
        segment.said_sealed.set(true);
        assert!(trimmed.may_go_early(Lsn(0)));
        let gone = Discarded::removed(Trash::Directory("/p".into()), Lsn(5));
        assert!(!gone.may_go_early(Lsn(4)) && gone.may_go_early(Lsn(5)));
    }
}
