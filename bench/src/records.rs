//! What each record is: how long its value, which key. A pure function of the workload and a seed, so that two brokers get the same.
//!
//! Keys are 16 hexadecimal digits. Which key is popular doesn't depend on its order: the rank is scrambled into the digits.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::limits;
use crate::workload::{Keys, MIN_RECORD_BYTES, Sizes, Workload};

pub const KEY_BYTES: usize = 16;
pub type Key = [u8; KEY_BYTES];

/// Draws the records of one producer.
#[derive(Clone, Debug)]
pub struct Maker {
    random: SmallRng,
    sizes: Sizes,
    /// Median or fixed length, lowest, highest.
    bytes: usize,
    smallest: usize,
    largest: usize,
    sigma: f64,
    keys: Keys,
    key_count: u64,
    zipf: Option<Zipf>,
}

impl Maker {
    pub fn new(workload: &Workload, producer: usize) -> Maker {
        let records = &workload.records;
        let (smallest, largest) = workload.record_bounds();
        Maker {
            random: SmallRng::seed_from_u64(
                workload.load.seed ^ 0x6b65_7973 ^ (producer as u64) << 32,
            ),
            sizes: records.sizes,
            bytes: workload.load.record_bytes,
            smallest,
            largest,
            sigma: records.sigma,
            keys: records.keys,
            key_count: records.key_count,
            zipf: (records.keys == Keys::Zipf)
                .then(|| Zipf::new(records.key_count, records.zipf_exponent)),
        }
    }

    pub fn keyed(&self) -> bool {
        self.keys != Keys::None
    }

    /// Bytes of the shortest value that it may draw.
    pub fn smallest(&self) -> usize {
        self.smallest
    }

    /// Bytes of the next value.
    pub fn size(&mut self) -> usize {
        match self.sizes {
            Sizes::Fixed => self.bytes,
            Sizes::Uniform => self.random.random_range(self.smallest..=self.largest),
            Sizes::Lognormal => {
                let drawn = self.bytes as f64 * (self.sigma * normal(&mut self.random)).exp();
                (drawn as usize).clamp(self.smallest, self.largest)
            }
        }
    }

    /// The next key; none where records have none.
    pub fn key(&mut self) -> Option<Key> {
        let rank = match (self.keys, &self.zipf) {
            (Keys::None, _) => return None,
            (Keys::Zipf, Some(zipf)) => zipf.draw(&mut self.random) - 1,
            _ => self.random.random_range(0..self.key_count),
        };
        Some(key_of(rank))
    }
}

/// The key of a rank: different ranks have different keys.
fn key_of(rank: u64) -> Key {
    // An odd factor and a shift are one to one.
    let mut mixed = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 32;
    let digits = b"0123456789abcdef";
    std::array::from_fn(|i| digits[(mixed >> (60 - 4 * i) & 15) as usize])
}

/// A draw of the standard normal distribution (Box and Muller's way, one of the two).
fn normal(random: &mut SmallRng) -> f64 {
    let (one, two): (f64, f64) = (random.random(), random.random());
    (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * two).cos()
}

/// Ranks 1..=n, each with a probability in proportion to 1 / rank^exponent, drawn in constant time by rejection inversion
/// (Hörmann and Derflinger, 1996): a draw of the continuous density under which the steps lie is kept if it falls under its step.
#[derive(Clone, Debug)]
struct Zipf {
    n: f64,
    exponent: f64,
    /// The integral at the ends of the range.
    low: f64,
    high: f64,
    /// A draw this near above its rank is always kept.
    squeeze: f64,
}

