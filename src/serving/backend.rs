//! The seam between the HTTP front and whatever computes tokens.
//!
//! Token ids travel below it, text above it: the front alone turns text into ids and ids into text,
//! and it alone knows stop strings. A single node and a router are both a [`Backend`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use uuid::Uuid;

pub use blockwire_runtime::sampling::SamplingParams;

use crate::status::BackendStatus;

/// A request for one sequence of tokens. Several choices or prompts are several of these.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Identity in every log line and frame.
    pub id: Uuid,
    /// Token ids; not empty.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; at least 1.
    pub max_tokens: u32,
    /// Tokens before which the model may not end the text.
    pub min_tokens: u32,
    /// How a token is drawn. The seed is always set, so that every node draws the same.
    pub sampling: SamplingParams,
    /// Whether to go on after the model ended the text.
    pub ignore_eos: bool,
    /// With log probabilities, and how many alternatives a token.
    pub logprobs: Option<u8>,
    /// When the caller gives up; the backend may stop earlier than the caller notices.
    pub deadline: Option<Instant>,
    /// Only requests with the same salt share cached blocks.
    pub cache_salt: Option<String>,
    /// Whether nobody uses tokens before the last one: they may be taken back ([`Started::anew`]).
    pub retractable: bool,
}

/// What a [`Generation`] delivers: a `Started`, tokens, then one `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum TokenEvent {
    /// The prompt is in the cache. Comes before the first token, and again where other nodes go on with the request.
    Started(Started),
    /// One more token. A token that ends the text is delivered, and counted, like any other.
    Token {
        /// The token.
        id: u32,
        /// Its log probability, where asked for.
        logprob: Option<TokenLogprobs>,
    },
    /// Nothing follows.
    Finished {
        /// Why the generation ended.
        reason: FinishReason,
        /// Exact counts.
        usage: Usage,
    },
    /// Nothing follows; the tokens so far stand.
    Failed(GenerateError),
}

/// How a request is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Prompt tokens that were not computed, because the node that computes prompts had them.
    pub cached_tokens: u32,
    /// What computing the others took.
    pub computed: Computed,
    /// What an operator wants to see of the route (nodes, handed off or not, why a fallback), as
    /// (name, value): the front answers with a header `x-blockwire-<name>` for each.
    pub notes: Vec<(&'static str, String)>,
    /// The tokens before this are void, and the answer begins anew. Only where a request is
    /// [retractable](GenerateRequest::retractable).
    pub anew: bool,
}

/// Prompt tokens that a node computed, and the time of the steps that computed them: of those of one prompt, with whatever
/// prompts were computed in the same steps. So it tells how fast the node computes, not how long a prompt took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// Tokens.
    pub tokens: u64,
    /// In forward passes.
    pub time: Duration,
}

/// Natural logarithms of probabilities, of the model's own distribution (before temperature).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was drawn.
    pub logprob: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text.
    Stop,
    /// `max_tokens` are generated.
    Length,
}

impl FinishReason {
    /// What OpenAI calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Exact token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Tokens of the prompt that were in a cache already.
    pub cached_tokens: u32,
}

/// Why a request was not served. Each kind has one HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The request makes no sense: 400.
    #[error("{0}")]
    BadRequest(String),
    /// No such model: 404.
    #[error("the model `{0}` is not served here")]
    UnknownModel(String),
    /// The sequence could never fit: 413.
    #[error("{tokens} tokens (prompt and completion) do not fit, the limit is {limit}")]
    TooLong {
        /// Tokens that the sequence would take.
        tokens: usize,
        /// Tokens that fit.
        limit: usize,
    },
    /// Too many requests wait already: 429.
    #[error("{waiting} requests wait already; try again later")]
    Busy {
        /// Requests that wait.
        waiting: usize,
    },
    /// A node failed while it served the request: 502.
    #[error("{0}")]
    NodeFailed(String),
    /// The link to a node ended while it served the request: 502.
    #[error("{0}")]
    NodeLost(String),
    /// As many nodes were lost while they served the request as one request may take with it: 502.
    #[error(
        "two nodes were lost while they computed this request, {} and {}: it gets no third",
        nodes[0], nodes[1]
    )]
    NodesLost {
        /// Their names.
        nodes: [String; 2],
    },
    /// Nobody can serve the request now: 503.
    #[error("{0}")]
    NoNode(String),
    /// The deadline passed: 504.
    #[error("the request did not finish before its deadline")]
    Deadline,
    /// The model's family cannot do what was asked: 400.
    #[error("{0}")]
    Unsupported(String),
}

impl GenerateError {
    /// Whether the caller is at fault: such an error says nothing about a node's health.
    pub fn is_callers(&self) -> bool {
        matches!(
            self,
            Self::BadRequest(_)
                | Self::UnknownModel(_)
                | Self::TooLong { .. }
                | Self::Unsupported(_)
        )
    }
}

/// A model that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard {
    /// Its name in requests and answers.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Tokens of prompt and completion together that a sequence may have here.
    pub context_len: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// When the model was loaded, in seconds since 1970.
    pub created: u64,
}

/// Whether requests would be served now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They would.
    Ready,
    /// They would not.
    NotReady {
        /// What is missing, for an operator.
        reason: String,
    },
}

/// Future of [`Backend::generate`].
pub type GenerateFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Generation, GenerateError>> + Send + 'a>>;

/// The output of `future`, or none when the deadline passes first: so a caller gives up.
///
/// # Cancel safety
/// As that of `future`, which is dropped at the deadline.
pub async fn before<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}

/// Something that turns prompts into tokens.
pub trait Backend: Send + Sync {
    /// The models served.
    fn models(&self) -> Vec<ModelCard>;

    /// Whether requests would be served now.
    fn readiness(&self) -> Readiness;

    /// What it does now, for an operator.
    fn status(&self) -> BackendStatus;

    /// Starts to generate. Refusals come from here, before anything is allocated for the request.
    ///
    /// # Cancel safety
    /// Dropping the future, and later dropping the [`Generation`], cancels the request everywhere.
    fn generate(&self, request: GenerateRequest) -> GenerateFuture<'_>;
}

/// The tokens of one request, as they come. Dropping it cancels the request.
pub struct Generation {
    events: mpsc::UnboundedReceiver<TokenEvent>,
    ended: bool,
    cancel: Option<Box<dyn FnOnce() + Send>>,
}

impl Generation {
    /// The events that `events` delivers. Its sender sees a drop as a closed channel.
    pub fn new(events: mpsc::UnboundedReceiver<TokenEvent>) -> Self {
        Self { events, ended: false, cancel: None }
    }

    /// Also calls `cancel` on a drop that comes before the last event.
    #[must_use]
    pub fn with_cancel(mut self, cancel: impl FnOnce() + Send + 'static) -> Self {
        self.cancel = Some(Box::new(cancel));
        self
    }

    /// The next event; none after the last one. A sender that vanishes is a failed node.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<TokenEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await.unwrap_or_else(|| {
            let reason = "the node stopped before the generation was complete";
            TokenEvent::Failed(GenerateError::NodeFailed(reason.to_owned()))
        });
        self.ended = matches!(event, TokenEvent::Finished { .. } | TokenEvent::Failed(_));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.events.close();
        if let Some(cancel) = self.cancel.take().filter(|_| !self.ended) {
            cancel();
        }
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("queued", &self.events.len()).finish_non_exhaustive()
    }
}
