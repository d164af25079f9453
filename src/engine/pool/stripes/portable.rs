//! A stripe as eight integers: what runs where no wider level is written, and the model of the others.

use super::{Lanes, STRIPE};

/// `XXH_PRIME32_1` of the reference implementation.
const PRIME: u64 = 0x9E37_79B1;

/// The level that needs nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Lanes for Portable {
    type Registers = [u64; 8];

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> [u64; 8] {
        // SAFETY: readable for a stripe (caller); an integer may have any bits.
        let words = unsafe { from.cast::<[u64; 8]>().read_unaligned() };
        words.map(u64::from_le)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, stripe: [u64; 8]) {
        // SAFETY: writable for a stripe (caller).
        unsafe { to.cast::<[u64; 8]>().write_unaligned(stripe.map(u64::to_le)) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, stripe: [u64; 8]) {
        // SAFETY: the caller's.
        unsafe { self.store(to, stripe) }
    }

    #[inline(always)]
    fn add(self, mut sums: [u64; 8], stripe: [u64; 8], secret: [u64; 8]) -> [u64; 8] {
        for lane in 0..8 {
            let keyed = stripe[lane] ^ secret[lane];
            let product = (keyed & 0xFFFF_FFFF).wrapping_mul(keyed >> 32);
            sums[lane] = sums[lane].wrapping_add(product).wrapping_add(stripe[lane ^ 1]);
        }
        sums
    }

    #[inline(always)]
    fn scramble(self, mut sums: [u64; 8], secret: [u64; 8]) -> [u64; 8] {
        for lane in 0..8 {
            sums[lane] = (sums[lane] ^ (sums[lane] >> 47) ^ secret[lane]).wrapping_mul(PRIME);
        }
        sums
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
}

/// Adds one stripe under the first 64 bytes of `secret`.
pub(super) fn add(sums: &mut [u64; 8], stripe: &[u8; STRIPE], secret: &[u8]) {
    *sums = Portable.add(*sums, words(stripe), words(&secret[..STRIPE]));
}

fn words(bytes: &[u8]) -> [u64; 8] {
    std::array::from_fn(|lane| {
        u64::from_le_bytes(bytes[8 * lane..8 * lane + 8].try_into().expect("eight bytes"))
    })
}

/// One stripe at a time, as the specification says it.
#[cfg(test)]
pub(super) fn step(sums: &mut super::Sums, stripe: &[u8]) {
    let secret = &super::SECRET;
    sums.lanes = Portable.add(sums.lanes, words(stripe), words(&secret[8 * sums.stripe..]));
    sums.stripe += 1;
    if sums.stripe == super::STRIPES_PER_SCRAMBLE {
        sums.lanes = Portable.scramble(sums.lanes, words(&secret[secret.len() - STRIPE..]));
        sums.stripe = 0;
    }
}
