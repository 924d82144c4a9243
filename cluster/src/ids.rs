//! Identities as clients and the disk see them: Kafka's text form of a uuid, and serde for the engine's newtypes (which know no serde).

use uuid::Uuid;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A uuid as Kafka writes it: base64 of its 16 bytes, url-safe, unpadded, so always 22 characters.
pub fn kafka_uuid(id: Uuid) -> String {
    let mut text = String::with_capacity(22);
    let bits = id.as_u128();
    // 128 bits are 21 groups of 6 and one of 2, which is padded with zero bits on the right.
    for group in 0..21 {
        text.push(char::from(
            ALPHABET[(bits >> (122 - 6 * group)) as usize & 63],
        ));
    }
    text.push(char::from(ALPHABET[((bits << 4) as usize) & 63]));
    text
}

/// Reads what [`kafka_uuid`] wrote.
pub fn parse_kafka_uuid(text: &str) -> Option<Uuid> {
    if text.len() != 22 {
        return None;
    }
    let mut bits = 0u128;
    for (i, c) in text.bytes().enumerate() {
        let six = ALPHABET.iter().position(|&a| a == c)? as u128;
        if i < 21 {
            bits = (bits << 6) | six;
        } else if six & 15 == 0 {
            bits = (bits << 2) | (six >> 4);
        } else {
            return None;
        }
    }
    Some(Uuid::from_u128(bits))
}

/// A random (version 4) uuid from two random numbers. Kafka's ids never begin with '-', so that tools can take them as arguments; neither do
/// ours, and the reserved ids (all zero, 0..01) can't come out because of the version bits.
pub fn random_uuid(mut random: impl FnMut() -> u64) -> Uuid {
    loop {
        let bits = (u128::from(random()) << 64) | u128::from(random());
        let id = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        // '-' is 62: the first six bits are 111110.
        if id.as_u128() >> 122 != 62 {
            return id;
        }
    }
}

macro_rules! serde_as {
    ($module:ident, $newtype:ty, $inner:ty, $into:expr, $from:expr) => {
        pub(crate) mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            pub fn serialize<S: Serializer>(v: &$newtype, s: S) -> Result<S::Ok, S::Error> {
                let into: fn(&$newtype) -> $inner = $into;
                into(v).serialize(s)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$newtype, D::Error> {
                let from: fn($inner) -> $newtype = $from;
                <$inner>::deserialize(d).map(from)
            }
        }
    };
}

serde_as!(
    node,
    engine::types::NodeId,
    i32,
    |v| v.0,
    engine::types::NodeId
);
serde_as!(
    replica,
    engine::types::ReplicaId,
    u64,
    |v| v.0,
    engine::types::ReplicaId
);
serde_as!(
    index,
    engine::types::RaftIndex,
    u64,
    |v| v.0,
    engine::types::RaftIndex
);
serde_as!(
    uuid_bytes,
    uuid::Uuid,
    [u8; 16],
    |v| v.into_bytes(),
    uuid::Uuid::from_bytes
);
serde_as!(
    topic,
    engine::types::TopicId,
    [u8; 16],
    |v| v.0.into_bytes(),
    |v| engine::types::TopicId(uuid::Uuid::from_bytes(v))
);

pub(crate) mod nodes {
    use engine::types::NodeId;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(v: &[NodeId], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(v.iter().map(|n| n.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<NodeId>, D::Error> {
        Ok(Vec::<i32>::deserialize(d)?
            .into_iter()
            .map(NodeId)
            .collect())
    }
}

pub(crate) mod topics {
    use engine::types::TopicId;
    use serde::{Deserialize, Deserializer, Serializer};
    use uuid::Uuid;

    pub fn serialize<S: Serializer>(v: &[TopicId], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(v.iter().map(|t| t.0.into_bytes()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<TopicId>, D::Error> {
        let ids = Vec::<[u8; 16]>::deserialize(d)?;
        Ok(ids
            .into_iter()
            .map(|b| TopicId(Uuid::from_bytes(b)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kafka_writes_the_metadata_topic_id_like_this() {
        assert_eq!(kafka_uuid(Uuid::from_u128(1)), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(kafka_uuid(Uuid::from_u128(0)), "AAAAAAAAAAAAAAAAAAAAAA");
    }

    proptest! {
        #[test]
        fn text_form_reads_back(bits: u128) {
            let id = Uuid::from_u128(bits);
            prop_assert_eq!(parse_kafka_uuid(&kafka_uuid(id)), Some(id));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,30}") {
            if let Some(id) = parse_kafka_uuid(&text) {
                prop_assert_eq!(kafka_uuid(id), text);
            }
        }

        #[test]
        fn random_ids_are_never_reserved(a: u64, b: u64, c: u64, d: u64) {
            let mut draws = [a, b, c, d, 0, 0].into_iter();
            let id = random_uuid(|| draws.next().unwrap_or(0));
            prop_assert!(id.as_u128() > 1);
            prop_assert!(!kafka_uuid(id).starts_with('-'));
        }
    }
}
