//! A request in flight: the nodes that it has, those that it had, and those that it lost.
//!
//! A node that dies while it computes a request may have died of it. Such a request would take one node after
//! the other with it, so after two of them ([`Losses`]) it gets no more.

use std::time::Instant;

use blockwire::clock;
use blockwire::endpoint::Connection;
use bytes::Bytes;
use prost::Message as _;
use tracing::Span;
use uuid::Uuid;

use super::bridge::StreamBridge;
use crate::backend::{GenerateError, GenerateRequest};
use crate::protocol::{PrefillRequestFrame, kind};
use crate::status::RequestStatus;

/// Times that a request is tried.
const ATTEMPTS_MAX: u32 = 3;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) request: GenerateRequest,
    /// Of the HTTP request that it belongs to, whose id is in its log lines.
    pub(super) span: Span,
    /// When it came.
    pub(super) begun: Instant,
    /// Which attempt it is, from 1.
    pub(super) epoch: u32,
    /// Nodes of earlier attempts.
    pub(super) tried: Vec<Uuid>,
    pub(super) losses: Losses,
    pub(super) bridge: StreamBridge,
    /// Computes the prompt; the decode node where that does so itself.
    pub(super) prefill: Connection,
    pub(super) decode: Connection,
}

impl Route {
    /// Its nodes, each once.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Connection> {
        let prefill = (!self.is_local()).then_some(&self.prefill);
        prefill.into_iter().chain([&self.decode])
    }

    /// Whether the decode node computes the prompt.
    pub(super) fn is_local(&self) -> bool {
        self.prefill.peer().instance == self.decode.peer().instance
    }

    /// Tokens of the prompt, while `instance` has it to compute.
    pub(super) fn tokens_ahead(&self, instance: Uuid) -> usize {
        let computes = self.prefill.peer().instance == instance && !self.bridge.has_first_token();
        if computes { self.request.prompt.len() } else { 0 }
    }

    /// Whether `instance` generates the answer.
    pub(super) fn generates(&self, instance: Uuid) -> bool {
        self.decode.peer().instance == instance && self.bridge.has_first_token()
    }

    /// What to ask the prefill node.
    pub(super) fn ask(&self, reply_to: Uuid) -> Bytes {
        let decode = self.decode.peer().instance;
        PrefillRequestFrame::new(&self.request, decode, reply_to).encode_to_vec().into()
    }

    /// Tells the nodes that the attempt is over. Those that are done with it, or gone, do not mind.
    pub(super) fn cancel(&self) {
        for node in self.nodes() {
            node.post(self.request.id, self.epoch, kind::CANCEL, Bytes::new());
        }
    }

    pub(super) fn uses(&self, instance: Uuid) -> bool {
        self.prefill.peer().instance == instance || self.decode.peer().instance == instance
    }

    /// Whether the request needs a node, so that it fails without it.
    pub(super) fn needs(&self, instance: Uuid) -> bool {
        let prefills = self.prefill.peer().instance == instance && !self.bridge.is_handed_over();
        prefills || self.decode.peer().instance == instance
    }

    /// What an operator sees of it.
    pub(super) fn status(&self) -> RequestStatus {
        let name = |node: &Connection| node.peer().name.clone();
        RequestStatus {
            id: self.request.id.to_string(),
            age_s: clock::now().saturating_duration_since(self.begun).as_secs_f64(),
            prompt_tokens: self.request.prompt.len(),
            tokens: self.bridge.sent_len(),
            max_tokens: self.request.max_tokens,
            attempt: self.epoch,
            phase: if self.bridge.is_handed_over() { "decode" } else { "prefill" },
            prefill: name(&self.prefill),
            decode: name(&self.decode),
        }
    }

    /// Whether the attempt may be followed by another one.
    pub(super) fn may_go_on(&self, error: &GenerateError) -> bool {
        let overdue = self.request.deadline.is_some_and(|deadline| deadline <= clock::now());
        let is_worth_another = !error.is_callers() && *error != GenerateError::Deadline;
        is_worth_another
            && !overdue
            && !self.bridge.diverges()
            && self.epoch < ATTEMPTS_MAX
            && self.losses.verdict().is_none()
    }

    /// Tells the client why its request failed for good.
    pub(super) fn report(mut self) {
        if let Some(verdict) = self.losses.verdict() {
            self.bridge.condemn(verdict);
        }
        if let Some(error) = self.bridge.failure() {
            let (prefill, decode) = (&self.prefill.peer().name, &self.decode.peer().name);
            self.span.in_scope(|| {
                tracing::warn!(request = %self.request.id, %error, prefill, decode, "failed");
            });
        }
        self.bridge.report();
    }
}

/// Nodes whose link ended, without a word, while they computed a request.
#[derive(Debug, Default)]
pub(super) struct Losses(Vec<(Uuid, String)>);

impl Losses {
    /// Notes a node; one that is known already, from another who lost it, counts once.
    pub(super) fn note(&mut self, instance: Uuid, name: &str) {
        if self.0.iter().all(|(known, _)| *known != instance) {
            self.0.push((instance, name.to_owned()));
        }
    }

    /// What to tell a client whose request had as many nodes as it may lose.
    fn verdict(&self) -> Option<GenerateError> {
        let [(_, one), (_, other), ..] = &self.0[..] else { return None };
        Some(GenerateError::NodesLost { nodes: [one.clone(), other.clone()] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_are_as_many_as_a_request_may_lose() {
        let mut losses = Losses::default();
        losses.note(Uuid::from_u128(1), "decode a");
        // The prefill node lost it too.
        losses.note(Uuid::from_u128(1), "decode a");
        assert_eq!(losses.verdict(), None);
        losses.note(Uuid::from_u128(2), "decode b");
        let verdict = losses.verdict().expect("two are lost");
        assert_eq!(
            verdict.to_string(),
            "two nodes were lost while they computed this request, decode a and decode b: it gets no third"
        );
    }
}
