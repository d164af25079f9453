//! The prefill role: compute a prompt, sample its first token, hand the cache over.
//!
//! The cache leaves while the prompt is computed, layer by layer, where the link gains by that ([`HandoffSender`]):
//! the decode node hears of the request with the first layer, and of its first token with the digest of the whole.
//! A decode node that will not have it ends the work at once. A prompt whose
//! answer ends with its first token, or that fails, is never committed: what left of it is withdrawn, and nobody has
//! seen it.

use blockwire::endpoint::Connection;
use blockwire::handoff::{ExtractError, HandoffSender, SendReport, extract_with_state};
use blockwire::session::{DeclineCode, HandoffKey, OfferError};
use blockwire_runtime::model::SequenceStateLayout;
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::peers::is_loss;
use super::tasks::{self, Tasks};
use super::{ResultSink, ServingCoordinator};
use crate::backend::{GenerateError, GenerateRequest, Started, TokenEvent, Usage};
use crate::protocol::{DecodeMetaFrame, FirstTokenFrame, HandoffReport, Phase, ResultFrame};
use crate::scheduler::{Prefill, PrefillDone, PrefillEvent};

/// One request of the prefill role.
#[derive(Debug)]
pub struct PrefillRoleRequest {
    /// What to compute.
    pub request: GenerateRequest,
    /// Which attempt at the request: frames of an earlier one are told from it by this.
    pub epoch: u32,
    /// The decode node that takes the cache; none when it is not connected.
    pub decode: Option<Connection>,
    /// The router instance that the decode node reports to.
    pub reply_to: Uuid,
    /// Where the first token goes.
    pub results: ResultSink,
}

impl ServingCoordinator {
    /// Serves requests until the queue closes, then finishes those that run. Many at a time.
    pub async fn run_prefill_role(&self, requests: mpsc::Receiver<PrefillRoleRequest>) {
        tasks::serve(requests, |tasks, item| self.spawn_prefill(tasks, None, item)).await;
    }

    pub(super) fn spawn_prefill(
        &self,
        tasks: &mut Tasks,
        owner: Option<Connection>,
        item: PrefillRoleRequest,
    ) {
        let (node, id) = (self.clone(), item.request.id);
        tasks.spawn(HandoffKey { request: id, epoch: item.epoch }, owner, async move {
            let (results, decode) = (item.results.clone(), item.decode.clone());
            if let Err(error) = node.prefill(item).await {
                let decode = decode.map(|decode| decode.peer().name.clone()).unwrap_or_default();
                tracing::warn!(request = %id, router = results.name(), decode, %error, "prefill failed");
                let failed = TokenEvent::Failed(error);
                let _ = results.send(ResultFrame::carrying(Phase::FirstToken, failed)).await;
            }
        });
    }

    async fn prefill(&self, item: PrefillRoleRequest) -> Result<(), GenerateError> {
        let PrefillRoleRequest { request, epoch, decode, reply_to, results } = item;
        let decode = decode.ok_or_else(|| {
            GenerateError::NoNode("the decode node is not connected to this prefill node".into())
        })?;
        let prefill = self.scheduler.prefill_for_handoff(request.clone())?;
        let key = HandoffKey { request: request.id, epoch };
        let sender = |state| {
            let meta = DecodeMetaFrame::new(&request, reply_to, state).encode_to_vec().into();
            let (pool, tokens) = (self.scheduler.pool(), request.prompt.len());
            let sender = HandoffSender::new(decode.clone(), key, pool, tokens, meta);
            match self.cut {
                Some(cut) => sender.in_pieces(cut),
                None => sender.in_steps_of(self.scheduler.prefill_rows_max()),
            }
        };
        let mut ahead = sender(None);
        let is_pool_backed = self.scheduler.facts().state_layout == SequenceStateLayout::PoolBacked;
        let done = if request.max_tokens > 1 && is_pool_backed {
            compute(prefill, &mut ahead).await.map_err(|failed| match failed {
                Failed::Prefill(error) => error,
                Failed::Offer(error) => offer_failure(&decode, &error),
            })?
        } else {
            // Nothing follows the first token, or the offer waits for what has to go along with it.
            prefill.done().await?
        };
        let frame = first_token_frame(&request, &done).keeping(self.kept_of(&request));
        let PrefillDone { first_token, mut sequence, finish, .. } = done;
        if finish.is_some() {
            let _ = results.send(frame).await;
            return Ok(());
        }
        let (handoff, state) = extract_with_state(&mut sequence).map_err(extract_failure)?;
        drop(sequence);
        let sender = if state.is_some() { sender(state) } else { ahead };
        let closing = FirstTokenFrame::new(first_token).encode_to_vec().into();
        // The cache first: its time is the one that is waited for. A router that is gone cancels this task;
        // there is nothing to do about it here.
        let (report, _) = tokio::join!(sender.finish(handoff, closing), results.send(frame));
        let report = report.map_err(|error| offer_failure(&decode, &error))?;
        self.metrics.handed_over(&report);
        let _ = results.send(report_frame(&request, &decode, report)).await;
        Ok(())
    }
}

