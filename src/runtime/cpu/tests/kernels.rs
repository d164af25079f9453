//! Every kernel at every level that this CPU has, against the scalar twin bit for bit, and against
//! plain arithmetic within rounding.

use half::{bf16, f16};
use proptest::prelude::*;

use crate::{
    cpu::{
        KernelError, KernelLevel,
        kernels::{
            Kernel, Level,
            elementwise::{Gate, Narrow, Normalise, exp},
            output::Output,
            quantize::QuantisedRows,
            simd::Simd,
        },
        matrix::{Input, Matrix, tiles::tiles_of},
        shared::SharedMut,
    },
    files::{Activation, WeightType},
};

const TYPES: [WeightType; 10] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::Bf16,
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q5_0,
    WeightType::Q8_0,
    WeightType::Q4K,
    WeightType::Q5K,
    WeightType::Q6K,
];

fn levels() -> impl Iterator<Item = Level> {
    KernelLevel::available().map(|level| Level::new(level).unwrap())
}

/// A generator that needs no crate: the low bits of a Weyl sequence, mixed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// In -1..1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Random weights as a file would hold them: any bits, but scales of reasonable size.
fn weights(ty: WeightType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let count = rows * cols;
    match ty {
        WeightType::F32 => random.floats(count).iter().flat_map(|x| x.to_le_bytes()).collect(),
        WeightType::F16 => {
            random.floats(count).iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
        }
        WeightType::Bf16 => {
            random.floats(count).iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()
        }
        _ => quantised_weights(ty, count / ty.block_len(), random),
    }
}

fn quantised_weights(ty: WeightType, blocks: usize, random: &mut Random) -> Vec<u8> {
    let scales: &[usize] = match ty {
        WeightType::Q4_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
        WeightType::Q6K => &[208],
        _ => &[0],
    };
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
        for at in scales {
            let scale = f16::from_f32(random.float() / 16.0).to_le_bytes();
            block[*at..*at + 2].copy_from_slice(&scale);
        }
        bytes.extend(block);
    }
    bytes
}

/// The product of random rows, and the quantised rows' exact values.
fn product(level: Level, matrix: &Matrix, x: &[f32], rows: usize) -> Vec<f32> {
    let mut quantised = QuantisedRows::default();
    if matrix.is_quantised() {
        quantised.reshape(rows, matrix.cols());
        let writer = quantised.writer();
        for (row, x) in x.chunks_exact(matrix.cols()).enumerate() {
            // SAFETY: one thread.
            level.run(unsafe { writer.quantize(row, x) });
        }
    }
    // Two cells more than columns: what lies beside the output must stay.
    let stride = matrix.rows() + 2;
    let mut out = vec![7.0; rows * stride];
    let cells = SharedMut::new(&mut out);
    let output = Output::new(&cells, stride, 1..1 + matrix.rows());
    let input = Input { plain: x, quantised: &quantised };
    // SAFETY: one thread.
    unsafe { matrix.multiply(level, input, 0..rows, tiles_of(matrix.rows()), &output) };
    for row in out.chunks_exact(stride) {
        assert_eq!((row[0], row[stride - 1]), (7.0, 7.0), "cells beside the output");
    }
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn products_are_equal_at_all_levels(
        ty in prop::sample::select(&TYPES[..]),
        rows in 1..20usize,
        outputs in 1..70usize,
        blocks in 1..4usize,
        odd in 0..7usize,
        seed: u64,
    ) {
        let random = &mut Random(seed);
        let dense = ty.block_len() == 1;
        let cols = if dense { blocks * 9 + odd } else { blocks * ty.block_len() };
        let matrix = Matrix::new(ty, outputs, cols, &weights(ty, outputs, cols, random));
        let x = random.floats(rows * cols);
        let scalar = product(Level::new(KernelLevel::Scalar).unwrap(), &matrix, &x, rows);
        for level in levels() {
            prop_assert_eq!(bits(&product(level, &matrix, &x, rows)), bits(&scalar), "{:?}", level);
        }
        // One row at a time.
        for (row, x) in x.chunks_exact(cols).enumerate() {
            let alone = product(Level::choose(None).unwrap(), &matrix, x, 1);
            prop_assert_eq!(bits(&alone), bits(&scalar[row * (outputs + 2)..][..outputs + 2]));
        }
    }

    #[test]
    fn rows_of_floats_are_equal_at_all_levels(len in 1..100usize, seed: u64) {
        let random = &mut Random(seed);
        let (x, weight) = (random.floats(len), random.floats(len));
        let mut expected = None;
        for level in levels() {
            let mut out = vec![0.0; len];
            level.run(Normalise { x: &x, weight: &weight, epsilon: 1e-5, out: &mut out });
            let gates = [Activation::Silu, Activation::GeluTanh].map(|activation| {
                let mut gate: Vec<f32> = x.iter().map(|x| x * 100.0).collect();
                level.run(Gate { gate: &mut gate, up: &weight, activation });
                bits(&gate)
            });
            let result = (bits(&out), gates);
            prop_assert_eq!(&result, expected.get_or_insert(result.clone()), "{:?}", level);
        }
    }
}

