//! MLX.

use blockwire_runtime::files::ModelFiles;
pub(super) use blockwire_runtime::mlx::ARITHMETIC;
use blockwire_runtime::mlx::{MlxModel, MlxOptions};
use blockwire_runtime::model::{Model, Progress};

use crate::args::EngineArgs;
use crate::model::{Unusable, unusable};

/// Loads the weights.
pub(super) fn load(
    files: &ModelFiles,
    args: &EngineArgs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, Unusable> {
    let options = MlxOptions { kv_dtype: args.kv_dtype.into(), compute_dtype: None, progress };
    let model = MlxModel::load(files, options).map_err(unusable)?;
    tracing::info!(arithmetic = ARITHMETIC, "computing with MLX");
    Ok(Box::new(model))
}
