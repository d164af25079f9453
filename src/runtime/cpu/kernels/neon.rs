//! Four lanes of NEON, with the dot product instruction where the CPU has it.
//!
//! Invariant 1: a [`Neon`] exists only where the CPU has NEON, because [`Neon::detect`] is the only
//! way to one. Invariant 2: with `DOT`, it also has the dot product extension.

use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use super::{Kernel, simd::Simd};

/// Proof that the CPU has the level's instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon<const DOT: bool>(());

impl Neon<false> {
    /// The proof, where the CPU has what it takes.
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    /// The same with the dot product instruction.
    pub(crate) fn with_dot_product(self) -> Option<Neon<true>> {
        is_aarch64_feature_detected!("dotprod").then_some(Neon(()))
    }

    /// Runs a kernel with the level's instructions enabled.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        match self.with_dot_product() {
            // SAFETY: invariant 2 gives the enabled features.
            Some(level) => unsafe { enabled_with_dot_product(level, kernel) },
            // SAFETY: invariant 1 gives the enabled features.
            None => unsafe { enabled(self, kernel) },
        }
    }
}

#[target_feature(enable = "neon")]
fn enabled<K: Kernel>(level: Neon<false>, kernel: K) {
    kernel.run(level);
}

#[target_feature(enable = "neon,dotprod")]
fn enabled_with_dot_product<K: Kernel>(level: Neon<true>, kernel: K) {
    kernel.run(level);
}

impl<const DOT: bool> Simd for Neon<DOT> {
    const LANES: usize = 4;
    const ROWS: usize = 8;
    const SIGNED_BIAS: i32 = 0;

    type F = float32x4_t;
    type I = int32x4_t;
    type Bytes = uint8x16_t;
    type Signed = int8x16_t;
    type Dot = int32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: invariant 1; the caller vouches for four readable floats.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: float32x4_t) {
        // SAFETY: invariant 1; the caller vouches for four writable floats.
        unsafe { vst1q_f32(to, x) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> float32x4_t {
        // SAFETY: invariant 1; the caller vouches for four readable halves.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> float32x4_t {
        // SAFETY: invariant 1; the caller vouches for four readable halves.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, x: float32x4_t) {
        // SAFETY: invariant 1; the caller vouches for four writable halves.
        unsafe { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: float32x4_t) {
        // SAFETY: invariant 1; the caller vouches for four writable halves.
        unsafe {
            let bits = vreinterpretq_u32_f32(x);
            let upper = vshrq_n_u32::<16>(bits);
            let odd = vandq_u32(upper, vdupq_n_u32(1));
            let half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
            let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, half));
            let quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
            vst1_u16(to, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)));
        }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vdivq_f32(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1. The intrinsic adds the product to its first argument.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }

    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }

    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vabsq_f32(a) }
    }

    #[inline(always)]
    fn largest(self, a: float32x4_t) -> f32 {
        // SAFETY: invariant 1.
        unsafe { vmaxvq_f32(a) }
    }

    #[inline(always)]
    fn nearest(self, a: float32x4_t) -> int32x4_t {
        // SAFETY: invariant 1.
        unsafe { vcvtnq_s32_f32(a) }
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> int32x4_t {
        // SAFETY: invariant 1.
        unsafe { vdupq_n_s32(x) }
    }

    #[inline(always)]
    fn sub_int(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: invariant 1.
        unsafe { vsubq_s32(a, b) }
    }

    #[inline(always)]
    fn total(self, a: int32x4_t) -> i32 {
        // SAFETY: invariant 1.
        unsafe { vaddvq_s32(a) }
    }

    #[inline(always)]
    fn to_float(self, a: int32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vcvtq_f32_s32(a) }
    }

    #[inline(always)]
    fn power_of_two(self, a: int32x4_t) -> float32x4_t {
        // SAFETY: invariant 1.
        unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(a, vdupq_n_s32(127)))) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, x: int32x4_t) {
        // SAFETY: invariant 1; the caller vouches for four writable bytes.
        unsafe {
            let words = vmovn_s32(x);
            let bytes = vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words)));
            to.cast::<i32>().write_unaligned(vget_lane_s32::<0>(bytes));
        }
    }

    #[inline(always)]
    unsafe fn load_columns(self, from: *const u8) -> uint8x16_t {
        // SAFETY: invariant 1; the caller vouches for four readable columns, which are 16 bytes.
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    fn low_nibbles(self, x: uint8x16_t) -> uint8x16_t {
        // SAFETY: invariant 1.
        unsafe { vandq_u8(x, vdupq_n_u8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, x: uint8x16_t) -> uint8x16_t {
        // SAFETY: invariant 1.
        unsafe { vshrq_n_u8::<4>(x) }
    }

    #[inline(always)]
    fn dot_start(self) -> int32x4_t {
        self.splat_int(0)
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: int32x4_t, weights: uint8x16_t, x: i32) -> int32x4_t {
        self.dot_signed(sum, self.signed(weights), x)
    }

    #[inline(always)]
    fn dot_finish(self, sum: int32x4_t) -> int32x4_t {
        sum
    }

    #[inline(always)]
    fn signed(self, x: uint8x16_t) -> int8x16_t {
        // SAFETY: invariant 1.
        unsafe { vreinterpretq_s8_u8(x) }
    }

    /// Without the extension: one product is at most 128 * 127 and fits 16 bits; the pairs are added
    /// in 32.
    #[inline(always)]
    fn dot_signed(self, mut sum: int32x4_t, weights: int8x16_t, x: i32) -> int32x4_t {
        // SAFETY: invariant 1, and for `sdot` invariant 2. `sdot` adds to each 32-bit lane of its
        // first register the four products of the signed bytes in that lane of the other two; it
        // touches neither memory nor flags. It is spelt out because its intrinsic is unstable.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            if DOT {
                asm!(
                    "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.16b",
                    sum = inout(vreg) sum,
                    weights = in(vreg) weights,
                    x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags),
                );
                sum
            } else {
                let low = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
                let high = vmull_high_s8(weights, x);
                vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
            }
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
        // SAFETY: invariant 1; the caller vouches for four rows of four floats on either side.
        unsafe {
            let (a, b) = (vld1q_f32(from), vld1q_f32(from.add(from_stride)));
            let (c, d) =
                (vld1q_f32(from.add(2 * from_stride)), vld1q_f32(from.add(3 * from_stride)));
            // Columns 0 and 2, then 1 and 3, of each pair of rows; then pairs of pairs.
            let (ab_even, ab_odd) = (wide(vtrn1q_f32(a, b)), wide(vtrn2q_f32(a, b)));
            let (cd_even, cd_odd) = (wide(vtrn1q_f32(c, d)), wide(vtrn2q_f32(c, d)));
            vst1q_f32(to, narrow(vtrn1q_f64(ab_even, cd_even)));
            vst1q_f32(to.add(to_stride), narrow(vtrn1q_f64(ab_odd, cd_odd)));
            vst1q_f32(to.add(2 * to_stride), narrow(vtrn2q_f64(ab_even, cd_even)));
            vst1q_f32(to.add(3 * to_stride), narrow(vtrn2q_f64(ab_odd, cd_odd)));
        }
    }

    /// Nothing: the hint is unstable in the standard library, and these cores prefetch well.
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}

/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn wide(x: float32x4_t) -> float64x2_t {
    // SAFETY: the caller vouches for the instructions.
    unsafe { vreinterpretq_f64_f32(x) }
}

/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn narrow(x: float64x2_t) -> float32x4_t {
    // SAFETY: the caller vouches for the instructions.
    unsafe { vreinterpretq_f32_f64(x) }
}
