//! Where a lying peer's decisions come from: arbitrary bytes, of a fuzzer, a file or a seed.
//!
//! A test of seeds calls [`play_seeds`]. `BLOCKWIRE_FUZZ_SECONDS` says for how long new seeds are tried,
//! `BLOCKWIRE_FUZZ_SEED` names one to be played alone.

use std::time::Duration;

use blockwire::clock;

/// Long enough for some hundred scripts.
const SECONDS: u64 = 5;

/// Numbers at which arithmetic may go wrong.
const EDGES: [u64; 8] =
    [0, 1, u64::MAX, 1 << 63, u32::MAX as u64, 1 << 31, 1 << 40, u16::MAX as u64];

/// Arbitrary bytes, read as decisions.
#[derive(Debug)]
pub struct Script<'a> {
    bytes: &'a [u8],
}

impl<'a> Script<'a> {
    /// Decisions that are not taken yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether no byte is left.
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
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// An index into something of that length.
    pub(crate) fn below(&mut self, len: usize) -> usize {
        (self.next() >> 16) as usize % len
    }

    /// A number at which arithmetic may go wrong, or one beside it.
    pub(crate) fn edge(&mut self) -> u64 {
        let base = EDGES[self.below(EDGES.len())];
        match self.next() >> 60 {
            near @ 0..=3 => base.wrapping_add(near).wrapping_sub(2),
            _ => base,
        }
    }

    /// A script of some length.
    fn script(&mut self) -> Vec<u8> {
        let len = 8 + self.next() % 400;
        (0..len).map(|_| (self.next() >> 56) as u8).collect()
    }
}

/// Plays the scripts of one seed after the other.
///
/// # Panics
/// When `play` does, with the seed's number; and when a variable is no number.
pub fn play_seeds(play: impl Fn(&[u8])) {
    play_seeds_for(SECONDS, |seed| play(&Random::new(seed).script()));
}

/// Plays one seed after the other, for so many seconds where no variable says another number.
pub(crate) fn play_seeds_for(seconds: u64, play: impl Fn(u64)) {
    if let Some(seed) = number_of("BLOCKWIRE_FUZZ_SEED") {
        return play_seed(seed, &play);
    }
    let asked = number_of("BLOCKWIRE_FUZZ_SECONDS");
    // Short runs play the same scripts each time, long ones others.
    let first = if asked.is_some() { u64::from(std::process::id()) << 32 } else { 0 };
    let end = clock::now() + Duration::from_secs(asked.unwrap_or(seconds));
    let mut seeds = 0;
    while clock::now() < end {
        play_seed(first + seeds, &play);
        seeds += 1;
    }
    eprintln!("{seeds} scripts from seed {first}");
}

fn play_seed(seed: u64, play: impl Fn(u64)) {
    let playing = Playing(seed);
    play(seed);
    drop(playing);
}

/// What a variable of the environment says, if it is there.
fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Names the seed whose script fails.
struct Playing(u64);

impl Drop for Playing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay this with BLOCKWIRE_FUZZ_SEED={}", self.0);
        }
    }
}
