//! Draws that come from an input, so that what libFuzzer changes in it changes what is drawn: a number takes the bytes that it needs. When the
//! input is used up they go on from a seed made of it, the same every time.

pub struct Random<'a> {
    input: &'a [u8],
    state: u64,
}

impl<'a> Random<'a> {
    pub fn new(input: &'a [u8]) -> Random<'a> {
        let seed = u64::from(crc32c::crc32c(input)) | (input.len() as u64) << 32;
        Random {
            input,
            state: scattered(seed),
        }
    }

    /// Draws of a seed alone.
    pub fn seeded(seed: u64) -> Random<'static> {
        Random {
            input: &[],
            state: scattered(seed),
        }
    }

    fn byte(&mut self) -> u8 {
        if let Some((first, rest)) = self.input.split_first() {
            self.input = rest;
            return *first;
        }
        // xorshift64*.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 56) as u8
    }

    fn bytes(&mut self, count: usize) -> u64 {
        (0..count).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }

    pub fn any(&mut self) -> u64 {
        self.bytes(8)
    }

    pub fn below(&mut self, n: usize) -> usize {
        let width = match n {
            0..=1 => return 0,
            2..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        };
        (self.bytes(width) as usize) % n
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<'b, T>(&mut self, all: &'b [T]) -> &'b T {
        &all[self.below(all.len())]
    }

    /// A number at which arithmetic goes wrong, or one near `near`, or any.
    pub fn edge(&mut self, near: u64) -> u64 {
        const EDGES: [u64; 14] = [
            0,
            1,
            0x7f,
            0xffff,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            1 << 32,
            1 << 40,
            1 << 62,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.below(4) {
            0 | 1 => *self.of(&EDGES),
            2 => near.wrapping_add(self.below(9) as u64).wrapping_sub(4),
            _ => self.any() >> self.below(64),
        }
    }
}

/// Seeds that follow one another must not draw alike.
fn scattered(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) | 1
}
