//! ggml's quantised blocks, brought to one shape: 32 small integers with scales and a minimum.
//!
//! Nothing is rounded: a weight is `scale * (quant - ZERO) + minimum` with the very numbers of the
//! file. The products of K-quant scales (11 bits by at most 8) are exact in an `f32`.
//! Layouts as in ggml's `ggml-common.h`.

use half::f16;

use crate::cpu::kernels::element::Element;

/// 32 consecutive weights of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoded<E> {
    /// Unsigned nibbles, or the bits of signed bytes.
    pub(crate) quants: [u8; 32],
    /// One scale per [`GROUP`](Format::GROUP); both are equal when that is 32.
    pub(crate) scales: [E; 2],
    /// Added to every weight.
    pub(crate) minimum: E,
}

/// A quantised format.
pub(crate) trait Format: Send + Sync + 'static {
    /// Weights in a block of the file.
    const LEN: usize;
    /// Bytes of a block in the file.
    const BYTES: usize;
    /// Whether quants are kept as nibbles (0..=15); otherwise as signed bytes.
    const NIBBLES: bool;
    /// What to subtract from every nibble.
    const ZERO: i32 = 0;
    /// Weights per scale: 32 or 16.
    const GROUP: usize = 32;
    /// Whether weights have a minimum.
    const MINIMA: bool = false;
    /// Type of scales and minima.
    type Scale: Element;

    /// Reads the `part`th 32 weights of a file block.
    ///
    /// # Panics
    /// When the block is shorter than [`BYTES`](Self::BYTES), or has no such part.
    fn decode(block: &[u8], part: usize) -> Decoded<Self::Scale>;
}

/// f16 scale, 16 bytes of nibbles: element `i` low, `i + 16` high.
#[derive(Debug)]
pub(crate) struct Q4_0;
/// As [`Q4_0`] without the zero point, with an f16 minimum after the scale.
#[derive(Debug)]
pub(crate) struct Q4_1;
/// f16 scale, 4 bytes of fifth bits, 16 bytes of nibbles; zero point 16.
#[derive(Debug)]
pub(crate) struct Q5_0;
/// f16 scale, 32 signed bytes.
#[derive(Debug)]
pub(crate) struct Q8_0;
/// f16 scale of scales and of minima, 12 bytes of six-bit scales and minima, 128 bytes of nibbles.
#[derive(Debug)]
pub(crate) struct Q4K;
/// As [`Q4K`] with 32 bytes of fifth bits before the nibbles.
#[derive(Debug)]
pub(crate) struct Q5K;
/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 scale of scales.
#[derive(Debug)]
pub(crate) struct Q6K;

impl Format for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const NIBBLES: bool = true;
    const ZERO: i32 = 8;
    type Scale = f16;

    fn decode(block: &[u8], _: usize) -> Decoded<f16> {
        let scales = [f16::from_bytes(block); 2];
        Decoded { quants: low_then_high(&block[2..18]), scales, minimum: f16::ZERO }
    }
}

impl Format for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;
    const NIBBLES: bool = true;
    const MINIMA: bool = true;
    type Scale = f16;

    fn decode(block: &[u8], _: usize) -> Decoded<f16> {
        let (scales, minimum) = ([f16::from_bytes(block); 2], f16::from_bytes(&block[2..]));
        Decoded { quants: low_then_high(&block[4..20]), scales, minimum }
    }
}

impl Format for Q5_0 {
    const LEN: usize = 32;
    const BYTES: usize = 22;
    const NIBBLES: bool = false;
    type Scale = f16;

    fn decode(block: &[u8], _: usize) -> Decoded<f16> {
        let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let mut quants = low_then_high(&block[6..22]);
        for (i, quant) in quants.iter_mut().enumerate() {
            let bit = (fifth >> i & 1) as u8;
            *quant = (*quant | bit << 4).wrapping_sub(16);
        }
        Decoded { quants, scales: [f16::from_bytes(block); 2], minimum: f16::ZERO }
    }
}

impl Format for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;
    const NIBBLES: bool = false;
    type Scale = f16;

    fn decode(block: &[u8], _: usize) -> Decoded<f16> {
        let mut quants = [0; 32];
        quants.copy_from_slice(&block[2..34]);
        Decoded { quants, scales: [f16::from_bytes(block); 2], minimum: f16::ZERO }
    }
}

impl Format for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const NIBBLES: bool = true;
    const MINIMA: bool = true;
    type Scale = f32;

    fn decode(block: &[u8], part: usize) -> Decoded<f32> {
        let (scale, minimum) = scale_and_minimum(block, part);
        let quants = k_nibbles(&block[16..144], part);
        Decoded { quants, scales: [scale; 2], minimum }
    }
}

impl Format for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const NIBBLES: bool = false;
    const MINIMA: bool = true;
    type Scale = f32;

    fn decode(block: &[u8], part: usize) -> Decoded<f32> {
        let (scale, minimum) = scale_and_minimum(block, part);
        let mut quants = k_nibbles(&block[48..176], part);
        for (quant, fifths) in quants.iter_mut().zip(&block[16..48]) {
            *quant |= (fifths >> part & 1) << 4;
        }
        Decoded { quants, scales: [scale; 2], minimum }
    }
}

impl Format for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const NIBBLES: bool = false;
    const GROUP: usize = 16;
    type Scale = f32;

    fn decode(block: &[u8], part: usize) -> Decoded<f32> {
        // Each half of 128 weights: 64 low bytes, 32 high bytes; its four parts are the low nibbles
        // of the first 32 low bytes, of the second, then the high nibbles of both.
        let (half, quarter) = (part / 4, part % 4);
        let low = &block[half * 64 + quarter % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        let mut quants = [0; 32];
        for (quant, (low, high)) in quants.iter_mut().zip(low.iter().zip(high)) {
            let nibble = if quarter < 2 { low & 15 } else { low >> 4 };
            *quant = (nibble | (high >> (2 * quarter) & 3) << 4).wrapping_sub(32);
        }
        let super_scale = f16::from_bytes(&block[208..]).value();
        let scale = |i: usize| super_scale * f32::from(block[192 + 2 * part + i] as i8);
        Decoded { quants, scales: [scale(0), scale(1)], minimum: 0.0 }
    }
}

/// 16 bytes: their low nibbles, then their high ones.
fn low_then_high(bytes: &[u8]) -> [u8; 32] {
    let mut quants = [0; 32];
    for (i, byte) in bytes.iter().enumerate().take(16) {
        (quants[i], quants[i + 16]) = (byte & 15, byte >> 4);
    }
    quants
}

/// Part `2i` is the low nibbles of the `i`th 32 bytes, part `2i + 1` the high ones.
fn k_nibbles(bytes: &[u8], part: usize) -> [u8; 32] {
    let mut quants = [0; 32];
    for (quant, byte) in quants.iter_mut().zip(&bytes[part / 2 * 32..][..32]) {
        *quant = if part.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    }
    quants
}

/// The first four parts have their six bits in one byte each; the last four have the low four bits in
/// the last four bytes and the high two on top of the first eight.
fn scale_and_minimum(block: &[u8], part: usize) -> (f32, f32) {
    let packed = &block[4..16];
    let (scale, minimum) = if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        let low = packed[part + 4];
        (low & 15 | packed[part - 4] >> 6 << 4, low >> 4 | packed[part] >> 6 << 4)
    };
    let scale = f16::from_bytes(block).value() * f32::from(scale);
    (scale, -(f16::from_bytes(&block[2..]).value() * f32::from(minimum)))
}
