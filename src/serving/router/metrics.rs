//! What Prometheus reads of the router's own decisions.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::cost::{Place, Plan, Why};
use crate::backend::GenerateError;
use crate::metrics::Metrics;
use crate::status::{FallbackStatus, PlanStatus};

type Reason = [(&'static str, &'static str); 1];
type Planned = [(&'static str, &'static str); 2];

/// What may fail so that a request is tried elsewhere.
const REASONS: [&str; 5] = ["node_lost", "node_failed", "no_node", "busy", "other"];

/// Every plan that there is.
const PLANS: [(Place, Why); 6] = [
    (Place::Handoff, Why::Always),
    (Place::Handoff, Why::Cheaper),
    (Place::Handoff, Why::Unknown),
    (Place::Local, Why::Cheaper),
    (Place::Local, Why::Explores),
    (Place::Local, Why::NoPrefillNode),
];

fn planned(place: Place, why: Why) -> Planned {
    [("plan", place.as_str()), ("why", why.as_str())]
}

/// Counters of a router. Cloning gives another handle to the same ones.
#[derive(Clone, Debug, Default)]
pub(super) struct RouterMetrics {
    retries: Family<Reason, Counter>,
    restarts: Counter,
    plans: Family<Planned, Counter>,
}

impl RouterMetrics {
    pub(super) fn register(&self, metrics: &Metrics) {
        let help = "Times that a request was tried on other nodes, by what failed";
        metrics.register("request_retries", help, self.retries.clone());
        // A series that is not there cannot be seen to rise.
        for reason in REASONS {
            drop(self.retries.get_or_create(&[("reason", reason)]));
        }
        let help = "Whole answers that began anew, since other nodes drew other tokens";
        metrics.register("answers_restarted", help, self.restarts.clone());
        let help = "Tries of requests, by where their prompts are computed and why there";
        metrics.register("request_plans", help, self.plans.clone());
        for (place, why) in PLANS {
            drop(self.plans.get_or_create(&planned(place, why)));
        }
    }

    /// A request is tried on other nodes.
    pub(super) fn retried(&self, error: &GenerateError) {
        let reason = match error {
            GenerateError::NodeLost(_) => "node_lost",
            GenerateError::NodeFailed(_) => "node_failed",
            GenerateError::NoNode(_) => "no_node",
            GenerateError::Busy { .. } => "busy",
            _ => "other",
        };
        self.retries.get_or_create(&[("reason", reason)]).inc();
    }

    /// A request goes where `plan` says.
    pub(super) fn planned(&self, plan: &Plan) {
        self.plans.get_or_create(&planned(plan.place, plan.why)).inc();
    }

    /// How often prompts were handed over, and how often not.
    pub(super) fn plans(&self) -> PlanStatus {
        let count = |place| {
            let plans = PLANS.into_iter().filter(|(there, _)| *there == place);
            plans.map(|(place, why)| self.plans.get_or_create(&planned(place, why)).get()).sum()
        };
        PlanStatus { handoff: count(Place::Handoff), local: count(Place::Local) }
    }

    /// How often something else was done than what was meant first.
    pub(super) fn fallbacks(&self) -> FallbackStatus {
        let retries = REASONS.map(|reason| self.retries.get_or_create(&[("reason", reason)]).get());
        FallbackStatus { retries: retries.iter().sum(), restarts: self.restarts.get() }
    }

    /// A request is over whose answer began anew so often.
    pub(super) fn restarted(&self, times: u64) {
        self.restarts.inc_by(times);
    }
}