/// Why there is no computed prompt.
enum Failed {
    Prefill(GenerateError),
    /// The decode node does not want it.
    Offer(OfferError),
}

/// Waits for a prompt, and sends ahead what of it is final.
async fn compute(mut prefill: Prefill, sender: &mut HandoffSender) -> Result<PrefillDone, Failed> {
    loop {
        let event = tokio::select! {
            biased;
            error = sender.failed() => return Err(Failed::Offer(error)),
            event = prefill.next() => event,
        };
        match event {
            Some(PrefillEvent::Layers { first_block, blocks }) => {
                sender.push(first_block, &blocks);
            }
            Some(PrefillEvent::Progress { first_block, blocks, .. }) => {
                sender.push(first_block, &blocks);
            }
            Some(PrefillEvent::Done(done)) => return Ok(*done),
            Some(PrefillEvent::Failed(error)) => return Err(Failed::Prefill(error)),
            None => return prefill.done().await.map_err(Failed::Prefill),
        }
    }
}

fn first_token_frame(request: &GenerateRequest, done: &PrefillDone) -> ResultFrame {
    let (cached_tokens, computed) = (done.cached_tokens, done.computed);
    let started = Started { cached_tokens, computed, ..Started::default() };
    let mut frame = ResultFrame::carrying(Phase::FirstToken, TokenEvent::Started(started));
    let token = TokenEvent::Token { id: done.first_token, logprob: done.logprob.clone() };
    frame.tokens = ResultFrame::carrying(Phase::FirstToken, token).tokens;
    frame.position = Some(0);
    if let Some(reason) = done.finish {
        let prompt_tokens = request.prompt.len() as u32;
        let usage = Usage { prompt_tokens, completion_tokens: 1, cached_tokens };
        let finished = TokenEvent::Finished { reason, usage };
        frame.finished = ResultFrame::carrying(Phase::FirstToken, finished).finished;
    }
    frame
}

fn report_frame(request: &GenerateRequest, decode: &Connection, report: SendReport) -> ResultFrame {
    let handoff = HandoffReport {
        payload_bytes: report.payload_len,
        exposed_us: report.exposed.as_micros() as u64,
        link: decode.peer_address().to_owned(),
        ahead_bytes: report.ahead_len,
        decode: Bytes::copy_from_slice(decode.peer().instance.as_bytes()),
        prompt_tokens: request.prompt.len() as u32,
    };
    ResultFrame { handoff: Some(handoff), ..ResultFrame::of(Phase::FirstToken) }
}

fn extract_failure(error: ExtractError) -> GenerateError {
    match error {
        ExtractError::ModelOwned { .. } | ExtractError::StateLen { .. } => {
            GenerateError::Unsupported(error.to_string())
        }
        error => GenerateError::NodeFailed(error.to_string()),
    }
}

fn offer_failure(decode: &Connection, error: &OfferError) -> GenerateError {
    let reason = format!("handoff to {}: {error}", decode.peer().name);
    match error {
        OfferError::Declined { code: DeclineCode::DeclineBusy, .. } => {
            GenerateError::Busy { waiting: 0 }
        }
        OfferError::Declined { code: DeclineCode::DeclineNoPath, .. } => {
            GenerateError::NoNode(reason)
        }
        OfferError::Ended(end) if is_loss(end) => GenerateError::NodeLost(reason),
        _ => GenerateError::NodeFailed(reason),
    }
}
