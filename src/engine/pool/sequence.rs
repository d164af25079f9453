//! The blocks of one sequence, in token order.

use super::block::{BlockPool, ReservedBlock, SealedBlock};
use super::copy::TransferStats;
use super::filling::{FillingBlock, Written};
use super::list::ScatterList;
use super::model_state::ModelState;
use super::payload::PayloadOrder;
use super::peer::{AdoptedBlocks, LeaseLost};
use super::prefix::PrefixKey;

/// Why blocks do not fit a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// A block of another pool.
    #[error("block {id} belongs to another pool than the sequence")]
    ForeignBlock {
        /// Its id.
        id: u32,
    },
    /// The last sealed block is not full, so that nothing can follow it.
    #[error("{len} tokens end inside a sealed block of {block_tokens} tokens: nothing can follow")]
    SealedTail {
        /// Tokens of the sequence.
        len: usize,
        /// Tokens per block.
        block_tokens: usize,
    },
    /// More tokens than the blocks hold.
    #[error("{len} tokens in blocks for {capacity}")]
    TooLong {
        /// Tokens asked for.
        len: usize,
        /// Tokens that the blocks hold.
        capacity: usize,
    },
    /// Adopted blocks of another length.
    #[error("adopted blocks hold {adopted} tokens each, those of this pool {own}")]
    BlockLen {
        /// Tokens per block of the peer's.
        adopted: u32,
        /// Tokens per block of the pool.
        own: u32,
    },
}

/// A sequence's cache. Dropping it gives all back.
///
/// ```text
/// block table   adopted            sealed              reserved
///               in a peer's pool,  shared, read-only   exclusively owned, writable
///               read in place
/// ```
#[derive(Debug)]
pub struct KvSequence {
    pool: BlockPool,
    adopted: Option<AdoptedBlocks>,
    sealed: Vec<SealedBlock>,
    reserved: Vec<ReservedBlock>,
    table: Vec<u32>,
    len: usize,
    /// First blocks that the prefix index knows, or did.
    indexed: usize,
    model_state: Option<Box<dyn ModelState>>,
    filling: Option<Filling>,
}

/// Blocks that others read while a model fills them.
#[derive(Debug)]
struct Filling {
    /// One past the last of them, in the table. They begin with the first that is not sealed.
    end: usize,
    written: Written,
}

impl KvSequence {
    /// A sequence without blocks.
    pub fn new(pool: &BlockPool) -> Self {
        Self {
            pool: pool.clone(),
            adopted: None,
            sealed: Vec::new(),
            reserved: Vec::new(),
            table: Vec::new(),
            len: 0,
            indexed: 0,
            model_state: None,
            filling: None,
        }
    }

    /// A sequence of `len` tokens that lie in `adopted`, then in `reserved`.
    ///
    /// # Errors
    /// [`SequenceError`]; the blocks are freed, or given back to the peer.
    pub fn from_adopted(
        pool: &BlockPool,
        adopted: AdoptedBlocks,
        reserved: Vec<ReservedBlock>,
        len: usize,
    ) -> Result<Self, SequenceError> {
        let (theirs, own) = (adopted.peer().shape().spec().block_tokens, pool.spec().block_tokens);
        if theirs != own {
            return Err(SequenceError::BlockLen { adopted: theirs, own });
        }
        let table = adopted.ids().to_vec();
        Self { adopted: Some(adopted), table, ..Self::new(pool) }.filled(reserved, len)
    }

    /// A sequence of `len` tokens that lie in `sealed`, then in `reserved`.
    ///
    /// # Errors
    /// [`SequenceError`]; the blocks are freed.
    pub fn from_blocks(
        pool: &BlockPool,
        sealed: Vec<SealedBlock>,
        reserved: Vec<ReservedBlock>,
        len: usize,
    ) -> Result<Self, SequenceError> {
        if let Some(foreign) = sealed.iter().find(|block| !block.pool().same_pool(pool)) {
            return Err(SequenceError::ForeignBlock { id: foreign.id() });
        }
        let table = sealed.iter().map(SealedBlock::id).collect();
        Self { sealed, table, ..Self::new(pool) }.filled(reserved, len)
    }

