//! A pool whose every byte is known, and a slow second opinion on where payload belongs.
//!
//! A [`Store`] owns all blocks of a pool and keeps an image of what they should contain. Payload is
//! found in the image token by token, from [`BlockPool::plane`] alone, so that the extents of the
//! lists under test are checked against something else than themselves.

use std::collections::HashMap;
use std::ops::Range;

use blockwire::pool::{
    BlockPool, Cursor, GatherList, Part, PayloadOrder, ReservedBlock, ScatterList, SealedBlock,
    TokenRange,
};
use blockwire::transport::{Completion, OpMemory};

/// All blocks of a pool, and what is in them.
#[derive(Debug)]
pub struct Store {
    pool: BlockPool,
    reserved: HashMap<u32, ReservedBlock>,
    sealed: HashMap<u32, SealedBlock>,
    image: Vec<u8>,
    undefined: Vec<bool>,
}

impl Store {
    /// Takes every block of a pool and fills it with a pattern.
    ///
    /// # Panics
    /// When a block is in use.
    pub fn new(pool: BlockPool, seed: u64) -> Self {
        let count = pool.options().blocks;
        let mut image = vec![0; pool.region().len()];
        let mut random = Random::new(seed);
        let tokens = count * pool.spec().block_tokens as usize;
        let mut all = whole_pool(&pool, pool.try_reserve(count).unwrap(), tokens);
        let extents = all.extents().to_vec();
        for (extent, slice) in extents.iter().zip(all.slices(&Cursor::default(), usize::MAX)) {
            random.fill(slice);
            image[extent.offset..extent.offset + extent.len].copy_from_slice(slice);
        }
        let blocks = all.into_blocks().into_iter();
        let reserved = blocks.map(|block| (block.id(), block)).collect();
        let (sealed, undefined) = (HashMap::new(), vec![false; image.len()]);
        Self { pool, reserved, sealed, image, undefined }
    }

    /// The pool.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// A payload: tokens of the sequence that lies in the blocks of `table`.
    ///
    /// # Panics
    /// When a block of the table is lent already, or the parts do not fit together.
    pub fn payload(
        &mut self,
        table: &[u32],
        order: PayloadOrder,
        tokens: TokenRange,
    ) -> GatherList {
        for id in table {
            if let Some(block) = self.reserved.remove(id) {
                self.sealed.insert(*id, block.seal());
            }
        }
        let blocks: Vec<_> = table.iter().map(|id| self.sealed[id].clone()).collect();
        GatherList::new(&self.pool, &blocks, order, tokens).unwrap()
    }

    /// Room for tokens; the first block of `table` takes those from `tokens.start` on.
    ///
    /// # Panics
    /// When a block of the table is lent or sealed already, or the parts do not fit together.
    pub fn room(&mut self, table: &[u32], order: PayloadOrder, tokens: TokenRange) -> ScatterList {
        let blocks = table.iter().map(|id| self.reserved.remove(id).expect("the block is here"));
        let blocks = blocks.collect();
        ScatterList::new(&self.pool, blocks, order, tokens).unwrap()
    }

    /// Takes back what an operation held.
    ///
    /// # Panics
    /// When a block comes that was never lent.
    pub fn take_back(&mut self, memory: OpMemory) {
        let OpMemory::Room(room) = memory else { return };
        for block in room.into_blocks() {
            assert!(self.reserved.insert(block.id(), block).is_none(), "a block came back twice");
        }
    }

    /// Takes back what a completed operation held, which has to have succeeded; its digest.
    ///
    /// # Panics
    /// When it did not succeed.
    pub fn take_success(&mut self, completion: Completion) -> u64 {
        let digest = completion.outcome.unwrap_or_else(|error| panic!("it failed: {error}"));
        self.take_back(completion.memory);
        digest
    }

    /// The bytes of a payload, by the second opinion.
    pub fn bytes(&self, table: &[u32], order: PayloadOrder, tokens: TokenRange) -> Vec<u8> {
        let places = self.places(table, order, 0, tokens);
        places.into_iter().flat_map(|place| &self.image[place]).copied().collect()
    }

