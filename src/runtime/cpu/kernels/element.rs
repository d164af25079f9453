//! Number types that lie in memory and are computed with as `f32`.

use half::{bf16, f16};

use super::simd::Simd;

/// A stored number type.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// Reads `S::LANES` numbers.
    ///
    /// # Safety
    /// They are readable; no alignment is needed.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::F;

    /// Rounds to `S::LANES` numbers, to nearest even.
    ///
    /// # Safety
    /// They are writable; no alignment is needed.
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, x: S::F);

    /// The number itself: every stored type is a subset of `f32`.
    fn value(self) -> f32;

    /// Reads one number from its little-endian bytes.
    ///
    /// # Panics
    /// When there are too few.
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::F {
        // SAFETY: passed on from the caller.
        unsafe { simd.load(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, x: S::F) {
        // SAFETY: passed on from the caller.
        unsafe { simd.store(to, x) }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::F {
        // SAFETY: passed on from the caller; `f16` is a transparent `u16`.
        unsafe { simd.load_f16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, x: S::F) {
        // SAFETY: passed on from the caller; `f16` is a transparent `u16`.
        unsafe { simd.store_f16(to.cast(), x) }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::F {
        // SAFETY: passed on from the caller; `bf16` is a transparent `u16`.
        unsafe { simd.load_bf16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, x: S::F) {
        // SAFETY: passed on from the caller; `bf16` is a transparent `u16`.
        unsafe { simd.store_bf16(to.cast(), x) }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
}
