//! SSE2, AVX2 and AVX-512: four, two or one register a stripe.

use std::arch::x86_64::*;

use super::{Lanes, Pass, Store, Sums};

/// `XXH_PRIME32_1` of the reference implementation.
const PRIME: i64 = 0x9E37_79B1;
/// Swaps the two halves of 128 bits.
const SWAP: i32 = 0x4E;

/// The levels, each with its proof.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    Sse2(Sse2),
    Avx2(Avx2),
    Avx512(Avx512),
}

impl Level {
    /// The widest one of this processor.
    pub(super) fn best() -> Self {
        if let Some(level) = Avx512::detect() {
            return Self::Avx512(level);
        }
        Avx2::detect().map_or(Self::Sse2(Sse2(())), Self::Avx2)
    }

    /// All of this processor.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let wider = [Avx2::detect().map(Self::Avx2), Avx512::detect().map(Self::Avx512)];
        std::iter::once(Self::Sse2(Sse2(()))).chain(wider.into_iter().flatten()).collect()
    }

    /// # Safety
    /// S1, and S2 unless nothing is stored.
    pub(super) unsafe fn run(self, pass: Pass, store: Store, sums: Option<&mut Sums>) {
        // SAFETY: the caller's; the proofs are that of S3.
        unsafe {
            match self {
                Self::Sse2(level) => super::run(level, pass, store, sums),
                Self::Avx2(level) => run_avx2(level, pass, store, sums),
                Self::Avx512(level) => run_avx512(level, pass, store, sums),
            }
        }
    }
}

/// Orders all streaming stores so far before every later store.
pub(super) fn fence() {
    // SAFETY: every x86-64 has SSE.
    unsafe { _mm_sfence() }
}

/// # Safety
/// S1, and S2 unless nothing is stored.
#[target_feature(enable = "avx2")]
unsafe fn run_avx2(level: Avx2, pass: Pass, store: Store, sums: Option<&mut Sums>) {
    // SAFETY: the caller's.
    unsafe { super::run(level, pass, store, sums) }
}

/// # Safety
/// S1, and S2 unless nothing is stored.
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(level: Avx512, pass: Pass, store: Store, sums: Option<&mut Sums>) {
    // SAFETY: the caller's.
    unsafe { super::run(level, pass, store, sums) }
}

/// A level: its proof, its register, and its instructions by name.
macro_rules! level {
    (
        $name:ident, $register:ty, $count:literal, $doc:literal,
        $load:ident, $store:ident, $stream:ident, $splat:ident, $xor:ident, $add:ident,
        $multiply:ident, $right:ident, $left:ident, $shuffle:ident
    ) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(());

        impl Lanes for $name {
            type Registers = [$register; $count];

            #[inline(always)]
            unsafe fn load(self, from: *const u8) -> Self::Registers {
                let from = from.cast::<$register>();
                // SAFETY: readable for a stripe (caller), whose registers lie side by side; S3.
                let mut stripe = [unsafe { $load(from) }; $count];
                for (part, register) in stripe.iter_mut().enumerate().skip(1) {
                    // SAFETY: as above.
                    *register = unsafe { $load(from.add(part)) };
                }
                stripe
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u8, stripe: Self::Registers) {
                let to = to.cast::<$register>();
                for (part, register) in stripe.into_iter().enumerate() {
                    // SAFETY: writable for a stripe (caller); S3.
                    unsafe { $store(to.add(part), register) }
                }
            }

            #[inline(always)]
            unsafe fn stream(self, to: *mut u8, stripe: Self::Registers) {
                let to = to.cast::<$register>();
                for (part, register) in stripe.into_iter().enumerate() {
                    // SAFETY: writable for a stripe, and aligned to one (caller); S3.
                    unsafe { $stream(to.add(part), register) }
                }
            }

            #[inline(always)]
            fn add(
                self,
                mut sums: Self::Registers,
                stripe: Self::Registers,
                secret: Self::Registers,
            ) -> Self::Registers {
                for part in 0..$count {
                    // SAFETY: S3; these instructions touch registers only.
                    sums[part] = unsafe {
                        let keyed = $xor(stripe[part], secret[part]);
                        let product = $multiply(keyed, $right::<32>(keyed));
                        let swapped = $shuffle::<SWAP>(stripe[part]);
                        $add(sums[part], $add(product, swapped))
                    };
                }
                sums
            }

            #[inline(always)]
            fn scramble(
                self,
                mut sums: Self::Registers,
                secret: Self::Registers,
            ) -> Self::Registers {
                for part in 0..$count {
                    // SAFETY: S3; these instructions touch registers only.
                    sums[part] = unsafe {
                        let prime = $splat(PRIME);
                        let mixed = $xor(sums[part], $right::<47>(sums[part]));
                        let keyed = $xor(mixed, secret[part]);
                        let low = $multiply(keyed, prime);
                        let high = $multiply($right::<32>(keyed), prime);
                        $add(low, $left::<32>(high))
                    };
                }
                sums
            }

            #[inline(always)]
            fn prefetch(self, address: *const u8) {
                // SAFETY: a prefetch never faults, whatever the address is; every x86-64 has it.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
            }
        }
    };
}

level!(
    Sse2,
    __m128i,
    4,
    "Proof of SSE2, which every x86-64 has.",
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_stream_si128,
    _mm_set1_epi64x,
    _mm_xor_si128,
    _mm_add_epi64,
    _mm_mul_epu32,
    _mm_srli_epi64,
    _mm_slli_epi64,
    _mm_shuffle_epi32
);
level!(
    Avx2,
    __m256i,
    2,
    "Proof of AVX2.",
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_stream_si256,
    _mm256_set1_epi64x,
    _mm256_xor_si256,
    _mm256_add_epi64,
    _mm256_mul_epu32,
    _mm256_srli_epi64,
    _mm256_slli_epi64,
    _mm256_shuffle_epi32
);
level!(
    Avx512,
    __m512i,
    1,
    "Proof of AVX-512F.",
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_stream_si512,
    _mm512_set1_epi64,
    _mm512_xor_si512,
    _mm512_add_epi64,
    _mm512_mul_epu32,
    _mm512_srli_epi64,
    _mm512_slli_epi64,
    _mm512_shuffle_epi32
);

impl Avx2 {
    fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl Avx512 {
    fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}
