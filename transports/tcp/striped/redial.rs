//! A dialler's side of lost stripes: dials others in their place, with pauses that grow.
//!
//! A link has as many *places* as it had stripes at first; each starts from its own interface or address.
//! Where the stripe of a place is lost, the place is dialled again: one place of a link at a time, so that a
//! peer that is gone is not met with a storm, and the one first whose pause is over first, so that a dead
//! interface does not hold up the others. A pause doubles with every failure and is spread by up to half of it.
//! A stripe that is soon lost again counts as a failure too. Every try takes a number, and there are
//! [`NUMBER_MAX`] of them; then the link goes on with what it has.
//!
//! ```text
//!          a pause is over             connected, greeted
//! resting ────────────────> dialling ────────────────────> joining ──────> a stripe
//!    ^                          │ error                      │ lost, or not taken in time
//!    └──────────────────────────┴────────────────────────────┘
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use blockwire::transport::{ConnectError, LocalFuture};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::options::TcpOptions;

/// Longest pause, and how long a stripe has to live to be no failure.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Largest number of a stripe: what a greeting has room for.
const NUMBER_MAX: usize = u16::MAX as usize;

/// Makes a connection: as the stripe of that number, from that place.
pub(super) type Dial<C> = Box<dyn Fn(u16, u16) -> LocalFuture<Result<C, ConnectError>>>;

/// Dials connections of type `C` in place of lost stripes.
pub(super) struct Redial<C> {
    dial: Dial<C>,
    places: Vec<Place>,
    /// The number of the next try.
    number: usize,
    /// Pause before the first try, and how long the peer has to take a connection for a stripe.
    pause: Duration,
    join_timeout: Duration,
    step: Step<C>,
}

#[derive(Debug)]
struct Place {
    /// The stripe that has it; none while it is lost.
    stripe: Option<usize>,
    /// When that stripe came.
    since: Instant,
    failures: u32,
    /// Not to be dialled before.
    due: Instant,
}

enum Step<C> {
    Idle,
    Resting { place: usize, pause: Pin<Box<Sleep>> },
    Dialling { place: usize, number: usize, dial: LocalFuture<Result<C, ConnectError>> },
    Joining { number: usize, deadline: Pin<Box<Sleep>> },
}

/// What a link has to do.
#[derive(Debug)]
pub(super) enum Redialled<C> {
    /// A connection came to be: the peer has to be told of it.
    Connected { number: usize, connection: C },
    /// The peer did not take that stripe in time: it is lost.
    Late { number: usize },
}

impl<C> fmt::Debug for Redial<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redial").field("places", &self.places).finish_non_exhaustive()
    }
}

impl<C> Redial<C> {
    /// For a link of so many stripes.
    pub(super) fn new(stripes: usize, options: &TcpOptions, dial: Dial<C>) -> Self {
        let (pause, join_timeout) = (options.redial_pause, options.greeting_timeout);
        let now = Instant::now();
        let place = |stripe| Place { stripe: Some(stripe), since: now, failures: 0, due: now };
        let places = (0..stripes).map(place).collect();
        Self { dial, places, number: stripes, pause, join_timeout, step: Step::Idle }
    }

    /// A stripe is lost, or one that was to be.
    pub(super) fn lost(&mut self, number: usize) {
        let Some(place) = self.places.iter_mut().find(|place| place.stripe == Some(number)) else {
            return;
        };
        place.stripe = None;
        if place.since.elapsed() >= PAUSE_MAX {
            place.failures = 0;
        }
        place.rest(self.pause);
        match self.step {
            // Somebody else may be waited for.
            Step::Resting { .. } => self.step = Step::Idle,
            Step::Joining { number: joining, .. } if joining == number => self.step = Step::Idle,
            _ => {}
        }
    }

    /// The peer took a stripe; false where it was not asked to.
    pub(super) fn joined(&mut self, number: usize) -> bool {
        match self.step {
            Step::Joining { number: joining, .. } if joining == number => {
                self.step = Step::Idle;
                true
            }
            _ => false,
        }
    }

