//! What Prometheus reads of the handoffs.

use blockwire::handoff::SendReport;
use blockwire::pool::TransferStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::histogram::Histogram;

use crate::metrics::Metrics;

/// Upper bounds in seconds, from a mapped block to a long prompt over a slow link.
const HANDOFF_BUCKETS: [f64; 12] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

/// Handoffs of a node. Cloning gives another handle to the same counters.
#[derive(Clone, Debug)]
pub struct HandoffMetrics {
    sent: Counter,
    sent_bytes: Counter,
    ahead_bytes: Counter,
    exposed_seconds: Histogram,
    received: Counter,
    received_bytes: Counter,
    adopted_bytes: Counter,
    present_bytes: Counter,
    local_prefills: Counter,
}

impl HandoffMetrics {
    /// Registers all of them, at zero.
    pub fn register(metrics: &Metrics) -> Self {
        let own = Self {
            sent: Counter::default(),
            sent_bytes: Counter::default(),
            ahead_bytes: Counter::default(),
            exposed_seconds: Histogram::new(HANDOFF_BUCKETS),
            received: Counter::default(),
            received_bytes: Counter::default(),
            adopted_bytes: Counter::default(),
            present_bytes: Counter::default(),
            local_prefills: Counter::default(),
        };
        metrics.register("handoffs_sent", "Caches handed over", own.sent.clone());
        let help = "Bytes of the caches handed over";
        metrics.register("handoff_sent_bytes", help, own.sent_bytes.clone());
        let help = "Bytes of the caches handed over that had left when their prompts were computed";
        metrics.register("handoff_ahead_bytes", help, own.ahead_bytes.clone());
        let help = "From a computed prompt to the commit of its cache";
        metrics.register("handoff_exposed_seconds", help, own.exposed_seconds.clone());
        metrics.register("handoffs_received", "Caches taken over", own.received.clone());
        let help = "Bytes of the caches taken over";
        metrics.register("handoff_received_bytes", help, own.received_bytes.clone());
        let help = "Bytes of the caches taken over that were left where they were";
        metrics.register("handoff_adopted_bytes", help, own.adopted_bytes.clone());
        let help = "Bytes of the caches taken over that were here already, and did not move";
        metrics.register("handoff_present_bytes", help, own.present_bytes.clone());
        let help = "Prompts that a decode node computed itself";
        metrics.register("local_prefills", help, own.local_prefills.clone());
        metrics.register_collector(PayloadCollector);
        own
    }

    pub(super) fn handed_over(&self, report: &SendReport) {
        self.sent.inc();
        self.sent_bytes.inc_by(report.payload_len);
        self.ahead_bytes.inc_by(report.ahead_len);
        self.exposed_seconds.observe(report.exposed.as_secs_f64());
    }

    pub(super) fn computed_here(&self) {
        self.local_prefills.inc();
    }

    pub(super) fn taken_over(&self, bytes: u64, adopted: u64, present: u64) {
        self.received.inc();
        self.received_bytes.inc_by(bytes);
        self.adopted_bytes.inc_by(adopted);
        self.present_bytes.inc_by(present);
    }
}

/// Payload traffic of the process, as the links counted it.
#[derive(Debug)]
struct PayloadCollector;

impl Collector for PayloadCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = TransferStats::of_process();
        for (name, help, value) in [
            ("sent", "Payload bytes handed to a wire", stats.sent()),
            ("landed", "Payload bytes that arrived in pool blocks", stats.landed()),
            ("copied", "Payload bytes copied in user space", stats.copied()),
        ] {
            let counter = ConstCounter::new(value);
            let name = format!("blockwire:payload_{name}_bytes");
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(&name, help, None, kind)?)?;
        }
        Ok(())
    }
}
