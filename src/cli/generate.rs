//! `blockwire generate`: text from a local model.

use std::future::Future;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use blockwire::pool::Backing;
use blockwire_runtime::chat::Message;
use blockwire_runtime::sampling::SamplingParams;
use blockwire_serving::backend::{FinishReason, GenerateRequest, TokenEvent};
use blockwire_serving::scheduler::BatchScheduler;
use uuid::Uuid;

use crate::args::GenerateArgs;
use crate::model;
use crate::progress::Progress;

/// Between two looks at a long prompt.
const LOOK: Duration = Duration::from_millis(100);

/// Prints the text as it comes.
pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let files = model::open(&args.model)?;
    let (codec, chat) = model::text(&files)?;
    let prompt = if args.chat {
        let template = chat.context("the model has no chat template; leave --chat out")?;
        let text = template.render(&[Message::new("user", &args.prompt)], true)?;
        codec.encode(&text, false)?
    } else {
        codec.encode(&args.prompt, true)?
    };
    let scheduler = model::start(&files, &args.engine, "generate", Backing::Private)?;
    let request = GenerateRequest {
        id: Uuid::new_v4(),
        prompt,
        max_tokens: args.max_tokens,
        min_tokens: 0,
        sampling: SamplingParams {
            temperature: args.temperature,
            top_p: args.top_p,
            seed: args.seed,
            ..SamplingParams::default()
        },
        ignore_eos: false,
        logprobs: None,
        deadline: None,
        cache_salt: None,
        retractable: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut generation = scheduler.generate(request)?;
        let mut decoder = codec.decoder();
        let mut out = std::io::stdout().lock();
        let mut bar = PrefillBar::default();
        while let Some(event) = bar.beside(&scheduler, generation.next()).await {
            match event {
                TokenEvent::Started(_) => {}
                TokenEvent::Token { id, .. } => write!(out, "{}", decoder.push(id))?,
                TokenEvent::Finished { reason, usage } => {
                    writeln!(out, "{}", decoder.finish())?;
                    let why = match reason {
                        FinishReason::Stop => "end of text",
                        FinishReason::Length => "--max-tokens",
                    };
                    tracing::info!(?usage, "ended by {why}");
                }
                TokenEvent::Failed(error) => return Err(error.into()),
            }
            out.flush()?;
        }
        Ok(())
    })
}

/// Shows how far a long prompt is.
#[derive(Default)]
struct PrefillBar(Option<Progress>);

impl PrefillBar {
    /// Waits for an event; meanwhile shows the prompt's progress. The first event ends the bar.
    async fn beside<T>(&mut self, scheduler: &BatchScheduler, event: impl Future<Output = T>) -> T {
        let mut event = std::pin::pin!(event);
        loop {
            tokio::select! {
                event = &mut event => {
                    if let Some(bar) = self.0.take() {
                        bar.finish();
                    }
                    return event;
                }
                () = tokio::time::sleep(LOOK) => {
                    for prompt in scheduler.prefill_progress() {
                        let total = prompt.total as u64;
                        let bar = self.0.get_or_insert_with(|| Progress::new("prefill", total));
                        bar.set(prompt.done as u64);
                    }
                }
            }
        }
    }
}
