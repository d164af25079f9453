//! What Prometheus reads. Names follow vLLM's: `blockwire:` where it says `vllm:`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blockwire::clock;
use blockwire::pool::BlockPool;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use serde::Serialize;

use crate::backend::{FinishReason, Usage};
use crate::throughput::Throughput;

/// Upper bounds in seconds, as vLLM's, for a first token.
const FIRST_TOKEN_BUCKETS: [f64; 17] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0,
    160.0,
];
/// For the time between two tokens.
const NEXT_TOKEN_BUCKETS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0];
/// For whole requests.
const REQUEST_BUCKETS: [f64; 14] =
    [0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 480.0, 1920.0];

type Label = [(&'static str, String); 1];

/// All metrics of a process. Cloning gives another handle to the same ones.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generation_tokens: Counter,
    success: Family<Label, Counter>,
    errors: Family<Label, Counter>,
    requests_in_flight: Gauge,
    first_token: Histogram,
    next_token: Histogram,
    whole_request: Histogram,
    throughput: Mutex<Throughput>,
    failures: AtomicU64,
}

/// Tokens, for the live page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TokenStatus {
    /// Of prompts whose answers are complete.
    prompt: u64,
    /// Generated.
    generated: u64,
    /// A second, of late.
    per_second: f64,
    /// In each of the last full seconds, oldest first.
    by_second: Vec<u32>,
}

impl Metrics {
    /// The front's own metrics, all zero.
    pub fn new() -> Self {
        let inner = Inner {
            registry: Mutex::new(Registry::default()),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            success: Family::default(),
            errors: Family::default(),
            requests_in_flight: Gauge::default(),
            first_token: Histogram::new(FIRST_TOKEN_BUCKETS),
            next_token: Histogram::new(NEXT_TOKEN_BUCKETS),
            whole_request: Histogram::new(REQUEST_BUCKETS),
            throughput: Mutex::new(Throughput::new(clock::now())),
            failures: AtomicU64::new(0),
        };
        let metrics = Self(Arc::new(inner));
        metrics.register_own();
        metrics
    }

    fn register_own(&self) {
        let own = &self.0;
        self.register("prompt_tokens", "Prompt tokens processed", own.prompt_tokens.clone());
        self.register(
            "prompt_tokens_cached",
            "Prompt tokens found in a cache",
            own.cached_tokens.clone(),
        );
        self.register("generation_tokens", "Tokens generated", own.generation_tokens.clone());
        self.register("request_success", "Choices completed, by reason", own.success.clone());
        self.register("request_errors", "Requests refused or failed, by code", own.errors.clone());
        self.register(
            "http_requests_in_flight",
            "Requests being answered",
            own.requests_in_flight.clone(),
        );
        self.register(
            "time_to_first_token_seconds",
            "From the request to its first token",
            own.first_token.clone(),
        );
        self.register(
            "inter_token_latency_seconds",
            "From a token to the next",
            own.next_token.clone(),
        );
        self.register(
            "e2e_request_latency_seconds",
            "From the request to its last token",
            own.whole_request.clone(),
        );
    }

    /// Adds a metric under `blockwire:<name>`; a counter's name ends in `_total` when it is read.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.registry(|registry| registry.register(format!("blockwire:{name}"), help, metric));
    }

    /// Adds metrics that are computed when they are read.
    pub fn register_collector(&self, collector: impl Collector) {
        self.registry(|registry| registry.register_collector(Box::new(collector)));
    }

    /// Adds exact gauges of `pool`, labelled with its `name`.
    pub fn register_pool(&self, name: &str, pool: BlockPool) {
        self.register_collector(PoolCollector { name: name.to_owned(), pool });
    }

    /// The text that Prometheus reads (OpenMetrics).
    pub fn render(&self) -> String {
        let mut text = String::new();
        let rendered = self
            .registry(|registry| prometheus_client::encoding::text::encode(&mut text, registry));
        debug_assert!(rendered.is_ok(), "writing to a string does not fail");
        text
    }

    fn registry<R>(&self, use_it: impl FnOnce(&mut Registry) -> R) -> R {
        // A registry is consistent between calls, so a panic elsewhere does not spoil it.
        use_it(&mut self.0.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.0.first_token.observe(after.as_secs_f64());
        self.throughput().note(clock::now());
    }

    pub(crate) fn next_token(&self, after: Duration) {
        self.0.next_token.observe(after.as_secs_f64());
        self.throughput().note(clock::now());
    }

    pub(crate) fn completed(&self, reason: FinishReason, usage: &Usage, after: Duration) {
        self.0.success.get_or_create(&reason_label(reason)).inc();
        self.0.whole_request.observe(after.as_secs_f64());
        self.0.prompt_tokens.inc_by(u64::from(usage.prompt_tokens));
        self.0.cached_tokens.inc_by(u64::from(usage.cached_tokens));
        self.0.generation_tokens.inc_by(u64::from(usage.completion_tokens));
    }

    pub(crate) fn failed(&self, code: &str) {
        self.0.errors.get_or_create(&[("code", code.to_owned())]).inc();
        self.0.failures.fetch_add(1, Relaxed);
    }

    /// Since the start.
    pub(crate) fn uptime(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.throughput().start())
    }

    /// Choices that ended well.
    pub(crate) fn finished(&self) -> u64 {
        let ended = |reason| self.0.success.get_or_create(&reason_label(reason)).get();
        ended(FinishReason::Stop) + ended(FinishReason::Length)
    }

    /// Requests refused or failed.
    pub(crate) fn failures(&self) -> u64 {
        self.0.failures.load(Relaxed)
    }

    /// Tokens, up to now.
    pub(crate) fn tokens(&self, now: Instant) -> TokenStatus {
        let mut throughput = self.throughput();
        TokenStatus {
            prompt: self.0.prompt_tokens.get(),
            generated: throughput.total(),
            per_second: throughput.per_second(now),
            by_second: throughput.by_second(now).to_vec(),
        }
    }

    fn throughput(&self) -> MutexGuard<'_, Throughput> {
        self.0.throughput.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request as being answered until the guard is dropped.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.0.requests_in_flight.inc();
        InFlight(self.clone())
    }
}

