//! The sealed blocks of a whole sequence, shared as one.
//!
//! A sequence of a gigabyte is thousands of blocks. What is done once for each of them when the
//! sequence is finished (to look at its pool, to count its owners) is not done again by those who pass the
//! sequence on: a clone of a [`SealedRun`] is one count, not thousands.

use std::sync::Arc;

use super::block::{BlockPool, SealedBlock};
use super::list::{GatherList, ListError};
use super::payload::{PayloadOrder, Span};

/// The blocks of a finished sequence, in token order, all of one pool. Not empty.
#[derive(Clone, Debug)]
pub struct SealedRun {
    pool: BlockPool,
    whole: Arc<[SealedBlock]>,
    /// The last one, where it is not full.
    tail: Option<SealedBlock>,
    tokens: usize,
}

impl SealedRun {
    /// The blocks of `tokens` tokens, from token 0 on.
    ///
    /// # Errors
    /// [`ListError`] when blocks, tokens and pool do not fit together.
    pub fn new(
        pool: &BlockPool,
        mut blocks: Vec<SealedBlock>,
        tokens: usize,
    ) -> Result<Self, ListError> {
        if let Some(foreign) = blocks.iter().find(|block| !block.pool().same_pool(pool)) {
            return Err(ListError::ForeignBlock { id: foreign.id() });
        }
        let own = pool.spec().block_tokens as usize;
        if tokens == 0 || blocks.len() != tokens.div_ceil(own) {
            return Err(ListError::BlockCount { blocks: blocks.len(), tokens, own });
        }
        let tail = if tokens.is_multiple_of(own) { None } else { blocks.pop() };
        Ok(Self { pool: pool.clone(), whole: blocks.into(), tail, tokens })
    }

    /// The pool that the blocks belong to.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Tokens that the blocks hold.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The blocks.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = &SealedBlock> {
        let whole = self.whole.len();
        (0..whole + self.tail.iter().len())
            .map(move |index| self.whole.get(index).or(self.tail.as_ref()).expect("in range"))
    }

    /// Bytes of payload.
    pub fn payload_len(&self) -> u64 {
        self.pool.spec().token_bytes() as u64 * self.tokens as u64
    }

    /// The order in which the blocks lie: their own.
    pub fn order(&self) -> PayloadOrder {
        PayloadOrder { block_tokens: self.pool.spec().block_tokens }
    }

    /// The bytes of the tokens from `from` on. Its cost is that of the blocks that it names.
    ///
    /// # Errors
    /// [`ListError`] when `from` is not the first token of a block.
    pub fn gather_from(&self, from: usize) -> Result<GatherList, ListError> {
        let own = self.order().block_tokens as usize;
        let (start, end) = (from, self.tokens);
        if start >= end || !start.is_multiple_of(own) {
            return Err(ListError::Misaligned { start, end, wire: own, own });
        }
        let whole = self.whole.iter().skip(start / own);
        let holds = whole.chain(&self.tail).cloned().collect();
        let span = Span::whole(self.pool.spec(), start..end);
        Ok(GatherList::over(&self.pool, holds, self.order(), &span))
    }

    /// The first `count` full blocks, without the others.
    pub fn into_first(self, count: usize) -> Arc<[SealedBlock]> {
        if count == self.whole.len() { self.whole } else { self.whole[..count].into() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cursor, Dtype, KvSpec, PoolOptions, ReservedBlock};
    use super::*;

    fn pool() -> BlockPool {
        BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 2, 1, 8, Dtype::F16), 8)).unwrap()
    }

    fn sealed(pool: &BlockPool, count: usize) -> Vec<SealedBlock> {
        let mut blocks = pool.try_reserve(count).unwrap();
        for (number, block) in blocks.iter_mut().enumerate() {
            block.fill(number as u8);
        }
        blocks.into_iter().map(ReservedBlock::seal).collect()
    }

    #[test]
    fn blocks_that_are_not_those_of_the_tokens_are_refused() {
        let (here, there) = (pool(), pool());
        for (pool, blocks, tokens) in [(&here, 2, 4), (&here, 2, 9), (&here, 0, 0), (&there, 2, 8)]
        {
            assert!(SealedRun::new(&here, sealed(pool, blocks), tokens).is_err(), "{tokens}");
        }
        assert_eq!((here.accounting().free, there.accounting().free), (8, 8));
    }

    #[test]
    fn the_bytes_from_a_block_on_are_those_of_that_block_and_its_followers() {
        let pool = pool();
        for tokens in [12, 10] {
            let run = SealedRun::new(&pool, sealed(&pool, 3), tokens).unwrap();
            assert_eq!((run.blocks().len(), run.blocks().count()), (3, 3));
            for from in [0, 4, 8] {
                let list = run.gather_from(from).unwrap();
                assert_eq!(list.len(), run.payload_len() / tokens as u64 * (tokens - from) as u64);
                let first = list.slices(&Cursor::default(), 1).next().unwrap()[0];
                assert_eq!(usize::from(first), from / 4);
            }
            assert!(run.gather_from(2).is_err() && run.gather_from(12).is_err());
        }
    }

    #[test]
    fn what_is_not_among_the_first_blocks_is_let_go() {
        let pool = pool();
        for (tokens, first) in [(12, 3), (12, 1), (10, 2), (10, 0)] {
            let run = SealedRun::new(&pool, sealed(&pool, 3), tokens).unwrap();
            let kept = run.into_first(first);
            assert_eq!((kept.len(), pool.accounting().sealed), (first, first), "{tokens}");
        }
    }
}
