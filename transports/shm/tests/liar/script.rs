//! Where a liar's decisions come from.

/// Arbitrary bytes, read as decisions.
pub struct Script<'a> {
    bytes: &'a [u8],
}

impl<'a> Script<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte; zero once there is none.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next bytes, as many as there are.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = later;
        now
    }

    /// True once in `of` times.
    pub fn rarely(&mut self, of: u8) -> bool {
        self.byte() % of == 1
    }

    /// A number near one that may matter, or any.
    pub fn number(&mut self, known: &[u64]) -> u64 {
        const EDGES: [u64; 8] =
            [0, 1, u64::MAX, 1 << 63, u32::MAX as u64, 1 << 31, 1 << 40, u16::MAX as u64];
        let how = self.byte();
        let base = match how {
            0..=159 if !known.is_empty() => known[how as usize % known.len()],
            0..=207 => EDGES[how as usize % EDGES.len()],
            _ => {
                let mut raw = [0; 8];
                let given = self.take(8);
                raw[..given.len()].copy_from_slice(given);
                return u64::from_le_bytes(raw);
            }
        };
        // Now and then a little beside it.
        match self.byte() {
            near @ 0..=31 => base.wrapping_add(u64::from(near)).wrapping_sub(16),
            _ => base,
        }
    }
}

/// Numbers from a seed (xorshift64*, Vigna 2016).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A script of some length.
    pub fn script(&mut self) -> Vec<u8> {
        let len = 8 + self.next() % 400;
        (0..len).map(|_| (self.next() >> 56) as u8).collect()
    }
}
