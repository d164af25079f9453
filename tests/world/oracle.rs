//! What has to hold, and the first thing that did not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwire::clock;
use blockwire::pool::BlockPool;
use blockwire_sim::Trace;

/// Judges one run. Clones are one.
#[derive(Clone, Debug)]
pub struct Oracle {
    seen: Arc<Mutex<Seen>>,
    trace: Trace,
}

#[derive(Debug, Default)]
struct Seen {
    failures: Vec<String>,
    counts: Counts,
}

/// How often what happened: a run in which nothing arrives finds nothing.
pub type Counts = BTreeMap<&'static str, u64>;

/// What became of a run.
#[derive(Debug)]
pub struct Report {
    /// The first thing that did not hold.
    pub verdict: Result<(), String>,
    /// How often what happened.
    pub counts: Counts,
}

impl Oracle {
    /// Of a run that writes this trace.
    pub fn new(trace: Trace) -> Self {
        Self { seen: Arc::default(), trace }
    }

    /// Writes down what happens.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.trace.note(clock::now(), line);
    }

    /// Something must not be.
    pub fn fail(&self, what: String) {
        self.note(|| format!("FAILED: {what}"));
        self.seen().failures.push(what);
    }

    /// Something must be.
    pub fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }

    /// Every block of a pool is in one state.
    pub fn check_pool(&self, name: &str, pool: &BlockPool) {
        let count = pool.accounting();
        let owned = count.reserved + count.loaned + count.quarantined + count.sealed;
        let sum = owned + count.free + count.cached;
        self.check(sum == count.total, || format!("the blocks of {name}: {count:?}"));
    }

    /// Whether all blocks of a pool can be had.
    pub fn is_full(pool: &BlockPool) -> bool {
        pool.accounting().available() == pool.accounting().total
    }

    /// Whether something failed.
    pub fn has_failed(&self) -> bool {
        !self.seen().failures.is_empty()
    }

    /// Counts what happened.
    pub fn count(&self, what: &'static str) {
        *self.seen().counts.entry(what).or_default() += 1;
    }

    /// Counts what the network did.
    pub fn add(&self, counts: Counts) {
        self.seen().counts.extend(counts);
    }

    /// The end.
    pub fn report(&self) -> Report {
        let seen = self.seen();
        let verdict = seen.failures.first().cloned().map_or(Ok(()), Err);
        Report { verdict, counts: seen.counts.clone() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
