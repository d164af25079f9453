//! The digest of a payload: XXH3, 64 bits, fed as the bytes pass by.
//!
//! The algorithm is that of the reference implementation (xxHash 0.8, `XXH3_64bits`, default secret,
//! no seed), here so that a copy and its digest are one pass over memory (`stripes`). Inputs of up to
//! 240 bytes have another form, which the `xxhash-rust` crate computes.
//!
//! Invariants:
//! - D1: the last bytes of the input are held back: all of it up to 256 bytes, else at least a stripe.
//!   So the end, which XXH3 treats apart, never has to be read again.
//! - D2: every byte before the held ones was added to the sums, in whole stripes.

use std::fmt;

use super::stripes::{self, Pass, SECRET, STRIPE, Store, Sums};

/// Bytes that are held back at most: more than the 240 that have a form of their own.
const HELD_MAX: usize = 4 * STRIPE;
/// Longest input of the short forms (`XXH3_MIDSIZE_MAX`).
const SHORT_MAX: u64 = 240;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;

/// Payload digest: XXH3, 64 bits, over the bytes in wire order.
#[derive(Clone)]
pub struct Digest {
    sums: Sums,
    held: [u8; HELD_MAX],
    held_len: usize,
    total: u64,
}

/// Bytes on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// First byte. Readable for `len` bytes, which may change meanwhile.
    pub(super) from: *const u8,
    /// Where it goes: exclusive to the caller and writable for `len` bytes, unless nothing is stored.
    pub(super) to: *mut u8,
    pub(super) len: usize,
    pub(super) store: Store,
    /// What is read afterwards. Never dereferenced.
    pub(super) next: *const u8,
}

impl Flow {
    /// The first stripes of the flow as a pass.
    pub(super) fn pass(&self, stripes: usize) -> Pass {
        Pass { from: self.from, to: self.to, stripes, next: self.next }
    }

    /// How the stripes are stored: past the caches only to whole cache lines.
    pub(super) fn store(&self) -> Store {
        match self.store {
            Store::Streaming if !self.to.addr().is_multiple_of(STRIPE) => Store::Cached,
            store => store,
        }
    }

    /// Leaves the first `len` bytes behind.
    ///
    /// # Safety
    /// There are so many.
    pub(super) unsafe fn advance(&mut self, len: usize) {
        // SAFETY: inside the source (caller).
        self.from = unsafe { self.from.add(len) };
        self.to = self.to.wrapping_add(len);
        self.len -= len;
    }
}

