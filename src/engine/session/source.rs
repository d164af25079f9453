//! Where the bytes of an offer come from: a sequence that is there, or one that is still being computed.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use super::pieces::Pieces;
use crate::pool::{BlockPool, GatherList, ListError, PayloadOrder, SealedBlock, SealedRun};

/// What is offered.
#[derive(Debug)]
pub struct OfferPayload {
    /// The sequence.
    pub run: SealedRun,
    /// What the receiver's user should know before it decides.
    pub meta: Bytes,
    /// What it should know once it has the payload.
    pub closing: Bytes,
}

/// What is offered while it is computed.
#[derive(Debug)]
pub struct OfferStream {
    /// The pool that its blocks will be of.
    pub pool: BlockPool,
    /// Tokens of the whole sequence.
    pub tokens: usize,
    /// Tokens of a piece: a multiple of the pool's block length. See [`piece_tokens_for`](super::piece_tokens_for).
    pub piece_tokens: u32,
    /// What the receiver's user should know before it decides.
    pub meta: Bytes,
}

#[derive(Debug)]
pub(super) enum Source {
    /// All tokens are there. The run stays with the offer.
    Whole(SealedRun),
    Growing(Growing),
}

/// A sequence whose blocks come one after the other. Those of a piece leave with it, so that nothing
/// of it stays here once the link is done with it.
#[derive(Debug)]
pub(super) struct Growing {
    pool: BlockPool,
    tokens: usize,
    pieces: Pieces,
    /// Blocks that came and did not leave.
    held: VecDeque<SealedBlock>,
    /// Index in the sequence of the first of them.
    first: usize,
}

impl Source {
    pub(super) fn tokens(&self) -> usize {
        match self {
            Self::Whole(run) => run.tokens(),
            Self::Growing(growing) => growing.tokens,
        }
    }

    pub(super) fn order(&self) -> PayloadOrder {
        match self {
            Self::Whole(run) => run.order(),
            Self::Growing(growing) => growing.order(),
        }
    }

    /// The pieces of the tokens from `from` on.
    pub(super) fn pieces(&self, from: usize) -> VecDeque<Range<usize>> {
        match self {
            Self::Whole(run) => Pieces::whole(run.tokens()).from(from).collect(),
            Self::Growing(growing) => growing.pieces.from(from).collect(),
        }
    }

    /// The bytes of the piece that is next, once all of its blocks are there.
    pub(super) fn take(&mut self, piece: &Range<usize>) -> Option<GatherList> {
        match self {
            Self::Whole(run) => run.gather_from(piece.start).ok(),
            Self::Growing(growing) => growing.take(piece),
        }
    }

    /// Lets go of the blocks that nobody was given. Those of a whole run may be read by whoever reaches them.
    pub(super) fn forget(&mut self) {
        if let Self::Growing(growing) = self {
            growing.held.clear();
        }
    }
}

impl Growing {
    /// Nothing of it is there. None where the pieces do not cut it.
    pub(super) fn new(pool: &BlockPool, tokens: usize, piece_tokens: u32) -> Option<Self> {
        let pieces = Pieces::new(tokens, piece_tokens, pool.spec().block_tokens)?;
        Some(Self { pool: pool.clone(), tokens, pieces, held: VecDeque::new(), first: 0 })
    }

    /// Adds the blocks that follow those that came before.
    ///
    /// # Errors
    /// [`ListError`] when they are of another pool, or too many: none of them was added.
    pub(super) fn push(&mut self, blocks: Vec<SealedBlock>) -> Result<(), ListError> {
        if let Some(foreign) = blocks.iter().find(|block| !block.pool().same_pool(&self.pool)) {
            return Err(ListError::ForeignBlock { id: foreign.id() });
        }
        let blocks_in_all = self.first + self.held.len() + blocks.len();
        if blocks_in_all > self.blocks() {
            return Err(self.block_count(blocks_in_all));
        }
        self.held.extend(blocks);
        Ok(())
    }

    /// Whether every block came.
    ///
    /// # Errors
    /// [`ListError`] when some did not.
    pub(super) fn check_whole(&self) -> Result<(), ListError> {
        let came = self.first + self.held.len();
        if came == self.blocks() { Ok(()) } else { Err(self.block_count(came)) }
    }

    fn take(&mut self, piece: &Range<usize>) -> Option<GatherList> {
        let own = self.pool.spec().block_tokens as usize;
        let (start, end) = (piece.start / own, piece.end.div_ceil(own));
        if self.first + self.held.len() < end {
            return None;
        }
        // What lies before the first piece, the receiver has already.
        self.held.drain(..start - self.first);
        let holds = self.held.drain(..end - start).collect();
        self.first = end;
        Some(GatherList::over(&self.pool, holds, self.order(), piece.clone()))
    }

    fn order(&self) -> PayloadOrder {
        PayloadOrder { block_tokens: self.pool.spec().block_tokens }
    }

    fn blocks(&self) -> usize {
        self.pool.spec().blocks_for(self.tokens)
    }

    fn block_count(&self, blocks: usize) -> ListError {
        let own = self.pool.spec().block_tokens as usize;
        ListError::BlockCount { blocks, tokens: self.tokens, own }
    }
}
