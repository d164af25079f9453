//! The decode role: take a cache over, join the running batch, generate.
//!
//! A cache may be offered while its prompt is still computed. Its blocks are reserved at once, which is where a node
//! that is full says so; the request joins the batch when all has landed and the first token came with it. A cache
//! that is withdrawn is no failure of this side's, and not told to the router: whoever withdraws says why.

use blockwire::endpoint::{Connection, IncomingHandoff};
use blockwire::handoff::StateSegment;
use blockwire::ingest::{IngestError, IngestOptions, IngestedSequence, ingest_sequence_handoff};
use blockwire::session::{DeclineCode, LandError};
use tokio::sync::mpsc;

use super::tasks::{self, Tasks};
use super::{ResultSink, ServingCoordinator};
use crate::backend::{GenerateError, GenerateRequest, Generation, Started, TokenEvent};
use crate::protocol::{FirstTokenFrame, Phase, ResultFrame};

/// One request of the decode role.
#[derive(Debug)]
pub struct DecodeRoleHandoff {
    /// What to generate; the prompt's cache comes with `incoming`.
    pub request: GenerateRequest,
    /// What no block of the cache holds.
    pub state: Option<StateSegment>,
    /// The offered cache. With it comes the token that the prefill node samples.
    pub incoming: IncomingHandoff,
    /// Where the continuation goes.
    pub results: ResultSink,
}

impl ServingCoordinator {
    /// Serves handoffs until the queue closes, then finishes those that run. All decode in one batch.
    pub async fn run_decode_role(&self, handoffs: mpsc::Receiver<DecodeRoleHandoff>) {
        tasks::serve(handoffs, |tasks, item| self.spawn_decode(tasks, None, item)).await;
    }

    pub(super) fn spawn_decode(
        &self,
        tasks: &mut Tasks,
        owner: Option<Connection>,
        item: DecodeRoleHandoff,
    ) {
        let (node, id) = (self.clone(), item.request.id);
        tasks.spawn(item.incoming.key(), owner, async move {
            let (results, from) = (item.results.clone(), item.incoming.connection().clone());
            if let Err(error) = node.decode(item).await {
                let prefill = &from.peer().name;
                tracing::warn!(request = %id, router = results.name(), prefill, %error, "decode failed");
                let failed = TokenEvent::Failed(error);
                let _ = results.send(ResultFrame::carrying(Phase::Continuation, failed)).await;
            }
        });
    }

    async fn decode(&self, item: DecodeRoleHandoff) -> Result<(), GenerateError> {
        let DecodeRoleHandoff { request, state, incoming, results } = item;
        if incoming.manifest().tokens != request.prompt.len() {
            let reason = format!(
                "{} tokens of cache for a prompt of {}",
                incoming.manifest().tokens,
                request.prompt.len()
            );
            incoming.decline(DeclineCode::DeclineManifest, &reason);
            return Err(GenerateError::NodeFailed(reason));
        }
        let pool = self.scheduler.pool();
        let growth = (request.max_tokens as usize).min(pool.spec().block_tokens as usize);
        let tokens_max = self.scheduler.facts().context_len;
        let keys = self.scheduler.prefix_keys(&request);
        let options = IngestOptions { tokens_max, growth, adopt: self.adopt, keys: &keys };
        let from = incoming.connection().clone();
        let IngestedSequence { mut sequence, closing } =
            match ingest_sequence_handoff(incoming, pool, options).await {
                Ok(ingested) => ingested,
                Err(IngestError::Land(LandError::Withdrawn)) => {
                    let prefill = &from.peer().name;
                    tracing::debug!(request = %request.id, prefill, "the cache was withdrawn");
                    return Ok(());
                }
                Err(error) => return Err(ingest_failure(error)),
            };
        let first_token = FirstTokenFrame::read(closing)
            .map_err(|error| GenerateError::NodeFailed(error.to_string()))?;
        self.scheduler.restore_state(&mut sequence, state.as_ref())?;
        let adopted = sequence.adopted().map_or(0, |adopted| adopted.ids().len());
        let block_bytes = pool.spec().block_bytes() as u64;
        self.metrics.taken_over(
            sequence.len() as u64 * pool.spec().token_bytes() as u64,
            adopted as u64 * block_bytes,
            sequence.indexed_blocks() as u64 * block_bytes,
        );
        // The router learns that the prefill node is needed no more.
        let kept = if adopted == 0 { self.kept_of(&request) } else { 0 };
        let accepted = TokenEvent::Started(Started::default());
        let accepted = ResultFrame::carrying(Phase::Continuation, accepted).keeping(kept);
        let _ = results.send(accepted).await;
        let generation = self
            .scheduler
            .decode_from(request, sequence, &[first_token])
            .map_err(|refused| refused.error)?;
        pass_on(generation, &results).await;
        Ok(())
    }
}

/// Sends what follows the first token, up to the end, or until nobody listens: dropping the generation takes it out of
/// the batch.
pub(super) async fn pass_on(mut generation: Generation, results: &ResultSink) {
    let mut position = 1;
    while let Some(event) = generation.next().await {
        let tokens = match event {
            TokenEvent::Started(_) => continue,
            TokenEvent::Token { .. } => 1,
            _ => 0,
        };
        let frame = ResultFrame::carrying(Phase::Continuation, event).at(position);
        position += tokens;
        if results.send(frame).await.is_err() {
            return;
        }
    }
}

fn ingest_failure(error: IngestError) -> GenerateError {
    match error {
        IngestError::TooLong { tokens, limit } => GenerateError::TooLong { tokens, limit },
        other => GenerateError::NodeFailed(format!("taking the cache over: {other}")),
    }
}
