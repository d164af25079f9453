//! Kernels over rows of floats: normalisation, the gate, narrowing to the cache's type.

use super::{Kernel, element::Element, simd::Simd};
use crate::files::Activation;

/// Lanes that every float sum is spread over, whatever the level's vectors hold.
pub(crate) const SUM_LANES: usize = 16;

/// `out = x / rms(x) * weight`, as in "Root Mean Square Layer Normalization" (Zhang, Sennrich 2019).
pub(crate) struct Normalise<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) epsilon: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Normalise<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = inverse_rms(simd, self.x, self.epsilon);
        let cells = self.out.iter_mut().zip(self.x).zip(self.weight);
        cells.for_each(|((out, x), weight)| *out = x * scale * weight);
    }
}

/// The same in place, once per head.
pub(crate) struct NormaliseHeads<'a> {
    pub(crate) heads: &'a mut [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) epsilon: f32,
}

impl Kernel for NormaliseHeads<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for head in self.heads.chunks_exact_mut(self.weight.len()) {
            let scale = inverse_rms(simd, head, self.epsilon);
            head.iter_mut().zip(self.weight).for_each(|(x, weight)| *x = *x * scale * weight);
        }
    }
}

/// `gate = activation(gate) * up`.
pub(crate) struct Gate<'a> {
    pub(crate) gate: &'a mut [f32],
    pub(crate) up: &'a [f32],
    pub(crate) activation: Activation,
}

impl Kernel for Gate<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.activation {
            Activation::Silu => self.gate_all(simd, silu_decay),
            Activation::GeluTanh => self.gate_all(simd, gelu_decay),
        }
    }
}

impl Gate<'_> {
    /// Both activations are `x / (1 + decay(x))`.
    #[inline(always)]
    fn gate_all<S: Simd>(self, simd: S, decay: impl Fn(S, S::F) -> S::F) {
        assert_eq!(self.gate.len(), self.up.len(), "one gate a value");
        let whole = self.gate.len() / S::LANES * S::LANES;
        let (gate, gate_rest) = self.gate.split_at_mut(whole);
        let (up, up_rest) = self.up.split_at(whole);
        for (gate, up) in gate.chunks_exact_mut(S::LANES).zip(up.chunks_exact(S::LANES)) {
            // SAFETY: both chunks hold `LANES` floats.
            unsafe { gate_vector(simd, gate.as_mut_ptr(), up.as_ptr(), &decay) }
        }
        let (mut last_gate, mut last_up) = ([0.0; SUM_LANES], [0.0; SUM_LANES]);
        last_gate[..gate_rest.len()].copy_from_slice(gate_rest);
        last_up[..up_rest.len()].copy_from_slice(up_rest);
        // SAFETY: both arrays hold 16 floats, and `LANES` is at most 16.
        unsafe { gate_vector(simd, last_gate.as_mut_ptr(), last_up.as_ptr(), &decay) }
        gate_rest.copy_from_slice(&last_gate[..gate_rest.len()]);
    }
}

/// Narrows a row of a multiple of 16 floats.
pub(crate) struct Narrow<'a, E> {
    pub(crate) from: &'a [f32],
    pub(crate) to: *mut E,
}

impl<'a, E: Element> Narrow<'a, E> {
    /// # Panics
    /// When `from` is no multiple of 16 floats.
    ///
    /// # Safety
    /// Until the kernel has run, `to` is valid for writes of `from.len()` elements, of any alignment,
    /// and nobody else uses them.
    pub(crate) unsafe fn new(from: &'a [f32], to: *mut E) -> Self {
        assert!(from.len().is_multiple_of(16), "{} floats", from.len());
        Self { from, to }
    }
}

impl<E: Element> Kernel for Narrow<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for at in (0..self.from.len()).step_by(S::LANES) {
            // SAFETY: `new` checked that the length is a multiple of 16, hence of `LANES`, so that
            // `LANES` elements lie at `at` on both sides; its caller vouches for `to`.
            unsafe {
                E::store(simd, self.to.add(at), simd.load(self.from.as_ptr().add(at)));
            }
        }
    }
}

/// The sum of 16 lanes in the one order that all sums use.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; SUM_LANES]) -> f32 {
    let mut width = SUM_LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// `e` to the power of `x`, for `x` clamped to -87..=88; within 2 units in the last place.
///
/// Range reduction by ln 2 in two parts, then the degree 5 polynomial of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F) -> S::F {
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = simd.max(simd.min(x, simd.splat(88.0)), simd.splat(-87.0));
    let power = simd.nearest(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let whole = simd.to_float(power);
    let rest = simd.fma(whole, simd.splat(-LN_2_HIGH), x);
    let rest = simd.fma(whole, simd.splat(-LN_2_LOW), rest);
    let mut sum = simd.splat(POLYNOMIAL[0]);
    for coefficient in &POLYNOMIAL[1..] {
        sum = simd.fma(sum, rest, simd.splat(*coefficient));
    }
    let sum = simd.fma(sum, simd.mul(rest, rest), rest);
    simd.mul(simd.add(sum, simd.splat(1.0)), simd.power_of_two(power))
}

/// Element `i` goes to lane `i % 16`.
#[inline(always)]
fn inverse_rms<S: Simd>(simd: S, x: &[f32], epsilon: f32) -> f32 {
    let mut sums = [simd.splat(0.0); SUM_LANES];
    let chunks = x.chunks_exact(SUM_LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (part, sum) in sums.iter_mut().enumerate().take(SUM_LANES / S::LANES) {
            // SAFETY: `part * LANES + LANES` is at most 16, the length of the chunk.
            let x = unsafe { simd.load(chunk.as_ptr().add(part * S::LANES)) };
            *sum = simd.fma(x, x, *sum);
        }
    }
    let mut lanes = [0.0; SUM_LANES];
    for (part, sum) in sums.into_iter().enumerate().take(SUM_LANES / S::LANES) {
        // SAFETY: `part * LANES + LANES` is at most 16, the length of the array.
        unsafe { simd.store(lanes.as_mut_ptr().add(part * S::LANES), sum) }
    }
    rest.iter().zip(&mut lanes).for_each(|(x, lane)| *lane = x.mul_add(*x, *lane));
    1.0 / (sum_lanes(lanes) / x.len() as f32 + epsilon).sqrt()
}

/// # Safety
/// `LANES` floats are writable at `gate` and readable at `up`.
#[inline(always)]
unsafe fn gate_vector<S: Simd>(
    simd: S,
    gate: *mut f32,
    up: *const f32,
    decay: impl Fn(S, S::F) -> S::F,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let x = simd.load(gate);
        let active = simd.div(x, simd.add(simd.splat(1.0), decay(simd, x)));
        simd.store(gate, simd.mul(active, simd.load(up)));
    }
}

#[inline(always)]
fn silu_decay<S: Simd>(simd: S, x: S::F) -> S::F {
    exp(simd, simd.sub(simd.splat(0.0), x))
}

/// `(1 + tanh(y)) / 2` is the sigmoid of `2 y`; `y` as in "Gaussian Error Linear Units" (Hendrycks, Gimpel 2016).
#[inline(always)]
fn gelu_decay<S: Simd>(simd: S, x: S::F) -> S::F {
    const MINUS_TWO_ROOTS: f32 = -1.595_769;
    let cubic = simd.fma(simd.mul(x, x), simd.splat(0.044_715), simd.splat(1.0));
    exp(simd, simd.mul(simd.mul(x, cubic), simd.splat(MINUS_TWO_ROOTS)))
}
