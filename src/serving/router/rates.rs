//! How fast something is, by what was measured of late.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::backend::Computed;

/// How long a measurement says something about what comes.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(60);
/// What of the sums is kept when the next measurement is added: a rate is that of the latest ten or so.
const KEPT: f64 = 0.9;
/// Fewest tokens of a prompt whose time says something about a node: of fewer, most is a step's own.
const TOKENS_MIN: u64 = 16;

/// Sums of something and of the seconds that it took, in which what is older weighs less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    amount: f64,
    seconds: f64,
    latest: Option<Instant>,
}

impl Rate {
    pub(super) fn note(&mut self, amount: u64, time: Duration, now: Instant) {
        self.amount = self.amount * KEPT + amount as f64;
        self.seconds = self.seconds * KEPT + time.as_secs_f64();
        self.latest = Some(now);
    }

    /// As last measured, however long ago; 0 where nothing took time.
    pub(super) fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.amount / self.seconds } else { 0.0 }
    }

    /// Seconds for one, where that was measured of late.
    pub(super) fn seconds_each(&self, now: Instant) -> Option<f64> {
        self.is_known(now).then(|| self.seconds / self.amount)
    }

    fn is_known(&self, now: Instant) -> bool {
        let of_late = |latest| now.saturating_duration_since(latest) < KNOWN_FOR;
        self.amount > 0.0 && self.latest.is_some_and(of_late)
    }
}

/// How fast nodes compute prompts, as they report it.
#[derive(Debug, Default)]
pub(super) struct PrefillRates(BTreeMap<Uuid, Rate>);

impl PrefillRates {
    pub(super) fn note(&mut self, node: Uuid, computed: Computed, now: Instant) {
        if computed.tokens >= TOKENS_MIN && computed.time > Duration::ZERO {
            self.0.entry(node).or_default().note(computed.tokens, computed.time, now);
        }
    }

    /// Tokens a second, where measured of late.
    pub(super) fn of_late(&self, node: Uuid, now: Instant) -> Option<f64> {
        let rate = self.0.get(&node).filter(|rate| rate.is_known(now))?;
        Some(rate.per_second())
    }

    /// The same however long ago; 0 where never.
    pub(super) fn latest(&self, node: Uuid) -> f64 {
        self.0.get(&node).map_or(0.0, Rate::per_second)
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: Uuid) {
        self.0.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use blockwire::clock;

    use super::*;

    fn computed(tokens: u64, millis: u64) -> Computed {
        Computed { tokens, time: Duration::from_millis(millis) }
    }

    #[test]
    fn a_node_is_as_fast_as_of_late_and_unknown_after_a_while() {
        let (mut rates, node, now) = (PrefillRates::default(), Uuid::from_u128(1), clock::now());
        assert_eq!(rates.of_late(node, now), None);
        rates.note(node, computed(100, 1_000), now);
        assert_eq!(rates.of_late(node, now), Some(100.0));
        (0..100).for_each(|_| rates.note(node, computed(100, 500), now));
        let rate = rates.of_late(node, now).unwrap();
        assert!((rate - 200.0).abs() < 0.1, "{rate}");
        assert_eq!(rates.of_late(node, now + KNOWN_FOR), None);
        assert_eq!(rates.latest(node).to_bits(), rate.to_bits());
        rates.forget(node);
        assert_eq!(rates.of_late(node, now), None);
    }

    #[test]
    fn what_says_nothing_is_not_counted() {
        let (mut rates, node, now) = (PrefillRates::default(), Uuid::from_u128(1), clock::now());
        rates.note(node, computed(TOKENS_MIN - 1, 1_000), now);
        rates.note(node, computed(1_000, 0), now);
        assert_eq!(rates.of_late(node, now), None);
    }
}
