//! Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
//! as easy as 1, 2, 3", SC 2011): a keyed bijection of 128-bit counters, with no state.

/// Multipliers of the paper's Philox4x32.
const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Weyl increments of the key: the golden ratio and the root of 3, less 1.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// A number in [0, 1), a multiple of 2^-53, for this key and counter.
pub(super) fn uniform(seed: u64, position: u64) -> f64 {
    let words = |n: u64| [n as u32, (n >> 32) as u32];
    let [low, high] = words(position);
    let block = philox([low, high, 0, 0], words(seed));
    let bits = u64::from(block[0]) | u64::from(block[1]) << 32;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let even = MULTIPLIERS[0] * u64::from(counter[0]);
        let odd = MULTIPLIERS[1] * u64::from(counter[2]);
        counter = [
            (odd >> 32) as u32 ^ counter[1] ^ key[0],
            odd as u32,
            (even >> 32) as u32 ^ counter[3] ^ key[1],
            even as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers that the paper's authors publish with Random123 (`kat_vectors`).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn numbers_are_uniform_enough() {
        let mean = (0..10_000).map(|position| uniform(7, position)).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!((0..10_000).all(|position| (0.0..1.0).contains(&uniform(7, position))));
        assert_ne!(uniform(7, 0), uniform(8, 0));
    }
}
