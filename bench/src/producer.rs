//! One producer: its schedule, its batches, its requests in flight. Time comes in as a value; sockets are the caller's.
//!
//! It batches as Kafka's client does: a record joins the open batch of its partition, which goes when it is full or `linger-ms` old and a request may be sent;
//! a request takes at most one batch of a partition. While no request may be sent, open batches go on filling.
//!
//! Invariants: the schedule never waits. What doesn't fit `buffer-bytes` isn't made yet, and keeps its moment. Bounds: bytes held ≤ `buffer-bytes` plus
//! one record; requests under way ≤ `max-in-flight` per broker.

use std::collections::VecDeque;

use crate::batch::{Batch, HEADER_BYTES, record_bound};
use crate::control::Cluster;
use crate::limits;
use crate::measure::Recorder;
use crate::records::{KEY_BYTES, Maker, partition_of, rest_of};
use crate::schedule::Schedule;
use crate::workload::{Mode, Partitioner, Workload};

/// A request under way.
pub struct Request {
    pub correlation: i32,
    pub batches: Vec<Batch>,
}

/// What goes to one broker.
#[derive(Default)]
struct Lane {
    /// What must be sent again, oldest first; it goes before anything else.
    again: VecDeque<Batch>,
    /// Nothing goes before this moment, nor while the connection is lost.
    not_before_ns: u64,
    down: bool,
    /// Open batches in the order in which they were begun: partition, the batch's number, when it may go.
    waiting: VecDeque<(usize, u64, u64)>,
    full: VecDeque<Batch>,
    in_flight: VecDeque<Request>,
}

pub struct Producer {
    mode: Mode,
    /// None in a closed loop.
    schedule: Option<Schedule>,
    maker: Maker,
    /// At most so many bytes of a batch are taken by the smallest record.
    least: usize,
    /// Partitions of a topic, for keys.
    partitions: usize,
    id: Option<(i64, i16)>,
    /// The next sequence number of each partition.
    sequences: Vec<i32>,
    batch_bytes: usize,
    max_in_flight: usize,
    max_request_bytes: usize,
    buffer_bytes: usize,
    linger_ns: u64,
    sticky: bool,
    leaders: Vec<usize>,
    open: Vec<Option<(u64, Batch)>>,
    /// The last request that took a batch of each partition.
    taken_by: Vec<i32>,
    lanes: Vec<Lane>,
    next_partition: usize,
    next_number: u64,
    next_batch: u64,
    next_correlation: i32,
    /// Bytes of all batches, and of those not in a request yet.
    held_bytes: usize,
    unsent_bytes: usize,
    /// Records made and not answered.
    outstanding: u64,
    /// The buffer was full, and what was due since then isn't made yet.
    behind_broker: bool,
    /// The end has come: open batches go at once.
    finishing: bool,
    spare_batches: Vec<Batch>,
    spare_lists: Vec<Vec<Batch>>,
    cursor: usize,
}

impl Producer {
    pub fn new(
        workload: &Workload,
        cluster: &Cluster,
        index: usize,
        schedule: Option<Schedule>,
        id: Option<(i64, i16)>,
    ) -> Producer {
        let (load, client) = (&workload.load, &workload.client);
        let partitions = cluster.partitions.len();
        let maker = Maker::new(workload, index);
        let key_bytes = if maker.keyed() { KEY_BYTES } else { 0 };
        Producer {
            mode: load.mode,
            schedule,
            least: record_bound(rest_of(maker.smallest()), key_bytes),
            partitions: workload.topics.partitions as usize,
            id,
            sequences: vec![0; if id.is_some() { partitions } else { 0 }],
            batch_bytes: client.batch_bytes,
            max_in_flight: client.max_in_flight,
            max_request_bytes: client.max_request_bytes,
            buffer_bytes: client.buffer_bytes,
            linger_ns: match load.mode {
                Mode::Open => (client.linger_ms * 1e6) as u64,
                Mode::OneAtATime => 0,
                // Keys spread over more partitions than batches may be filled at once.
                Mode::FlatOut if maker.keyed() => 0,
                // Only full batches go; the end of the run sends the rest.
                Mode::FlatOut => u64::MAX,
            },
            maker,
            sticky: client.partitioner == Partitioner::Sticky || load.mode == Mode::FlatOut,
            leaders: cluster.partitions.iter().map(|p| p.leader).collect(),
            open: (0..partitions).map(|_| None).collect(),
            taken_by: vec![-1; partitions],
            lanes: (0..cluster.brokers.len())
                .map(|_| Lane::default())
                .collect(),
            next_partition: index * partitions / load.producers.max(1) % partitions,
            next_number: (index as u64) << 40,
            next_batch: 0,
            next_correlation: 0,
            held_bytes: 0,
            unsent_bytes: 0,
            outstanding: 0,
            behind_broker: false,
            finishing: false,
            spare_batches: Vec::new(),
            spare_lists: Vec::new(),
            cursor: index * 8191,
        }
    }

