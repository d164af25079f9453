//! Blocks that are read while they are filled, layer by layer.
//!
//! A model writes a layer for all tokens of a forward pass before it goes on to the next one. Whoever sends the
//! cache away need not wait for the last layer: it [shares](super::KvSequence::share_layers) the blocks before the
//! pass, and reads those layers of which the model [said](super::KvSequence::layer_written) that they are there.
//!
//! Invariant F1: of a layer below [`FillingBlock::layers`] no byte is written before the block is free. Only a
//! model says so, which has the sequence for itself during a pass, and from then on the sequence gives
//! nobody the block to write.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::block::{BlockPool, ReservedBlock, SealedBlock};

/// Shared ownership of a block of which some layers are final, or all. It keeps the block from being freed,
/// whatever becomes of its sequence.
#[derive(Clone)]
pub struct FillingBlock {
    /// Of a block that may not be sealed yet: it is only held, and nobody else is given it.
    block: SealedBlock,
    /// None where the block is sealed.
    written: Option<Written>,
}

/// How many layers of some blocks are final.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Arc<AtomicUsize>);

impl Written {
    pub(super) fn layers(&self) -> usize {
        // Acquire: pairs with the release in `set`; what was written before is read after.
        self.0.load(Ordering::Acquire)
    }

    /// Says that the first `layers` layers are final.
    pub(super) fn set(&self, layers: usize) {
        // Release: pairs with the acquire in `layers`.
        self.0.fetch_max(layers, Ordering::Release);
    }
}

impl FillingBlock {
    pub(super) fn new(block: &ReservedBlock, written: &Written) -> Self {
        Self { block: block.held(), written: Some(written.clone()) }
    }

    /// Index of the block in its pool.
    pub fn id(&self) -> u32 {
        self.block.id()
    }

    /// The pool that the block belongs to.
    pub fn pool(&self) -> &BlockPool {
        self.block.pool()
    }

    /// How many of the first layers are final, for all tokens that were to be written.
    pub fn layers(&self) -> usize {
        self.written.as_ref().map_or(self.pool().spec().layers.len(), Written::layers)
    }

    /// What keeps the block, for a list that reads no more of it than its final layers.
    pub(super) fn hold(&self) -> SealedBlock {
        self.block.clone()
    }
}

impl From<SealedBlock> for FillingBlock {
    fn from(block: SealedBlock) -> Self {
        Self { block, written: None }
    }
}

impl fmt::Debug for FillingBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FillingBlock({}, {} layers)", self.id(), self.layers())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Cursor, Dtype, GatherList, KvSequence, KvSpec, PayloadOrder, PoolOptions, Span,
    };
    use super::*;

    const ORDER: PayloadOrder = PayloadOrder { block_tokens: 4 };

    fn pool() -> BlockPool {
        BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 3, 1, 8, Dtype::F16), 8)).unwrap()
    }

    fn sequence(pool: &BlockPool, tokens: usize) -> KvSequence {
        let mut sequence = KvSequence::new(pool);
        sequence.push(pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap()).unwrap();
        (0..tokens).for_each(|position| sequence.fill_token(position, position as u8 + 1));
        sequence
    }

    fn gather(blocks: &[FillingBlock], layers: std::ops::Range<usize>) -> Option<GatherList> {
        let span = Span { tokens: 0..blocks.len() * 4, layers };
        GatherList::filling(blocks, ORDER, &span)
    }

    #[test]
    fn a_layer_is_read_once_it_is_written_and_not_before() {
        let pool = pool();
        let mut sequence = sequence(&pool, 8);
        let blocks = sequence.share_layers(8);
        assert_eq!((blocks.len(), blocks[0].layers()), (2, 0));
        assert!(gather(&blocks, 0..1).is_none());
        sequence.layer_written(1);
        assert!(gather(&blocks, 1..3).is_none());
        let list = gather(&blocks, 0..2).unwrap();
        assert_eq!(list.len(), 2 * 8 * pool.spec().layers[0].token_bytes() as u64);
        let bytes: Vec<u8> =
            list.slices(&Cursor::default(), usize::MAX).flatten().copied().collect();
        assert_eq!((bytes[0], *bytes.last().unwrap()), (1, 8));
        sequence.set_len(8);
        sequence.finish();
        assert_eq!(blocks[1].layers(), 3);
        assert_eq!(gather(&blocks, 0..3).unwrap().len(), 8 * pool.spec().token_bytes() as u64);
    }

    #[test]
    fn what_is_shared_stays_when_its_sequence_goes() {
        let pool = pool();
        let mut sequence = sequence(&pool, 8);
        let blocks = sequence.share_layers(8);
        sequence.layer_written(0);
        let list = gather(&blocks, 0..1).unwrap();
        drop((blocks, sequence));
        assert_eq!(pool.accounting().available(), 6);
        drop(list);
        assert_eq!(pool.accounting().free, 8);
    }

    #[test]
    fn nobody_writes_a_block_that_others_read() {
        let pool = pool();
        let mut sequence = sequence(&pool, 11);
        // Of an attempt that wrote nothing, nothing stays.
        assert_eq!(sequence.share_layers(11).len(), 3);
        assert_eq!(sequence.writable_from(), 0);
        assert_eq!(sequence.share_layers(8).len(), 2);
        sequence.layer_written(0);
        assert_eq!(sequence.writable_from(), 8);
        sequence.fill_token(8, 99);
        assert!(sequence.share_layers(11).is_empty(), "those before are not sealed");
        sequence.set_len(11);
        sequence.seal_full();
        assert_eq!((sequence.writable_from(), sequence.share_layers(11).len()), (8, 1));
        sequence.layer_written(2);
        assert!(sequence.push(pool.try_reserve(1).unwrap()).is_err(), "its tail is being read");
    }

    #[test]
    #[should_panic(expected = "a position that can be written")]
    fn a_token_of_a_block_that_others_read_is_not_written() {
        let pool = pool();
        let mut sequence = sequence(&pool, 8);
        let _blocks = sequence.share_layers(8);
        sequence.layer_written(0);
        sequence.fill_token(7, 1);
    }
}