    /// Goes on dialling; pending for ever where nothing is lost, until something is.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Redialled<C>> {
        loop {
            match &mut self.step {
                Step::Idle => {
                    let Some(place) = self.next_place() else { return Poll::Pending };
                    let pause = Box::pin(sleep_until(self.places[place].due));
                    self.step = Step::Resting { place, pause };
                }
                Step::Resting { place, pause } => {
                    ready!(pause.as_mut().poll(cx));
                    let (place, number) = (*place, self.number);
                    self.number += 1;
                    let dial = (self.dial)(number as u16, place as u16);
                    self.step = Step::Dialling { place, number, dial };
                }
                Step::Dialling { place, number, dial } => {
                    let dialled = ready!(dial.as_mut().poll(cx));
                    let (place, number) = (&mut self.places[*place], *number);
                    match dialled {
                        Ok(connection) => {
                            (place.stripe, place.since) = (Some(number), Instant::now());
                            let deadline = Instant::now() + self.join_timeout;
                            let deadline = Box::pin(sleep_until(deadline));
                            self.step = Step::Joining { number, deadline };
                            return Poll::Ready(Redialled::Connected { number, connection });
                        }
                        Err(error) => {
                            tracing::debug!(%error, number, "a lost stripe is not back");
                            place.rest(self.pause);
                            self.step = Step::Idle;
                        }
                    }
                }
                Step::Joining { number, deadline } => {
                    ready!(deadline.as_mut().poll(cx));
                    let number = *number;
                    self.step = Step::Idle;
                    return Poll::Ready(Redialled::Late { number });
                }
            }
        }
    }

    /// The lost place whose pause is over first.
    fn next_place(&self) -> Option<usize> {
        if self.number > NUMBER_MAX {
            return None;
        }
        let lost = self.places.iter().enumerate().filter(|(_, place)| place.stripe.is_none());
        lost.min_by_key(|(_, place)| place.due).map(|(number, _)| number)
    }
}

impl Place {
    /// It is not dialled for a while.
    fn rest(&mut self, first: Duration) {
        self.due = Instant::now() + pause(first, self.failures, getrandom::u32().unwrap_or(0));
        self.failures += 1;
    }
}

