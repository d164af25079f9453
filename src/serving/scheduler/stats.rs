//! What the scheduler counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use uuid::Uuid;

use super::handle::BatchScheduler;
use crate::metrics::{counter, gauge};

/// How far a prompt is, while it takes more than one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillProgress {
    /// The request.
    pub id: Uuid,
    /// Tokens in the cache.
    pub done: usize,
    /// Tokens to compute before the next token can be drawn.
    pub total: usize,
}

/// Counts since the start, and two gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests that hold blocks.
    pub running: usize,
    /// Requests that do not hold blocks yet, or not any more.
    pub waiting: usize,
    /// Forward passes.
    pub steps: u64,
    /// Prompt tokens computed, each once.
    pub prefill_tokens: u64,
    /// Tokens drawn.
    pub generated_tokens: u64,
    /// Prompt tokens that came in a cache.
    pub cached_tokens: u64,
    /// Prompt tokens that were looked for in the pool, once a request.
    pub prefix_queries: u64,
    /// Those of them that were there.
    pub prefix_hits: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Times that a request gave its blocks back to let an older one get on.
    pub preemptions: u64,
    /// Those of them whose cache had come from another node, and is now computed here.
    pub handoff_recomputes: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests whose caller went away.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) running: AtomicUsize,
    pub(super) waiting: AtomicUsize,
    pub(super) steps: AtomicU64,
    pub(super) prefill_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) prefix_queries: AtomicU64,
    pub(super) prefix_hits: AtomicU64,
    pub(super) recomputed_tokens: AtomicU64,
    pub(super) preemptions: AtomicU64,
    pub(super) handoff_recomputes: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) failed: AtomicU64,
    progress: Mutex<Vec<PrefillProgress>>,
}

impl Counters {
    pub(super) fn read(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            steps: self.steps.load(Relaxed),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            generated_tokens: self.generated_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            prefix_queries: self.prefix_queries.load(Relaxed),
            prefix_hits: self.prefix_hits.load(Relaxed),
            recomputed_tokens: self.recomputed_tokens.load(Relaxed),
            preemptions: self.preemptions.load(Relaxed),
            handoff_recomputes: self.handoff_recomputes.load(Relaxed),
            finished: self.finished.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Vec<PrefillProgress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Reads the stats of a scheduler when Prometheus asks.
#[derive(Debug)]
pub(super) struct StatsCollector {
    pub(super) name: String,
    pub(super) scheduler: std::sync::Weak<super::handle::Inner>,
}

impl Collector for StatsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(inner) = self.scheduler.upgrade() else { return Ok(()) };
        let stats = BatchScheduler::stats_of(&inner);
        let gauges = [
            ("num_requests_running", "Requests that hold blocks", stats.running),
            ("num_requests_waiting", "Requests that wait for blocks", stats.waiting),
        ];
        for (name, help, value) in gauges {
            gauge(&mut encoder, &format!("blockwire:{name}"), help, &self.name, value)?;
        }
        let counters = [
            ("num_preemptions", "Requests that gave their blocks back", stats.preemptions),
            ("handoff_recomputes", "Of those, handed over before", stats.handoff_recomputes),
            ("recomputed_tokens", "Tokens computed again", stats.recomputed_tokens),
            ("prefill_tokens_computed", "Prompt tokens computed", stats.prefill_tokens),
            ("sampled_tokens", "Tokens drawn", stats.generated_tokens),
            ("handoff_tokens_cached", "Prompt tokens that came in a cache", stats.cached_tokens),
            ("prefix_cache_queries", "Prompt tokens looked for in the pool", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the pool", stats.prefix_hits),
            ("iterations", "Forward passes", stats.steps),
            ("requests_cancelled", "Requests whose caller went away", stats.cancelled),
            ("requests_failed", "Requests that failed", stats.failed),
        ];
        for (name, help, value) in counters {
            counter(&mut encoder, &format!("blockwire:{name}"), help, value)?;
        }
        Ok(())
    }
}
