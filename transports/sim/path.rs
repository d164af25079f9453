//! What lies between two hosts.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use super::conditions::Conditions;

/// Of two hosts; both directions are alike.
#[derive(Debug, Default)]
pub(crate) struct Path {
    conditions: Mutex<Conditions>,
    cut: AtomicBool,
}

impl Path {
    pub(crate) fn new(conditions: Conditions) -> Self {
        Self { conditions: Mutex::new(conditions), cut: AtomicBool::new(false) }
    }

    pub(crate) fn conditions(&self) -> Conditions {
        *self.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        *self.conditions.lock().unwrap_or_else(PoisonError::into_inner) = conditions;
    }

    /// Whether nothing gets through.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(SeqCst)
    }

    /// Whether something changed.
    pub(crate) fn set_cut(&self, cut: bool) -> bool {
        self.cut.swap(cut, SeqCst) != cut
    }
}