    /// Makes the records that are due, before `end_ns`; how many. A turn is bounded: `limits::RECORDS_PER_TURN`.
    pub fn generate(
        &mut self,
        now_ns: u64,
        end_ns: u64,
        wall_ms: u64,
        pool: &[u8],
        recorder: &mut Recorder,
    ) -> u64 {
        let mut made = 0;
        while made < limits::RECORDS_PER_TURN as u64 {
            let due = match self.next_due(now_ns, end_ns) {
                Some(due) => due,
                None => {
                    self.behind_broker &= self.held_bytes >= self.buffer_bytes;
                    break;
                }
            };
            if self.schedule.is_some() {
                recorder.made(due, now_ns, self.behind_broker);
            }
            self.append(due, now_ns, wall_ms, pool);
            made += 1;
        }
        made
    }

    /// The moment of the next record, if it is to be made now.
    fn next_due(&mut self, now_ns: u64, end_ns: u64) -> Option<u64> {
        match (&mut self.schedule, self.mode) {
            (Some(schedule), _) => {
                let due = schedule.peek();
                if due > now_ns || due >= end_ns {
                    return None;
                }
                if self.held_bytes >= self.buffer_bytes {
                    self.behind_broker = true;
                    return None;
                }
                Some(schedule.take())
            }
            (None, _) if now_ns >= end_ns => None,
            (None, Mode::OneAtATime) => (self.outstanding == 0).then_some(now_ns),
            (None, _) => {
                // Ahead of the sockets by one request, and only while one may be sent.
                let ahead = self
                    .max_request_bytes
                    .min(self.batch_bytes * self.leaders.len())
                    .max(self.batch_bytes);
                let room = self
                    .lanes
                    .iter()
                    .any(|l| l.in_flight.len() < self.max_in_flight);
                (room && self.unsent_bytes < ahead + self.batch_bytes).then_some(now_ns)
            }
        }
    }

    fn append(&mut self, due_ns: u64, now_ns: u64, wall_ms: u64, pool: &[u8]) {
        let (key, rest) = (self.maker.key(), rest_of(self.maker.size()));
        let bound = record_bound(rest, key.map_or(0, |k| k.len()));
        let partition = loop {
            let partition = match &key {
                // Topics in turn, within one the partition of the key.
                Some(key) => {
                    let topics = self.open.len() / self.partitions;
                    let topic = self.next_number as usize % topics;
                    topic * self.partitions + partition_of(key, self.partitions)
                }
                None => self.next_partition,
            };
            match &self.open[partition] {
                Some((_, batch)) if batch.len() + bound > self.batch_bytes => self.close(partition),
                _ => break partition,
            }
            if self.sticky {
                self.turn_from(partition);
            }
        };
        if self.open[partition].is_none() {
            let mut batch = self.spare_batches.pop().unwrap_or_default();
            batch.begin(partition);
            self.next_batch += 1;
            batch.number = self.next_batch;
            let may_go = now_ns.saturating_add(self.linger_ns);
            self.lanes[self.leaders[partition]].waiting.push_back((
                partition,
                self.next_batch,
                may_go,
            ));
            self.open[partition] = Some((self.next_batch, batch));
            self.held_bytes += HEADER_BYTES;
            self.unsent_bytes += HEADER_BYTES;
        }
        let (_, batch) = self.open[partition].as_mut().expect("it was opened above");
        self.cursor = (self.cursor + 4099) % limits::PAYLOAD_POOL_BYTES;
        let before = batch.len();
        batch.push(
            due_ns,
            self.next_number,
            wall_ms,
            key.as_ref().map(|k| &k[..]),
            &pool[self.cursor..self.cursor + rest],
        );
        self.held_bytes += batch.len() - before;
        self.unsent_bytes += batch.len() - before;
        self.next_number += 1;
        self.outstanding += 1;
        if batch.len() + self.least > self.batch_bytes {
            self.close(partition);
            self.turn_from(partition);
        } else if !self.sticky {
            self.turn_from(partition);
        }
    }