    fn filled(mut self, reserved: Vec<ReservedBlock>, len: usize) -> Result<Self, SequenceError> {
        self.len = len.min(self.capacity());
        self.push(reserved)?;
        if len > self.capacity() {
            return Err(SequenceError::TooLong { len, capacity: self.capacity() });
        }
        self.len = len;
        Ok(self)
    }

    /// Appends room for more tokens.
    ///
    /// # Errors
    /// [`SequenceError`]; the blocks are freed, the sequence stays as it was.
    pub fn push(&mut self, blocks: Vec<ReservedBlock>) -> Result<(), SequenceError> {
        if let Some(foreign) = blocks.iter().find(|block| !block.pool().same_pool(&self.pool)) {
            return Err(SequenceError::ForeignBlock { id: foreign.id() });
        }
        if self.len < self.writable_from() && !blocks.is_empty() {
            let (len, block_tokens) = (self.len, self.block_tokens());
            return Err(SequenceError::SealedTail { len, block_tokens });
        }
        self.table.extend(blocks.iter().map(ReservedBlock::id));
        self.reserved.extend(blocks);
        Ok(())
    }

    /// The pool that holds the blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Block ids in token order: token `t` lies in block `table[t / block_tokens]`, of the peer's pool
    /// for the [adopted](Self::adopted) ones, of this pool after them.
    pub fn block_table(&self) -> &[u32] {
        &self.table
    }

    /// Tokens written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens that the blocks hold.
    pub fn capacity(&self) -> usize {
        self.table.len() * self.block_tokens()
    }

    /// First token position that lies in a block that nobody else reads.
    pub fn writable_from(&self) -> usize {
        let filling = self.filling.as_ref().filter(|filling| filling.written.layers() > 0);
        let read = filling.map_or(0, |filling| filling.end);
        self.unreserved().max(read) * self.block_tokens()
    }

    /// Shares the blocks of the first `tokens` tokens that are not sealed, before a model writes them: layer by
    /// layer, as it [says](Self::layer_written), they can be read. None while those of an earlier call are not
    /// sealed, unless nothing of them was written.
    pub fn share_layers(&mut self, tokens: usize) -> Vec<FillingBlock> {
        let first = self.unreserved();
        let end = self.pool.spec().blocks_for(tokens).min(self.table.len());
        if self.writable_from() > first * self.block_tokens() || end <= first {
            return Vec::new();
        }
        let written = Written::default();
        let share = |block| FillingBlock::new(block, &written);
        let blocks = self.reserved[..end - first].iter().map(share).collect();
        self.filling = Some(Filling { end, written });
        blocks
    }

    /// Says that this layer and those before it are written for all tokens of a forward pass, which writes no more
    /// to them. Whoever [shares](Self::share_layers) the blocks may read them from now on, so that no later
    /// pass can write to these blocks.
    pub fn layer_written(&self, layer: usize) {
        if let Some(filling) = &self.filling {
            filling.written.set(layer + 1);
        }
    }

    /// The first blocks, where they lie in a peer's pool.
    pub fn adopted(&self) -> Option<&AdoptedBlocks> {
        self.adopted.as_ref()
    }

    /// What the model keeps of the sequence outside the pool; none where the blocks hold everything.
    pub fn model_state(&self) -> Option<&dyn ModelState> {
        self.model_state.as_deref()
    }

    /// The place of that state: the model's to fill.
    pub fn model_state_mut(&mut self) -> &mut Option<Box<dyn ModelState>> {
        &mut self.model_state
    }

    /// Whether everything read so far was good: false once a peer took its blocks back.
    pub fn is_intact(&self) -> bool {
        self.adopted.as_ref().is_none_or(|adopted| adopted.lease().is_in_force())
    }

    /// Blocks that a peer asks for: as many are to be [brought home](Self::bring_home).
    pub fn recalled_blocks(&self) -> usize {
        let recalled = self.adopted.as_ref().filter(|adopted| adopted.lease().is_recalled());
        recalled.map_or(0, |adopted| adopted.ids().len())
    }

