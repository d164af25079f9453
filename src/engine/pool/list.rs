//! What an operation holds on to while it moves bytes: a list of extents and the blocks they lie in.
//!
//! Invariants, named by the SAFETY comments below:
//! - L1: every extent of a list lies inside blocks that the list holds, and inside tokens and layers that its
//!   span names. Of blocks that are still filled, these are layers that are final.
//! - L2: the extents of a [`ScatterList`] are pairwise disjoint (a span names every cell once), and
//!   so are those of lists that share their blocks: they come from one list that was split, or from
//!   disjoint spans.
//!
//! A list is a loan: its blocks cannot be freed or reused before it is dropped, whoever else gave
//! up on them. That is what makes an abandoned operation safe.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::block::{BlockPool, ReservedBlock, SealedBlock};
use super::filling::FillingBlock;
use super::payload::{PayloadOrder, Span};
use super::state::BlockState;

/// A run of bytes in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte, from the region's base.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Tokens `start..end` of a sequence.
pub type TokenRange = Range<usize>;

/// Why a list could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The range is empty, or does not start on a block of the wire and of the pool.
    #[error("tokens {start}..{end} do not start on a whole block (wire {wire}, pool {own} tokens)")]
    Misaligned {
        /// First token.
        start: usize,
        /// One past the last token.
        end: usize,
        /// Tokens per wire block.
        wire: usize,
        /// Tokens per block of the pool.
        own: usize,
    },
    /// Too few or too many blocks for the tokens.
    #[error("{blocks} blocks given for {tokens} tokens of {own}-token blocks")]
    BlockCount {
        /// Blocks given.
        blocks: usize,
        /// Tokens that they should hold.
        tokens: usize,
        /// Tokens per block of the pool.
        own: usize,
    },
    /// A block of another pool.
    #[error("block {id} belongs to another pool")]
    ForeignBlock {
        /// Its id.
        id: u32,
    },
}

/// A position in a list's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    extent: usize,
    within: usize,
    position: u64,
}

impl Cursor {
    /// Bytes before the cursor.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves forward by `bytes`, at most to the end.
    pub fn advance(&mut self, extents: &[Extent], mut bytes: usize) {
        while let Some(extent) = extents.get(self.extent) {
            let step = bytes.min(extent.len - self.within);
            self.within += step;
            self.position += step as u64;
            bytes -= step;
            if self.within < extent.len {
                break;
            }
            self.extent += 1;
            self.within = 0;
        }
    }

    /// The extents from here on, cut to `bytes_max` bytes in all.
    pub fn window(&self, extents: &[Extent], bytes_max: usize) -> impl Iterator<Item = Extent> {
        let rest = extents.get(self.extent..).unwrap_or_default();
        let mut left = bytes_max;
        let mut skip = self.within;
        rest.iter().map_while(move |extent| {
            let len = left.min(extent.len - skip);
            let cut = Extent { offset: extent.offset + skip, len };
            (skip, left) = (0, left - len);
            (len > 0).then_some(cut)
        })
    }
}

/// The extents of bytes `range` of a list.
fn cut(extents: &[Extent], range: &Range<u64>) -> Vec<Extent> {
    let mut cursor = Cursor::default();
    cursor.advance(extents, range.start as usize);
    cursor.window(extents, (range.end - range.start) as usize).collect()
}

/// Spans in rows: each has the tokens of the one before it and layers behind it, or tokens behind it.
fn check_apart(spans: &[Span], tokens: &TokenRange) {
    for span in spans {
        let inside = tokens.start <= span.tokens.start && span.tokens.end <= tokens.end;
        assert!(inside, "{span:?} of tokens {tokens:?}");
    }
    for (before, after) in spans.iter().zip(spans.iter().skip(1)) {
        let beside = before.tokens == after.tokens && before.layers.end <= after.layers.start;
        assert!(beside || before.tokens.end <= after.tokens.start, "{before:?} and {after:?}");
    }
}

/// Sealed blocks to read a payload from.
#[derive(Clone)]
pub struct GatherList {
    pool: BlockPool,
    extents: Vec<Extent>,
    len: u64,
    holds: Arc<Vec<SealedBlock>>,
}

