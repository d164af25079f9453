//! How a payload is split between stripes, and what its digest is then.
//!
//! The receiver splits: it has the room, and it knows which stripes live. Shares are equal, and cut at
//! multiples of 64 KiB, so that few blocks are cut. A payload that is not worth it stays whole.
//!
//! XXH3 over parts does not give XXH3 over the whole, and one pass over the whole would keep the parts
//! waiting for each other. So the digest of a payload of several parts is [that of its parts][of_parts]. Both
//! ends have the same parts, whatever happens to stripes: a part that is sent again stays what it was.
//!
//! [of_parts]: blockwire::pool::Digest::of_parts

/// Least bytes of a part: below, a second stripe gains less than it costs.
const PART_LEN_MIN: u64 = 1 << 20;
/// Where parts may begin.
const ALIGNMENT: u64 = 64 << 10;

/// Lengths of the parts of a payload of `len` bytes for so many stripes: at least one part, none empty.
pub(super) fn shares(len: u64, stripes: usize) -> Vec<u64> {
    let parts = (len / PART_LEN_MIN).clamp(1, stripes.max(1) as u64);
    let share = len.div_ceil(parts).next_multiple_of(ALIGNMENT);
    let mut lens = Vec::new();
    let mut left = len;
    while left > share {
        lens.push(share);
        left -= share;
    }
    lens.push(left);
    lens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_aligned_and_all_of_it() {
        for len in [1, 4096, PART_LEN_MIN, 2 * PART_LEN_MIN - 1, 2 * PART_LEN_MIN, 100_000_001] {
            for stripes in 1..=16 {
                let lens = shares(len, stripes);
                assert_eq!(lens.iter().sum::<u64>(), len);
                assert!(lens.len() <= stripes && lens.iter().all(|len| *len > 0), "{lens:?}");
                let (last, before) = lens.split_last().unwrap();
                assert!(before.iter().all(|len| len % ALIGNMENT == 0 && len == &before[0]));
                assert!(before.is_empty() || last <= &before[0]);
            }
        }
        assert_eq!(shares(2 * PART_LEN_MIN - 1, 4).len(), 1);
        assert_eq!(shares(4 * PART_LEN_MIN, 4), [PART_LEN_MIN; 4]);
    }
}