    /// Copies the last `blocks.len()` adopted blocks into this pool. With the first one the lease ends.
    ///
    /// # Errors
    /// [`LeaseLost`]: too late, the sequence [is not intact](Self::is_intact); the blocks are freed.
    ///
    /// # Panics
    /// When more blocks are given than were adopted, or blocks of another pool.
    pub fn bring_home(
        &mut self,
        blocks: Vec<ReservedBlock>,
        stats: &TransferStats,
    ) -> Result<(), LeaseLost> {
        let Some(adopted) = self.adopted.as_mut().filter(|_| !blocks.is_empty()) else {
            return Ok(());
        };
        let (end, count) = (adopted.ids().len(), blocks.len());
        let start = end.checked_sub(count).expect("no more blocks than were adopted");
        let block_tokens = self.pool.spec().block_tokens;
        let order = PayloadOrder { block_tokens };
        let tokens = 0..count * block_tokens as usize;
        let room =
            ScatterList::new(&self.pool, blocks, order, tokens).expect("whole blocks of this pool");
        let room = adopted.copy(start..end, room, stats)?;
        let home = room.into_blocks().into_iter().map(ReservedBlock::seal);
        self.sealed.splice(0..0, home);
        adopted.truncate(start);
        for (at, block) in self.table[start..end].iter_mut().zip(&self.sealed) {
            *at = block.id();
        }
        if start == 0 {
            self.adopted = None;
        }
        Ok(())
    }

    /// Writes `byte` to every byte of one token's state.
    ///
    /// # Panics
    /// When the position does not lie in an exclusively owned block.
    pub fn fill_token(&mut self, position: usize, byte: u8) {
        assert!(position >= self.writable_from(), "a position that can be written");
        let (block_tokens, first) = (self.block_tokens(), self.unreserved());
        let (block, token) = (position / block_tokens - first, position % block_tokens);
        self.reserved[block].fill_token(token as u32, byte);
    }

    /// Appends a copy of the bytes of one token's state, wherever its block lies. What came from an
    /// adopted block counts only if the sequence [is intact](Self::is_intact) afterwards.
    ///
    /// # Panics
    /// When the sequence has no block for the position.
    pub fn read_token(&self, position: usize, bytes: &mut Vec<u8>) {
        let block_tokens = self.block_tokens();
        let (block, token) = (position / block_tokens, (position % block_tokens) as u32);
        let (adopted, sealed) = (self.adopted_blocks(), self.sealed.len());
        match &self.adopted {
            Some(blocks) if block < adopted => blocks.read_token(block, token, bytes),
            _ if block < adopted + sealed => self.sealed[block - adopted].read_token(token, bytes),
            _ => self.reserved[block - adopted - sealed].read_token(token, bytes),
        }
    }

