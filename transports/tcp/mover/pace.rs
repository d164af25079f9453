//! Chooses between two ways to send by what was measured on this very link.
//!
//! Which way is faster depends on what no constant knows: how far the cores of the two ends are from
//! each other, whether the bytes are in a cache, what the network's driver can do. So every way gets its
//! turns. A rate is payload bytes by seconds from the first one until the peer answered: it reports every
//! payload that it has, so the first frame that comes once nothing is left to send is the answer. A way that
//! is cheap here and dear at the receiver is as slow as it is, and bytes that only fill buffers do not make
//! a way fast.
//!
//! ```text
//! | settle | trial of B | trial | A or B, whichever was faster ... | settle | trial of the other | trial | ...
//! ```
//! After a change, the first window is not counted: it drains what the other way left in the buffers.
//! A rate is that of the best window of a trial, since whatever disturbs a window makes it slower.
//!
//! Both ways within one handoff, copies whenever the receiver was behind so that both ends had equally much
//! to do, was measured too: up to 5 % above the better one between near cores, up to 15 % below pages between
//! far ones.

use std::time::{Duration, Instant};

/// Payload bytes of a window, at least: a few milliseconds of work.
const WINDOW_LEN: u64 = 4 << 20;
/// Payload bytes after which a window ends without an answer: several times what buffers hold.
const WINDOW_LEN_MAX: u64 = 128 << 20;
/// Windows that count in a trial.
const TRIAL: u32 = 2;
/// Windows between two trials: a slower way costs one part in twenty of them at most.
const HOLD: u32 = 60;

/// A way to send payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A gathering write: the system copies.
    Copies,
    /// References to pages.
    Pages,
}

impl By {
    fn other(self) -> Self {
        match self {
            Self::Copies => Self::Pages,
            Self::Pages => Self::Copies,
        }
    }
}

/// The state of the measurement.
#[derive(Debug)]
pub(super) struct Pace {
    by: By,
    stage: Stage,
    /// Rate of the way that is not in use, where it has one.
    other: Option<f64>,
    /// Best rate of the way in use in this stage.
    best: f64,
    bytes: u64,
    busy: Duration,
    /// Since when there is payload to send, or to be answered.
    since: Option<Instant>,
    /// All is sent.
    waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Settle,
    Trial(u32),
    Hold(u32),
}

impl Pace {
    /// Begins with a way.
    pub(super) fn new(by: By) -> Self {
        Self {
            by,
            stage: Stage::Settle,
            other: None,
            best: 0.0,
            bytes: 0,
            busy: Duration::ZERO,
            since: None,
            waits: false,
        }
    }

    /// The way to send now.
    pub(super) fn by(&self) -> By {
        self.by
    }

    /// Payload is there to be sent.
    pub(super) fn start(&mut self, now: impl FnOnce() -> Instant) {
        self.waits = false;
        self.since.get_or_insert_with(now);
    }

    /// Bytes were sent.
    pub(super) fn moved(&mut self, len: usize, now: impl FnOnce() -> Instant) {
        if self.since.is_some() {
            self.bytes += len as u64;
            if self.bytes >= WINDOW_LEN_MAX {
                let now = now();
                self.stop(now);
                self.since = Some(now);
            }
        }
    }

    /// Nothing is left to send.
    pub(super) fn wait(&mut self) {
        self.waits = true;
    }

    /// The peer says something.
    pub(super) fn answered(&mut self, now: impl FnOnce() -> Instant) {
        if self.waits && self.since.is_some() {
            self.stop(now());
        }
    }

    /// Ends a stretch of work, and the window if it is long enough.
    fn stop(&mut self, now: Instant) {
        self.busy += self.since.take().map_or(Duration::ZERO, |since| now - since);
        if self.bytes >= WINDOW_LEN {
            let rate = self.bytes as f64 / self.busy.as_secs_f64().max(1e-9);
            (self.bytes, self.busy) = (0, Duration::ZERO);
            self.window(rate);
        }
    }