impl GatherList {
    /// The bytes of `tokens`, in wire order. `blocks[i]` holds the pool's i-th block of tokens,
    /// counted from token 0 of the sequence.
    ///
    /// # Errors
    /// [`ListError`] when blocks and tokens do not fit together.
    pub fn new(
        pool: &BlockPool,
        blocks: &[SealedBlock],
        order: PayloadOrder,
        tokens: TokenRange,
    ) -> Result<Self, ListError> {
        let own = pool.spec().block_tokens as usize;
        let (start, end, wire) = (tokens.start, tokens.end, order.block_tokens as usize);
        if let Some(foreign) = blocks.iter().find(|block| !block.pool().same_pool(pool)) {
            return Err(ListError::ForeignBlock { id: foreign.id() });
        }
        if start >= end || wire == 0 || start % wire != 0 {
            return Err(ListError::Misaligned { start, end, wire, own });
        }
        if end > blocks.len() * own {
            return Err(ListError::BlockCount { blocks: blocks.len(), tokens: end, own });
        }
        let holds = blocks[start / own..end.div_ceil(own)].to_vec();
        Ok(Self::over(pool, holds, order, &Span::whole(pool.spec(), tokens)))
    }

    /// The bytes of a span of blocks that may still be filled: those of its tokens, all of one pool. None while
    /// some of its layers are not final, or where there are no blocks.
    ///
    /// # Panics
    /// When blocks and span do not fit together.
    pub fn filling(blocks: &[FillingBlock], order: PayloadOrder, span: &Span) -> Option<Self> {
        let pool = blocks.first()?.pool();
        assert!(blocks.iter().all(|block| block.pool().same_pool(pool)), "blocks of one pool");
        if blocks.iter().any(|block| block.layers() < span.layers.end) {
            return None;
        }
        let holds = blocks.iter().map(FillingBlock::hold).collect();
        Some(Self::over(pool, holds, order, span))
    }

    /// Like [`new`](Self::new), of blocks that fit: those of the span's tokens and no others.
    pub(super) fn over(
        pool: &BlockPool,
        holds: Vec<SealedBlock>,
        order: PayloadOrder,
        span: &Span,
    ) -> Self {
        let own = pool.spec().block_tokens as usize;
        let table: Vec<u32> = holds.iter().map(SealedBlock::id).collect();
        let len = span.payload_len(pool.spec());
        let first_token = span.tokens.start / own * own;
        let mut extents = Vec::new();
        order.extents(pool.shape(), &table, first_token, span, &mut extents);
        Self { pool: pool.clone(), extents, len, holds: Arc::new(holds) }
    }

    /// Bytes of payload.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes lie, in wire order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The pool that the bytes lie in.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Bytes `range` of this payload, as a payload of its own. It holds the same blocks.
    ///
    /// # Panics
    /// When the range reaches past the end.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies inside its whole");
        Self {
            pool: self.pool.clone(),
            extents: cut(&self.extents, &range),
            len: range.end - range.start,
            holds: Arc::clone(&self.holds),
        }
    }

    /// The bytes from `cursor` on, at most `bytes_max` of them.
    pub fn slices(&self, cursor: &Cursor, bytes_max: usize) -> impl Iterator<Item = &[u8]> {
        cursor.window(&self.extents, bytes_max).map(|extent| {
            // SAFETY: the extent lies in blocks that `self` holds (L1); nobody writes to a sealed block (P2), nor
            // to the final layers of one that is filled (F1).
            unsafe { self.pool.region().bytes(extent) }
        })
    }
}

impl fmt::Debug for GatherList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatherList({} bytes in {} extents)", self.len, self.extents.len())
    }
}

/// Reserved blocks to write a payload into.
pub struct ScatterList {
    pool: BlockPool,
    extents: Vec<Extent>,
    len: u64,
    /// Shared between the parts of a room.
    holds: Arc<Vec<ReservedBlock>>,
}

impl ScatterList {
    /// Room for the bytes of `tokens`, in wire order. `blocks[i]` takes the pool's i-th block of
    /// tokens, counted from `tokens.start`. The blocks count as loaned until they come back.
    ///
    /// # Errors
    /// [`ListError`] and the blocks when blocks and tokens do not fit together.
    pub fn new(
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
        order: PayloadOrder,
        tokens: TokenRange,
    ) -> Result<Self, (ListError, Vec<ReservedBlock>)> {
        let span = Span::whole(pool.spec(), tokens.clone());
        let mut rooms = Self::in_spans(pool, blocks, order, tokens, &[span])?;
        Ok(rooms.remove(0))
    }

