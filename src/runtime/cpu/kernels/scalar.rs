//! One lane, no intrinsics: the twin that every other level must equal bit for bit.

use half::{bf16, f16};

use super::simd::Simd;

/// The level that every CPU has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    const LANES: usize = 1;
    const ROWS: usize = 4;
    const SIGNED_BIAS: i32 = 0;

    type F = f32;
    type I = i32;
    type Bytes = [u8; 4];
    type Signed = [i8; 4];
    type Dot = i32;

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> f32 {
        // SAFETY: the caller vouches for one readable float; the read needs no alignment.
        unsafe { from.read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: f32) {
        // SAFETY: the caller vouches for one writable float; the write needs no alignment.
        unsafe { to.write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> f32 {
        // SAFETY: the caller vouches for one readable half; the read needs no alignment.
        f16::from_bits(unsafe { from.read_unaligned() }).to_f32()
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> f32 {
        // SAFETY: the caller vouches for one readable half; the read needs no alignment.
        let bits = unsafe { from.read_unaligned() };
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, x: f32) {
        // SAFETY: the caller vouches for one writable half; the write needs no alignment.
        unsafe { to.write_unaligned(f16::from_f32(x).to_bits()) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: f32) {
        // SAFETY: the caller vouches for one writable half; the write needs no alignment.
        unsafe { to.write_unaligned(bf16::from_f32(x).to_bits()) }
    }

    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }

    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }

    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }

    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }

    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }

    #[inline(always)]
    fn abs(self, a: f32) -> f32 {
        a.abs()
    }

    #[inline(always)]
    fn largest(self, a: f32) -> f32 {
        a
    }

    #[inline(always)]
    fn nearest(self, a: f32) -> i32 {
        a.round_ties_even() as i32
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> i32 {
        x
    }

    #[inline(always)]
    fn sub_int(self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }

    #[inline(always)]
    fn total(self, a: i32) -> i32 {
        a
    }

    #[inline(always)]
    fn to_float(self, a: i32) -> f32 {
        a as f32
    }

    #[inline(always)]
    fn power_of_two(self, a: i32) -> f32 {
        f32::from_bits(((a + 127) as u32) << 23)
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, x: i32) {
        // SAFETY: the caller vouches for one writable byte.
        unsafe { to.write(x as i8) }
    }

    #[inline(always)]
    unsafe fn load_columns(self, from: *const u8) -> [u8; 4] {
        // SAFETY: the caller vouches for four readable bytes; an array of bytes has alignment 1.
        unsafe { from.cast::<[u8; 4]>().read() }
    }

    #[inline(always)]
    fn low_nibbles(self, x: [u8; 4]) -> [u8; 4] {
        x.map(|byte| byte & 15)
    }

    #[inline(always)]
    fn high_nibbles(self, x: [u8; 4]) -> [u8; 4] {
        x.map(|byte| byte >> 4)
    }

    #[inline(always)]
    fn dot_start(self) -> i32 {
        0
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: i32, weights: [u8; 4], x: i32) -> i32 {
        self.dot_signed(sum, weights.map(|byte| byte as i8), x)
    }

    #[inline(always)]
    fn dot_finish(self, sum: i32) -> i32 {
        sum
    }

    #[inline(always)]
    fn signed(self, x: [u8; 4]) -> [i8; 4] {
        x.map(|byte| byte as i8)
    }

    #[inline(always)]
    fn dot_signed(self, sum: i32, weights: [i8; 4], x: i32) -> i32 {
        let x = x.to_ne_bytes();
        (0..4).fold(sum, |sum, i| sum + i32::from(weights[i]) * i32::from(x[i] as i8))
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, _: usize, to: *mut f32, _: usize) {
        // SAFETY: the caller vouches for one float on either side.
        unsafe { self.store(to, self.load(from)) }
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
