//! A circuit breaker for each node: who fails again and again rests for a while.
//!
//! A node that dies loses its connection, and is chosen no more. This is for one that stays and fails. A
//! failure counts for both nodes of a request, since either may be at fault, and a success clears both: the
//! innocent one has successes with others. What a client did wrong, and a node that is busy, count for
//! nobody. Nobody is refused because a node rests: it is chosen last.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

/// Failures in a row after which a node rests.
const FAILURES_MAX: u32 = 3;
/// How long it rests at first; each further failure doubles it.
const REST: Duration = Duration::from_secs(1);
/// How long it rests at most.
const REST_MAX: Duration = Duration::from_secs(60);

/// What is known of the nodes that failed.
#[derive(Debug, Default)]
pub(super) struct Health(BTreeMap<Uuid, Trouble>);

#[derive(Debug)]
struct Trouble {
    failures: u32,
    rests_until: Option<Instant>,
}

impl Health {
    /// A node served a request.
    pub(super) fn succeeded(&mut self, node: Uuid) {
        self.0.remove(&node);
    }

    /// A request failed that a node took part in. How long the node rests now, if it does.
    pub(super) fn failed(&mut self, node: Uuid, now: Instant) -> Option<Duration> {
        let trouble = self.0.entry(node).or_insert(Trouble { failures: 0, rests_until: None });
        trouble.failures = trouble.failures.saturating_add(1);
        let doubled = trouble.failures.checked_sub(FAILURES_MAX)?;
        let rest = REST.saturating_mul(1 << doubled.min(16)).min(REST_MAX);
        trouble.rests_until = Some(now + rest);
        Some(rest)
    }

    /// Whether a node rests.
    pub(super) fn rests(&self, node: Uuid, now: Instant) -> bool {
        self.0.get(&node).and_then(|trouble| trouble.rests_until).is_some_and(|until| now < until)
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

    #[test]
    fn who_fails_in_a_row_rests_longer_each_time() {
        let (mut health, node, now) = (Health::default(), Uuid::from_u128(1), clock::now());
        let rests: Vec<_> = (0..12).map(|_| health.failed(node, now)).collect();
        assert_eq!(rests[..5], [None, None, Some(REST), Some(2 * REST), Some(4 * REST)]);
        assert_eq!(rests[11], Some(REST_MAX));
        assert!(health.rests(node, now + REST_MAX - REST));
        assert!(!health.rests(node, now + REST_MAX));
        assert!(!health.rests(Uuid::from_u128(2), now));
    }

    #[test]
    fn a_success_clears_a_node() {
        let (mut health, node, now) = (Health::default(), Uuid::from_u128(1), clock::now());
        for _ in 0..100 {
            health.failed(node, now);
            assert_eq!(health.failed(node, now), None);
            health.succeeded(node);
        }
    }
}
