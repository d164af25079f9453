//! A build without MLX.

use blockwire_runtime::files::ModelFiles;
use blockwire_runtime::model::{Model, Progress};

use crate::args::EngineArgs;
use crate::model::Unusable;

/// Nothing computes with it.
pub(super) const ARITHMETIC: &str = "";

/// Refuses.
pub(super) fn load(
    _: &ModelFiles,
    _: &EngineArgs,
    _: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, Unusable> {
    Err(Unusable("--runtime mlx is not in this build: it takes `--features mlx`".to_owned()))
}
