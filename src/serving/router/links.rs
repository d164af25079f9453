//! What the ways between prefill and decode nodes did, as the prefill nodes report it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::cost::LinkCost;
use super::rates::Rate;
use crate::protocol::HandoffReport;
use crate::status::{HandoffStatus, LinkStatus};

/// The links, by the instances of their prefill and decode nodes.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<(Uuid, Uuid), Link>,
    total: HandoffStatus,
}

#[derive(Debug)]
struct Link {
    from: String,
    to: String,
    total: HandoffStatus,
    /// Bytes that were waited for.
    bytes: Rate,
    /// Tokens of the prompts, in the same time.
    tokens: Rate,
    latest: Duration,
    least: Duration,
}

impl Links {
    /// Notes a handoff between two nodes, each with its instance and its name.
    pub(super) fn note(
        &mut self,
        from: (Uuid, &str),
        to: (Uuid, &str),
        report: &HandoffReport,
        now: Instant,
    ) {
        let link = self.links.entry((from.0, to.0)).or_insert_with(|| Link {
            from: from.1.to_owned(),
            to: to.1.to_owned(),
            total: HandoffStatus::default(),
            bytes: Rate::default(),
            tokens: Rate::default(),
            latest: Duration::ZERO,
            least: Duration::MAX,
        });
        link.latest = Duration::from_micros(report.exposed_us);
        // What left while the prompt was computed took none of that time.
        let waited_for = report.payload_bytes.saturating_sub(report.ahead_bytes);
        link.bytes.note(waited_for, link.latest, now);
        link.tokens.note(u64::from(report.prompt_tokens), link.latest, now);
        link.least = link.least.min(link.latest);
        link.total.add(report.payload_bytes);
        self.total.add(report.payload_bytes);
    }

    /// Notes a handoff to a node that is gone already.
    pub(super) fn note_gone(&mut self, report: &HandoffReport) {
        self.total.add(report.payload_bytes);
    }

    /// What a handoff between two nodes costs, where that was measured of late.
    pub(super) fn cost(&self, from: Uuid, to: Uuid, now: Instant) -> Option<LinkCost> {
        let link = self.links.get(&(from, to))?;
        let by_token = link.tokens.seconds_each(now)?;
        Some(LinkCost { by_token, least: link.least.as_secs_f64() })
    }

    /// A node is gone, and its links with it.
    pub(super) fn forget(&mut self, instance: Uuid) {
        self.links.retain(|(from, to), _| *from != instance && *to != instance);
    }

    /// All handoffs since the start.
    pub(super) fn total(&self) -> HandoffStatus {
        self.total
    }

    pub(super) fn status(&self) -> Vec<LinkStatus> {
        let link = |link: &Link| LinkStatus {
            from: link.from.clone(),
            to: link.to.clone(),
            handoffs: link.total.count,
            bytes: link.total.bytes,
            bytes_per_second: link.bytes.per_second(),
            latest_ms: link.latest.as_secs_f64() * 1e3,
        };
        self.links.values().map(link).collect()
    }
}

#[cfg(test)]
mod tests {
    use blockwire::clock;

    use super::super::rates::KNOWN_FOR;
    use super::*;

    #[test]
    fn a_rate_follows_the_latest_handoffs_and_a_total_does_not_forget() {
        let (mut links, now) = (Links::default(), clock::now());
        let (from, to) = ((Uuid::from_u128(1), "prefill"), (Uuid::from_u128(2), "decode"));
        let report = |payload_bytes, exposed_us| HandoffReport {
            payload_bytes,
            exposed_us,
            prompt_tokens: 10,
            ..HandoffReport::default()
        };
        links.note(from, to, &report(1_000, 1_000), now);
        assert!((links.status()[0].bytes_per_second - 1e6).abs() < 1.0);
        for _ in 0..100 {
            links.note(from, to, &report(1_000, 500), now);
        }
        let link = links.status().remove(0);
        assert!((link.bytes_per_second - 2e6).abs() < 1e3, "{link:?}");
        assert_eq!((link.handoffs, link.bytes, &*link.from), (101, 101_000, "prefill"));
        let streamed =
            HandoffReport { ahead_bytes: 9_000, prompt_tokens: 100, ..report(10_000, 500) };
        for _ in 0..100 {
            links.note(from, to, &streamed, now);
        }
        assert!((links.status()[0].bytes_per_second - 2e6).abs() < 1e3, "{:?}", links.status());
        // Where nothing had to move it took no time.
        links.note((Uuid::from_u128(3), "p"), to, &report(0, 0), now);
        assert_eq!(links.status()[1].bytes_per_second.to_bits(), 0.0f64.to_bits());
        let unknown = Uuid::from_u128(4);
        assert_eq!(links.cost(unknown, to.0, now), None);
        let free = links.cost(Uuid::from_u128(3), to.0, now).unwrap();
        assert_eq!(free, LinkCost { by_token: 0.0, least: 0.0 });
        let cost = links.cost(from.0, to.0, now).unwrap();
        assert!((cost.by_token - 5e-6).abs() < 1e-8 && cost.least == 5e-4, "{cost:?}");
        assert_eq!(links.cost(from.0, to.0, now + KNOWN_FOR), None, "it was long ago");
        links.forget(to.0);
        assert_eq!(links.status(), []);
        assert_eq!(links.total(), HandoffStatus { count: 202, bytes: 1_101_000 });
    }
}