impl Digest {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        let to = std::ptr::null_mut();
        // SAFETY: the slice is readable; nothing is stored.
        unsafe { self.take(Flow { from, to, len, store: Store::Nowhere, next: from }) }
    }

    /// The digest of all bytes added so far.
    pub fn value(&self) -> u64 {
        let held = &self.held[..self.held_len];
        if self.total <= SHORT_MAX {
            return xxhash_rust::xxh3::xxh3_64(held);
        }
        let mut sums = self.sums.clone();
        let from = held.as_ptr();
        let pass =
            Pass { from, to: std::ptr::null_mut(), stripes: (held.len() - 1) / STRIPE, next: from };
        // SAFETY: the held bytes are readable for so many stripes; nothing is stored.
        unsafe { stripes::digest(pass, Store::Nowhere, &mut sums) };
        sums.add_last(held.last_chunk().expect("at least a stripe is held (D1)"));
        merge(&sums.lanes, self.total)
    }

    /// The digest of bytes that were digested in parts, from the digests of these: of one part its own, else
    /// XXH3 over eight bytes of each, little-endian, in their order.
    pub fn of_parts(parts: &[u64]) -> u64 {
        if let [only] = parts {
            return *only;
        }
        let mut digest = Self::default();
        parts.iter().for_each(|part| digest.update(&part.to_le_bytes()));
        digest.value()
    }

    /// Adds the bytes of a flow, and stores them.
    ///
    /// Streaming stores need a [`stripes::fence`] before another thread may read the target.
    ///
    /// # Safety
    /// What [`Flow`] says of its pointers.
    pub(super) unsafe fn take(&mut self, mut flow: Flow) {
        self.total += flow.len as u64;
        if self.held_len + flow.len <= HELD_MAX {
            // SAFETY: all of the flow, which fits.
            unsafe { self.hold_rest(flow) };
            return;
        }
        // More than 256 bytes follow the last sum, so at least one stripe is added now.
        let fill = self.held_len.next_multiple_of(STRIPE) - self.held_len;
        // SAFETY: `held_len + fill <= HELD_MAX < held_len + flow.len`.
        unsafe { self.hold(&mut flow, fill) };
        if flow.len < STRIPE {
            self.add_held(self.held_len - STRIPE);
        } else {
            self.add_held(self.held_len);
            let stripes = flow.len / STRIPE - 1;
            // SAFETY: the caller's; the flow has one stripe more than that.
            unsafe {
                stripes::digest(flow.pass(stripes), flow.store(), &mut self.sums);
                flow.advance(stripes * STRIPE);
            }
        }
        // SAFETY: less than a stripe is left beside the one held, or less than two (D1).
        unsafe { self.hold_rest(flow) }
    }

    /// Adds the first `len` held bytes, whole stripes, to the sums.
    fn add_held(&mut self, len: usize) {
        let from = self.held.as_ptr();
        let pass = Pass { from, to: std::ptr::null_mut(), stripes: len / STRIPE, next: from };
        // SAFETY: the held bytes are readable; nothing is stored.
        unsafe { stripes::digest(pass, Store::Nowhere, &mut self.sums) };
        self.held.copy_within(len..self.held_len, 0);
        self.held_len -= len;
    }

    /// # Safety
    /// Like [`hold`](Self::hold).
    unsafe fn hold_rest(&mut self, mut flow: Flow) {
        let len = flow.len;
        // SAFETY: the caller's.
        unsafe { self.hold(&mut flow, len) }
    }

    /// Holds the first `len` bytes of a flow. They are stored from here, so that what is digested is
    /// what is stored.
    ///
    /// # Safety
    /// The flow has so many bytes, and there is room for them.
    #[expect(clippy::disallowed_methods, reason = "part of a counted copy")]
    unsafe fn hold(&mut self, flow: &mut Flow, len: usize) {
        let room = &mut self.held[self.held_len..self.held_len + len];
        // SAFETY: the source is readable and the target writable for `len` bytes (caller), and both
        // lie outside of `self`.
        unsafe {
            std::ptr::copy_nonoverlapping(flow.from, room.as_mut_ptr(), len);
            if flow.store != Store::Nowhere {
                std::ptr::copy_nonoverlapping(room.as_ptr(), flow.to, len);
            }
            flow.advance(len);
        }
        self.held_len += len;
    }
}

impl Default for Digest {
    fn default() -> Self {
        let sums = Sums::new([
            PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
        ]);
        Self { sums, held: [0; HELD_MAX], held_len: 0, total: 0 }
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:016x})", self.value())
    }
}

/// Folds the sums into one value.
fn merge(lanes: &[u64; 8], total: u64) -> u64 {
    const START: usize = 11;
    let secret = |at: usize| {
        u64::from_le_bytes(SECRET[at..at + 8].try_into().expect("eight bytes of the secret"))
    };
    let mut value = total.wrapping_mul(PRIME64_1);
    for (pair, lanes) in lanes.chunks_exact(2).enumerate() {
        let at = START + 16 * pair;
        let product = u128::from(lanes[0] ^ secret(at)) * u128::from(lanes[1] ^ secret(at + 8));
        value = value.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    value ^= value >> 37;
    value = value.wrapping_mul(AVALANCHE);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn every_length_around_the_borders_of_the_algorithm() {
        let all = bytes(4200);
        let borders = [0..600, 960..1100, 2000..2100, 4090..4200];
        let step = if cfg!(miri) { 61 } else { 1 };
        for len in borders.into_iter().flatten().step_by(step) {
            let mut digest = Digest::default();
            digest.update(&all[..len]);
            assert_eq!(digest.value(), xxh3_64(&all[..len]), "{len} bytes");
        }
    }

    #[test]
    fn one_part_keeps_its_digest() {
        assert_eq!(Digest::of_parts(&[7]), 7);
        let bytes = [7_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat();
        assert_eq!(Digest::of_parts(&[7, 8]), xxh3_64(&bytes));
        assert_eq!(Digest::of_parts(&[]), Digest::default().value());
    }

    /// Miri takes seconds for a reference value, and each cut has one.
    const CUTS_MAX: usize = if cfg!(miri) { 4 } else { 24 };

    proptest! {
        #[test]
        fn any_segmentation_gives_the_reference_value(
            cuts in proptest::collection::vec(0usize..700, 0..CUTS_MAX),
        ) {
            let all = bytes(cuts.iter().sum());
            let (mut digest, mut rest) = (Digest::default(), &all[..]);
            for cut in cuts {
                let (now, later) = rest.split_at(cut);
                digest.update(now);
                rest = later;
                let so_far = all.len() - rest.len();
                prop_assert_eq!(digest.value(), xxh3_64(&all[..so_far]), "{} bytes", so_far);
            }
        }
    }
}
