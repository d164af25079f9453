//! The one place that reads time, so that a simulation can replace it.

use std::time::Instant;

/// The current instant of the monotonic clock.
///
/// It is the clock of the runtime that the caller runs on: the system's, or that of a simulation, where
/// the runtime's is paused.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
