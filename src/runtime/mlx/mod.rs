//! The MLX backend: arrays in the pool's own memory, on Apple silicon's GPU or on MLX's CPU backend.
//!
//! Read in this order: `pool` (the pool's pages as arrays), `platform` (how memory becomes an array),
//! `weights`, `rows` (a batch in the form that arrays need), `stream` (where it computes), `forward` (the layers).
//!
//! Invariants:
//! - X1: every layer of the pool is one array, over the region itself, that has one owner. A handle more,
//!   and MLX would write to a copy: `pool` looks at the address after every write.
//! - X2: a layer is written first, and read from the result of that. It is evaluated before the
//!   [`LayerHook`] hears of it, so that what leaves the pool then has been written.
//! - X3: graphs are built and evaluated inside one call, on the model's own stream. What lives from one call to
//!   the next has been evaluated, so that a model may move between threads.
//!
//! Results have the same bits whenever the same rows are run in the same batches, whatever the pool's block
//! length and the process; other chunks of a prompt may round otherwise. Nothing is compiled at run
//! time, as MLX does for fused activations: the layers are made of plain operations.

mod forward;
mod platform;
mod pool;
mod rows;
mod stream;
#[cfg(test)]
mod tests;
mod weights;

use blockwire::pool::{BlockPool, Dtype, KvSpec};
use mlx_rs::error::Exception;

use self::{forward::Pass, pool::Pool, stream::EngineStream, weights::Weights};
use crate::{
    cpu::plan::{self, Plan},
    files::{Family, LoadError, ModelConfig, ModelFiles, ModelFingerprint},
    model::{Batch, ForwardError, LayerHook, Logits, Model, Progress, SequenceStateLayout},
};

/// Name and version of the arithmetic on this platform: caches of another one differ in their last bits.
pub const ARITHMETIC: &str = platform::ARITHMETIC;

/// How to run a model.
pub struct MlxOptions<'a> {
    /// Element type of the cache.
    pub kv_dtype: Dtype,
    /// Element type of weights and of what layers pass on. Where it is none: on the CPU `F32`, which is
    /// fastest there; on a GPU what the checkpoint has.
    pub compute_dtype: Option<Dtype>,
    /// Told as loading advances.
    pub progress: &'a mut dyn FnMut(Progress),
}

impl MlxOptions<'static> {
    /// An f16 cache, no report of progress.
    pub fn new() -> Self {
        // A box of a closure without captures takes no memory, so that leaking it costs nothing.
        let progress = Box::leak(Box::new(|_| ()));
        Self { kv_dtype: Dtype::F16, compute_dtype: None, progress }
    }
}

impl Default for MlxOptions<'static> {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MlxOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxOptions")
            .field("kv_dtype", &self.kv_dtype)
            .field("compute_dtype", &self.compute_dtype)
            .finish_non_exhaustive()
    }
}

/// Why a model cannot run on this backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MlxLoadError {
    /// The files lack something, or it cannot be read.
    #[error(transparent)]
    Files(#[from] LoadError),
    /// The family has layers that are not written for this backend.
    #[error("models of the family {family} do not run on MLX here; llama, qwen3 and gemma3 do")]
    Family {
        /// Its name.
        family: &'static str,
    },
    /// A tensor is unexpectedly quantised.
    #[error("tensor {name} is unexpectedly quantised")]
    Quantised {
        /// Name of the tensor.
        name: String,
    },
    /// The model has a tensor that this backend would ignore.
    #[error("tensor {name} is not supported")]
    UnsupportedTensor {
        /// Name of the tensor.
        name: String,
    },
    /// MLX failed.
    #[error("MLX cannot hold the weights: {}", .0.what())]
    Library(#[from] Exception),
}

/// A model on MLX.
#[derive(Debug)]
pub struct MlxModel {
    config: ModelConfig,
    fingerprint: ModelFingerprint,
    kv_dtype: Dtype,
    weights: Weights,
    /// That of the last batch.
    pool: Option<Pool>,
    stream: EngineStream,
}

impl MlxModel {
    /// Loads a model. The files are not needed afterwards.
    ///
    /// # Errors
    /// [`MlxLoadError`].
    pub fn load(files: &ModelFiles, options: MlxOptions<'_>) -> Result<Self, MlxLoadError> {
        let config = files.config().clone();
        if config.family == Family::Lfm2 {
            return Err(MlxLoadError::Family { family: config.family.name() });
        }
        let mut stream = EngineStream::new();
        stream.enter();
        let weights = Weights::load(files, options.compute_dtype, options.progress)?;
        let (fingerprint, kv_dtype) = (files.fingerprint(), options.kv_dtype);
        Ok(Self { config, fingerprint, kv_dtype, weights, pool: None, stream })
    }
}

impl Model for MlxModel {
    fn family(&self) -> &str {
        self.config.family.name()
    }

    fn kv_spec(&self, block_tokens: u32) -> KvSpec {
        self.config.kv_spec(self.kv_dtype, block_tokens)
    }

    fn sequence_state_layout(&self) -> SequenceStateLayout {
        SequenceStateLayout::PoolBacked
    }

    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn context(&self) -> usize {
        self.config.context
    }

    fn fingerprint(&self) -> ModelFingerprint {
        self.fingerprint
    }

    fn forward(
        &mut self,
        batch: &mut Batch<'_>,
        hook: &mut dyn LayerHook,
    ) -> Result<Logits, ForwardError> {
        self.stream.enter();
        let Self { config, kv_dtype, weights, pool, .. } = self;
        let spec = |block_tokens| config.kv_spec(*kv_dtype, block_tokens);
        let plan = Plan::new(batch, config.vocab, spec, usize::MAX, None)?;
        let Some(of_batch) = plan.pool().filter(|_| !plan.rows().is_empty()) else {
            return Ok(Logits::new(config.vocab, Vec::new()));
        };
        let mut adopted = same_or_new(pool.take(), of_batch)?;
        let logits = Pass { config, weights, plan: &plan, pool: &mut adopted }.run(hook)?;
        // After an error it is not put back: the next batch makes one of the region again.
        *pool = Some(adopted);
        plan::advance(batch);
        Ok(Logits::new(config.vocab, logits))
    }
}

fn same_or_new(known: Option<Pool>, pool: &BlockPool) -> Result<Pool, ForwardError> {
    match known {
        Some(known) if known.is(pool) => Ok(known),
        _ => Pool::new(pool),
    }
}

impl From<Exception> for ForwardError {
    fn from(exception: Exception) -> Self {
        Self::Library { what: exception.what().to_owned() }
    }
}