impl Zipf {
    fn new(n: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf {
            n: n as f64,
            exponent,
            low: 0.0,
            high: 0.0,
            squeeze: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(n as f64 + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// The integral of the density from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let left = 1.0 - self.exponent;
        match left.abs() < 1e-9 {
            true => x.ln(),
            false => (x.powf(left) - 1.0) / left,
        }
    }

    fn inverse(&self, y: f64) -> f64 {
        let left = 1.0 - self.exponent;
        match left.abs() < 1e-9 {
            true => y.exp(),
            false => (1.0 + y * left).max(0.0).powf(1.0 / left),
        }
    }

    fn draw(&self, random: &mut SmallRng) -> u64 {
        loop {
            let uniform: f64 = random.random();
            let y = self.high + uniform * (self.low - self.high);
            let x = self.inverse(y);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.squeeze || y >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }
}

/// Where Kafka's clients put a key: 32 bits of MurmurHash2 with this seed, the sign taken off.
pub fn partition_of(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions
}

fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    for (at, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

/// Bytes that values are cut from, anywhere: of every 64, the share `compressible` is zeros, the rest doesn't compress.
pub fn payload_pool(longest: usize, compressible: f64) -> Arc<[u8]> {
    let mut pool = vec![0; limits::PAYLOAD_POOL_BYTES + longest];
    SmallRng::seed_from_u64(0x7461_696c_7261_6365).fill_bytes(&mut pool);
    let zeros = (64.0 * compressible) as usize;
    if zeros > 0 {
        for piece in pool.chunks_mut(64) {
            let zeros = zeros.min(piece.len());
            piece[..zeros].fill(0);
        }
    }
    pool.into()
}

/// What of a value isn't its moment and its number.
pub fn rest_of(size: usize) -> usize {
    size.saturating_sub(MIN_RECORD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use proptest::prelude::*;

    fn maker(text: &str) -> Maker {
        Maker::new(&Workload::parse(text).unwrap(), 0)
    }

    /// As Kafka's own Utils.murmur2 has them (its UtilsTest).
    #[test]
    fn keys_go_where_kafka_puts_them() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn zipf_ranks_have_the_shares_of_their_name() {
        for exponent in [0.5, 0.99, 1.0, 1.5] {
            let (n, draws) = (1_000u64, 200_000);
            let zipf = Zipf::new(n, exponent);
            let mut random = SmallRng::seed_from_u64(5);
            let mut counts = vec![0f64; n as usize + 1];
            (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1.0);
            let all: f64 = (1..=n).map(|k| (k as f64).powf(-exponent)).sum();
            for rank in [1usize, 2, 3, 10, 100] {
                let expected = f64::from(draws) * (rank as f64).powf(-exponent) / all;
                let spread = 5.0 * expected.sqrt() + 1.0;
                assert!(
                    (counts[rank] - expected).abs() < spread,
                    "{exponent}: rank {rank}: {} of {expected}",
                    counts[rank]
                );
            }
            let tail: f64 = counts[500..].iter().sum();
            let expected =
                (500..=n).map(|k| (k as f64).powf(-exponent)).sum::<f64>() / all * f64::from(draws);
            assert!(
                (tail - expected).abs() < 5.0 * expected.sqrt() + 1.0,
                "{exponent}: {tail} of {expected}"
            );
        }
    }

    #[test]
    fn sizes_are_drawn_as_asked() {
        let mut fixed = maker("[load]\nrecord-bytes = 300");
        assert!((0..10).all(|_| fixed.size() == 300) && fixed.key().is_none());
        let mut uniform =
            maker("[records]\nsizes = \"uniform\"\nsmallest-bytes = 100\nlargest-bytes = 199");
        let mut sizes: Vec<usize> = (0..10_000).map(|_| uniform.size()).collect();
        sizes.sort_unstable();
        assert_eq!((sizes[0], sizes[9_999]), (100, 199));
        assert!((145..155).contains(&sizes[5_000]));
        let mut lognormal = maker(
            "[load]\nrecord-bytes = 1000\n[records]\nsizes = \"lognormal\"\nsigma = 1.0\nlargest-bytes = 50000",
        );
        let mut sizes: Vec<usize> = (0..20_000).map(|_| lognormal.size()).collect();
        sizes.sort_unstable();
        let near = |found: usize, expected: f64| (found as f64 / expected - 1.0).abs() < 0.06;
        assert!(
            near(sizes[10_000], 1_000.0),
            "the median is record-bytes: {}",
            sizes[10_000]
        );
        assert!(
            near(sizes[16_827], std::f64::consts::E * 1_000.0),
            "one sigma above: {}",
            sizes[16_827]
        );
        assert!(sizes[19_999] <= 50_000);
    }

    #[test]
    fn the_pool_compresses_as_much_as_was_asked() {
        for share in [0.0, 0.5, 0.9] {
            let (pool, mut small) = (payload_pool(0, share), Vec::new());
            Codec::Zstd.compress(&pool[..1 << 20], &mut small);
            let left = small.len() as f64 / f64::from(1 << 20);
            assert!(
                (left - (1.0 - share)).abs() < 0.08,
                "{share}: {left} is left"
            );
        }
    }

    proptest! {
        #[test]
        fn keys_are_of_their_number(count in 1u64..500, seed in 0u64..1 << 62, zipf: bool) {
            let kind = if zipf { "zipf" } else { "uniform" };
            let mut maker = maker(&format!("[load]\nseed = {seed}\n[records]\nkeys = \"{kind}\"\nkey-count = {count}"));
            let all: std::collections::BTreeSet<Key> = (0..count).map(key_of).collect();
            prop_assert_eq!(all.len() as u64, count, "ranks have keys of their own");
            for _ in 0..50 {
                prop_assert!(all.contains(&maker.key().unwrap()));
            }
        }
    }
}