    /// Room for the bytes of `tokens`, as one list for each of the spans that it consists of. All can be
    /// filled at once, by whoever has them; the blocks stay until the last is gone.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// When a span has other tokens, or they do not lie one after the other: those of the same tokens by their
    /// layers, and those of other tokens behind them.
    pub fn in_spans(
        pool: &BlockPool,
        blocks: Vec<ReservedBlock>,
        order: PayloadOrder,
        tokens: TokenRange,
        spans: &[Span],
    ) -> Result<Vec<Self>, (ListError, Vec<ReservedBlock>)> {
        let own = pool.spec().block_tokens as usize;
        let (start, end, wire) = (tokens.start, tokens.end, order.block_tokens as usize);
        if start >= end || wire == 0 || start % wire != 0 || start % own != 0 {
            return Err((ListError::Misaligned { start, end, wire, own }, blocks));
        }
        if blocks.len() != (end - start).div_ceil(own) {
            let (count, tokens) = (blocks.len(), end - start);
            return Err((ListError::BlockCount { blocks: count, tokens, own }, blocks));
        }
        if let Some(foreign) = blocks.iter().find(|block| !block.pool().same_pool(pool)) {
            return Err((ListError::ForeignBlock { id: foreign.id() }, blocks));
        }
        let table: Vec<u32> = blocks.iter().map(ReservedBlock::id).collect();
        check_apart(spans, &tokens);
        blocks.iter().for_each(|block| block.set_state(BlockState::Loaned));
        let holds = Arc::new(blocks);
        let room = |span: &Span| {
            let mut extents = Vec::new();
            order.extents(pool.shape(), &table, start, span, &mut extents);
            let (pool, len) = (pool.clone(), span.payload_len(pool.spec()));
            Self { pool, extents, len, holds: Arc::clone(&holds) }
        };
        Ok(spans.iter().map(room).collect())
    }

    /// Bytes of payload.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes go, in wire order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The pool that the bytes go to.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The room from `cursor` on, at most `bytes_max` bytes of it.
    pub fn slices(&mut self, cursor: &Cursor, bytes_max: usize) -> impl Iterator<Item = &mut [u8]> {
        let region = self.pool.region();
        cursor.window(&self.extents, bytes_max).map(move |extent| {
            // SAFETY: the extent lies in reserved blocks that `self` holds (L1), which only lists that
            // share them read or write (P1), and none of those at this extent (L2); `self` is borrowed
            // exclusively, and no two of its extents overlap (L2).
            unsafe { region.bytes_mut(extent) }
        })
    }

    /// A note of the loaned blocks, for whoever lets go of the list while a link still holds it.
    pub fn loan(&self) -> Loan {
        let ids = self.holds.iter().map(ReservedBlock::id).collect();
        Loan { pool: self.pool.clone(), ids }
    }

    /// Splits the room before byte `at`. Both parts can be filled at once, by whoever has them; the
    /// blocks stay until both are gone.
    ///
    /// # Panics
    /// When `at` lies past the end.
    #[must_use]
    pub fn split(self, at: u64) -> (Self, Self) {
        assert!(at <= self.len, "a room is split inside");
        let part = |range: Range<u64>| Self {
            pool: self.pool.clone(),
            extents: cut(&self.extents, &range),
            len: range.end - range.start,
            holds: Arc::clone(&self.holds),
        };
        // Every byte of the whole goes to one of them (L2).
        (part(0..at), part(at..self.len))
    }

    /// Puts parts of one room together again: this one, and the one that follows it.
    ///
    /// # Errors
    /// Both, when they do not come from one room.
    pub fn join(mut self, next: Self) -> Result<Self, Box<(Self, Self)>> {
        if !Arc::ptr_eq(&self.holds, &next.holds) {
            return Err(Box::new((self, next)));
        }
        let mut rest = &next.extents[..];
        // An extent that the split went through; a list has no other neighbours.
        if let (Some(last), [first, after @ ..]) = (self.extents.last_mut(), rest)
            && last.offset + last.len == first.offset
        {
            last.len += first.len;
            rest = after;
        }
        self.extents.extend_from_slice(rest);
        self.len += next.len;
        Ok(self)
    }

    /// Ends the loan. Of a room that was split, the last part gives all blocks, the others none.
    pub fn into_blocks(self) -> Vec<ReservedBlock> {
        let blocks = Arc::into_inner(self.holds).unwrap_or_default();
        blocks.iter().for_each(|block| block.set_state(BlockState::Reserved));
        blocks
    }
}

/// The blocks of a [`ScatterList`] that a link holds. It keeps nothing alive.
#[derive(Debug)]
pub struct Loan {
    pool: BlockPool,
    ids: Vec<u32>,
}

