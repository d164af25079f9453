//! How far away the peer's core is, felt in passing.
//!
//! Two cores that share a cache pass each other a line in about 50 ns, two that do not in 200, and a
//! virtual machine's cores move between the one and the other while it runs. It decides how payload is
//! best stored into a ring (`stream`), so it is measured where it is felt anyway: the load that finds
//! a new word of the peer's brings its line from the peer's core. Such a load took 60 to 70 ns in the
//! median where cores were near, its clock included, and at most 100 in nine of ten; where they were
//! far, half of them or more took 160 and above.

use std::time::Duration;

/// A load that takes this long came from far away.
const FAR: Duration = Duration::from_nanos(120);
/// So many of the last 16 loads: an interrupt makes one look long, a line that was on its way already
/// makes one look short.
const FAR_LOADS: u32 = 4;

/// The last 16 loads, one bit each: whether it came from far away.
#[derive(Debug, Default)]
pub(crate) struct Distance {
    loads: u16,
}

impl Distance {
    /// A load that brought news took so long.
    pub(crate) fn felt(&mut self, load: Duration) {
        self.loads = self.loads << 1 | u16::from(load >= FAR);
    }

    /// Whether the peer's core shares no cache with this one. Not, before anything was felt.
    pub(crate) fn is_far(&self) -> bool {
        self.loads.count_ones() >= FAR_LOADS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_long_loads_are_chance_and_more_are_distance() {
        let mut distance = Distance::default();
        let feel = |distance: &mut Distance, long: usize, short: usize| {
            (0..long).for_each(|_| distance.felt(FAR));
            (0..short).for_each(|_| distance.felt(FAR / 2));
        };
        assert!(!distance.is_far());
        (0..10).for_each(|_| feel(&mut distance, 1, 5));
        assert!(!distance.is_far());
        (0..10).for_each(|_| feel(&mut distance, 2, 3));
        assert!(distance.is_far());
        feel(&mut distance, 0, 16);
        assert!(!distance.is_far());
    }
}
