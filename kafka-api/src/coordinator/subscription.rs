//! The topics that a consumer's join metadata names (Kafka's ConsumerProtocol): version i16, then topics as an array of strings, then
//! what nobody here needs. It is the client's: any bytes are answered.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Name, own};
use crate::wire::Reader;

/// Adds the topics to `into`; `false` when the bytes are no subscription.
pub fn topics(metadata: &Bytes, into: &mut BTreeSet<Name>) -> bool {
    let mut r = Reader::new(metadata.clone());
    let mut read = || {
        r.i16().ok().filter(|version| *version >= 0)?;
        for _ in 0..r.array(false, 2).ok()? {
            let topic = r.string(false).ok()?;
            if !into.contains(&topic) {
                into.insert(own(&topic));
            }
        }
        Some(())
    };
    read().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn topics_are_read_and_what_follows_is_not() {
        let bytes = Bytes::from_static(b"\0\x03\0\0\0\x02\0\x01a\0\x02bc\xff\xff");
        let mut found = BTreeSet::new();
        assert!(topics(&bytes, &mut found));
        assert_eq!(found.iter().map(|n| &**n).collect::<Vec<_>>(), ["a", "bc"]);
        assert!(!topics(&bytes.slice(..9), &mut found));
        assert!(!topics(&Bytes::new(), &mut found));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut found = BTreeSet::new();
            let _ = topics(&bytes.into(), &mut found);
        }
    }
}
