//! Blocks for a sequence of which a part may be there already.
//!
//! Whoever waits for room holds nothing of it: two who wait with half of their blocks each could wait for
//! each other. What is cached is looked for when the turn comes, and held in the same step in which
//! the rest is taken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::super::block::{BlockPool, ReservedBlock, SealedBlock};
use super::super::reserve::{ReserveError, Waiter};
use super::super::state::State;
use super::PrefixKey;

/// The blocks of a sequence: those that are computed, then those to be computed.
#[derive(Debug, Default)]
pub struct Room {
    /// Full blocks with the bytes of the first keys.
    pub cached: Vec<SealedBlock>,
    /// The others.
    pub reserved: Vec<ReservedBlock>,
}

impl BlockPool {
    /// How many of the first of these keys' blocks are in the pool now. They may be evicted at any time:
    /// [`reserve_behind`](Self::reserve_behind) tells which one gets.
    pub fn cached_run(&self, keys: &[PrefixKey]) -> usize {
        self.state().prefix.run(keys)
    }

    /// Blocks for a sequence of `blocks` blocks whose first ones `keys` name, now, or none. As many as are
    /// cached are shared, the others reserved; afterwards `spare` more could still be.
    ///
    /// # Errors
    /// [`ReserveError::Busy`] when there are too few, or when an earlier reservation still waits.
    pub fn try_reserve_behind(
        &self,
        keys: &[PrefixKey],
        blocks: usize,
        spare: usize,
    ) -> Result<Room, ReserveError> {
        self.check_count(blocks)?;
        let mut state = self.state();
        let (available, waiting) = (state.available(), state.waiters.len());
        let Demand { run, taken } = Demand::of(&state, keys, blocks);
        if taken + spare > available || waiting > 0 {
            return Err(ReserveError::Busy { asked: taken, available, waiting });
        }
        Ok(self.take_room(&mut state, &keys[..run], blocks))
    }

    /// Blocks for a sequence of `blocks` blocks whose first ones `keys` name, all of them or none, after
    /// every earlier request. What is cached when the turn comes is shared, the others reserved.
    ///
    /// # Errors
    /// [`ReserveError::TooMany`] at once when the pool is smaller than `blocks`.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; blocks granted meanwhile are let go.
    pub fn reserve_behind(&self, keys: Arc<[PrefixKey]>, blocks: usize) -> ReserveRoom {
        if let Err(error) = self.check_count(blocks) {
            return ReserveRoom { pool: self.clone(), waiting: Waiting::Failed(error) };
        }
        let (grant, granted) = oneshot::channel();
        let mut state = self.state();
        state.waiters.push_back(Waiter { keys, count: blocks, grant });
        self.notice_pressure(&mut state);
        self.serve_waiters(state);
        ReserveRoom { pool: self.clone(), waiting: Waiting::ForGrant(granted) }
    }

    /// Takes room that is there out of a locked state; all of `keys` are known.
    pub(in super::super) fn take_room(
        &self,
        state: &mut State,
        keys: &[PrefixKey],
        blocks: usize,
    ) -> Room {
        let ids: Vec<u32> = keys.iter().filter_map(|key| state.prefix.block(key)).collect();
        // Before anything is evicted.
        let cached: Vec<SealedBlock> = ids.into_iter().map(|id| self.share(state, id)).collect();
        let reserved = self.take(state, blocks - cached.len());
        Room { cached, reserved }
    }

    /// Gives the first full blocks of a sequence to the index, from the `from`-th on; `keys` name them. Where
    /// it knows a block of the same key, that one takes the place of the sequence's own. Gives the number
    /// of blocks that the index now knows.
    pub(in super::super) fn cache(
        &self,
        keys: &[PrefixKey],
        blocks: &mut [SealedBlock],
        from: usize,
    ) -> usize {
        let mut replaced = Vec::new();
        let mut state = self.state();
        let mut at = from;
        for (key, block) in keys.iter().zip(blocks).skip(from) {
            match state.prefix.block(key) {
                Some(known) if known == block.id() => {}
                Some(known) => {
                    let shared = self.share(&mut state, known);
                    replaced.push(std::mem::replace(block, shared));
                }
                None => {
                    let parent = at.checked_sub(1).map(|parent| &keys[parent]);
                    let id = block.id();
                    if state.prefix.knows(id) || !state.prefix.insert(*key, parent, id) {
                        break;
                    }
                }
            }
            at += 1;
        }
        // Letting go of a block takes the lock again. Whoever waits may need less now.
        self.serve_waiters(state);
        drop(replaced);
        at
    }
}

/// What a sequence would get and take, at this moment.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Demand {
    /// How many of its keys are known, from the first on.
    pub(in super::super) run: usize,
    /// Blocks that nobody else could have then: the new ones, and those that only the cache holds.
    pub(in super::super) taken: usize,
}

impl Demand {
    /// Of a sequence of `blocks` blocks, the first of which `keys` name.
    pub(in super::super) fn of(state: &State, keys: &[PrefixKey], blocks: usize) -> Self {
        let keys = &keys[..keys.len().min(blocks)];
        let run = state.prefix.run(keys);
        Self { run, taken: blocks - run + state.prefix.unheld(&keys[..run]) }
    }
}

/// Future of [`BlockPool::reserve_behind`].
#[derive(Debug)]
pub struct ReserveRoom {
    pool: BlockPool,
    waiting: Waiting,
}

#[derive(Debug)]
enum Waiting {
    ForGrant(oneshot::Receiver<Room>),
    Failed(ReserveError),
    Done,
}

impl Future for ReserveRoom {
    type Output = Result<Room, ReserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = match &mut self.waiting {
            Waiting::ForGrant(granted) => match Pin::new(granted).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(granted) => Ok(granted.expect("a waiter leaves the queue by a grant")),
            },
            Waiting::Failed(error) => Err(*error),
            Waiting::Done => panic!("a reservation is polled after its completion"),
        };
        self.waiting = Waiting::Done;
        Poll::Ready(output)
    }
}

impl Drop for ReserveRoom {
    fn drop(&mut self) {
        if let Waiting::ForGrant(granted) = &mut self.waiting {
            // Blocks granted but never taken are freed; a place in the queue is given up.
            granted.close();
            drop(granted.try_recv());
            self.pool.serve_waiters(self.pool.state());
        }
    }
}
