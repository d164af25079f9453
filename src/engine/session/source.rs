//! Where the bytes of an offer come from: a sequence that is there, or one that is still being computed.

use std::collections::VecDeque;

use bytes::Bytes;

use super::pieces::{PieceCut, Pieces};
use crate::pool::{BlockPool, FillingBlock, GatherList, ListError, PayloadOrder, SealedRun, Span};

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
    /// How it is cut into pieces.
    pub cut: PieceCut,
    /// What the receiver's user should know before it decides.
    pub meta: Bytes,
}

#[derive(Debug)]
pub(super) enum Source {
    /// All tokens are there. The run stays with the offer.
    Whole(SealedRun),
    Growing(Growing),
}

/// A sequence whose blocks come one after the other, and whose layers become final. Blocks of which every piece
/// left are let go, so that nothing of them stays here once the link is done with them.
#[derive(Debug)]
pub(super) struct Growing {
    pool: BlockPool,
    tokens: usize,
    pieces: Pieces,
    /// Blocks that came, and of which not everything left.
    held: VecDeque<FillingBlock>,
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
    pub(super) fn pieces(&self, from: usize) -> Vec<Span> {
        match self {
            Self::Whole(run) => Pieces::whole(run.pool().spec(), run.tokens()).from(from).collect(),
            Self::Growing(growing) => growing.pieces.from(from).collect(),
        }
    }

    /// The bytes of a piece, once all of them are there.
    pub(super) fn gather(&self, piece: &Span) -> Option<GatherList> {
        match self {
            Self::Whole(run) => run.gather_from(piece.tokens.start).ok(),
            Self::Growing(growing) => growing.gather(piece),
        }
    }

    /// How many of the first tokens have their blocks here.
    pub(super) fn came(&self) -> usize {
        match self {
            Self::Whole(run) => run.tokens(),
            Self::Growing(growing) => growing.came(),
        }
    }

    /// Lets go of the blocks before this token: nobody will ask for them.
    pub(super) fn forget_before(&mut self, token: usize) {
        if let Self::Growing(growing) = self {
            growing.forget_before(token);
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
    pub(super) fn new(pool: &BlockPool, tokens: usize, cut: PieceCut) -> Option<Self> {
        let pieces = Pieces::new(pool.spec(), tokens, cut, pool.spec().block_tokens)?;
        Some(Self { pool: pool.clone(), tokens, pieces, held: VecDeque::new(), first: 0 })
    }

    /// Adds the blocks that follow those that came before.
    ///
    /// # Errors
    /// [`ListError`] when they are of another pool, or too many: none of them was added.
    pub(super) fn push(&mut self, blocks: Vec<FillingBlock>) -> Result<(), ListError> {
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

    /// Whether every block came, with all its layers.
    ///
    /// # Errors
    /// [`ListError`] when some did not.
    pub(super) fn check_whole(&self) -> Result<(), ListError> {
        let came = self.first + self.held.len();
        let layers = self.pool.spec().layers.len();
        let whole = self.held.iter().take_while(|block| block.layers() == layers).count();
        if came == self.blocks() && whole == self.held.len() {
            Ok(())
        } else {
            Err(self.block_count(self.first + whole))
        }
    }

    fn gather(&self, piece: &Span) -> Option<GatherList> {
        let own = self.pool.spec().block_tokens as usize;
        let (start, end) = (piece.tokens.start / own, piece.tokens.end.div_ceil(own));
        if self.came() < piece.tokens.end {
            return None;
        }
        let blocks = self.held.range(start - self.first..end - self.first);
        if blocks.clone().any(|block| block.layers() < piece.layers.end) {
            return None;
        }
        let blocks: Vec<FillingBlock> = blocks.cloned().collect();
        GatherList::filling(&blocks, self.order(), piece)
    }

    fn came(&self) -> usize {
        let own = self.pool.spec().block_tokens as usize;
        ((self.first + self.held.len()) * own).min(self.tokens)
    }

    fn forget_before(&mut self, token: usize) {
        let index = token / self.pool.spec().block_tokens as usize;
        let count = index.saturating_sub(self.first).min(self.held.len());
        self.held.drain(..count);
        self.first += count;
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
