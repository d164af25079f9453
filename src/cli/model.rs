//! From a path to a model that runs, with its pool.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use blockwire::clock;
use blockwire::pool::{Backing, BlockPool, PoolError, PoolOptions};
use blockwire_runtime::chat::ChatTemplate;
use blockwire_runtime::files::{LoadError, ModelFiles};
use blockwire_runtime::model::Model;
use blockwire_serving::http::{NoTokenizer, TextCodec};
use blockwire_serving::scheduler::{BatchScheduler, SchedulerOptions};

use crate::args::EngineArgs;
use crate::progress::Progress;
use crate::runtime;

/// A model that cannot be used, or not in this way: the user has to change something.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unusable(pub(crate) String);

/// Opens a model's files, with an error that a person can act on.
pub(crate) fn open(path: &Path) -> Result<ModelFiles> {
    Ok(ModelFiles::open(path).map_err(unusable)?)
}

/// The tokenizer and the chat template. A model without a tokenizer serves token ids only.
pub(crate) fn text(files: &ModelFiles) -> Result<(Arc<dyn TextCodec>, Option<ChatTemplate>)> {
    let codec: Arc<dyn TextCodec> = match files.tokenizer() {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(error @ LoadError::MissingTokenizer { .. }) => {
            tracing::warn!(%error, "serving token ids only");
            Arc::new(NoTokenizer)
        }
        Err(error) => return Err(unusable(error).into()),
    };
    Ok((codec, files.chat_template().map_err(unusable)?))
}

/// Loads the weights, makes the pool, and starts the thread that computes.
pub(crate) fn start(
    files: &ModelFiles,
    args: &EngineArgs,
    name: &str,
    backing: Backing,
) -> Result<BatchScheduler> {
    let model = load(files, args)?;
    let pool = make_pool(model.as_ref(), args, backing)?;
    let options = SchedulerOptions {
        name: name.to_owned(),
        prefill_rows_max: args.prefill_chunk.get(),
        running_max: args.max_batch.get(),
        eos: files.config().eos.clone(),
        context_len_max: args.max_model_len,
        prefix_cache: !args.no_prefix_cache,
        state_handoff: !args.no_state_handoff,
        ..SchedulerOptions::default()
    };
    Ok(BatchScheduler::start(model, pool, options).map_err(unusable)?)
}

fn load(files: &ModelFiles, args: &EngineArgs) -> Result<Box<dyn Model>, Unusable> {
    let start = clock::now();
    let mut bar = None;
    let mut report = |progress: blockwire_runtime::model::Progress| {
        let total = progress.total as u64;
        bar.get_or_insert_with(|| Progress::new("loading", total)).set(progress.done as u64);
    };
    let model = runtime::load(files, args, &mut report)?;
    if let Some(bar) = bar {
        bar.finish();
    }
    tracing::info!(
        model = files.id(),
        fingerprint = %files.fingerprint(),
        took = ?(clock::now() - start),
        "model loaded"
    );
    Ok(model)
}

fn make_pool(model: &dyn Model, args: &EngineArgs, backing: Backing) -> Result<BlockPool> {
    let spec = model.kv_spec(args.block_tokens);
    let context = args.max_model_len.unwrap_or(usize::MAX).min(model.context());
    // More than every running sequence at its longest is of no use.
    let useful = spec.blocks_for(context) * args.max_batch.get();
    let affordable = (args.kv_memory << 20) / spec.block_bytes();
    let blocks = args.kv_blocks.unwrap_or_else(|| affordable.clamp(1, useful));
    let layout = runtime::layout(args)?;
    let options = PoolOptions { layout, backing, ..PoolOptions::new(spec, blocks) };
    let start = clock::now();
    let pool = match backing {
        Backing::Private => BlockPool::new(options),
        // Payloads move through it: nothing is left for the first of them to fault in.
        Backing::Shared => fault_in(options),
    };
    let pool = pool.map_err(no_pool)?;
    tracing::info!(
        blocks,
        tokens = blocks * args.block_tokens as usize,
        mib = pool.region().len() >> 20,
        ?backing,
        pages = %pool.region().pages(),
        took = ?(clock::now() - start),
        "KV pool: {}",
        pool.spec()
    );
    Ok(pool)
}

/// Makes a pool whose pages are all there, with a bar in MiB.
fn fault_in(options: PoolOptions) -> Result<BlockPool, PoolError> {
    let mut bar = None;
    let mut report = |done: usize, total: usize| {
        let total = total as u64 >> 20;
        bar.get_or_insert_with(|| Progress::new("KV memory", total)).set(done as u64 >> 20);
    };
    let pool = BlockPool::faulted_in(options, &mut report);
    if let Some(bar) = bar {
        bar.finish();
    }
    pool
}

fn no_pool(error: PoolError) -> Unusable {
    match error {
        PoolError::Insufficient { .. } => Unusable(format!("{error} (--kv-memory, --kv-blocks)")),
        error => unusable(error),
    }
}

pub(crate) fn unusable(error: impl std::error::Error) -> Unusable {
    Unusable(error.to_string())
}
