//! In which state every block is, and how many are: what the pool's lock guards.

use super::lease::Lending;
use super::prefix::PrefixIndex;
use super::reserve::Waiters;

/// How many blocks are in which state; the sum of all but `total` is `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Blocks of the pool.
    pub total: usize,
    /// Ready to be reserved.
    pub free: usize,
    /// Exclusively owned and writable.
    pub reserved: usize,
    /// Exclusively owned, lent to an operation that writes into them.
    pub loaned: usize,
    /// Abandoned by their owner while an operation may still write into them.
    pub quarantined: usize,
    /// Shared and read-only.
    pub sealed: usize,
    /// Held by nobody, but kept for whoever comes with the same tokens, until somebody needs the block.
    pub cached: usize,
}

impl Accounting {
    /// Blocks that can be reserved now: the free ones, and those that nobody but the cache has.
    pub fn available(&self) -> usize {
        self.free + self.cached
    }
}

/// State of one block (P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    Free,
    Reserved,
    Loaned,
    Quarantined,
    Sealed,
    Cached,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) waiters: Waiters,
    pub(super) lending: Lending,
    pub(super) prefix: PrefixIndex,
    free: Vec<u32>,
    states: Vec<BlockState>,
    /// Holds of each block that is reserved or sealed.
    holds: Vec<u32>,
    counts: Accounting,
}

impl State {
    /// `total` free blocks.
    pub(super) fn new(total: usize) -> Self {
        Self {
            waiters: Waiters::default(),
            lending: Lending::default(),
            prefix: PrefixIndex::default(),
            // Popped from the end, so that low ids go first.
            free: (0..total as u32).rev().collect(),
            states: vec![BlockState::Free; total],
            holds: vec![0; total],
            counts: Accounting { total, free: total, ..Accounting::default() },
        }
    }

    pub(super) fn counts(&self) -> Accounting {
        self.counts
    }

    fn count(&mut self, state: BlockState) -> &mut usize {
        match state {
            BlockState::Free => &mut self.counts.free,
            BlockState::Reserved => &mut self.counts.reserved,
            BlockState::Loaned => &mut self.counts.loaned,
            BlockState::Quarantined => &mut self.counts.quarantined,
            BlockState::Sealed => &mut self.counts.sealed,
            BlockState::Cached => &mut self.counts.cached,
        }
    }

    /// Blocks that can be reserved now.
    pub(super) fn available(&self) -> usize {
        self.counts.available()
    }

    /// One hold more of a block.
    pub(super) fn hold(&mut self, id: u32) {
        self.holds[id as usize] += 1;
        if self.states[id as usize] == BlockState::Cached {
            self.prefix.hold(id);
            self.set(id, BlockState::Sealed);
        }
    }

    /// One hold less. Says whether it was the last one: then the block can be had by others.
    pub(super) fn release(&mut self, id: u32) -> bool {
        let holds = &mut self.holds[id as usize];
        *holds -= 1;
        if *holds > 0 {
            return false;
        }
        if self.states[id as usize] == BlockState::Sealed && self.prefix.release(id) {
            self.set(id, BlockState::Cached);
        } else {
            self.put_back(id);
        }
        true
    }

    /// Takes `count` of the available blocks.
    pub(super) fn take(&mut self, count: usize) -> impl Iterator<Item = u32> + use<> {
        self.reclaim(count);
        let ids = self.free.split_off(self.free.len() - count);
        for id in &ids {
            self.set(*id, BlockState::Reserved);
            self.holds[*id as usize] = 1;
        }
        ids.into_iter().rev()
    }

    /// Makes `count` blocks free, of those that only the cache has as few as possible.
    fn reclaim(&mut self, count: usize) {
        while self.free.len() < count {
            let evicted = self.prefix.evict();
            assert!(!evicted.is_empty(), "{count} of {:?}", self.counts);
            evicted.into_iter().for_each(|id| self.put_back(id));
        }
    }

    fn put_back(&mut self, id: u32) {
        self.set(id, BlockState::Free);
        self.free.push(id);
    }

    /// Marks a loaned block as abandoned; a block in another state stays as it is.
    pub(super) fn quarantine(&mut self, id: u32) {
        if self.states[id as usize] == BlockState::Loaned {
            self.set(id, BlockState::Quarantined);
        }
    }

    pub(super) fn set(&mut self, id: u32, to: BlockState) {
        let from = std::mem::replace(&mut self.states[id as usize], to);
        *self.count(from) -= 1;
        *self.count(to) += 1;
    }
}
