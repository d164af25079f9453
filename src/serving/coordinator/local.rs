//! A prompt that its decode node computes itself, because nothing is gained by a handoff or nobody could make one.
//!
//! To the router it looks like any other request: a first token, the word that the decode node has the cache, the
//! continuation.

use blockwire::endpoint::Connection;
use blockwire::session::HandoffKey;

use super::decode::pass_on;
use super::tasks::Tasks;
use super::{ResultSink, ServingCoordinator};
use crate::backend::{GenerateError, GenerateRequest, Started, TokenEvent};
use crate::protocol::{Phase, ResultFrame};

/// One request that is served as by a single node.
#[derive(Debug)]
pub(super) struct LocalRequest {
    pub(super) request: GenerateRequest,
    /// Which attempt at the request.
    pub(super) epoch: u32,
    /// Where its tokens go.
    pub(super) results: ResultSink,
}

impl ServingCoordinator {
    pub(super) fn spawn_local(
        &self,
        tasks: &mut Tasks,
        owner: Option<Connection>,
        item: LocalRequest,
    ) {
        let (node, id) = (self.clone(), item.request.id);
        tasks.spawn(HandoffKey { request: id, epoch: item.epoch }, owner, async move {
            let results = item.results.clone();
            if let Err(error) = node.compute_here(item).await {
                tracing::warn!(request = %id, router = results.name(), %error, "prefill failed");
                let failed = TokenEvent::Failed(error);
                let _ = results.send(ResultFrame::carrying(Phase::FirstToken, failed)).await;
            }
        });
    }

    async fn compute_here(&self, item: LocalRequest) -> Result<(), GenerateError> {
        let LocalRequest { request, results, .. } = item;
        let kept = self.kept_of(&request);
        let mut generation = self.scheduler.generate(request)?;
        let mut first = ResultFrame::of(Phase::FirstToken);
        loop {
            match generation.next().await {
                Some(event @ TokenEvent::Started(_)) => {
                    first = ResultFrame::carrying(Phase::FirstToken, event);
                }
                Some(event @ TokenEvent::Token { .. }) => {
                    first.tokens = ResultFrame::carrying(Phase::FirstToken, event).tokens;
                    break;
                }
                Some(TokenEvent::Failed(error)) => return Err(error),
                // A generation has a token before its end.
                Some(TokenEvent::Finished { .. }) | None => return Ok(()),
            }
        }
        self.metrics.computed_here();
        let there = TokenEvent::Started(Started::default());
        for frame in [
            first.at(0).keeping(kept),
            // What follows needs no other node.
            ResultFrame::carrying(Phase::Continuation, there),
        ] {
            if results.send(frame).await.is_err() {
                return Ok(());
            }
        }
        pass_on(generation, &results).await;
        Ok(())
    }
}