    /// Says that a payload was received.
    ///
    /// # Panics
    /// When the payload does not have the length of the room.
    pub fn expect(
        &mut self,
        table: &[u32],
        order: PayloadOrder,
        tokens: TokenRange,
        mut bytes: &[u8],
    ) {
        for place in self.places(table, order, tokens.start, tokens.clone()) {
            let (now, later) = bytes.split_at(place.len());
            self.undefined[place.clone()].fill(false);
            self.image[place].copy_from_slice(now);
            bytes = later;
        }
        assert!(bytes.is_empty(), "the payload is longer than the room");
    }

    /// Says that a payload may have been received in part: its room holds anything.
    pub fn expect_anything(&mut self, table: &[u32], order: PayloadOrder, tokens: TokenRange) {
        for place in self.places(table, order, tokens.start, tokens.clone()) {
            self.undefined[place].fill(true);
        }
    }

    /// Compares every byte of every block, and gives all blocks back to the pool.
    ///
    /// # Panics
    /// When a byte differs, or a block is missing.
    pub fn check(mut self) {
        let missing = self.pool.options().blocks - self.reserved.len() - self.sealed.len();
        assert_eq!(missing, 0, "{missing} blocks did not come back: {:?}", self.pool);
        let seal = self.reserved.drain().map(|(id, block)| (id, block.seal()));
        self.sealed.extend(seal);
        let mut blocks: Vec<_> = self.sealed.into_values().collect();
        blocks.sort_by_key(SealedBlock::id);
        let own = self.pool.spec().block_tokens;
        let (order, tokens) = (PayloadOrder { block_tokens: own }, blocks.len() * own as usize);
        let all = GatherList::new(&self.pool, &blocks, order, 0..tokens).unwrap();
        for (extent, slice) in all.extents().iter().zip(all.slices(&Cursor::default(), usize::MAX))
        {
            let place = extent.offset..extent.offset + extent.len;
            compare(slice, &self.image[place.clone()], &self.undefined[place], extent.offset);
        }
        drop((all, blocks));
        let accounting = self.pool.accounting();
        assert_eq!(accounting.free, accounting.total, "blocks are still in use: {accounting:?}");
    }

    /// Where the tokens lie in the region, in wire order, token by token.
    fn places(
        &self,
        table: &[u32],
        order: PayloadOrder,
        first: usize,
        tokens: TokenRange,
    ) -> Vec<Range<usize>> {
        let (own, wire) = (self.pool.spec().block_tokens as usize, order.block_tokens as usize);
        let mut places = Vec::new();
        for start in tokens.clone().step_by(wire) {
            for layer in 0..self.pool.spec().layers.len() {
                let planes = [Part::Key, Part::Value].map(|part| self.pool.plane(layer, part));
                for plane in planes.into_iter().flatten() {
                    for token in start..(start + wire).min(tokens.end) {
                        let block = table[(token - first) / own] as usize;
                        let within = (token - first) % own;
                        let at =
                            plane.offset + block * plane.block_stride + within * plane.token_stride;
                        places.push(at..at + plane.token_stride);
                    }
                }
            }
        }
        places
    }
}

fn whole_pool(pool: &BlockPool, blocks: Vec<ReservedBlock>, tokens: usize) -> ScatterList {
    let order = PayloadOrder { block_tokens: pool.spec().block_tokens };
    ScatterList::new(pool, blocks, order, 0..tokens).unwrap()
}

fn compare(found: &[u8], expected: &[u8], undefined: &[bool], offset: usize) {
    const PIECE: usize = 1024;
    let pieces = found.chunks(PIECE).zip(expected.chunks(PIECE)).zip(undefined.chunks(PIECE));
    for (piece, ((found, expected), undefined)) in pieces.enumerate() {
        // Whole pieces first: a debug build would take long over single bytes.
        if found == expected || undefined == &[true; PIECE][..] {
            continue;
        }
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let (same, at) = (found == expected || undefined[index], piece * PIECE + index);
            assert!(same, "byte {} of the pool is {found}, not {expected}", offset + at);
        }
    }
}

/// The reference digest of a payload.
pub fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// SplitMix64 (Steele, Lea, Flood, 2014): repeatable noise.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Noise that depends on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.number().to_le_bytes()[..piece.len()]);
        }
    }

    /// Mixes a list.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
