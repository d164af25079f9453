//! Which nodes a request gets, and which of them computes its prompt.

use blockwire::clock;
use blockwire::endpoint::Connection;
use blockwire::pool::PrefixKey;
use uuid::Uuid;

use super::cost::{Computer, HandoffPolicy, Place, Plan, Question, decide};
use super::nodes::Wanted;
use super::{RequestRouter, affinity};
use crate::backend::{GenerateError, GenerateRequest};
use crate::protocol::NodeRole;

/// The nodes of a try.
#[derive(Debug)]
pub(super) struct Picked {
    /// Computes the prompt; the decode node where that does so itself.
    pub(super) prefill: Connection,
    pub(super) decode: Connection,
    pub(super) plan: Plan,
}

impl Picked {
    /// What an operator wants to see of a try, as headers of the answer.
    pub(super) fn notes(&self, epoch: u32) -> Vec<(&'static str, String)> {
        let nodes = [("prefill-node", &self.prefill), ("decode-node", &self.decode)];
        let nodes = nodes.map(|(name, node)| (name, node.peer().name.clone()));
        let attempts = (epoch > 1).then(|| ("attempts", epoch.to_string()));
        let plan = ("plan", self.plan.to_string());
        nodes.into_iter().chain([plan]).chain(attempts).collect()
    }
}

impl RequestRouter {
    /// Nodes for a try, those last that the request had.
    ///
    /// # Errors
    /// [`GenerateError::NoNode`].
    pub(super) fn pick(
        &self,
        request: &GenerateRequest,
        tried: &[Uuid],
    ) -> Result<Picked, GenerateError> {
        let beginnings = affinity::beginnings(request);
        let wanted = Wanted { beginnings: &beginnings, tried };
        let nodes = &self.0.nodes;
        let routes = self.routes();
        let load = |node| routes.values().filter(|route| route.uses(node)).count();
        let prefill = nodes.pick_prefill(wanted, load);
        let (prefill, decode, plan) = match self.0.policy {
            HandoffPolicy::Always => {
                (Some(prefill?), nodes.pick_decode(wanted, load)?, Plan::ALWAYS)
            }
            HandoffPolicy::Auto => {
                let (prefill, decode) = (prefill.ok(), nodes.pick_decode(wanted, load)?);
                drop(routes);
                let plan = self.plan(request, &beginnings, prefill.as_ref(), &decode);
                (prefill.filter(|_| plan.place == Place::Handoff), decode, plan)
            }
        };
        nodes.sent(&beginnings, prefill.as_ref(), &decode);
        let prefill = prefill.unwrap_or_else(|| decode.clone());
        Ok(Picked { prefill, decode, plan })
    }

    fn plan(
        &self,
        request: &GenerateRequest,
        beginnings: &[PrefixKey],
        prefill: Option<&Connection>,
        decode: &Connection,
    ) -> Plan {
        let (nodes, routes) = (&self.0.nodes, self.routes());
        let computer = |role, node: &Connection| {
            let instance = node.peer().instance;
            Computer {
                rate: nodes.prefill_rate(instance),
                ahead: routes.values().map(|route| route.tokens_ahead(instance)).sum(),
                cached: nodes.cached(role, instance, beginnings),
            }
        };
        let to = decode.peer().instance;
        decide(&Question {
            prompt: request.prompt.len(),
            prefill: prefill.map(|node| computer(NodeRole::Prefill, node)),
            decode: computer(NodeRole::Decode, decode),
            generating: routes.values().filter(|route| route.generates(to)).count(),
            link: prefill
                .and_then(|node| self.links().cost(node.peer().instance, to, clock::now())),
        })
    }
}
