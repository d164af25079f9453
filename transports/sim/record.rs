//! What a network did to whatever travelled, and what it saw that must not be, though no end noticed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    findings: Vec<String>,
    faults: BTreeMap<&'static str, u64>,
}

impl Record {
    /// Something must not be; in words.
    pub(crate) fn find(&self, what: String) {
        self.kept().findings.push(what);
    }

    /// The findings since the last look.
    pub(crate) fn take_findings(&self) -> Vec<String> {
        std::mem::take(&mut self.kept().findings)
    }

    /// Counts a fault that was done.
    pub(crate) fn count(&self, fault: &'static str) {
        *self.kept().faults.entry(fault).or_default() += 1;
    }

    /// How often each fault was done.
    pub(crate) fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.kept().faults.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