    /// Says that the first `len` tokens are written.
    ///
    /// # Panics
    /// When the blocks do not hold so many, or when written tokens of sealed blocks would be dropped.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} tokens in blocks for {}", self.capacity());
        assert!(len >= self.len.min(self.writable_from()), "sealed tokens cannot be unwritten");
        self.len = len;
    }

    /// Blocks needed beyond those owned for `tokens` tokens in all.
    pub fn missing_blocks(&self, tokens: usize) -> usize {
        self.pool.spec().blocks_for(tokens).saturating_sub(self.table.len())
    }

    /// Seals every full block, so that it can be shared.
    pub fn seal_full(&mut self) {
        let full = self.len / self.block_tokens();
        self.seal_to(full);
    }

    /// Seals every full block, and lets others find them in the pool under `keys`: the name of each full
    /// block, from the first on. Where the pool knows a block of the same name already, that one takes the
    /// place of the sequence's own, which is let go. Blocks in a peer's pool cannot be found, nor what
    /// follows them.
    ///
    /// The bytes must be what the keys say: whoever finds them reads them as his own.
    pub fn cache_full(&mut self, keys: &[PrefixKey]) {
        self.seal_full();
        if self.adopted.is_some() {
            return;
        }
        let full = keys.len().min(self.len / self.block_tokens());
        if self.indexed >= full {
            return;
        }
        let pool = self.pool.clone();
        let from = self.indexed;
        self.indexed = pool.cache(&keys[..full], &mut self.sealed[..full], from);
        for (at, block) in self.table[from..self.indexed].iter_mut().zip(&self.sealed[from..]) {
            *at = block.id();
        }
    }

    /// First blocks that the pool's index knows, or did: others found them, or the sequence did.
    pub fn indexed_blocks(&self) -> usize {
        self.indexed
    }

    /// The same; its first blocks were found in the index.
    pub(crate) fn found(self, blocks: usize) -> Self {
        Self { indexed: blocks, ..self }
    }

    /// Seals every written block, also a partial last one, and frees the unwritten ones: the sequence
    /// is finished and only to be read. Returns the sealed blocks.
    pub fn finish(&mut self) -> &[SealedBlock] {
        let used = self.pool.spec().blocks_for(self.len);
        self.seal_to(used);
        self.reserved.clear();
        self.table.truncate(used);
        &self.sealed
    }

    /// The sealed blocks of this pool, in token order; they follow the adopted ones.
    pub fn sealed(&self) -> &[SealedBlock] {
        &self.sealed
    }

    fn seal_to(&mut self, blocks: usize) {
        let count = blocks.saturating_sub(self.unreserved());
        self.sealed.extend(self.reserved.drain(..count).map(ReservedBlock::seal));
        let sealed = self.unreserved();
        if let Some(filling) = self.filling.take_if(|filling| filling.end <= sealed) {
            filling.written.set(self.pool.spec().layers.len());
        }
    }

    /// Blocks that are the sequence's no more to write.
    fn unreserved(&self) -> usize {
        self.adopted_blocks() + self.sealed.len()
    }

    fn adopted_blocks(&self) -> usize {
        self.adopted.as_ref().map_or(0, |adopted| adopted.ids().len())
    }

    fn block_tokens(&self) -> usize {
        self.pool.spec().block_tokens as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dtype, KvSpec, PoolOptions};
    use super::*;

    fn pool() -> BlockPool {
        BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 1, 1, 8, Dtype::F16), 8)).unwrap()
    }

    #[test]
    fn blocks_move_from_writable_to_sealed_as_they_fill() {
        let pool = pool();
        let mut sequence = KvSequence::new(&pool);
        assert_eq!(sequence.missing_blocks(9), 3);
        sequence.push(pool.try_reserve(4).unwrap()).unwrap();
        sequence.set_len(9);
        sequence.seal_full();
        assert_eq!((sequence.writable_from(), sequence.capacity()), (8, 16));
        assert_eq!(sequence.finish().len(), 3);
        assert_eq!((pool.accounting().sealed, pool.accounting().free), (3, 5));
        let refused = sequence.push(pool.try_reserve(1).unwrap()).unwrap_err();
        assert!(matches!(refused, SequenceError::SealedTail { len: 9, .. }));
        drop(sequence);
        assert_eq!(pool.accounting().free, 8);
    }

    #[test]
    fn a_landed_sequence_goes_on_in_its_own_tail() {
        let pool = pool();
        let full = pool.try_reserve(1).unwrap().pop().unwrap().seal();
        let tail = pool.try_reserve(1).unwrap();
        let sequence = KvSequence::from_blocks(&pool, vec![full.clone()], tail, 6).unwrap();
        assert_eq!((sequence.len(), sequence.writable_from(), sequence.capacity()), (6, 4, 8));
        let tail = pool.try_reserve(1).unwrap();
        assert!(KvSequence::from_blocks(&pool, vec![full.clone()], tail, 3).is_err());
        assert!(KvSequence::from_blocks(&pool, vec![full], vec![], 5).is_err());
        drop(sequence);
        assert_eq!(pool.accounting().free, 8);
    }
    #[test]
    fn a_token_reads_as_it_was_written_in_whatever_state_its_block_is() {
        let pool = pool();
        let mut sequence = KvSequence::new(&pool);
        sequence.push(pool.try_reserve(3).unwrap()).unwrap();
        for position in 0..12 {
            sequence.fill_token(position, position as u8 + 1);
        }
        sequence.set_len(10);
        sequence.seal_full();
        for position in 0..12 {
            let mut bytes = vec![99];
            sequence.read_token(position, &mut bytes);
            assert_eq!(bytes.len(), 1 + pool.spec().token_bytes());
            assert!(bytes[1..].iter().all(|byte| *byte == position as u8 + 1), "{position}");
        }
    }
}
