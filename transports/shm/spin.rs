//! How long an end that has nothing to do looks before it sleeps.
//!
//! A wake-up costs the waker a system call and the sleeper the way back onto its core: 6 to 12 us
//! where the memory itself needs 0.1. So an end stays *hot* for a while after something passed: it
//! looks at the shared words in short bursts, and between two bursts its task goes behind the
//! runtime's others, so that they run, and so that requests of the link's owner are seen without a
//! system call. An end at which nothing passed never spins: an idle node costs nothing.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use blockwire::clock;

/// Twice what a wake-up costs: whoever waits as long as the wake-up would have cost pays at most
/// double for a wrong guess (the ski-rental bound), and an answer of a peer that computes is rarely
/// faster.
const SPIN: Duration = Duration::from_micros(25);
/// Looks of one burst: about half a microsecond, which is what other tasks wait for a hot link.
pub(crate) const LOOKS: usize = 32;

/// The default limit: none where the peer could only run instead of this thread.
pub(crate) fn default_limit() -> Duration {
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    *LIMIT.get_or_init(|| match std::thread::available_parallelism() {
        Ok(cores) if cores.get() > 1 => SPIN,
        _ => Duration::ZERO,
    })
}

/// Whether an end is hot.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    state: State,
}

#[derive(Debug)]
enum State {
    Cold,
    /// Something passed in the last poll. The clock is not read for it.
    Active,
    /// Nothing passes; to be slept at this instant.
    Until(Instant),
}

impl Spin {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, state: State::Cold }
    }

    /// Something passed.
    pub(crate) fn heat(&mut self) {
        if !self.limit.is_zero() {
            self.state = State::Active;
        }
    }

    /// Whether to look before sleeping.
    pub(crate) fn is_hot(&self) -> bool {
        !matches!(self.state, State::Cold)
    }

    /// Nothing passed. Whether to look again before sleeping.
    pub(crate) fn goes_on(&mut self) -> bool {
        match self.state {
            State::Cold => return false,
            State::Active => self.state = State::Until(clock::now() + self.limit),
            State::Until(end) if clock::now() >= end => self.state = State::Cold,
            State::Until(_) => {}
        }
        self.is_hot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_hot_after_activity_only_and_not_for_ever() {
        let mut spin = Spin::new(Duration::from_millis(5));
        assert!(!spin.goes_on());
        for _ in 0..3 {
            spin.heat();
            assert!(spin.goes_on());
            while spin.goes_on() {}
            assert!(!spin.goes_on());
        }
        let mut never = Spin::new(Duration::ZERO);
        never.heat();
        assert!(!never.goes_on());
    }
}
