//! The work of targets T2 and T5: which blocks are moved, and the pools that they lie in.

use blockwire::pool::{
    Backing, BlockPool, Dtype, KvSpec, LayerSpec, Part, PoolOptions, ReservedBlock, SegmentSpec,
};

/// Bytes of a pool: more than caches hold.
pub const POOL_LEN: usize = 256 << 20;
/// Tokens of a block.
pub const TOKENS: u32 = 16;
/// Blocks of a transfer and bytes of a block.
pub const CASES: [(usize, usize); 5] =
    [(64, 16 << 10), (1024, 16 << 10), (256, 64 << 10), (1024, 64 << 10), (64, 1 << 20)];
/// Bytes that each way moves in a round, at least.
pub const ROUND_LEN: usize = 64 << 20;

/// A pool of one segment a block, so that a block is one run of bytes. `BLOCKWIRE_BENCH_PAGES=usual` takes
/// pages of the usual size.
///
/// # Panics
/// When the block is too large, or there is no memory.
pub fn pool(block_len: usize) -> BlockPool {
    let head_dim = u32::try_from(block_len).expect("a small block") / TOKENS / 2;
    let segment = SegmentSpec { part: Part::Key, heads: 1, head_dim, dtype: Dtype::F16 };
    let layers = vec![LayerSpec { segments: vec![segment] }];
    let spec = KvSpec { block_tokens: TOKENS, layers };
    let options =
        PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, POOL_LEN / block_len) };
    let usual = std::env::var("BLOCKWIRE_BENCH_PAGES").is_ok_and(|pages| pages == "usual");
    let pool = if usual {
        BlockPool::new(options)
    } else {
        BlockPool::faulted_in(options, &mut |_, _| {})
    };
    pool.expect("memory for the pool")
}

/// All blocks of a pool, written, so that every page is there.
///
/// # Panics
/// When the pool is in use.
pub fn written(pool: &BlockPool) -> Vec<ReservedBlock> {
    let mut blocks = pool.try_reserve(pool.accounting().total).expect("an unused pool");
    for block in &mut blocks {
        let id = block.id();
        (0..TOKENS).for_each(|token| block.fill_token(token, (id * 31 + token * 7) as u8));
    }
    blocks
}
