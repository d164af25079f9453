//! The few operations that a CPU level must supply; every kernel is written once on top of them.
//!
//! A level works on [`LANES`](Simd::LANES) numbers at a time. Lanes never mix except in
//! [`largest`](Simd::largest) and [`total`](Simd::total), whose results do not depend on the order,
//! and every float operation is one IEEE operation per lane, rounded to nearest even. So a kernel
//! that assigns work to lanes by *output element* gives the same bits at every level.
//!
//! A value of an implementing type is the proof that the CPU has the level's instructions: the
//! methods of a level rely on it (invariant 1 of each level).

/// One level's vector operations.
///
/// All methods are `#[inline(always)]`: they must end up inside a function that enables the level's
/// instructions, see [`KernelLevel::run`](super::KernelLevel::run).
pub(crate) trait Simd: Copy {
    /// Numbers per vector: a divisor of 16.
    const LANES: usize;
    /// Activation rows that a matrix kernel handles per pass: 8, 4, 2 or 1. No influence on bits.
    const ROWS: usize;
    /// What [`dot_signed`](Self::dot_signed) adds to every weight.
    const SIGNED_BIAS: i32;

    /// `LANES` floats.
    type F: Copy;
    /// `LANES` 32-bit integers.
    type I: Copy;
    /// `LANES` columns of four bytes.
    type Bytes: Copy;
    /// Bytes made ready for [`dot_signed`](Self::dot_signed).
    type Signed: Copy;
    /// The accumulator of [`dot_nibbles`](Self::dot_nibbles).
    type Dot: Copy;

    /// `x` in all lanes.
    fn splat(self, x: f32) -> Self::F;
    /// Reads `LANES` floats.
    ///
    /// # Safety
    /// They are readable; no alignment is needed. The same holds for every load below.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// Writes `LANES` floats.
    ///
    /// # Safety
    /// They are writable; no alignment is needed. The same holds for every store below.
    unsafe fn store(self, to: *mut f32, x: Self::F);
    /// Reads `LANES` halves.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// Reads `LANES` bfloat16.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;
    /// Rounds to `LANES` halves, to nearest even.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    unsafe fn store_f16(self, to: *mut u16, x: Self::F);
    /// Rounds to `LANES` bfloat16, to nearest even; NaN stays NaN.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    unsafe fn store_bf16(self, to: *mut u16, x: Self::F);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The magnitude.
    fn abs(self, a: Self::F) -> Self::F;
    /// The largest lane.
    fn largest(self, a: Self::F) -> f32;
    /// The nearest integer, ties to even. `a` must be within `i32`, else the lane is unspecified.
    fn nearest(self, a: Self::F) -> Self::I;

    /// `x` in all lanes.
    fn splat_int(self, x: i32) -> Self::I;
    /// `a - b`, wrapping.
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// The sum of all lanes, wrapping.
    fn total(self, a: Self::I) -> i32;
    /// The float next to `a`.
    fn to_float(self, a: Self::I) -> Self::F;
    /// Two to the power of `a`, which must lie in -126..=127.
    fn power_of_two(self, a: Self::I) -> Self::F;
    /// Writes every lane as one byte. Lanes must lie in -128..=127, else the byte is unspecified.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    unsafe fn store_bytes(self, to: *mut i8, x: Self::I);

    /// Reads `LANES` columns of four bytes.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    unsafe fn load_columns(self, from: *const u8) -> Self::Bytes;
    /// The low four bits of every byte.
    fn low_nibbles(self, x: Self::Bytes) -> Self::Bytes;
    /// The high four bits of every byte.
    fn high_nibbles(self, x: Self::Bytes) -> Self::Bytes;
    /// An accumulator of zeros.
    fn dot_start(self) -> Self::Dot;
    /// Adds, per column, the products of its four weights (0..=15) with the four activations
    /// (-127..=127) that are the bytes of `x`. At most eight times per accumulator.
    fn dot_nibbles(self, sum: Self::Dot, weights: Self::Bytes, x: i32) -> Self::Dot;
    /// The sums.
    fn dot_finish(self, sum: Self::Dot) -> Self::I;
    /// Makes signed bytes ready.
    fn signed(self, x: Self::Bytes) -> Self::Signed;
    /// Adds, per column, the products of its four weights plus [`SIGNED_BIAS`](Self::SIGNED_BIAS)
    /// with the four activations (-127..=127) that are the bytes of `x`.
    fn dot_signed(self, sum: Self::I, weights: Self::Signed, x: i32) -> Self::I;

    /// Transposes a square of `LANES` x `LANES` floats; strides in floats.
    ///
    /// # Safety
    /// `LANES` rows of `LANES` floats are readable at `from` and writable at `to`, and the squares
    /// do not overlap.
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
    /// Asks for the cache line of `at`, which may be any address.
    fn prefetch(self, at: *const u8);
}
