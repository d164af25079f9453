//! What a network saw that must not be, though no end noticed.

use std::sync::{Arc, Mutex, PoisonError};

/// In words. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings(Arc<Mutex<Vec<String>>>);

impl Findings {
    pub(crate) fn add(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