impl Loan {
    /// Counts the blocks as quarantined: their owner gave up while a link may still write to them.
    ///
    /// Call it only while the list still exists: it changes a state, not an ownership.
    pub fn quarantine(&self) {
        let mut state = self.pool.state();
        self.ids.iter().for_each(|id| state.quarantine(*id));
    }
}

impl fmt::Debug for ScatterList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScatterList({} bytes in {} extents)", self.len, self.extents.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dtype, KvSpec, Layout, PoolOptions};
    use super::*;

    fn pool(layout: Layout, block_tokens: u32, blocks: usize) -> BlockPool {
        let spec = KvSpec::uniform(block_tokens, 3, 2, 4, Dtype::F16);
        BlockPool::new(PoolOptions { layout, ..PoolOptions::new(spec, blocks) }).unwrap()
    }

    /// Fills a scatter list with 0, 1, 2, ... and seals its blocks.
    fn write_counting(
        pool: &BlockPool,
        order: PayloadOrder,
        tokens: usize,
    ) -> (Vec<SealedBlock>, Vec<u8>) {
        let blocks = pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap();
        let mut list = ScatterList::new(pool, blocks, order, 0..tokens).unwrap();
        let bytes: Vec<u8> = (0..list.len()).map(|i| (i * 7 % 251) as u8).collect();
        let mut rest = &bytes[..];
        for slice in list.slices(&Cursor::default(), usize::MAX) {
            let (now, later) = rest.split_at(slice.len());
            slice.copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty());
        (list.into_blocks().into_iter().map(ReservedBlock::seal).collect(), bytes)
    }

    /// Bytes that are read at once: no divisor of anything.
    const PIECE: usize = if cfg!(miri) { 211 } else { 37 };

    #[test]
    fn wire_order_is_the_same_in_every_layout_and_block_length() {
        let order = PayloadOrder { block_tokens: 4 };
        for (layout, own) in [
            (Layout::BlockMajor, 4),
            (Layout::LayerMajor, 4),
            (Layout::BlockMajor, 3),
            (Layout::LayerMajor, 8),
        ] {
            let pool = pool(layout, own, 16);
            let (blocks, bytes) = write_counting(&pool, order, 19);
            let list = GatherList::new(&pool, &blocks, order, 0..19).unwrap();
            let mut cursor = Cursor::default();
            let mut read = Vec::new();
            while cursor.position() < list.len() {
                let before = read.len();
                list.slices(&cursor, PIECE).for_each(|slice| read.extend_from_slice(slice));
                assert!(read.len() - before <= PIECE);
                cursor.advance(list.extents(), read.len() - before);
            }
            assert_eq!(read, bytes, "{layout:?} {own}");
        }
    }

    #[test]
    fn whole_blocks_of_a_block_major_pool_are_one_extent_each() {
        let pool = pool(Layout::BlockMajor, 4, 8);
        let order = PayloadOrder { block_tokens: 4 };
        let (blocks, _) = write_counting(&pool, order, 16);
        let mut scattered = blocks.clone();
        scattered.reverse();
        let list = GatherList::new(&pool, &scattered, order, 0..16).unwrap();
        assert_eq!(list.extents().len(), 4);
        assert_eq!(GatherList::new(&pool, &blocks, order, 0..16).unwrap().extents().len(), 1);
    }

    #[test]
    fn lists_that_do_not_fit_are_refused_and_give_the_blocks_back() {
        let order = PayloadOrder { block_tokens: 4 };
        let (pool, other) = (pool(Layout::BlockMajor, 4, 4), pool(Layout::BlockMajor, 4, 4));
        let refused = |blocks, tokens| ScatterList::new(&pool, blocks, order, tokens).unwrap_err();
        assert!(matches!(refused(vec![], 0..0).0, ListError::Misaligned { .. }));
        assert!(matches!(
            refused(pool.try_reserve(1).unwrap(), 2..4).0,
            ListError::Misaligned { .. }
        ));
        assert!(matches!(
            refused(pool.try_reserve(1).unwrap(), 0..5).0,
            ListError::BlockCount { .. }
        ));
        let (error, blocks) = refused(other.try_reserve(1).unwrap(), 0..4);
        assert!(matches!(error, ListError::ForeignBlock { .. }));
        assert_eq!(blocks.len(), 1);
        assert_eq!(pool.accounting().free, 4);
    }

    /// Every byte of a list, where it lies.
    fn places(extents: &[Extent]) -> Vec<usize> {
        extents.iter().flat_map(|extent| extent.offset..extent.offset + extent.len).collect()
    }

    #[test]
    fn a_room_that_was_split_anywhere_joins_to_what_it_was() {
        let order = PayloadOrder { block_tokens: 4 };
        for layout in [Layout::BlockMajor, Layout::LayerMajor] {
            let pool = pool(layout, 4, 4);
            let blocks = pool.try_reserve(3).unwrap();
            let mut room = ScatterList::new(&pool, blocks, order, 0..11).unwrap();
            let (extents, len) = (room.extents().to_vec(), room.len());
            let everywhere = places(&extents);
            for at in (0..=len).step_by(if cfg!(miri) { 211 } else { 1 }) {
                let (first, second) = room.split(at);
                assert_eq!((first.len(), second.len()), (at, len - at));
                let both = [places(first.extents()), places(second.extents())].concat();
                assert_eq!(both, everywhere, "split at {at}");
                room = first.join(second).unwrap();
                assert_eq!((room.extents(), room.len()), (&extents[..], len), "split at {at}");
            }
            assert_eq!(room.into_blocks().len(), 3);
        }
    }

    #[test]
    fn parts_of_a_room_are_filled_side_by_side() {
        let pool = pool(Layout::LayerMajor, 4, 4);
        let order = PayloadOrder { block_tokens: 4 };
        let room = ScatterList::new(&pool, pool.try_reserve(4).unwrap(), order, 0..16).unwrap();
        let (third, len) = (room.len() / 3 + 1, room.len());
        let (first, rest) = room.split(third);
        let (second, third) = rest.split(third);
        let fill = |(byte, mut part): (u8, ScatterList)| {
            part.slices(&Cursor::default(), usize::MAX).for_each(|slice| slice.fill(byte));
            part
        };
        let lens = [first.len(), second.len(), third.len()];
        let parts: Vec<_> = std::thread::scope(|scope| {
            let parts = (1u8..).zip([first, second, third]);
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || fill(part))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut parts = parts.into_iter();
        let whole = parts.next().unwrap().join(parts.next().unwrap()).unwrap();
        let whole = whole.join(parts.next().unwrap()).unwrap();
        assert_eq!(pool.accounting().loaned, 4);
        let blocks: Vec<_> = whole.into_blocks().into_iter().map(ReservedBlock::seal).collect();
        let list = GatherList::new(&pool, &blocks, order, 0..16).unwrap();
        let bytes = |list: &GatherList| -> Vec<u8> {
            list.slices(&Cursor::default(), usize::MAX).flatten().copied().collect()
        };
        let all = bytes(&list);
        let mut start = 0;
        for (byte, part) in (1u8..).zip(lens) {
            let part = start..start + part;
            assert!(bytes(&list.part(part.clone())).iter().all(|found| *found == byte));
            assert_eq!(bytes(&list.part(part.clone())).len() as u64, part.end - part.start);
            start = part.end;
        }
        assert_eq!((start, all.len() as u64), (len, len));
        drop((blocks, list));
        assert_eq!(pool.accounting().free, 4);
    }

    #[test]
    fn the_last_part_of_a_room_frees_its_blocks() {
        let pool = pool(Layout::BlockMajor, 4, 4);
        let order = PayloadOrder { block_tokens: 4 };
        let room = |blocks| {
            let blocks = pool.try_reserve(blocks).unwrap();
            let tokens = 0..blocks.len() * 4;
            ScatterList::new(&pool, blocks, order, tokens).unwrap()
        };
        let (first, second) = room(2).split(7);
        drop(first);
        assert_eq!((pool.accounting().free, pool.accounting().loaned), (2, 2));
        drop(second);
        assert_eq!(pool.accounting().free, 4);
        let (first, second) = room(2).split(7);
        assert!(first.into_blocks().is_empty());
        assert_eq!(second.into_blocks().len(), 2);
        let ((first, _), (second, _)) = (room(1).split(3), room(1).split(3));
        assert!(first.join(second).is_err());
        assert_eq!(pool.accounting().free, 4);
    }

    #[test]
    fn loans_and_quarantine_are_counted() {
        let pool = pool(Layout::BlockMajor, 4, 4);
        let order = PayloadOrder { block_tokens: 4 };
        let blocks = pool.try_reserve(2).unwrap();
        let list = ScatterList::new(&pool, blocks, order, 0..8).unwrap();
        assert_eq!(pool.accounting().loaned, 2);
        list.loan().quarantine();
        assert_eq!((pool.accounting().loaned, pool.accounting().quarantined), (0, 2));
        drop(list);
        assert_eq!(pool.accounting().free, 4);
    }
}
