//! Lending sealed blocks to a peer that reads them in place.
//!
//! A [`Grant`] is the lender's side of a lease. It keeps the blocks out of the pool, in this process's
//! own memory, where no peer can spoil the count: a block is free once the grants and the sequences
//! that hold it are gone, whatever the peer says or does.
//!
//! The peer is told a [`LeaseId`]: a word in the pool's last page, and the number that stands there
//! while the lease is in force. The lender changes the word *before* it lets go of the blocks, so a
//! reader that looks at the word *after* it read them knows whether what it read was whole. A reader
//! that was stopped for an hour and goes on afterwards finds out in this way, and by nothing else.
//!
//! ```text
//! lender                              reader
//! word = generation                   read the blocks
//!   ... lease in force ...            fence
//! word = generation + 1               word == generation?  what was read is good
//! fence                               otherwise            throw it away
//! blocks are free, others write
//! ```
//! Under pressure the lender asks for its blocks back ([`Grant::recall`]); the reader copies them home
//! and lets go. Pressure is: fewer available blocks than a quarter of the pool, or somebody in the queue who
//! waits for more than that, counting what was recalled already.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::{Context, Poll};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::block::{BlockPool, SealedBlock};
use super::region::REGION_ALIGN;
use super::state::State;

/// Most leases of one pool that are in force at a time.
pub const LEASES_MAX: usize = REGION_ALIGN / size_of::<u64>();

/// Names a lease to the peer that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId {
    /// Which word of the pool's last page; below [`LEASES_MAX`].
    pub slot: u32,
    /// What stands there while the lease is in force: odd, never used twice.
    pub generation: u64,
}

/// What a pool knows of its leases.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// Words that are not in use, below `used`.
    free: Vec<u32>,
    used: u32,
    /// The last generation of each word below `used`.
    generations: Vec<u64>,
    /// Blocks under a lease, and those among them that were asked for.
    lent: usize,
    recalled: usize,
    pressed: Arc<Notify>,
}

/// The lender's side of a lease. Dropping it ends the lease and lets go of the blocks.
pub struct Grant {
    pool: BlockPool,
    id: LeaseId,
    blocks: Arc<[SealedBlock]>,
    recalled: bool,
}

impl BlockPool {
    /// A lease without blocks yet; none while [`LEASES_MAX`] are in force.
    pub fn grant(&self) -> Option<Grant> {
        let mut state = self.state();
        let lending = &mut state.lending;
        let slot = lending.free.pop().or_else(|| {
            let next = (lending.used < LEASES_MAX as u32).then_some(lending.used)?;
            lending.used += 1;
            lending.generations.push(0);
            Some(next)
        })?;
        let generation = &mut lending.generations[slot as usize];
        *generation += 1;
        let id = LeaseId { slot, generation: *generation };
        drop(state);
        self.lease_word(slot).store(id.generation, Ordering::Release);
        Some(Grant { pool: self.clone(), id, blocks: Arc::default(), recalled: false })
    }

    /// Blocks that leases hold. One that two leases hold counts twice.
    pub fn lent_blocks(&self) -> usize {
        self.state().lending.lent
    }

    /// Watches for pressure.
    pub fn pressure(&self) -> Pressure {
        let notified = Box::pin(self.state().lending.pressed.clone().notified_owned());
        Pressure { pool: self.clone(), notified }
    }

    /// Wakes whoever waits for pressure, if there is some.
    pub(super) fn notice_pressure(&self, state: &mut State) {
        if self.is_pressed(state) {
            state.lending.pressed.notify_waiters();
        }
    }

    fn is_pressed(&self, state: &State) -> bool {
        let Lending { lent, recalled, .. } = state.lending;
        let soon = state.available() + recalled;
        let short = soon < self.shape().blocks() / 4;
        lent > recalled
            && (short
                || state.waiters.front().is_some_and(|waiter| waiter.demand(state).taken > soon))
    }

    fn lease_word(&self, slot: u32) -> &AtomicU64 {
        let offset = self.shape().leases_offset() + slot as usize * size_of::<u64>();
        // SAFETY: the region has a page of words behind the blocks (`PoolShape::region_len`), mapped
        // for as long as `self` (R1) and aligned; every access to it is atomic.
        unsafe { AtomicU64::from_ptr(self.base().as_ptr().add(offset).cast()) }
    }
}

/// Tells when blocks should be recalled.
pub struct Pressure {
    pool: BlockPool,
    notified: Pin<Box<OwnedNotified>>,
}

impl Pressure {
    /// Ready while blocks are short that a lease holds and that were not recalled yet.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let state = self.pool.state();
            if self.pool.is_pressed(&state) {
                return Poll::Ready(());
            }
            let pressed = state.lending.pressed.clone();
            drop(state);
            if self.notified.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.notified.set(pressed.notified_owned());
        }
    }
}

impl fmt::Debug for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pressure").finish_non_exhaustive()
    }
}

