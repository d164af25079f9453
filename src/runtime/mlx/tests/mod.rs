//! Tests of the whole backend, on checkpoints small enough to live in the repository.

mod batches;
mod grouped;
mod oracle;
mod place;

use blockwire::pool::{BlockPool, Dtype, Layout, PoolOptions};

use super::{MlxModel, MlxOptions};
use crate::{files::ModelFiles, model::Model, testing::fixture};

/// Those that this backend runs.
const FAMILIES: [&str; 3] = ["llama", "qwen3", "gemma3"];

fn model(family: &str, kv_dtype: Dtype) -> MlxModel {
    let files = ModelFiles::open(fixture(family)).unwrap();
    MlxModel::load(&files, MlxOptions { kv_dtype, ..MlxOptions::new() }).unwrap()
}

/// A pool full of NaN, one layer behind the other.
fn pool(model: &dyn Model, block_tokens: u32, blocks: usize) -> BlockPool {
    let options = PoolOptions::new(model.kv_spec(block_tokens), blocks);
    spoiled(PoolOptions { layout: Layout::LayerMajor, ..options })
}

fn spoiled(options: PoolOptions) -> BlockPool {
    let pool = BlockPool::new(options).unwrap();
    // SAFETY: the region is mapped for its length, and nobody else has the pool yet.
    unsafe { pool.base().as_ptr().write_bytes(0xff, pool.region().len()) };
    pool
}

/// Longer than a window, and not whole blocks.
fn prompt(seed: u32) -> Vec<u32> {
    (0..83).map(|i| (i * i * 31 + i * 7 + seed * 101) % 512).collect()
}
