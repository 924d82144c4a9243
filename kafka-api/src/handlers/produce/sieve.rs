//! A Produce request that is larger than a shard takes, sifted as it arrives: all but its records is kept, so that it can be answered. The records are gone as soon as they come.
//!
//! What is kept is a request of its own, the same one with null for records: what reads the one reads the other. Its bytes are bounded by [`limits::SIFTED_BYTES`], and so is what waits for the
//! rest of a field. Called by the connection, which reads the frame (`connection::large`); pure.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Malformed;
use crate::frame::{self, Frame};
use crate::limits;
use crate::versions::ApiKey;
use crate::wire::{Reader, Writer};

/// Why a frame can't be sifted.
#[derive(Debug, PartialEq, Eq)]
pub enum Unsifted {
    Malformed(Malformed),
    /// It is no Produce request, or has too much besides records.
    Other,
}

impl From<Malformed> for Unsifted {
    fn from(error: Malformed) -> Unsifted {
        Unsifted::Malformed(error)
    }
}

/// See the module.
#[derive(Default)]
pub struct Sieve {
    kept: BytesMut,
    /// The beginning of what comes next.
    begun: Bytes,
    /// Bytes of records that are still to come.
    records: usize,
    next: Next,
    version: i16,
    flexible: bool,
    /// Topics of the request, and partitions of the topic, that are still to come.
    topics: usize,
    parts: usize,
    /// Elements of arrays so far.
    elements: usize,
}

#[derive(Clone, Copy, Default)]
enum Next {
    #[default]
    Head,
    /// A topic, or the end of the request.
    Topic,
    /// A partition, or the end of the topic.
    Part,
    /// What follows a partition's records.
    PartTags,
    Nothing,
}

