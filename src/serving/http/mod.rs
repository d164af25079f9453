//! The OpenAI API over any [`Backend`].
//!
//! ```text
//! body ──JsonBody──> fields ──Fields──> ChoicePlans ──Backend──> token events
//!        (400, 413, 415)     (400, 404)               Choice: text, stop strings
//!                                                     Answer: one body, or a stream of events
//! ```
//! A refusal at any of these steps takes no slot of the backend. A client that goes away drops the
//! answer, and with it every generation.

mod answer;
mod asked;
mod body;
mod chat;
mod choice;
mod completions;
mod error;
mod ids;
mod live;
mod models;
mod node;
mod openai;
mod plan;
mod routes;
mod shape;
mod stop;
mod text;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use blockwire_runtime::chat::ChatTemplate;

pub use error::ApiError;
pub use ids::NoTokenizer;
pub use node::node_app;
pub use routes::{app, serve};
pub use text::{TextCodec, TextDecoder, TextError};

use crate::backend::{Backend, GenerateError, ModelCard};
use crate::metrics::Metrics;

/// How the front answers.
#[derive(Clone, Debug)]
pub struct FrontOptions {
    /// Keys of which a caller must send one; none are asked for when this is empty.
    pub api_keys: Vec<String>,
    /// Whether `/metrics` and `/stats` ask for a key too. `/health`, `/ready` and the page at `/`, which tells nothing
    /// by itself, never do.
    pub keyed_metrics: bool,
    /// Most bytes of a body.
    pub body_len_max: usize,
    /// How long a request may take in all.
    pub request_timeout: Option<Duration>,
}

impl Default for FrontOptions {
    /// No keys, bodies of 8 MiB, no time limit.
    fn default() -> Self {
        Self {
            api_keys: vec![],
            keyed_metrics: false,
            body_len_max: 8 << 20,
            request_timeout: None,
        }
    }
}

/// What every request handler shares.
#[derive(Clone)]
pub struct FrontState(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    text: Arc<dyn TextCodec>,
    chat: Option<ChatTemplate>,
    metrics: Metrics,
    options: FrontOptions,
}

impl FrontState {
    /// A front over `backend`; without a chat template, only `/v1/completions` serves.
    pub fn new(
        backend: Arc<dyn Backend>,
        text: Arc<dyn TextCodec>,
        chat: Option<ChatTemplate>,
        metrics: Metrics,
        options: FrontOptions,
    ) -> Self {
        Self(Arc::new(Inner { backend, text, chat, metrics, options }))
    }

    /// The metrics that `/metrics` shows.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    fn text(&self) -> &dyn TextCodec {
        &*self.0.text
    }

    fn chat_template(&self) -> Option<&ChatTemplate> {
        self.0.chat.as_ref()
    }

    fn options(&self) -> &FrontOptions {
        &self.0.options
    }

    fn request_timeout(&self) -> Option<Duration> {
        self.0.options.request_timeout
    }

    /// The model called `name`; without a name, the first one.
    fn model(&self, name: Option<&str>) -> Result<ModelCard, ApiError> {
        let mut models = self.backend().models();
        let at = match name {
            None => 0,
            Some(name) => models
                .iter()
                .position(|model| model.id == name || model.aliases.iter().any(|a| a == name))
                .ok_or_else(|| self.unknown_model(name))?,
        };
        if models.is_empty() {
            return Err(GenerateError::NoNode("no model is loaded yet".to_owned()).into());
        }
        Ok(models.swap_remove(at))
    }

    fn unknown_model(&self, name: &str) -> ApiError {
        let known: Vec<String> = self.backend().models().into_iter().map(|m| m.id).collect();
        let message = format!("the model `{name}` is not served here; use {}", known.join(" or "));
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).at("model")
    }

    /// Runs what takes long, such as tokenizing a long text, where it holds up no other request.
    async fn off_the_io_threads<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let state = self.clone();
        tokio::task::spawn_blocking(move || work(&state)).await.unwrap_or_else(|error| {
            tracing::error!(%error, "preparing a request failed");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(ApiError::new(status, "internal_error", "preparing the request failed"))
        })
    }
}

impl fmt::Debug for FrontState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontState").field("options", &self.0.options).finish_non_exhaustive()
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