    fn window(&mut self, rate: f64) {
        match self.stage {
            Stage::Settle => {
                (self.stage, self.best) = (Stage::Trial(1), 0.0);
                return;
            }
            Stage::Trial(_) => self.best = self.best.max(rate),
            // The rate to compare with is a recent one.
            Stage::Hold(left) if left <= TRIAL => self.best = self.best.max(rate),
            Stage::Hold(_) => self.best = 0.0,
        }
        self.stage = match self.stage {
            Stage::Trial(done) if done < TRIAL => Stage::Trial(done + 1),
            Stage::Trial(_) => match self.other {
                Some(other) if self.best >= other => Stage::Hold(HOLD),
                Some(_) => {
                    self.by = self.by.other();
                    Stage::Hold(HOLD)
                }
                None => self.try_other(),
            },
            Stage::Hold(left) if left > 1 => Stage::Hold(left - 1),
            Stage::Hold(_) | Stage::Settle => self.try_other(),
        };
    }

    fn try_other(&mut self) -> Stage {
        tracing::trace!(by = ?self.by, rate = self.best, "the other way to send is tried");
        self.other = Some(self.best);
        self.by = self.by.other();
        Stage::Settle
    }
}

#[cfg(test)]
mod tests {
    use blockwire::clock;

    use super::*;

    /// Sends windows on a link where a way has its rate, in bytes a microsecond; by which way they went.
    fn windows(pace: &mut Pace, count: usize, rate: impl Fn(By) -> u64) -> Vec<By> {
        let mut now = clock::now();
        let mut ways = Vec::new();
        for _ in 0..count {
            pace.start(|| now);
            ways.push(pace.by());
            for _ in 0..4 {
                now += Duration::from_micros(WINDOW_LEN / 4 / rate(pace.by()));
                pace.moved(WINDOW_LEN as usize / 4, || now);
            }
            pace.wait();
            pace.answered(|| now);
            // What lies idle between two handoffs does not count.
            now += Duration::from_secs(1);
            pace.answered(|| now);
        }
        ways
    }

    fn copies_are(percent: u64) -> impl Fn(By) -> u64 {
        move |by| if by == By::Copies { 10 * percent } else { 1000 }
    }

    #[test]
    fn the_faster_way_is_found_and_kept() {
        for (percent, faster) in [(70, By::Pages), (140, By::Copies)] {
            for first in [By::Pages, By::Copies] {
                let mut pace = Pace::new(first);
                windows(&mut pace, 2 * (1 + TRIAL as usize), copies_are(percent));
                let ways = windows(&mut pace, HOLD as usize, copies_are(percent));
                assert!(
                    ways.iter().all(|by| *by == faster),
                    "{percent} % from {first:?}: {ways:?}"
                );
                let long = windows(&mut pace, 10_000, copies_are(percent));
                let slower = long.iter().filter(|by| **by != faster).count();
                assert!((200..600).contains(&slower), "{slower} windows of the slower way");
            }
        }
    }

    #[test]
    fn a_change_of_the_machine_is_noticed() {
        let mut pace = Pace::new(By::Pages);
        windows(&mut pace, 500, copies_are(70));
        let after = windows(&mut pace, 2 * HOLD as usize, copies_are(140));
        assert_eq!(after.last(), Some(&By::Copies));
        let back = windows(&mut pace, 2 * HOLD as usize, copies_are(70));
        assert_eq!(back.last(), Some(&By::Pages));
    }

    #[test]
    fn what_only_fills_buffers_is_not_fast() {
        let mut pace = Pace::new(By::Pages);
        let mut now = clock::now();
        let mut by_copies = 0;
        for _ in 0..HOLD {
            pace.start(|| now);
            // Pages are gone at once, and take the peer longer.
            let (here, there) = if pace.by() == By::Pages { (1, 3000) } else { (2000, 100) };
            by_copies += u32::from(pace.by() == By::Copies);
            now += Duration::from_micros(here);
            pace.moved(WINDOW_LEN as usize, || now);
            pace.wait();
            now += Duration::from_micros(there);
            pace.answered(|| now);
        }
        assert_eq!(by_copies, HOLD - 1 - TRIAL, "all but those of the first trial");
    }

    #[test]
    fn a_stream_without_an_end_is_measured_too() {
        let mut pace = Pace::new(By::Pages);
        let mut now = clock::now();
        pace.start(|| now);
        for _ in 0..HOLD {
            now += Duration::from_millis(if pace.by() == By::Pages { 30 } else { 20 });
            pace.moved(WINDOW_LEN_MAX as usize, || now);
        }
        assert_eq!(pace.by(), By::Copies);
    }
}
