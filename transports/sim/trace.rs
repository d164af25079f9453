//! What happened, in words and virtual time. A trace of two runs with one seed is the same text.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Lines of text, or nothing where nobody reads them. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Trace(Option<Arc<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// The time of the first line, from which all others count.
    start: OnceLock<Instant>,
    lines: Mutex<String>,
}

impl Trace {
    /// A trace that is kept.
    pub fn kept() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether somebody reads it.
    pub fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a line, if somebody reads it.
    pub fn note(&self, now: Instant, line: impl FnOnce() -> String) {
        if let Some(inner) = &self.0 {
            let start = *inner.start.get_or_init(|| now);
            let micros = now.duration_since(start).as_micros();
            let (line, mut lines) = (line(), inner.lines());
            let _ = writeln!(lines, "{:>9}.{:03} ms  {line}", micros / 1000, micros % 1000);
        }
    }

    /// All of it.
    pub fn text(&self) -> String {
        self.0.as_ref().map(|inner| inner.lines().clone()).unwrap_or_default()
    }
}

impl Inner {
    fn lines(&self) -> MutexGuard<'_, String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