    /// The open batch of a partition takes no more records.
    fn close(&mut self, partition: usize) {
        let (_, batch) = self.open[partition].take().expect("it is open");
        self.lanes[self.leaders[partition]].full.push_back(batch);
    }

    fn turn_from(&mut self, partition: usize) {
        if partition == self.next_partition {
            self.next_partition = (partition + 1) % self.open.len();
        }
    }

    /// Takes the batches of the next request to a broker, in order of partition, if one may be sent.
    pub fn next_request(&mut self, lane: usize, now_ns: u64) -> Option<&mut Request> {
        if self.lanes[lane].in_flight.len() >= self.max_in_flight {
            return None;
        }
        let correlation = self.next_correlation;
        let mut batches = self.spare_lists.pop().unwrap_or_default();
        let mut size = 0;
        while let Some((partition, length)) = self.first(lane, now_ns) {
            let fits = batches.is_empty() || size + length <= self.max_request_bytes;
            if !fits || self.taken_by[partition] == correlation {
                break;
            }
            self.taken_by[partition] = correlation;
            size += length;
            self.unsent_bytes -= length;
            let mut batch = self.take_first(lane);
            // What is sent again keeps its numbers: the broker knows it by them.
            if let (Some((id, epoch)), None) = (self.id, batch.ids) {
                let sequence = &mut self.sequences[partition];
                batch.ids = Some((id, epoch, *sequence));
                *sequence = sequence.wrapping_add(batch.due_ns.len() as i32) & i32::MAX;
            }
            batches.push(batch);
        }
        if batches.is_empty() {
            self.spare_lists.push(batches);
            return None;
        }
        self.next_correlation = self.next_correlation.wrapping_add(1) & i32::MAX;
        batches.sort_unstable_by_key(|b| b.partition);
        let in_flight = &mut self.lanes[lane].in_flight;
        in_flight.push_back(Request {
            correlation,
            batches,
        });
        in_flight.back_mut()
    }

    /// Partition and length of the batch that goes next.
    fn first(&mut self, lane: usize, now_ns: u64) -> Option<(usize, usize)> {
        let Lane {
            waiting,
            full,
            again,
            not_before_ns,
            down,
            ..
        } = &mut self.lanes[lane];
        if *down || *not_before_ns > now_ns {
            return None;
        }
        if let Some(batch) = again.front() {
            return Some((batch.partition, batch.len()));
        }
        let open = &self.open;
        // What became full went before its time.
        let is_open =
            |partition: usize, number| open[partition].as_ref().is_some_and(|(n, _)| *n == number);
        while waiting
            .front()
            .is_some_and(|(p, number, _)| !is_open(*p, *number))
        {
            waiting.pop_front();
        }
        if let Some(batch) = full.front() {
            return Some((batch.partition, batch.len()));
        }
        let (partition, _, may_go) = *waiting.front()?;
        let (_, batch) = open[partition].as_ref()?;
        (may_go <= now_ns || self.finishing).then(|| (partition, batch.len()))
    }

    fn take_first(&mut self, lane: usize) -> Batch {
        let Lane {
            waiting,
            full,
            again,
            ..
        } = &mut self.lanes[lane];
        if let Some(batch) = again.pop_front().or_else(|| full.pop_front()) {
            return batch;
        }
        let (partition, ..) = waiting.pop_front().expect("`first` found it");
        let (_, batch) = self.open[partition].take().expect("`first` found it open");
        self.turn_from(partition);
        batch
    }

    /// The oldest request of a broker, which its next answer is to.
    pub fn answered(&mut self, lane: usize) -> Option<Request> {
        self.lanes[lane].in_flight.pop_front()
    }

    /// Takes the buffers of an answered request back.
    pub fn recycle(&mut self, mut request: Request) {
        for batch in request.batches.drain(..) {
            self.held_bytes -= batch.len();
            self.outstanding -= batch.due_ns.len() as u64;
            self.spare_batches.push(batch);
        }
        self.spare_lists.push(request.batches);
    }

