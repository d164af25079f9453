//! The single node: a scheduler behind the seam.

use super::handle::BatchScheduler;
use crate::backend::{Backend, GenerateFuture, GenerateRequest, ModelCard, Readiness};
use crate::status::{BackendStatus, NodeState, NodeStatus};

/// Serves from a scheduler in this process.
#[derive(Debug)]
pub struct LocalBackend {
    scheduler: BatchScheduler,
    model: ModelCard,
}

impl LocalBackend {
    /// Serves `scheduler`'s model under the name `id`, and under `aliases`.
    pub fn new(scheduler: BatchScheduler, id: &str, aliases: Vec<String>) -> Self {
        let facts = scheduler.facts();
        let model = ModelCard {
            id: id.to_owned(),
            aliases,
            context_len: facts.context_len,
            vocab: facts.vocab,
            created: crate::http::unix_seconds(),
        };
        Self { scheduler, model }
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &BatchScheduler {
        &self.scheduler
    }
}

impl Backend for LocalBackend {
    fn models(&self) -> Vec<ModelCard> {
        vec![self.model.clone()]
    }

    fn readiness(&self) -> Readiness {
        if self.scheduler.is_draining() {
            return Readiness::NotReady { reason: "the node is shutting down".to_owned() };
        }
        if !self.scheduler.is_alive() {
            return Readiness::NotReady { reason: "the model's thread has ended".to_owned() };
        }
        Readiness::Ready
    }

    fn status(&self) -> BackendStatus {
        let stats = self.scheduler.stats();
        let in_flight = stats.running + stats.waiting;
        let node = NodeStatus {
            name: self.model.id.clone(),
            role: "single",
            address: String::new(),
            state: NodeState::Up,
            in_flight,
            prefill_tokens_per_second: 0.0,
        };
        BackendStatus { role: "single", in_flight, nodes: vec![node], ..BackendStatus::default() }
    }

    fn generate(&self, request: GenerateRequest) -> GenerateFuture<'_> {
        Box::pin(std::future::ready(self.scheduler.generate(request)))
    }
}
