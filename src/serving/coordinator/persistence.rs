//! When to try again to reach a peer, and when to say so.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Longest pause after the first failure; it doubles with every further one.
const FIRST: Duration = Duration::from_millis(50);
/// Longest pause at all: what a peer that comes back waits for at most.
const LONGEST: Duration = Duration::from_secs(2);
/// A connection that lasted so long was a good one: its loss counts as a first failure.
const LIVED: Duration = Duration::from_secs(5);

/// How things stand with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Connected.
    Up,
    /// It was connected.
    Lost,
    /// Nobody answers.
    Unreachable,
    /// It answers, but the two sides do not fit.
    Refused,
    /// It is not what it should be.
    WrongRole,
}

/// Tries to reach one peer, again and again.
///
/// Pauses grow exponentially and have full jitter: the n-th is drawn evenly from nothing to
/// `FIRST * 2^n`, but not more than `LONGEST`. Nodes that lost one peer together do not come back to it
/// together.
#[derive(Debug, Default)]
pub(super) struct Persistence {
    failures: u32,
    standing: Option<Standing>,
    up_since: Option<Instant>,
}

impl Persistence {
    /// Notes how things stand now; whether that is news. Operators get a line a change, however many
    /// tries there are.
    pub(super) fn stands(&mut self, standing: Standing) -> bool {
        if standing == Standing::Up {
            self.up_since = Some(Instant::now());
        }
        self.standing.replace(standing) != Some(standing)
    }

    /// Rests until the next try.
    ///
    /// # Cancel safety
    /// The pause counts as taken.
    pub(super) async fn rest(&mut self) {
        if self.up_since.take().is_some_and(|since| since.elapsed() >= LIVED) {
            self.failures = 0;
        }
        let most = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        sleep(most.mul_f64(fastrand::f64())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    /// How long the next pause is.
    async fn pause(persistence: &mut Persistence) -> Duration {
        let start = Instant::now();
        persistence.rest().await;
        start.elapsed()
    }

    #[test]
    fn pauses_grow_to_the_longest_and_are_spread() {
        // Tokio's clock has milliseconds, and rounds up.
        const STEP: Duration = Duration::from_millis(2);
        paused(async {
            let mut range = [(Duration::MAX, Duration::ZERO); 12];
            for _ in 0..200 {
                let mut persistence = Persistence::default();
                for (shortest, longest) in &mut range {
                    persistence.stands(Standing::Unreachable);
                    let pause = pause(&mut persistence).await;
                    (*shortest, *longest) = (pause.min(*shortest), pause.max(*longest));
                }
            }
            for ((shortest, longest), n) in range.into_iter().zip(0..) {
                let most = FIRST.saturating_mul(1 << n).min(LONGEST);
                // 200 draws leave out a half of the range once in 2^200.
                let spread = shortest <= most / 2 + STEP && longest >= most / 2;
                assert!(spread && longest <= most + STEP, "{n}: {shortest:?} to {longest:?}");
            }
        });
    }

    #[test]
    fn only_a_connection_that_lasted_begins_anew() {
        paused(async {
            let longest_after = async |lived| {
                let mut longest = Duration::ZERO;
                for _ in 0..100 {
                    let mut persistence = Persistence::default();
                    for _ in 0..10 {
                        pause(&mut persistence).await;
                    }
                    persistence.stands(Standing::Up);
                    sleep(lived).await;
                    persistence.stands(Standing::Lost);
                    longest = pause(&mut persistence).await.max(longest);
                }
                longest
            };
            assert!(longest_after(LIVED).await <= FIRST * 2);
            assert!(longest_after(LIVED / 2).await > FIRST * 2);
        });
    }

    #[test]
    fn a_standing_is_told_once() {
        paused(async {
            let mut persistence = Persistence::default();
            use Standing::{Lost, Refused, Unreachable, Up};
            for (standing, news) in [
                (Unreachable, true),
                (Unreachable, false),
                (Refused, true),
                (Refused, false),
                (Up, true),
                (Lost, true),
                (Unreachable, true),
                (Unreachable, false),
                (Up, true),
            ] {
                assert_eq!(persistence.stands(standing), news, "{standing:?}");
            }
        });
    }
}
