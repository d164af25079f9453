//! Eight lanes of AVX2 with FMA and F16C.
//!
//! Invariant 1: an [`Avx2`] exists only where the CPU has AVX2, FMA and F16C, because
//! [`Avx2::detect`] is the only way to one.

use std::arch::x86_64::*;

use super::{Kernel, simd::Simd};

/// Proof that the CPU has the level's instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, where the CPU has what it takes.
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }

    /// Runs a kernel with the level's instructions enabled.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: invariant 1 gives the enabled features.
        unsafe { enabled(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn enabled<K: Kernel>(level: Avx2, kernel: K) {
    kernel.run(level);
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 4;
    const SIGNED_BIAS: i32 = 0;

    type F = __m256;
    type I = __m256i;
    type Bytes = __m256i;
    /// Magnitudes, then the signed weights.
    type Signed = (__m256i, __m256i);
    /// Sums of pairs in 16 bits: eight times 2 * 15 * 127 stays below 32,767.
    type Dot = __m256i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: invariant 1; the caller vouches for eight readable floats.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m256) {
        // SAFETY: invariant 1; the caller vouches for eight writable floats.
        unsafe { _mm256_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m256 {
        // SAFETY: invariant 1; the caller vouches for eight readable halves, which are 16 bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: invariant 1; the caller vouches for eight readable halves, which are 16 bytes.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, x: __m256) {
        // SAFETY: invariant 1; the caller vouches for eight writable halves, which are 16 bytes.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            _mm_storeu_si128(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: __m256) {
        // SAFETY: invariant 1; the caller vouches for eight writable halves, which are 16 bytes.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let upper = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let wide = _mm256_blendv_epi8(rounded, quiet, nan);
            let (low, high) = (_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            _mm_storeu_si128(to.cast(), _mm_packus_epi32(low, high));
        }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: invariant 1. The instruction gives `b` unless `a > b`.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: invariant 1. The instruction gives `b` unless `a < b`.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }

    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        // SAFETY: invariant 1.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn nearest(self, a: __m256) -> __m256i {
        // SAFETY: invariant 1. Rust programs run in the default rounding mode, to nearest even.
        unsafe { _mm256_cvtps_epi32(a) }
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_set1_epi32(x) }
    }

    #[inline(always)]
    fn sub_int(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn total(self, a: __m256i) -> i32 {
        // SAFETY: invariant 1.
        unsafe {
            let four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two)))
        }
    }

    #[inline(always)]
    fn to_float(self, a: __m256i) -> __m256 {
        // SAFETY: invariant 1.
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn power_of_two(self, a: __m256i) -> __m256 {
        // SAFETY: invariant 1.
        unsafe {
            let biased = _mm256_add_epi32(a, _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, x: __m256i) {
        // SAFETY: invariant 1; the caller vouches for eight writable bytes.
        unsafe {
            let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let words = _mm_packs_epi32(low, high);
            _mm_storel_epi64(to.cast(), _mm_packs_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn load_columns(self, from: *const u8) -> __m256i {
        // SAFETY: invariant 1; the caller vouches for eight readable columns, which are 32 bytes.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    fn low_nibbles(self, x: __m256i) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_and_si256(x, _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, x: __m256i) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    fn dot_start(self) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: __m256i, weights: __m256i, x: i32) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, _mm256_set1_epi32(x))) }
    }

    #[inline(always)]
    fn dot_finish(self, sum: __m256i) -> __m256i {
        // SAFETY: invariant 1.
        unsafe { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) }
    }

    #[inline(always)]
    fn signed(self, x: __m256i) -> (__m256i, __m256i) {
        // SAFETY: invariant 1.
        unsafe { (_mm256_abs_epi8(x), x) }
    }

    /// The sign moves to the activations, so that a pair is at most 2 * 128 * 127: it fits 16 bits,
    /// and nothing saturates.
    #[inline(always)]
    fn dot_signed(self, sum: __m256i, weights: (__m256i, __m256i), x: i32) -> __m256i {
        // SAFETY: invariant 1.
        unsafe {
            let x = _mm256_sign_epi8(_mm256_set1_epi32(x), weights.1);
            let pairs = _mm256_maddubs_epi16(weights.0, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: invariant 1; the caller vouches for eight rows of eight floats on either side.
        unsafe {
            let mut pairs = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                let a = _mm256_loadu_ps(from.add(2 * i * from_stride));
                let b = _mm256_loadu_ps(from.add((2 * i + 1) * from_stride));
                pairs[2 * i] = _mm256_unpacklo_ps(a, b);
                pairs[2 * i + 1] = _mm256_unpackhi_ps(a, b);
            }
            let mut fours = [_mm256_setzero_ps(); 8];
            for i in 0..2 {
                for j in 0..2 {
                    let (a, b) = (pairs[4 * i + j], pairs[4 * i + 2 + j]);
                    fours[4 * i + 2 * j] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                    fours[4 * i + 2 * j + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
                }
            }
            for i in 0..4 {
                let (a, b) = (fours[i], fours[4 + i]);
                _mm256_storeu_ps(to.add(i * to_stride), _mm256_permute2f128_ps::<0x20>(a, b));
                _mm256_storeu_ps(to.add((4 + i) * to_stride), _mm256_permute2f128_ps::<0x31>(a, b));
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
