//! Tokens of the last minute, second by second.

use std::time::{Duration, Instant};

/// Seconds that are remembered.
pub(crate) const SECONDS: usize = 60;
/// Full seconds of which a rate is the mean.
const MEAN_OF: usize = 5;

/// Counts tokens by the second in which they came.
#[derive(Debug)]
pub(crate) struct Throughput {
    start: Instant,
    total: u64,
    /// Of second `n` since the start in place `n` modulo its length: the running one and the full ones.
    counts: [u32; SECONDS + 1],
    /// The running second.
    second: u64,
}

impl Throughput {
    /// No token yet.
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, total: 0, counts: [0; SECONDS + 1], second: 0 }
    }

    /// Since when it counts.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Tokens since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Notes a token.
    pub(crate) fn note(&mut self, now: Instant) {
        self.go_on(now);
        self.total += 1;
        let place = self.place(self.second);
        self.counts[place] = self.counts[place].saturating_add(1);
    }

    /// Tokens of the last full seconds, oldest first.
    pub(crate) fn by_second(&mut self, now: Instant) -> [u32; SECONDS] {
        self.go_on(now);
        // The place behind the running second's has the oldest count.
        std::array::from_fn(|n| self.counts[self.place(self.second + 1 + n as u64)])
    }

    /// Tokens a second, of late.
    pub(crate) fn per_second(&mut self, now: Instant) -> f64 {
        let seconds = self.by_second(now);
        let full = usize::try_from(self.second).unwrap_or(SECONDS).clamp(1, MEAN_OF);
        let sum: u32 = seconds[SECONDS - full..].iter().sum();
        f64::from(sum) / full as f64
    }

    /// Empties the seconds that began since the last look.
    fn go_on(&mut self, now: Instant) {
        let since: Duration = now.saturating_duration_since(self.start);
        let now = since.as_secs().max(self.second);
        let begun = (now - self.second).min(self.counts.len() as u64);
        for second in (now + 1 - begun)..=now {
            let place = self.place(second);
            self.counts[place] = 0;
        }
        self.second = now;
    }

    fn place(&self, second: u64) -> usize {
        (second % self.counts.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use blockwire::clock;

    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_full_seconds() {
        let start = clock::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut seen = Throughput::new(start);
        for millis in [0, 100, 1_000, 1_500, 1_900, 2_100] {
            seen.note(at(millis));
        }
        assert_eq!(seen.by_second(at(2_500))[SECONDS - 3..], [0, 2, 3]);
        assert!((seen.per_second(at(2_500)) - 2.5).abs() < 1e-9);
        assert_eq!(seen.by_second(at(3_000))[SECONDS - 3..], [2, 3, 1]);
        assert!((seen.per_second(at(7_500)) - 1.0 / 5.0).abs() < 1e-9, "of seconds 2 to 6");
        assert_eq!(seen.by_second(at(61_000))[..2], [3, 1], "a minute later");
        assert_eq!(seen.by_second(at(500_000)), [0; SECONDS]);
        seen.note(at(500_000));
        assert_eq!(seen.by_second(at(501_000))[SECONDS - 1], 1);
        assert_eq!(seen.total(), 7);
    }
}
