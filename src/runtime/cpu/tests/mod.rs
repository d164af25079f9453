//! Tests of the whole backend, on checkpoints small enough to live in the repository.

mod batches;
mod gguf;
mod kernels;
mod oracle;

use std::num::NonZeroUsize;

use blockwire::pool::{BlockPool, Dtype, Layout, PoolOptions};

use crate::{
    cpu::{CpuModel, CpuOptions, KernelLevel},
    files::ModelFiles,
    model::Model,
    testing::fixture,
};

/// How a model and its pool are set up. No field may change a bit of the results, but `kv_dtype`.
#[derive(Clone, Copy, Debug)]
struct Setup {
    family: &'static str,
    threads: usize,
    kv_dtype: Dtype,
    kernels: Option<KernelLevel>,
    layout: Layout,
    block_tokens: u32,
}

impl Setup {
    fn new(family: &'static str) -> Self {
        Self {
            family,
            threads: 1,
            kv_dtype: Dtype::F32,
            kernels: None,
            layout: Layout::BlockMajor,
            block_tokens: 16,
        }
    }

    fn model(self) -> CpuModel {
        let files = ModelFiles::open(fixture(self.family)).unwrap();
        let threads = NonZeroUsize::new(self.threads).unwrap();
        let (kv_dtype, kernels) = (self.kv_dtype, self.kernels);
        let options = CpuOptions { threads, kv_dtype, kernels, ..CpuOptions::new() };
        CpuModel::load(&files, options).unwrap()
    }

    /// A pool full of NaN.
    fn pool(self, model: &CpuModel, blocks: usize) -> BlockPool {
        let options = PoolOptions {
            layout: self.layout,
            ..PoolOptions::new(model.kv_spec(self.block_tokens), blocks)
        };
        let pool = BlockPool::new(options).unwrap();
        // SAFETY: the region is mapped for its length, and nobody else has the pool yet.
        unsafe { pool.base().as_ptr().write_bytes(0xff, pool.region().len()) };
        pool
    }
}
