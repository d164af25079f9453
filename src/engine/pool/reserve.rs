//! Taking blocks: first come, first served, all or nothing, cancel-safe.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::block::{BlockPool, ReservedBlock};
use super::prefix::{Demand, PrefixKey, ReserveRoom, Room};
use super::state::State;

/// Why blocks could not be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The pool could never give so many.
    #[error("{asked} blocks asked of a pool of {total}")]
    TooMany {
        /// Blocks asked for.
        asked: usize,
        /// Blocks of the whole pool.
        total: usize,
    },
    /// Not now: too few are available, or others wait already.
    #[error("{asked} blocks asked, {available} available, {waiting} requests waiting before it")]
    Busy {
        /// Blocks asked for.
        asked: usize,
        /// Blocks that could be reserved.
        available: usize,
        /// Requests that wait already.
        waiting: usize,
    },
}

/// Requests that wait for blocks, in order.
pub(super) type Waiters = VecDeque<Waiter>;

/// One of them. The granted blocks travel in the channel, so that a dropped future frees them.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Of the first blocks among them, which may be cached.
    pub(super) keys: Arc<[PrefixKey]>,
    pub(super) count: usize,
    pub(super) grant: oneshot::Sender<Room>,
}

impl Waiter {
    /// What it would get and take now.
    pub(super) fn demand(&self, state: &State) -> Demand {
        Demand::of(state, &self.keys, self.count)
    }
}

impl BlockPool {
    /// Reserves `count` blocks now, or none.
    ///
    /// # Errors
    /// [`ReserveError::Busy`] when there are too few, or when an earlier [`reserve`](Self::reserve)
    /// still waits: nobody overtakes.
    pub fn try_reserve(&self, count: usize) -> Result<Vec<ReservedBlock>, ReserveError> {
        self.take_now(count, |waiting| waiting == 0)
    }

    /// Reserves `count` blocks now for a sequence that runs already, ahead of whoever waits.
    ///
    /// What runs must be able to end: it frees its blocks for those who wait. Were it to queue behind
    /// them, the two could wait for each other.
    ///
    /// # Errors
    /// [`ReserveError::Busy`] when there are too few.
    pub fn try_reserve_growth(&self, count: usize) -> Result<Vec<ReservedBlock>, ReserveError> {
        self.take_now(count, |_| true)
    }

    /// Reserves `count` blocks, all of them or none, after every earlier request.
    ///
    /// # Errors
    /// [`ReserveError::TooMany`] at once when the pool is smaller than `count`.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; blocks granted meanwhile are freed.
    pub fn reserve(&self, count: usize) -> Reserve {
        Reserve(self.reserve_behind(Arc::default(), count))
    }

    fn take_now(
        &self,
        count: usize,
        admit: impl Fn(usize) -> bool,
    ) -> Result<Vec<ReservedBlock>, ReserveError> {
        self.check_count(count)?;
        let mut state = self.state();
        let (available, waiting) = (state.available(), state.waiters.len());
        if count > available || !admit(waiting) {
            return Err(ReserveError::Busy { asked: count, available, waiting });
        }
        Ok(self.take(&mut state, count))
    }

    pub(super) fn check_count(&self, asked: usize) -> Result<(), ReserveError> {
        let total = self.options().blocks;
        if asked > total { Err(ReserveError::TooMany { asked, total }) } else { Ok(()) }
    }

    /// Grants from the front of the queue while blocks suffice.
    ///
    /// Consumes the lock: a grant that nobody awaits any more drops its blocks, which locks again.
    pub(super) fn serve_waiters(&self, mut state: MutexGuard<'_, State>) {
        let mut grants = Vec::new();
        while let Some(front) = state.waiters.front() {
            let Demand { run, taken } = front.demand(&state);
            if !front.grant.is_closed() && taken > state.available() {
                break;
            }
            let Some(Waiter { keys, count, grant }) = state.waiters.pop_front() else { break };
            if !grant.is_closed() {
                grants.push((grant, self.take_room(&mut state, &keys[..run], count)));
            }
        }
        drop(state);
        for (grant, room) in grants {
            // A refused grant frees its blocks here, which serves the next in line.
            let _ = grant.send(room);
        }
    }
}

