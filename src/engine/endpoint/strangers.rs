//! What the log says of those who come to a listener and do not get in: enough, but not more.
//!
//! Anybody who reaches a port can knock as often as he likes, so a line for each would let strangers fill
//! a disk. The first [`SAID_MAX`] of a [`WINDOW`] are named, the others counted.

use std::time::{Duration, Instant};

use crate::transport::ConnectError;

/// Lines of one window.
const SAID_MAX: u32 = 20;
/// After so long strangers are named again.
const WINDOW: Duration = Duration::from_secs(10);

/// Notes of one listener.
#[derive(Debug)]
pub(super) struct Strangers {
    since: Instant,
    said: u32,
    unsaid: u64,
}

/// What to say of one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Say {
    /// Who it is, and how many came unnamed before.
    Name {
        unsaid: u64,
    },
    Nothing,
}

impl Strangers {
    /// Nobody came yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, said: 0, unsaid: 0 }
    }

    /// Takes note of one who did not get in.
    pub(super) fn note(&mut self, error: &ConnectError, now: Instant) {
        match self.next(now) {
            Say::Name { unsaid: 0 } => tracing::warn!(%error, "a peer did not get in"),
            Say::Name { unsaid } => {
                tracing::warn!(%error, unsaid, "a peer did not get in, nor did others before");
            }
            Say::Nothing => {}
        }
    }

    fn next(&mut self, now: Instant) -> Say {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.said) = (now, 0);
        }
        if self.said == SAID_MAX {
            self.unsaid += 1;
            return Say::Nothing;
        }
        self.said += 1;
        Say::Name { unsaid: std::mem::take(&mut self.unsaid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_crowd_is_counted_and_named_again_later() {
        let start = clock::now();
        let mut strangers = Strangers::new(start);
        for _ in 0..SAID_MAX {
            assert_eq!(strangers.next(start), Say::Name { unsaid: 0 });
        }
        let crowd = if cfg!(miri) { 10 } else { 10_000 };
        for _ in 0..crowd {
            assert_eq!(strangers.next(start + WINDOW / 2), Say::Nothing);
        }
        assert_eq!(strangers.next(start + WINDOW), Say::Name { unsaid: crowd });
        assert_eq!(strangers.next(start + WINDOW), Say::Name { unsaid: 0 });
    }
}