#[test]
fn gates_agree_with_plain_arithmetic() {
    let x: Vec<f32> = (-400..400).map(|i| i as f32 / 40.0).collect();
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu = |x: f64| {
        let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
        0.5 * x * (1.0 + y.tanh())
    };
    let cases: [(Activation, &dyn Fn(f64) -> f64); 2] =
        [(Activation::Silu, &silu), (Activation::GeluTanh, &gelu)];
    for (activation, exact) in cases {
        let (mut gate, up) = (x.clone(), vec![2.0; x.len()]);
        Level::choose(None).unwrap().run(Gate { gate: &mut gate, up: &up, activation });
        for (x, gated) in x.iter().zip(gate) {
            let off = (f64::from(gated) - 2.0 * exact(f64::from(*x))).abs();
            assert!(off < 1e-5, "{activation:?} of {x}: off by {off}");
        }
    }
}

#[test]
fn products_agree_with_plain_arithmetic() {
    for ty in TYPES {
        let random = &mut Random(ty as u64);
        let (rows, outputs, cols) = (5, 37, 512);
        let matrix = Matrix::new(ty, outputs, cols, &weights(ty, outputs, cols, random));
        let x = random.floats(rows * cols);
        let result = product(Level::choose(None).unwrap(), &matrix, &x, rows);
        let mut weights = vec![0.0; cols];
        for output in 0..outputs {
            matrix.row(output, &mut weights);
            for (row, x) in x.chunks_exact(cols).enumerate() {
                let pairs = || x.iter().zip(&weights).map(|(a, b)| f64::from(a * b));
                let (sum, size) = (pairs().sum::<f64>(), pairs().map(f64::abs).sum::<f64>());
                let off = (f64::from(result[row * (outputs + 2) + 1 + output]) - sum).abs();
                let bound = if matrix.is_quantised() { 0.01 } else { 1e-5 };
                assert!(off <= bound * size, "{ty:?}: off by {off} of {size}");
            }
        }
    }
}

/// Blocks worked out by hand from ggml's definitions.
#[test]
fn stored_blocks_mean_what_ggml_says() {
    let row = |ty: WeightType, bytes: &[u8]| {
        let mut out = vec![0.0; ty.block_len()];
        Matrix::new(ty, 1, ty.block_len(), bytes).row(0, &mut out);
        out
    };
    let half = f16::from_f32(0.5).to_le_bytes();
    let quarter = f16::from_f32(0.25).to_le_bytes();

    let q4_0 = row(WeightType::Q4_0, &[&half[..], &[0x1f; 16]].concat());
    assert_eq!((q4_0[0], q4_0[15], q4_0[16], q4_0[31]), (3.5, 3.5, -3.5, -3.5));
    let q4_1 = row(WeightType::Q4_1, &[&half[..], &quarter, &[0x1f; 16]].concat());
    assert_eq!((q4_1[0], q4_1[16]), (7.75, 0.75));
    let q5_0 = row(WeightType::Q5_0, &[&half[..], &[1, 0, 2, 0], &[0x1f; 16]].concat());
    assert_eq!((q5_0[0], q5_0[1], q5_0[16], q5_0[17]), (7.5, -0.5, -7.5, 0.5));
    let q8_0 = row(WeightType::Q8_0, &[&half[..], &[0x80; 31], &[127]].concat());
    assert_eq!((q8_0[0], q8_0[31]), (-64.0, 63.5));

    // First group: scale 3, minimum 5. Last: scale 1 | 2 << 4 = 33, minimum 7 | 1 << 4 = 23, whose
    // high bits lie on top of bytes 3 and 7.
    let mut packed = [0u8; 12];
    (packed[0], packed[4]) = (3, 5);
    (packed[3], packed[7], packed[11]) = (0x80, 0x40, 0x71);
    let q4_k = row(WeightType::Q4K, &[&half[..], &quarter, &packed, &[0x2f; 128]].concat());
    assert_eq!(q4_k[0], 0.5 * 3.0 * 15.0 - 0.25 * 5.0);
    assert_eq!(q4_k[255], 0.5 * 33.0 * 2.0 - 0.25 * 23.0);
    let fifths = [0x80; 32];
    let q5_k =
        row(WeightType::Q5K, &[&half[..], &quarter, &packed, &fifths, &[0x2f; 128]].concat());
    assert_eq!(q5_k[0], 0.5 * 3.0 * 15.0 - 0.25 * 5.0);
    assert_eq!(q5_k[255], 0.5 * 33.0 * 18.0 - 0.25 * 23.0);

    let mut scales = [0u8; 16];
    (scales[0], scales[1], scales[15]) = (2, 255, 3);
    let q6_k = row(WeightType::Q6K, &[&[0x5a; 128][..], &[0xc1; 64], &scales, &half].concat());
    assert_eq!(q6_k[0], 0.5 * 2.0 * f32::from(0x1a - 32i8));
    assert_eq!(q6_k[16], -0.5 * f32::from(0x1a - 32i8));
    assert_eq!(q6_k[255], 0.5 * 3.0 * f32::from(0x35 - 32i8));
}