/// Future of [`BlockPool::reserve`].
#[derive(Debug)]
pub struct Reserve(ReserveRoom);

impl Future for Reserve {
    type Output = Result<Vec<ReservedBlock>, ReserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_ok(|room| room.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dtype, KvSpec, PoolOptions};
    use super::*;

    fn pool(blocks: usize) -> BlockPool {
        BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 1, 1, 8, Dtype::F16), blocks)).unwrap()
    }

    fn poll(reserve: &mut Reserve) -> Poll<Result<Vec<ReservedBlock>, ReserveError>> {
        Pin::new(reserve).poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn nobody_overtakes_and_nothing_is_given_in_part() {
        let pool = pool(4);
        let held = pool.try_reserve(3).unwrap();
        let mut large = pool.reserve(2);
        assert!(poll(&mut large).is_pending());
        assert!(matches!(pool.try_reserve(1), Err(ReserveError::Busy { waiting: 1, .. })));
        let mut small = pool.reserve(1);
        assert!(poll(&mut small).is_pending());
        assert_eq!(pool.accounting().free, 1);
        assert_eq!(pool.try_reserve_growth(1).map(|grown| grown.len()), Ok(1));
        drop(held);
        let Poll::Ready(Ok(two)) = poll(&mut large) else { panic!("not granted") };
        assert_eq!(two.len(), 2);
        assert!(poll(&mut small).is_ready());
    }

    #[test]
    fn a_dropped_request_lets_the_next_one_pass_and_frees_its_grant() {
        let pool = pool(2);
        let held = pool.try_reserve(1).unwrap();
        let large = pool.reserve(2);
        let mut small = pool.reserve(1);
        assert!(poll(&mut small).is_pending());
        drop(large);
        assert!(poll(&mut small).is_ready());
        let granted = pool.reserve(1);
        drop((granted, small, held));
        assert_eq!(pool.accounting().free, 2);
    }

    #[test]
    fn more_than_the_pool_is_refused_at_once() {
        let mut reserve = pool(2).reserve(3);
        let expected = ReserveError::TooMany { asked: 3, total: 2 };
        assert!(matches!(poll(&mut reserve), Poll::Ready(Err(error)) if error == expected));
    }

    proptest::proptest! {
        /// Random reserves, seals and drops against a plain counter.
        #[test]
        fn accounting_always_adds_up(steps in proptest::collection::vec((0u8..6, 0usize..5), 0..200)) {
            let pool = pool(8);
            let (mut reserved, mut sealed, mut waiting) = (vec![], vec![], VecDeque::new());
            for (action, count) in steps {
                match action {
                    0 => reserved.extend(pool.try_reserve(count).unwrap_or_default()),
                    1 => { let mut r = pool.reserve(count); if let Poll::Ready(Ok(b)) = poll(&mut r) { reserved.extend(b) } else { waiting.push_back(r) } }
                    2 => if let Some(block) = reserved.pop() { sealed.push(block.seal()) },
                    3 => { sealed.truncate(sealed.len().saturating_sub(count)) }
                    4 => { reserved.truncate(reserved.len().saturating_sub(count)) }
                    _ => { drop(waiting.pop_front()) }
                }
                waiting.retain_mut(|r| match poll(r) { Poll::Ready(b) => { reserved.extend(b.unwrap()); false } Poll::Pending => true });
                let a = pool.accounting();
                proptest::prop_assert_eq!(a.free + a.reserved + a.loaned + a.quarantined + a.sealed, 8);
                proptest::prop_assert_eq!((a.reserved, a.sealed), (reserved.len(), sealed.len()));
            }
            drop((reserved, sealed, waiting));
            proptest::prop_assert_eq!(pool.accounting().free, 8);
        }
    }
}
