//! Whole stripes of a payload, digested and stored in one pass.
//!
//! XXH3 takes its input in stripes of 64 bytes, and so do the caches: a pass loads a stripe into
//! registers once, stores it from there, and adds it to the digest from there. No byte is read twice,
//! so what is digested is what was stored, even where a peer writes to the source meanwhile.
//!
//! [`Lanes`] is what a stripe is made of at one level of the processor; [`pass`] is the loop, written
//! once. The level is chosen when the process runs. All levels give the same bits.
//! Miri, which has none of the instructions, runs the plain one.
//!
//! Invariants, named by the SAFETY comments of this folder:
//! - S1: a pass's source is readable over all its stripes. It may change meanwhile.
//! - S2: a pass's target is writable over all its stripes, private to the caller, and does not overlap
//!   the source; a streaming pass's target lies on a whole stripe.
//! - S3: a level's proof exists only where the processor has the level's instructions.

mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

use std::ptr;

/// Bytes of a stripe, and of a cache line.
pub(super) const STRIPE: usize = 64;
/// Stripes between two scrambles: as many as the secret has room for, eight bytes apart.
const STRIPES_PER_SCRAMBLE: usize = (SECRET.len() - STRIPE) / 8;
/// How far the source is prefetched: far enough to hide memory behind the arithmetic of the digest.
/// 512 bytes to 4 KiB measured within 5 % of each other, and 10 to 20 % above none.
const AHEAD: usize = 1024;

/// The default secret of XXH3 (`kSecret` in the reference implementation).
pub(super) static SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// Where the bytes of a pass go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// Nowhere: they are digested only.
    Nowhere,
    /// Into the caches, as every plain copy does.
    Cached,
    /// Past the caches, into memory: the target's old bytes are never read.
    Streaming,
}

/// Stripes to take in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// First byte (S1).
    pub(super) from: *const u8,
    /// Where it goes (S2); not used where nothing is stored.
    pub(super) to: *mut u8,
    pub(super) stripes: usize,
    /// What is read after this pass, to be fetched while it ends. Never dereferenced.
    pub(super) next: *const u8,
}

/// The eight sums of XXH3 and how many stripes they took since they were scrambled.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    pub(super) lanes: [u64; 8],
    stripe: usize,
}

impl Sums {
    pub(super) const fn new(lanes: [u64; 8]) -> Self {
        Self { lanes, stripe: 0 }
    }

    /// Adds the last stripe of an input, which has a place of its own in the secret.
    pub(super) fn add_last(&mut self, stripe: &[u8; STRIPE]) {
        portable::add(&mut self.lanes, stripe, &SECRET[SECRET.len() - STRIPE - 7..]);
    }
}

/// Digests the stripes of a pass, and stores them.
///
/// Streaming stores become visible to other threads in order only after [`fence`].
///
/// # Safety
/// S1, and S2 unless nothing is stored.
pub(super) unsafe fn digest(pass: Pass, store: Store, sums: &mut Sums) {
    // SAFETY: the caller's.
    unsafe { Level::best().run(pass, store, Some(sums)) }
}

/// Stores the stripes of a pass, past the caches where the processor can.
///
/// # Safety
/// S1, S2.
pub(super) unsafe fn stream(pass: Pass) {
    // SAFETY: the caller's.
    unsafe { Level::best().run(pass, Store::Streaming, None) }
}

/// Orders all streaming stores so far before every later store.
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    x86_64::fence();
}

/// How wide the registers are.
#[derive(Clone, Copy, Debug)]
enum Level {
    #[cfg_attr(
        all(target_arch = "x86_64", not(miri)),
        allow(dead_code, reason = "the model of the tests")
    )]
    Portable,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Native(x86_64::Level),
}

impl Level {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn best() -> Self {
        Self::Native(x86_64::Level::best())
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn best() -> Self {
        Self::Portable
    }

    /// # Safety
    /// S1, and S2 unless nothing is stored.
    unsafe fn run(self, pass: Pass, store: Store, sums: Option<&mut Sums>) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::Portable => run(portable::Portable, pass, store, sums),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Native(level) => level.run(pass, store, sums),
            }
        }
    }
}

