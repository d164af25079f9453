//! The prefill role: compute a prompt, sample its first token, hand the cache over.

use blockwire::endpoint::Connection;
use blockwire::handoff::{
    ExtractError, SendReport, extract_sequence_handoff, send_handoff_payload,
};
use blockwire::session::{DeclineCode, HandoffKey, OfferError};
use prost::Message as _;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::peers::is_loss;
use super::tasks::{self, Tasks};
use super::{ResultSink, ServingCoordinator};
use crate::backend::{GenerateError, GenerateRequest, Started, TokenEvent, Usage};
use crate::protocol::{DecodeMetaFrame, HandoffReport, Phase, ResultFrame};
use crate::scheduler::PrefillDone;

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
            let results = item.results.clone();
            if let Err(error) = node.prefill(item).await {
                tracing::warn!(request = %id, %error, "prefill failed");
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
        let done = self.scheduler.prefill_for_handoff(request.clone())?.done().await?;
        let PrefillDone { first_token: first, logprob, mut sequence, finish, cached_tokens } = done;
        let started = Started { cached_tokens, ..Started::default() };
        let mut frame = ResultFrame::carrying(Phase::FirstToken, TokenEvent::Started(started));
        let token = TokenEvent::Token { id: first, logprob };
        frame.tokens = ResultFrame::carrying(Phase::FirstToken, token).tokens;
        frame.position = Some(0);
        if let Some(reason) = finish {
            let usage = Usage {
                prompt_tokens: request.prompt.len() as u32,
                completion_tokens: 1,
                cached_tokens,
            };
            let finished = TokenEvent::Finished { reason, usage };
            frame.finished = ResultFrame::carrying(Phase::FirstToken, finished).finished;
        }
        let is_over = frame.finished.is_some();
        // A router that is gone cancels this task; there is nothing to do about it here.
        let _ = results.send(frame).await;
        if is_over {
            return Ok(());
        }
        let handoff = extract_sequence_handoff(&mut sequence).map_err(extract_failure)?;
        drop(sequence);
        let meta = DecodeMetaFrame::new(&request, first, reply_to).encode_to_vec().into();
        let key = HandoffKey { request: request.id, epoch };
        let report = send_handoff_payload(&decode, key, handoff, meta).await;
        let report = report.map_err(|error| offer_failure(&decode, &error))?;
        self.metrics.handed_over(report.payload_len, report.exposed);
        let frame = report_frame(&decode, report);
        let _ = results.send(frame).await;
        Ok(())
    }
}

fn report_frame(decode: &Connection, report: SendReport) -> ResultFrame {
    let handoff = HandoffReport {
        payload_bytes: report.payload_len,
        elapsed_us: report.exposed.as_micros() as u64,
        link: decode.peer_address().to_owned(),
    };
    ResultFrame { handoff: Some(handoff), ..ResultFrame::of(Phase::FirstToken) }
}

fn extract_failure(error: ExtractError) -> GenerateError {
    match error {
        ExtractError::ModelOwned { .. } => GenerateError::Unsupported(error.to_string()),
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
