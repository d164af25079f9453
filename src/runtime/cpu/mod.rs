//! The CPU backend: plain Rust over the pool's own memory.
//!
//! Read in this order: [`kernels`] (arithmetic, once for all instruction sets), `matrix` (weights in
//! the form that kernels read), `threads`, `plan` (what makes a batch safe to run), `forward` (the
//! layers).
//!
//! Every result has the same bits whatever the instructions, the number of threads, the batch, the
//! chunking of a prompt, the pool's layout and block length, and the process. So a sequence that was
//! handed over continues exactly as it would have at home.

mod forward;
pub mod kernels;
pub(crate) mod matrix;
pub(crate) mod plan;
mod rope;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod threads;
mod weights;
mod workspace;

use std::{num::NonZeroUsize, sync::Arc};

use blockwire::pool::{Dtype, KvSpec};

pub use self::kernels::{KERNELS_VARIABLE, KernelError, KernelLevel};
use self::{
    forward::Pass, kernels::Level, plan::Plan, state::StateShape, threads::Threads,
    weights::Weights, workspace::Workspace,
};
use crate::{
    files::{LoadError, ModelConfig, ModelFiles, ModelFingerprint},
    model::{
        Batch, ForwardError, LayerHook, Logits, Model, Progress, SequenceStateLayout, StateReader,
    },
};

/// Queries that one piece of attention work handles: enough to pay for reading its keys and values.
const QUERIES: usize = 64;

/// How to run a model.
pub struct CpuOptions<'a> {
    /// Threads, the calling one included. The default is one: other roles need the other cores.
    pub threads: NonZeroUsize,
    /// Element type of the cache.
    pub kv_dtype: Dtype,
    /// Instructions to use; by default what [`KERNELS_VARIABLE`] says, else the best there are.
    pub kernels: Option<KernelLevel>,
    /// Told as loading advances.
    pub progress: &'a mut dyn FnMut(Progress),
}

impl CpuOptions<'static> {
    /// One thread, an f16 cache, the best kernels, no report of progress.
    pub fn new() -> Self {
        // A box of a closure without captures takes no memory, so that leaking it costs nothing.
        let progress = Box::leak(Box::new(|_| ()));
        Self { threads: NonZeroUsize::MIN, kv_dtype: Dtype::F16, kernels: None, progress }
    }
}

impl Default for CpuOptions<'static> {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for CpuOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuOptions")
            .field("threads", &self.threads)
            .field("kv_dtype", &self.kv_dtype)
            .field("kernels", &self.kernels)
            .finish_non_exhaustive()
    }
}

/// Why a model cannot run on this backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuLoadError {
    /// The files lack something, or it cannot be read.
    #[error(transparent)]
    Files(#[from] LoadError),
    /// The kernels asked for cannot be used.
    #[error(transparent)]
    Kernels(#[from] KernelError),
    /// The system gives no more threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// Threads asked for.
        threads: NonZeroUsize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Attention works on 16 numbers at a time.
    #[error("heads of {head_dim} numbers: only multiples of 16 are supported")]
    HeadDimension {
        /// Numbers per head.
        head_dim: usize,
    },
    /// A tensor has another shape or type than the configuration implies.
    #[error("tensor {name} has the unexpected shape {shape:?}, or is unexpectedly quantised")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The model has a tensor that this backend would ignore.
    #[error("tensor {name} is not supported")]
    UnsupportedTensor {
        /// Name of the tensor.
        name: String,
    },
}

/// A model on this machine's CPU.
#[derive(Debug)]
pub struct CpuModel {
    config: ModelConfig,
    fingerprint: ModelFingerprint,
    kv_dtype: Dtype,
    weights: Weights,
    level: Level,
    threads: Threads,
    workspace: Workspace,
}

impl CpuModel {
    /// Loads a model. The files are not needed afterwards.
    ///
    /// # Errors
    /// [`CpuLoadError`].
    pub fn load(files: &ModelFiles, options: CpuOptions<'_>) -> Result<Self, CpuLoadError> {
        let config = files.config().clone();
        let head_dim = config.head_dim;
        if !head_dim.is_multiple_of(16) || head_dim == 0 {
            return Err(CpuLoadError::HeadDimension { head_dim });
        }
        let level = Level::choose(options.kernels)?;
        let threads = Threads::new(options.threads)
            .map_err(|source| CpuLoadError::Threads { threads: options.threads, source })?;
        let weights = Weights::load(files, options.progress)?;
        Ok(Self {
            config,
            fingerprint: files.fingerprint(),
            kv_dtype: options.kv_dtype,
            weights,
            level,
            threads,
            workspace: Workspace::default(),
        })
    }

    /// The instructions in use.
    pub fn kernels(&self) -> KernelLevel {
        self.level.name()
    }

    /// The threads in use, the calling one included.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }
}

impl Model for CpuModel {
    fn family(&self) -> &str {
        self.config.family.name()
    }

    fn kv_spec(&self, block_tokens: u32) -> KvSpec {
        self.config.kv_spec(self.kv_dtype, block_tokens)
    }

    fn sequence_state_layout(&self) -> SequenceStateLayout {
        match self.config.convolution_taps {
            0 => SequenceStateLayout::PoolBacked,
            _ => SequenceStateLayout::ModelOwned { family: self.family().to_owned() },
        }
    }

    fn state_reader(&self) -> Option<Arc<dyn StateReader>> {
        let shape = StateShape::new(&self.config)?;
        Some(Arc::new(shape))
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
        let (config, kv_dtype) = (&self.config, self.kv_dtype);
        let run_rows_max = (QUERIES * config.kv_heads / config.heads).max(1);
        let spec = |block_tokens| config.kv_spec(kv_dtype, block_tokens);
        let shape = StateShape::new(config);
        let plan = Plan::new(batch, config.vocab, spec, run_rows_max, shape)?;
        let logits = Pass {
            config,
            weights: &self.weights,
            level: self.level,
            threads: &mut self.threads,
            workspace: &mut self.workspace,
            plan: &plan,
        }
        .run(hook);
        plan::advance(batch);
        if let Some(shape) = shape {
            state::advance(batch, shape, &self.workspace.states);
        }
        Ok(Logits::new(self.config.vocab, logits))
    }
}