/// The pause after so many failures: between half of it and all of it, as `random` says.
fn pause(first: Duration, failures: u32, random: u32) -> Duration {
    let whole = first.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX);
    whole.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::{pending, poll_fn, ready};
    use std::io;
    use std::rc::Rc;

    use blockwire::transport::Address;

    use super::*;

    /// The tries so far: number, place, and when.
    type Tries = Rc<RefCell<Vec<(u16, u16, Instant)>>>;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(test);
    }

    fn refused() -> ConnectError {
        let address: Address = "tcp://10.0.0.1:1".parse().unwrap();
        ConnectError::System { address, source: io::ErrorKind::ConnectionRefused.into() }
    }

    /// A redial whose tries of a place end as `fate` says.
    fn redial(fate: fn(u16) -> Option<bool>) -> (Redial<u16>, Tries) {
        let tries: Tries = Rc::default();
        let told = Rc::clone(&tries);
        let dial: Dial<u16> = Box::new(move |number, place| {
            told.borrow_mut().push((number, place, Instant::now()));
            match fate(place) {
                Some(true) => Box::pin(ready(Ok(number))),
                Some(false) => Box::pin(ready(Err(refused()))),
                None => Box::pin(pending()),
            }
        });
        (Redial::new(4, &TcpOptions::default(), dial), tries)
    }

    async fn next(redial: &mut Redial<u16>) -> Redialled<u16> {
        poll_fn(|cx| redial.poll(cx)).await
    }

    /// Polls for as long as nothing comes of it, at most that long.
    async fn nothing(redial: &mut Redial<u16>, during: Duration) {
        let came = tokio::time::timeout(during, next(redial)).await;
        assert!(came.is_err(), "{came:?}");
    }

    #[test]
    fn a_lost_stripe_comes_back_under_a_new_number() {
        run(async {
            let (mut redial, tries) = redial(|_| Some(true));
            nothing(&mut redial, Duration::from_secs(1000)).await;
            assert!(tries.borrow().is_empty(), "nothing was lost");
            redial.lost(2);
            let came = next(&mut redial).await;
            assert!(matches!(came, Redialled::Connected { number: 4, connection: 4 }), "{came:?}");
            assert!(!redial.joined(2) && redial.joined(4) && !redial.joined(4));
            nothing(&mut redial, Duration::from_secs(1000)).await;
            // The number of a stripe that is gone means nothing any more.
            redial.lost(2);
            nothing(&mut redial, Duration::from_secs(1000)).await;
            redial.lost(4);
            let came = next(&mut redial).await;
            assert!(matches!(came, Redialled::Connected { number: 5, .. }), "{came:?}");
            let places: Vec<_> = tries.borrow().iter().map(|(_, place, _)| *place).collect();
            assert_eq!(places, [2, 2]);
        });
    }

    #[test]
    fn pauses_grow_to_a_limit_and_tries_come_one_by_one() {
        run(async {
            let (mut redial, tries) = redial(|_| Some(false));
            (0..3).for_each(|stripe| redial.lost(stripe));
            nothing(&mut redial, Duration::from_secs(3600)).await;
            let tries = tries.borrow();
            // Three places, each at most every 15 s, and a few tries more at first.
            assert!((3 * 120..=3 * 250).contains(&tries.len()), "{} tries", tries.len());
            let first = tries.first().unwrap().2;
            let early = tries.iter().filter(|(_, _, at)| *at - first < Duration::from_secs(6));
            assert!(early.count() <= 3 * 7, "a storm");
            assert!((4..).zip(tries.iter()).all(|(number, (found, ..))| number == *found));
            for place in 0..3 {
                let at = tries.iter().filter(|(_, of, _)| *of == place).map(|(.., at)| *at);
                let at: Vec<_> = at.collect();
                let last = at[at.len() - 1] - at[at.len() - 2];
                // A timer of tokio's is a millisecond late.
                assert!(last >= PAUSE_MAX / 2 && last <= PAUSE_MAX + Duration::from_millis(2));
            }
        });
    }

    #[test]
    fn a_dead_place_does_not_hold_up_the_others() {
        run(async {
            let (mut redial, tries) = redial(|place| Some(place == 3));
            redial.lost(0);
            nothing(&mut redial, Duration::from_secs(100)).await;
            let before = tries.borrow().len();
            redial.lost(3);
            let came = next(&mut redial).await;
            assert!(matches!(came, Redialled::Connected { .. }), "{came:?}");
            assert!(tries.borrow().len() <= before + 2);
        });
    }

    #[test]
    fn what_the_peer_does_not_take_is_late_and_tried_again() {
        run(async {
            let (mut redial, _) = redial(|_| Some(true));
            redial.lost(1);
            next(&mut redial).await;
            let start = Instant::now();
            let came = next(&mut redial).await;
            assert!(matches!(came, Redialled::Late { number: 4 }), "{came:?}");
            assert!(start.elapsed() >= TcpOptions::default().greeting_timeout);
            redial.lost(4);
            let came = next(&mut redial).await;
            assert!(matches!(came, Redialled::Connected { number: 5, .. }), "{came:?}");
        });
    }

    #[test]
    fn a_stripe_that_is_lost_at_once_is_a_failure() {
        run(async {
            let (mut redial, tries) = redial(|_| Some(true));
            redial.lost(1);
            let start = Instant::now();
            for number in 4..16 {
                next(&mut redial).await;
                assert!(redial.joined(number));
                redial.lost(number);
            }
            assert!(start.elapsed() >= Duration::from_secs(60), "a storm");
            next(&mut redial).await;
            assert!(redial.joined(16));
            // It held for long: the next loss is like the first.
            nothing(&mut redial, PAUSE_MAX).await;
            redial.lost(16);
            let start = Instant::now();
            next(&mut redial).await;
            let pause = TcpOptions::default().redial_pause;
            assert!(start.elapsed() <= pause + Duration::from_millis(2));
            assert_eq!(tries.borrow().len(), 14);
        });
    }

    #[test]
    fn tries_end_when_their_numbers_do() {
        run(async {
            let (mut redial, tries) = redial(|_| Some(true));
            redial.number = NUMBER_MAX;
            redial.lost(0);
            let came = next(&mut redial).await;
            assert!(matches!(came, Redialled::Connected { number: NUMBER_MAX, .. }), "{came:?}");
            redial.lost(NUMBER_MAX);
            nothing(&mut redial, Duration::from_secs(1000)).await;
            assert_eq!(tries.borrow().len(), 1);
        });
    }
}
