//! What an operator sees of a running service: the body of `/stats`, which the live page shows.
//!
//! Names, addresses and counts: nothing of what is asked and answered, and no key.

use serde::Serialize;

/// Most requests that are told one by one.
pub const REQUESTS_MAX: usize = 64;

/// What a [`Backend`](crate::backend::Backend) knows of itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BackendStatus {
    /// What the process is.
    pub role: &'static str,
    /// Generations that run or wait: each choice of an answer is one.
    pub in_flight: usize,
    /// The oldest of them, oldest first: [`REQUESTS_MAX`] at most.
    pub requests: Vec<RequestStatus>,
    /// The nodes that compute.
    pub nodes: Vec<NodeStatus>,
    /// The ways that caches took.
    pub links: Vec<LinkStatus>,
    /// Caches handed over since the start.
    pub handoffs: HandoffStatus,
    /// Where prompts were sent.
    pub plans: PlanStatus,
    /// What was not served in the first place that was chosen for it.
    pub fallbacks: FallbackStatus,
}

/// Caches handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HandoffStatus {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl HandoffStatus {
    /// Adds one of so many bytes, as a node said.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Tries of requests by the place where their prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanStatus {
    /// On a prefill node.
    pub handoff: u64,
    /// On the decode node.
    pub local: u64,
}

/// How often something else was done than what was meant first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FallbackStatus {
    /// Requests tried on other nodes.
    pub retries: u64,
    /// Answers that began anew.
    pub restarts: u64,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStatus {
    /// As it calls itself; empty while it never was connected.
    pub name: String,
    /// `prefill`, `decode` or `single`.
    pub role: &'static str,
    /// Where it is; empty in the own process.
    pub address: String,
    /// How things stand with it.
    pub state: NodeState,
    /// Generations that have it.
    pub in_flight: usize,
    /// Prompt tokens a second that it computed last; 0 where that is not known.
    pub prefill_tokens_per_second: f64,
}

/// How things stand with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It serves.
    Up,
    /// It failed again and again, and is chosen last for a while.
    Resting,
    /// Not reached yet.
    Connecting,
    /// It was connected.
    Lost,
    /// Nobody answers.
    Unreachable,
    /// It answers, but the two sides do not fit.
    Refused,
    /// It is not what it should be.
    WrongRole,
}

/// The way from a prefill to a decode node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkStatus {
    /// The prefill node.
    pub from: String,
    /// The decode node.
    pub to: String,
    /// Caches that went this way.
    pub handoffs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes a second, from offer to commit, of the latest handoffs.
    pub bytes_per_second: f64,
    /// Milliseconds from offer to commit of the latest one.
    pub latest_ms: f64,
}

/// A generation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestStatus {
    /// As in the log.
    pub id: String,
    /// Seconds since it came.
    pub age_s: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// `prefill` until the decode node has the cache, then `decode`.
    pub phase: &'static str,
    /// The prefill node.
    pub prefill: String,
    /// The decode node.
    pub decode: String,
}
