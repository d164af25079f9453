//! The one place that reads time, so that a simulation can replace it.

use std::time::Instant;

/// The current instant of the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now() -> Instant {
    Instant::now()
}