impl Grant {
    /// What the peer is told.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Puts blocks under the lease, once.
    ///
    /// # Panics
    /// When some are.
    pub fn lend(&mut self, blocks: Arc<[SealedBlock]>) {
        assert!(self.blocks.is_empty(), "a lease takes its blocks once");
        self.blocks = blocks;
        let mut state = self.pool.state();
        state.lending.lent += self.blocks.len();
        if self.recalled {
            state.lending.recalled += self.blocks.len();
        }
        self.pool.notice_pressure(&mut state);
    }

    /// Counts the blocks as asked for. Telling the peer is the caller's.
    pub fn recall(&mut self) {
        if !std::mem::replace(&mut self.recalled, true) {
            self.pool.state().lending.recalled += self.blocks.len();
        }
    }

    /// Blocks under the lease.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let ended = self.id.generation + 1;
        self.pool.lease_word(self.id.slot).store(ended, Ordering::Relaxed);
        // Before any write to the blocks, by whoever gets them: see the module.
        fence(Ordering::SeqCst);
        let mut state = self.pool.state();
        let lending = &mut state.lending;
        lending.lent -= self.blocks.len();
        if self.recalled {
            lending.recalled -= self.blocks.len();
        }
        lending.generations[self.id.slot as usize] = ended;
        lending.free.push(self.id.slot);
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({:?}, {} blocks)", self.id, self.blocks.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::super::{Dtype, KvSpec, PoolOptions};
    use super::*;

    fn pool(blocks: usize) -> BlockPool {
        BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 2, 1, 8, Dtype::F16), blocks)).unwrap()
    }

    fn sealed(pool: &BlockPool, count: usize) -> Arc<[SealedBlock]> {
        pool.try_reserve(count)
            .unwrap()
            .into_iter()
            .map(super::super::ReservedBlock::seal)
            .collect()
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_lease_keeps_its_blocks_and_its_word_tells_its_end() {
        let pool = pool(4);
        let mut grant = pool.grant().unwrap();
        let id = grant.id();
        grant.lend(sealed(&pool, 3));
        assert_eq!(pool.accounting().sealed, 3);
        assert_eq!(pool.lease_word(id.slot).load(Ordering::Relaxed), id.generation);
        drop(grant);
        assert_eq!(pool.accounting().free, 4);
        assert_ne!(pool.lease_word(id.slot).load(Ordering::Relaxed), id.generation);
        let next = pool.grant().unwrap().id();
        assert!(next.slot == id.slot && next.generation > id.generation, "{next:?}");
    }

    /// Looks at a lease's word when it is woken.
    struct Look {
        pool: BlockPool,
        id: LeaseId,
        in_force: AtomicUsize,
        over: AtomicUsize,
    }

    impl Wake for Look {
        fn wake(self: Arc<Self>) {
            let word = self.pool.lease_word(self.id.slot).load(Ordering::Relaxed);
            let seen = if word == self.id.generation { &self.in_force } else { &self.over };
            seen.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_lease_is_over_before_anybody_gets_its_blocks() {
        let pool = pool(2);
        let mut grant = pool.grant().unwrap();
        grant.lend(sealed(&pool, 2));
        let (in_force, over) = Default::default();
        let look = Arc::new(Look { pool: pool.clone(), id: grant.id(), in_force, over });
        let waker = Waker::from(look.clone());
        let mut waiting = Box::pin(pool.reserve(1));
        let mut cx = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(grant);
        let seen = [&look.in_force, &look.over].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(seen, [0, 1]);
        assert!(waiting.as_mut().poll(&mut cx).is_ready());
    }

    #[cfg_attr(miri, ignore = "it counts to thousands; the tests above take every step once")]
    #[test]
    fn leases_are_bounded() {
        let pool = pool(1);
        let mut grants: Vec<Grant> = std::iter::from_fn(|| pool.grant()).collect();
        assert_eq!(grants.len(), LEASES_MAX);
        assert!(pool.grant().is_none());
        grants.pop();
        assert!(pool.grant().is_some());
    }

    #[test]
    fn pressure_wakes_the_lender_until_enough_is_recalled() {
        let pool = pool(8);
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut pressure = pool.pressure();
        let mut grants: Vec<Grant> = (0..3)
            .map(|_| {
                let mut grant = pool.grant().unwrap();
                grant.lend(sealed(&pool, 2));
                grant
            })
            .collect();
        assert!(pressure.poll(&mut cx).is_pending(), "two of eight are free");
        let one = pool.try_reserve(1).unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(pressure.poll(&mut cx).is_ready());
        grants[0].recall();
        assert!(pressure.poll(&mut cx).is_pending(), "three will be");
        // Somebody waits for more than one lease gives back.
        let waiting = pool.reserve(5);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        grants[1].recall();
        assert!(pressure.poll(&mut cx).is_pending());
        drop((waiting, one, grants));
        assert_eq!(pool.accounting().free, 8);
        assert!(pressure.poll(&mut cx).is_pending(), "nothing is lent");
    }
}
