//! The interval log (.hlog): a histogram a second, in the format that HdrHistogram's own tools read. Values are nanoseconds; the tag
//! "end-to-end" marks what consumers saw. It is written as the run goes: a run of days holds no more in memory than one of seconds.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

use crate::measure::Interval;

/// A log that is being written.
pub struct IntervalLog<'a, W: Write> {
    log: IntervalLogWriter<'a, 'a, W, V2DeflateSerializer>,
}

impl<'a, W: Write> IntervalLog<'a, W> {
    /// Begins the log of a load that began `start_ns` after `wall_ms` of Unix time.
    pub fn begin(
        out: &'a mut W,
        serializer: &'a mut V2DeflateSerializer,
        wall_ms: u64,
        start_ns: u64,
    ) -> io::Result<Self> {
        let begun = UNIX_EPOCH + Duration::from_millis(wall_ms) + Duration::from_nanos(start_ns);
        let log = IntervalLogWriterBuilder::new()
            .add_comment("tailrace bench; values are nanoseconds from the scheduled moment")
            .with_start_time(begun)
            .with_base_time(begun)
            .begin_log_with(out, serializer)?;
        Ok(IntervalLog { log })
    }

    pub fn append(&mut self, interval: &Interval) -> io::Result<()> {
        let tag = Tag::new("end-to-end").expect("it has no comma, space or line break");
        let at = Duration::from_nanos(interval.index * crate::limits::INTERVAL_NS);
        let length = Duration::from_nanos(interval.length_ns);
        let failed = |e| io::Error::other(format!("{e:?}"));
        self.log
            .write_histogram(&interval.produce, at, length, None)
            .map_err(failed)?;
        if !interval.end_to_end.is_empty() {
            self.log
                .write_histogram(&interval.end_to_end, at, length, Some(tag))
                .map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn what_is_written_is_read_again() {
        let mut interval = Interval::new(3);
        interval.produce.record(1_500_000).unwrap();
        interval.end_to_end.record(2_500_000).unwrap();
        let (mut out, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
        let mut log = IntervalLog::begin(&mut out, &mut serializer, 1_700_000_000_000, 0).unwrap();
        log.append(&interval).unwrap();
        let found: Vec<bool> = IntervalLogIterator::new(&out)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(i) => {
                    assert_eq!(i.start_timestamp(), Duration::from_secs(3));
                    Some(i.tag().is_some())
                }
                _ => None,
            })
            .collect();
        assert_eq!(found, [false, true]);
    }
}