fn reason_label(reason: FinishReason) -> Label {
    [("finished_reason", reason.name().to_owned())]
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InFlight(Metrics);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.requests_in_flight.dec();
    }
}

/// The exact state of a pool's blocks.
#[derive(Debug)]
struct PoolCollector {
    name: String,
    pool: BlockPool,
}

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = self.pool.accounting();
        let states = [
            ("free", now.free),
            ("reserved", now.reserved),
            ("loaned", now.loaned),
            ("quarantined", now.quarantined),
            ("sealed", now.sealed),
            ("cached", now.cached),
        ];
        for (state, blocks) in states {
            let name = format!("blockwire:pool_blocks_{state}");
            gauge(&mut encoder, &name, "Blocks of the pool in this state", &self.name, blocks)?;
        }
        let (name, lent) = ("blockwire:pool_blocks_lent", self.pool.lent_blocks());
        let help = "Sealed blocks of the pool that peers read in place";
        gauge(&mut encoder, name, help, &self.name, lent)?;
        let used = 1.0 - now.available() as f64 / now.total.max(1) as f64;
        let gauge = ConstGauge::new(used);
        let help = "Share of the pool in use, without what is only cached, 0 to 1";
        let kind = gauge.metric_type();
        let mut metric =
            encoder.encode_descriptor("blockwire:kv_cache_usage_perc", help, None, kind)?;
        gauge.encode(metric.encode_family(&[("pool", self.name.as_str())])?)
    }
}

/// Writes a gauge labelled with a pool's name.
pub(crate) fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    pool: &str,
    value: usize,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(value as i64);
    let mut metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric.encode_family(&[("pool", pool)])?)
}

/// Writes a counter; its name ends in `_total` when it is read.
pub(crate) fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let counter = ConstCounter::new(value);
    let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
    counter.encode(metric)
}

#[cfg(test)]
mod tests {
    use blockwire::pool::{Dtype, KvSpec, PoolOptions};

    use super::*;

    #[test]
    fn pools_show_the_state_of_every_block() {
        let spec = KvSpec::uniform(4, 1, 1, 8, Dtype::F16);
        let pool = BlockPool::new(PoolOptions::new(spec, 4)).unwrap();
        let metrics = Metrics::new();
        metrics.register_pool("decode", pool.clone());
        let _held = pool.try_reserve(3).unwrap();
        let text = metrics.render();
        assert!(text.contains("blockwire:pool_blocks_free{pool=\"decode\"} 1\n"), "{text}");
        assert!(text.contains("blockwire:pool_blocks_reserved{pool=\"decode\"} 3\n"), "{text}");
        assert!(text.contains("blockwire:kv_cache_usage_perc{pool=\"decode\"} 0.75\n"), "{text}");
    }

    #[test]
    fn counters_have_names_after_vllm() {
        let metrics = Metrics::new();
        let usage = Usage { prompt_tokens: 3, completion_tokens: 2, cached_tokens: 1 };
        metrics.completed(FinishReason::Length, &usage, Duration::from_millis(200));
        metrics.failed("busy");
        let text = metrics.render();
        for line in [
            "blockwire:prompt_tokens_total 3",
            "blockwire:generation_tokens_total 2",
            "blockwire:prompt_tokens_cached_total 1",
            "blockwire:request_success_total{finished_reason=\"length\"} 1",
            "blockwire:request_errors_total{code=\"busy\"} 1",
            "blockwire:e2e_request_latency_seconds_count 1",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in\n{text}");
        }
    }
}
