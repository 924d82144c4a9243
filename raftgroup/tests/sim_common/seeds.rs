//! Seeds of a simulated test, draws that depend on one alone, and how a failure is seen again. Shared by the simulations of all crates.

/// Numbers drawn outside of a world's own generator.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// Says how to see a failure again.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} fails; again with SIM_SEED={0}", self.0);
        }
    }
}

/// The seeds to run: `SIM_SEED` alone, or the first `SIM_SEEDS` (40); and whether it is one alone.
pub fn seeds() -> (Vec<u64>, bool) {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match number("SIM_SEED") {
        Some(one) => (vec![one], true),
        None => ((1..=number("SIM_SEEDS").unwrap_or(40)).collect(), false),
    }
}
