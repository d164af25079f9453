//! What computes, and what it asks of the pool.

#[cfg_attr(feature = "mlx", path = "mlx.rs")]
#[cfg_attr(not(feature = "mlx"), path = "no_mlx.rs")]
mod mlx;

use blockwire::pool::Layout;
use blockwire_runtime::cpu::{CpuModel, CpuOptions};
use blockwire_runtime::files::ModelFiles;
use blockwire_runtime::model::{Model, Progress};

use crate::args::{EngineArgs, KvLayout, Runtime};
use crate::model::{Unusable, unusable};

/// Loads the weights.
pub(crate) fn load(
    files: &ModelFiles,
    args: &EngineArgs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, Unusable> {
    match args.runtime {
        Runtime::Cpu => {
            let (threads, kv_dtype) = (args.threads, args.kv_dtype.into());
            let options = CpuOptions { threads, kv_dtype, kernels: None, progress };
            let model = CpuModel::load(files, options).map_err(unusable)?;
            let (kernels, threads) = (model.kernels(), model.threads());
            tracing::info!(?kernels, threads, "computing in plain Rust");
            Ok(Box::new(model))
        }
        Runtime::Mlx => mlx::load(files, args, progress),
    }
}

/// Name and version of a runtime's arithmetic. Those of equal names have equal bits.
pub(crate) fn arithmetic(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Cpu => "cpu/1",
        Runtime::Mlx => mlx::ARITHMETIC,
    }
}

/// The pool's layout that was asked for, or that the runtime needs.
pub(crate) fn layout(args: &EngineArgs) -> Result<Layout, Unusable> {
    match (args.runtime, args.kv_layout) {
        (Runtime::Cpu, None) => Ok(Layout::BlockMajor),
        (Runtime::Mlx, None) => Ok(Layout::LayerMajor),
        (Runtime::Mlx, Some(KvLayout::BlockMajor)) => {
            Err(Unusable("--runtime mlx needs --kv-layout layer-major".to_owned()))
        }
        (_, Some(layout)) => Ok(layout.into()),
    }
}