    /// Sends a batch of an answered request again, after a while.
    pub fn again(&mut self, batch: Batch, now_ns: u64) {
        self.unsent_bytes += batch.len();
        // The leader may have changed since it was sent.
        let lane = &mut self.lanes[self.leaders[batch.partition]];
        lane.not_before_ns = now_ns + limits::RETRY_AFTER_NS;
        let place = lane.again.partition_point(|b| b.number < batch.number);
        lane.again.insert(place, batch);
    }

    /// The connection to a broker is lost: what was under way is sent again when there is another. How many batches that are.
    pub fn lost(&mut self, lane: usize, now_ns: u64) -> u64 {
        self.lanes[lane].down = true;
        let mut count = 0;
        while let Some(mut request) = self.lanes[lane].in_flight.pop_front() {
            for batch in request.batches.drain(..) {
                self.again(batch, now_ns);
                count += 1;
            }
            self.spare_lists.push(request.batches);
        }
        count
    }

    /// There is a connection again.
    pub fn found(&mut self, lane: usize) {
        self.lanes[lane].down = false;
    }

    /// Follows the partitions' leaders: what isn't under way goes to the new ones.
    pub fn follow(&mut self, leaders: &[usize]) {
        if self.leaders == leaders {
            return;
        }
        self.leaders.copy_from_slice(leaders);
        let (mut again, mut full, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for lane in &mut self.lanes {
            again.extend(lane.again.drain(..));
            full.extend(lane.full.drain(..));
            waiting.extend(lane.waiting.drain(..));
        }
        // All batches of a partition lay in one lane, in their order.
        again.sort_by_key(|b: &Batch| b.number);
        waiting.sort_by_key(|w: &(usize, u64, u64)| w.1);
        for batch in again {
            self.lanes[leaders[batch.partition]].again.push_back(batch);
        }
        for batch in full {
            self.lanes[leaders[batch.partition]].full.push_back(batch);
        }
        for entry in waiting {
            self.lanes[leaders[entry.0]].waiting.push_back(entry);
        }
    }

    /// When it must be looked at again if no answer comes.
    pub fn wakes_at(&mut self, now_ns: u64, end_ns: u64) -> u64 {
        let record = match &self.schedule {
            Some(s) if !self.behind_broker && s.peek() < end_ns => s.peek(),
            Some(_) => u64::MAX,
            None => match self.next_due(now_ns, end_ns) {
                Some(_) => now_ns,
                None => u64::MAX,
            },
        };
        (0..self.lanes.len()).fold(record, |at, lane| {
            if self.lanes[lane].in_flight.len() >= self.max_in_flight {
                return at;
            }
            if self.first(lane, u64::MAX).is_none() {
                return at;
            }
            let lane = &self.lanes[lane];
            let ready = match lane.again.is_empty() && lane.full.is_empty() {
                true => lane.waiting.front().map_or(u64::MAX, |w| w.2),
                false => now_ns,
            };
            at.min(ready.max(lane.not_before_ns))
        })
    }

    /// The end has come: open batches needn't wait for more. What was due before and isn't made yet still is.
    pub fn finish(&mut self) {
        self.finishing = true;
    }

    /// All that was due before `end_ns` is made and answered.
    pub fn is_done(&self, end_ns: u64) -> bool {
        self.outstanding == 0 && self.schedule.as_ref().is_none_or(|s| s.peek() >= end_ns)
    }

    /// Gives up: calls `record` with the moment of everything that was due and has no answer.
    pub fn abandon(&mut self, end_ns: u64, mut record: impl FnMut(u64)) {
        for (_, batch) in self.open.iter_mut().filter_map(Option::take) {
            batch.due_ns.iter().for_each(|due| record(*due));
        }
        for lane in &mut self.lanes {
            for batch in lane
                .again
                .drain(..)
                .chain(lane.full.drain(..))
                .chain(lane.in_flight.drain(..).flat_map(|r| r.batches))
            {
                batch.due_ns.iter().for_each(|due| record(*due));
            }
        }
        if let Some(schedule) = &mut self.schedule {
            while schedule.peek() < end_ns {
                record(schedule.take());
            }
        }
    }
}

#[cfg(test)]
mod tests;