/// One level of the processor.
trait Lanes: Copy {
    /// A stripe, or the eight sums, in registers.
    type Registers: Copy;

    /// # Safety
    /// `from` is readable for a stripe; what is there may change meanwhile.
    unsafe fn load(self, from: *const u8) -> Self::Registers;

    /// # Safety
    /// `to` is writable for a stripe.
    unsafe fn store(self, to: *mut u8, stripe: Self::Registers);

    /// # Safety
    /// Like [`store`](Self::store), and `to` lies on a whole stripe.
    unsafe fn stream(self, to: *mut u8, stripe: Self::Registers);

    fn add(
        self,
        sums: Self::Registers,
        stripe: Self::Registers,
        secret: Self::Registers,
    ) -> Self::Registers;

    fn scramble(self, sums: Self::Registers, secret: Self::Registers) -> Self::Registers;

    /// A hint: the address may be any.
    fn prefetch(self, address: *const u8);
}

/// Chooses the loop for what is stored and digested.
///
/// # Safety
/// S1, and S2 unless nothing is stored.
#[inline(always)]
unsafe fn run<L: Lanes>(lanes: L, pass: Pass, store: Store, sums: Option<&mut Sums>) {
    const NOWHERE: u8 = Store::Nowhere as u8;
    const CACHED: u8 = Store::Cached as u8;
    const STREAMING: u8 = Store::Streaming as u8;
    // SAFETY: the caller's.
    unsafe {
        match (store, sums) {
            (Store::Nowhere, Some(sums)) => whole::<L, NOWHERE, true>(lanes, pass, sums),
            (Store::Cached, Some(sums)) => whole::<L, CACHED, true>(lanes, pass, sums),
            (Store::Streaming, Some(sums)) => whole::<L, STREAMING, true>(lanes, pass, sums),
            (Store::Nowhere, None) => {}
            (Store::Cached, None) => whole::<L, CACHED, false>(lanes, pass, &mut Sums::new([0; 8])),
            (Store::Streaming, None) => {
                whole::<L, STREAMING, false>(lanes, pass, &mut Sums::new([0; 8]));
            }
        }
    }
}

/// A pass in two parts: near its end, what is fetched ahead is what comes next.
///
/// # Safety
/// S1, and S2 unless nothing is stored.
#[inline(always)]
unsafe fn whole<L: Lanes, const STORE: u8, const DIGEST: bool>(
    lanes: L,
    pass: Pass,
    sums: &mut Sums,
) {
    let last = pass.stripes.min(AHEAD / STRIPE);
    let first = pass.stripes - last;
    // SAFETY: the two parts are the pass, cut after `first` stripes; S1 and S2 are the caller's. The
    // addresses ahead are only computed.
    unsafe {
        part::<L, STORE, DIGEST>(lanes, Pass { stripes: first, ..pass }, AHEAD, sums);
        let rest = Pass {
            from: pass.from.add(first * STRIPE),
            to: pass.to.wrapping_add(first * STRIPE),
            stripes: last,
            next: pass.next,
        };
        let ahead = rest.next.addr().wrapping_sub(rest.from.addr());
        part::<L, STORE, DIGEST>(lanes, rest, ahead, sums);
    }
}

