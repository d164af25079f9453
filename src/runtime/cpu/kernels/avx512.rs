//! Sixteen lanes of AVX-512 with VNNI.
//!
//! Invariant 1: an [`Avx512`] exists only where the CPU has AVX-512 F, BW, VL, DQ and VNNI, because
//! [`Avx512::detect`] is the only way to one.

use std::arch::x86_64::*;

use super::{Kernel, simd::Simd};

/// Proof that the CPU has the level's instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, where the CPU has what it takes.
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Self(()))
    }

    /// Runs a kernel with the level's instructions enabled.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: invariant 1 gives the enabled features.
        unsafe { enabled(self, kernel) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn enabled<K: Kernel>(level: Avx512, kernel: K) {
    kernel.run(level);
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const ROWS: usize = 8;
    const SIGNED_BIAS: i32 = 128;

    type F = __m512;
    type I = __m512i;
    type Bytes = __m512i;
    /// Weights plus 128, as unsigned bytes.
    type Signed = __m512i;
    type Dot = __m512i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: invariant 1; the caller vouches for 16 readable floats.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m512) {
        // SAFETY: invariant 1; the caller vouches for 16 writable floats.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: invariant 1; the caller vouches for 16 readable halves, which are 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: invariant 1; the caller vouches for 16 readable halves, which are 32 bytes.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, x: __m512) {
        // SAFETY: invariant 1; the caller vouches for 16 writable halves, which are 32 bytes.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: __m512) {
        // SAFETY: invariant 1; the caller vouches for 16 writable halves, which are 32 bytes.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let upper = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let wide = _mm512_mask_mov_epi32(rounded, nan, quiet);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(wide));
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: invariant 1. The instruction gives `b` unless `a > b`.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: invariant 1. The instruction gives `b` unless `a < b`.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        // SAFETY: invariant 1.
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    fn nearest(self, a: __m512) -> __m512i {
        // SAFETY: invariant 1. Rust programs run in the default rounding mode, to nearest even.
        unsafe { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn sub_int(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn total(self, a: __m512i) -> i32 {
        // SAFETY: invariant 1.
        unsafe { _mm512_reduce_add_epi32(a) }
    }

    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        // SAFETY: invariant 1.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn power_of_two(self, a: __m512i) -> __m512 {
        // SAFETY: invariant 1.
        unsafe {
            let biased = _mm512_add_epi32(a, _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, x: __m512i) {
        // SAFETY: invariant 1; the caller vouches for 16 writable bytes.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(x)) }
    }

    #[inline(always)]
    unsafe fn load_columns(self, from: *const u8) -> __m512i {
        // SAFETY: invariant 1; the caller vouches for 16 readable columns, which are 64 bytes.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    fn low_nibbles(self, x: __m512i) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_and_si512(x, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, x: __m512i) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn dot_start(self) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: __m512i, weights: __m512i, x: i32) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    fn dot_finish(self, sum: __m512i) -> __m512i {
        sum
    }

    #[inline(always)]
    fn signed(self, x: __m512i) -> __m512i {
        // SAFETY: invariant 1. Flipping the top bit adds 128.
        unsafe { _mm512_xor_si512(x, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    fn dot_signed(self, sum: __m512i, weights: __m512i, x: i32) -> __m512i {
        // SAFETY: invariant 1.
        unsafe { _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: invariant 1; the caller vouches for 16 rows of 16 floats on either side.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(from.add(i * from_stride));
            }
            for (i, column) in transposed(rows).into_iter().enumerate() {
                _mm512_storeu_ps(to.add(i * to_stride), column);
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Pairs, then fours within each 128-bit quarter, then the quarters themselves.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn transposed(rows: [__m512; 16]) -> [__m512; 16] {
    let zero = rows[0];
    let (mut pairs, mut fours, mut halves, mut columns) =
        ([zero; 16], [zero; 16], [zero; 16], [zero; 16]);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        // pairs[2 * i + j]: rows 2i and 2i + 1 interleaved, columns 2j, 2j + 1 of every quarter.
        for i in 0..8 {
            pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        // fours[4 * i + c]: rows 4i..4i + 4 of column c of every quarter.
        for i in 0..4 {
            for j in 0..2 {
                let (a, b) = (pairs[4 * i + j], pairs[4 * i + 2 + j]);
                fours[4 * i + 2 * j] = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * i + 2 * j + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        // halves[8 * i + 2 * c + j]: rows 8i..8i + 8 of columns c of quarters j and j + 2.
        for i in 0..2 {
            for c in 0..4 {
                let (a, b) = (fours[8 * i + c], fours[8 * i + 4 + c]);
                halves[8 * i + 2 * c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                halves[8 * i + 2 * c + 1] = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            }
        }
        // Quarters of a half: (rows 0..4 of quarter j, of j + 2, rows 4..8 of j, of j + 2).
        for c in 0..4 {
            for j in 0..2 {
                let (a, b) = (halves[2 * c + j], halves[8 + 2 * c + j]);
                columns[4 * j + c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                columns[4 * (j + 2) + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            }
        }
    }
    columns
}