impl Sieve {
    /// Takes the next bytes of the frame.
    pub fn take(&mut self, bytes: Bytes) -> Result<(), Unsifted> {
        let bytes = match self.begun.is_empty() {
            true => bytes,
            false => {
                let mut both = BytesMut::from(&std::mem::take(&mut self.begun)[..]);
                both.put_slice(&bytes);
                both.freeze()
            }
        };
        let mut r = Reader::new(bytes);
        loop {
            let gone = self.records.min(r.left());
            r.skip(gone)?;
            self.records -= gone;
            // Some steps take no bytes in the older versions: the ends of topics and of the request.
            if self.records > 0 || r.left() == 0 && matches!(self.next, Next::Nothing) {
                return Ok(());
            }
            let before = r.clone();
            match self.step(&mut r) {
                Ok(()) => {}
                Err(Unsifted::Malformed(Malformed::Short(_))) => {
                    self.begun = Bytes::copy_from_slice(&before.rest());
                    return self.bounded(self.begun.len());
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The request without its records, once all bytes of the frame are taken.
    pub fn finish(self) -> Result<Bytes, Malformed> {
        match self.next {
            Next::Nothing if self.begun.is_empty() => Ok(self.kept.freeze()),
            _ => Err(Malformed::Short(self.records.max(1))),
        }
    }

    fn bounded(&self, begun: usize) -> Result<(), Unsifted> {
        match self.kept.len() + begun <= limits::SIFTED_BYTES {
            true => Ok(()),
            false => Err(Unsifted::Other),
        }
    }

    /// Reads what comes next, whole; a step that fails has changed nothing.
    fn step(&mut self, r: &mut Reader) -> Result<(), Unsifted> {
        let whole = r.rest();
        match self.next {
            Next::Head => self.head(r, &whole)?,
            Next::Topic if self.topics == 0 => {
                r.skip_tags(self.flexible)?;
                self.next = Next::Nothing;
            }
            Next::Topic => {
                match self.version >= 13 {
                    true => drop(r.uuid()?),
                    false => drop(r.string(self.flexible)?),
                }
                self.parts = self.count(r)?;
                self.topics -= 1;
                self.next = Next::Part;
            }
            Next::Part if self.parts == 0 => {
                r.skip_tags(self.flexible)?;
                self.next = Next::Topic;
            }
            Next::Part => {
                let index = r.i32()?;
                self.records = r.length(self.flexible, true)?.unwrap_or(0);
                self.parts -= 1;
                self.next = Next::PartTags;
                self.kept.put_i32(index);
                match self.flexible {
                    true => self.kept.put_uvarint(0),
                    false => self.kept.put_i32(-1),
                }
                return self.bounded(0);
            }
            Next::PartTags => {
                r.skip_tags(self.flexible)?;
                self.next = Next::Part;
            }
            // Kafka's own readers leave what follows a request, and so do ours.
            Next::Nothing => {
                let rest = r.left();
                return Ok(r.skip(rest)?);
            }
        }
        self.kept.put_slice(&whole[..whole.len() - r.left()]);
        self.bounded(0)
    }

    fn head(&mut self, r: &mut Reader, whole: &Bytes) -> Result<(), Unsifted> {
        if r.clone().i16()? != ApiKey::Produce as i16 {
            return Err(Unsifted::Other);
        }
        let Frame::Request(request) = frame::parse(whole.clone())? else {
            return Err(Unsifted::Other);
        };
        (self.version, self.flexible) = (request.version, request.flexible());
        r.skip(whole.len() - request.body.left())?;
        r.skip_string(self.flexible)?;
        r.skip(2 + 4)?;
        self.topics = self.count(r)?;
        self.next = Next::Topic;
        Ok(())
    }

    /// The length of an array whose elements may be still to come.
    fn count(&mut self, r: &mut Reader) -> Result<usize, Unsifted> {
        let count = r.length(self.flexible, true)?.ok_or(Malformed::Null)?;
        if count > limits::ARRAY_ELEMENTS - self.elements {
            return Err(Malformed::Elements.into());
        }
        self.elements += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::handlers::produce::wire::ProduceRequest;
    use crate::testing;

    fn sift(frame: &Bytes, pieces: &[usize]) -> Result<Bytes, Unsifted> {
        let mut sieve = Sieve::default();
        let (mut at, mut pieces) = (0, pieces.iter().cycle());
        while at < frame.len() {
            let n = (*pieces.next().expect("a cycle")).clamp(1, frame.len() - at);
            sieve.take(frame.slice(at..at + n))?;
            at += n;
        }
        Ok(sieve.finish()?)
    }

    fn read(frame: Bytes) -> ProduceRequest {
        let Ok(Frame::Request(request)) = frame::parse(frame) else {
            panic!("a request");
        };
        ProduceRequest::read(&request).unwrap()
    }

    #[test]
    fn all_but_the_records_is_kept_however_it_comes() {
        for version in 3..=13 {
            let frame = testing::frame(ApiKey::Produce, version);
            let whole = read(frame.clone());
            assert!(whole.parts.iter().any(|p| p.records.is_some()));
            for piece in 1..frame.len() {
                let kept = sift(&frame, &[piece]).unwrap();
                let kept = read(kept);
                assert_eq!((kept.acks, kept.timeout_ms), (whole.acks, whole.timeout_ms));
                let topics = |r: &ProduceRequest| -> Vec<_> {
                    let topics = r.topics.iter();
                    topics.map(|t| (t.name.clone(), t.id, t.parts)).collect()
                };
                assert_eq!(topics(&kept), topics(&whole));
                let parts =
                    |r: &ProduceRequest| r.parts.iter().map(|p| p.index).collect::<Vec<_>>();
                assert_eq!(parts(&kept), parts(&whole));
                assert!(kept.parts.iter().all(|p| p.records.is_none()));
            }
        }
    }

    #[test]
    fn a_frame_that_ends_early_is_malformed_and_other_requests_are_not_sifted() {
        let frame = testing::frame(ApiKey::Produce, 9);
        for cut in 1..frame.len() {
            let cut = sift(&frame.slice(..cut), &[7]);
            assert!(matches!(cut, Err(Unsifted::Malformed(Malformed::Short(_)))));
        }
        let fetch = testing::frame(ApiKey::Fetch, 12);
        assert_eq!(sift(&fetch, &[5]), Err(Unsifted::Other));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let frame = testing::frame(ApiKey::Produce, 9);
        let mut sieve = Sieve::default();
        // The head, with a transactional id that is none but very long.
        let mut head = BytesMut::from(&frame[..8]);
        head.put_str("me", false);
        head.put_no_tags(true);
        head.put_uvarint(1 << 30);
        sieve.take(head.freeze()).unwrap();
        let piece = Bytes::from(vec![0; limits::SIFTED_BYTES / 3]);
        let taken = (0..4).map(|_| sieve.take(piece.clone()));
        assert_eq!(taken.filter_map(Result::err).next(), Some(Unsifted::Other));
    }

    proptest! {
        #[test]
        fn any_change_and_any_pieces_are_taken(version in 3i16..=13, at in any::<prop::sample::Index>(), with: u8, pieces in proptest::collection::vec(1usize..90, 1..9)) {
            let mut frame = BytesMut::from(&testing::frame(ApiKey::Produce, version)[..]);
            let at = at.index(frame.len());
            frame[at] = with;
            let frame = frame.freeze();
            prop_assert_eq!(sift(&frame, &pieces), sift(&frame, &[frame.len()]));
        }
    }
}
