//! An exponential that gives every machine the same bits.
//!
//! The system's `exp` may differ in the last bit between C libraries, which could make two
//! machines choose different tokens. This one uses only IEEE additions and multiplications.

/// e^x for x up to 0, within 2 units in the last place; 0 below -708.
pub(super) fn exp(x: f64) -> f64 {
    // Below this the result would be subnormal: no probability worth drawing.
    const LOWEST: f64 = -708.0;
    const EXPONENT_BIAS: u64 = 1023;
    // ln 2 in two parts, the first with enough trailing zeros for n * LN2_HIGH to be exact; the
    // split is that of fdlibm's e_exp.c.
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let clamped = x.max(LOWEST);
    // Adding 1.5 * 2^52 rounds to the nearest integer n, and leaves n in the lowest bits.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let rounded = clamped * std::f64::consts::LOG2_E + ROUNDER;
    let n = rounded - ROUNDER;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let power = f64::from_bits(rounded.to_bits().wrapping_add(EXPONENT_BIAS) << 52);
    let value = taylor(r) * power;
    if x < LOWEST { 0.0 } else { value }
}

/// e^r for |r| <= ln 2 / 2; the first term left out is below 2^-58.
fn taylor(r: f64) -> f64 {
    const INVERSE_FACTORIALS: [f64; 14] = {
        let mut inverse = [1.0; 14];
        let mut k = 1;
        while k < 14 {
            inverse[k] = inverse[k - 1] / k as f64;
            k += 1;
        }
        inverse
    };
    INVERSE_FACTORIALS.iter().rev().fold(0.0, |sum, coefficient| sum * r + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_systems() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(-709.0), exp(f64::NEG_INFINITY)), (0.0, 0.0));
        for i in 0..200_000 {
            let x = -708.0 * f64::from(i) / 200_000.0;
            let (ours, system) = (exp(x), x.exp());
            assert!((ours - system).abs() <= 2.0 * f64::EPSILON * system, "{x}");
        }
    }

    /// The bits that every machine must give, computed by an independent program.
    #[test]
    fn golden_bits() {
        let bits = [-0.1, -1.0, -10.0, -100.0].map(|x| exp(x).to_bits());
        let golden = [
            0x3fec_f46d_99d5_2b3a,
            0x3fd7_8b56_362c_ef38,
            0x3f07_cd79_b564_7c9a,
            0x36ea_8c1f_14e2_af5d,
        ];
        assert_eq!(bits, golden, "{bits:#x?}");
    }
}