/// # Safety
/// S1, and S2 unless nothing is stored.
#[inline(always)]
unsafe fn part<L: Lanes, const STORE: u8, const DIGEST: bool>(
    lanes: L,
    pass: Pass,
    ahead: usize,
    sums: &mut Sums,
) {
    let Pass { mut from, mut to, stripes: mut left, .. } = pass;
    // SAFETY: `sums.lanes` are 64 bytes.
    let mut registers = unsafe { lanes.load(ptr::from_ref(&sums.lanes).cast()) };
    while left > 0 {
        let run = left.min(STRIPES_PER_SCRAMBLE - sums.stripe);
        for stripe in sums.stripe..sums.stripe + run {
            // SAFETY: fewer than `pass.stripes` stripes were taken, so source (S1) and target (S2)
            // have another one; the secret has one at each of its addresses.
            unsafe {
                let bytes = lanes.load(from);
                lanes.prefetch(from.wrapping_add(ahead));
                if STORE == Store::Cached as u8 {
                    lanes.store(to, bytes);
                } else if STORE == Store::Streaming as u8 {
                    lanes.stream(to, bytes);
                }
                if DIGEST {
                    let secret = lanes.load(secret_at(8 * stripe));
                    registers = lanes.add(registers, bytes, secret);
                }
                from = from.add(STRIPE);
            }
            to = to.wrapping_add(STRIPE);
        }
        sums.stripe += run;
        left -= run;
        if sums.stripe == STRIPES_PER_SCRAMBLE {
            sums.stripe = 0;
            if DIGEST {
                // SAFETY: the address is that of 64 bytes.
                let secret = unsafe { lanes.load(secret_at(SECRET.len() - STRIPE)) };
                registers = lanes.scramble(registers, secret);
            }
        }
    }
    // SAFETY: `sums.lanes` are 64 bytes.
    unsafe { lanes.store(ptr::from_mut(&mut sums.lanes).cast(), registers) }
}

/// Where a stripe of the secret begins.
#[inline(always)]
fn secret_at(offset: usize) -> *const u8 {
    debug_assert!(offset + STRIPE <= SECRET.len());
    SECRET.as_ptr().wrapping_add(offset)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every level that this processor has.
    fn levels() -> Vec<Level> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let native = x86_64::Level::all().into_iter().map(Level::Native);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let native = std::iter::empty();
        std::iter::once(Level::Portable).chain(native).collect()
    }

    #[repr(align(64))]
    struct Aligned([u8; 8192]);

    proptest! {
        #[cfg_attr(miri, ignore = "it has one level only")]
        #[test]
        fn every_level_stores_and_digests_what_the_plain_one_does(
            bytes in proptest::collection::vec(any::<u8>(), 8192),
            shifts in (0usize..64, 0usize..64),
            cuts in proptest::collection::vec(0usize..40, 1..4),
        ) {
            let start = [1, 2, 3, 4, 5, 6, 7, 8];
            let mut expected = Sums::new(start);
            let stripes = cuts.iter().sum::<usize>().min(8000 / STRIPE);
            for stripe in bytes[shifts.0..].chunks_exact(STRIPE).take(stripes) {
                portable::step(&mut expected, stripe);
            }
            for (level, store) in levels().into_iter().flat_map(|level| {
                [Store::Nowhere, Store::Cached, Store::Streaming].map(|store| (level, store))
            }) {
                let mut target = Box::new(Aligned([0; 8192]));
                let shift = if store == Store::Streaming { 0 } else { shifts.1 };
                let (mut sums, mut done) = (Sums::new(start), 0);
                for cut in &cuts {
                    let taken = (*cut).min(stripes - done);
                    let pass = Pass {
                        from: bytes[shifts.0 + done * STRIPE..].as_ptr(),
                        to: target.0[shift + done * STRIPE..].as_mut_ptr(),
                        stripes: taken,
                        next: bytes.as_ptr(),
                    };
                    // SAFETY: both slices have that many stripes (S1, S2), and a streaming target
                    // starts on one.
                    unsafe { level.run(pass, store, Some(&mut sums)) };
                    done += taken;
                }
                fence();
                prop_assert_eq!(&sums.lanes, &expected.lanes, "{:?} {:?}", level, store);
                prop_assert_eq!(sums.stripe, expected.stripe);
                let arrived = &target.0[shift..shift + stripes * STRIPE];
                let sent = &bytes[shifts.0..][..stripes * STRIPE];
                if store == Store::Nowhere {
                    prop_assert!(arrived.iter().all(|byte| *byte == 0));
                } else {
                    prop_assert_eq!(arrived, sent, "{:?} {:?}", level, store);
                }
                let around = target.0.len() - stripes * STRIPE;
                let zeroes = target.0[..shift].iter().chain(&target.0[shift + stripes * STRIPE..]);
                prop_assert_eq!(zeroes.filter(|byte| **byte == 0).count(), around);
            }
        }
    }
}