#[test]
fn narrowing_rounds_as_the_half_crate_does() {
    let random = &mut Random(1);
    let mut x =
        vec![0.0, -0.0, 1e-8, 65_519.9, 65_520.0, f32::NAN, f32::INFINITY, 1.0 + f32::EPSILON];
    // Ties, to even and from odd.
    x.extend([1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]);
    x.extend((0..4084).map(|_| f32::from_bits(random.next() as u32)));
    for level in levels() {
        let (mut halves, mut brains) = (vec![f16::ZERO; x.len()], vec![bf16::ZERO; x.len()]);
        // SAFETY: the vectors are as long as `x`, and nobody else has them.
        unsafe {
            level.run(Narrow::new(&x, halves.as_mut_ptr()));
            level.run(Narrow::new(&x, brains.as_mut_ptr()));
        }
        for (i, x) in x.iter().enumerate() {
            assert_eq!(halves[i].to_bits(), f16::from_f32(*x).to_bits(), "{level:?}: {x}");
            assert_eq!(brains[i].to_bits(), bf16::from_f32(*x).to_bits(), "{level:?}: {x}");
        }
    }
}

/// `exp` of 16 numbers.
struct Exp<'a>(&'a mut [f32; 16]);

impl Kernel for Exp<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for chunk in self.0.chunks_exact_mut(S::LANES) {
            // SAFETY: the chunk holds `LANES` floats.
            unsafe { simd.store(chunk.as_mut_ptr(), exp(simd, simd.load(chunk.as_ptr()))) }
        }
    }
}

#[test]
fn exp_is_close_and_equal_at_all_levels() {
    let random = &mut Random(2);
    for _ in 0..2_000 {
        let x: [f32; 16] = std::array::from_fn(|_| random.float() * 90.0);
        let mut expected = None;
        for level in levels() {
            let mut out = x;
            level.run(Exp(&mut out));
            for (x, out) in x.iter().zip(out) {
                let exact = f64::from(x.clamp(-87.0, 88.0)).exp();
                assert!((f64::from(out) / exact - 1.0).abs() < 2.5e-7, "exp({x}) = {out}");
            }
            assert_eq!(out.map(f32::to_bits), *expected.get_or_insert(out.map(f32::to_bits)));
        }
    }
    let mut one = [0.0; 16];
    Level::choose(None).unwrap().run(Exp(&mut one));
    assert_eq!(one, [1.0; 16]);
}

/// Transposes a square of `LANES` numbers.
struct Transpose<'a>(&'a [f32; 256], &'a mut [f32; 256]);

impl Kernel for Transpose<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: `LANES` is at most 16, the side of both squares.
        unsafe { simd.transpose(self.0.as_ptr(), 16, self.1.as_mut_ptr(), 16) }
        for (i, x) in self.1.iter().enumerate() {
            let inside = i / 16 < S::LANES && i % 16 < S::LANES;
            assert_eq!(*x, if inside { self.0[i % 16 * 16 + i / 16] } else { -1.0 }, "cell {i}");
        }
    }
}

#[test]
fn squares_are_transposed() {
    let from = std::array::from_fn(|i| i as f32);
    levels().for_each(|level| level.run(Transpose(&from, &mut [-1.0; 256])));
}

#[test]
fn levels_have_names() {
    for level in KernelLevel::ALL {
        assert_eq!(level.to_string().parse(), Ok(level));
    }
    let unknown = "sse".parse::<KernelLevel>();
    assert_eq!(unknown, Err(KernelError::Unknown { name: "sse".to_owned() }));
    let foreign = if cfg!(target_arch = "aarch64") { KernelLevel::Avx2 } else { KernelLevel::Neon };
    let refused = Level::choose(Some(foreign)).unwrap_err();
    assert_eq!(refused, KernelError::Unavailable { level: foreign });
}
