//! What both endpoints do with a request: read its body before the prompt is known, and answer once it
//! is.

use std::time::Instant;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::Response;
use blockwire::clock;
use serde::de::DeserializeOwned;

use super::FrontState;
use super::answer::Answer;
use super::body::JsonBody;
use super::error::ApiError;
use super::plan::{DefaultBudget, Fields};
use super::shape::Shape;
use crate::backend::ModelCard;
use crate::metrics::InFlight;

/// A request of which everything but the prompt is checked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) model: ModelCard,
    fields: Fields,
    begun: Instant,
    in_flight: InFlight,
    echoes: Vec<String>,
}

impl Asked {
    /// The checked request, and the fields that only its endpoint knows.
    pub(super) fn read<T: DeserializeOwned>(
        state: &FrontState,
        headers: &HeaderMap,
        bytes: Bytes,
    ) -> Result<(Self, T), ApiError> {
        let begun = clock::now();
        let in_flight = state.metrics().in_flight();
        let body = JsonBody::new(headers, bytes)?;
        let common = body.common()?;
        let own = body.read()?;
        let model = state.model(common.model.as_deref())?;
        let fields = Fields::check(&common)?;
        Ok((Self { model, fields, begun, in_flight, echoes: vec![] }, own))
    }

    /// The same with a text before each prompt's answers.
    #[must_use]
    pub(super) fn echoing(self, echoes: Vec<String>) -> Self {
        Self { echoes, ..self }
    }

    /// Answers for all `prompts`. Dropping the future, or the body, cancels every generation.
    pub(super) async fn answer(
        self,
        state: FrontState,
        shape: Shape,
        prompts: Vec<Vec<u32>>,
        logprobs: Option<u8>,
        default: DefaultBudget,
    ) -> Result<Response, ApiError> {
        let Self { model, fields, begun, in_flight, echoes } = self;
        let timeout = state.request_timeout();
        let plans = fields.choices(&prompts, &model, logprobs, default, timeout)?;
        let answer = Answer {
            shape,
            state,
            model: model.id,
            prompts,
            echoes,
            stops: fields.stops,
            stream: fields.stream,
            include_usage: fields.include_usage,
            return_token_ids: fields.return_token_ids,
            logprobs: logprobs.is_some(),
            begun,
            _in_flight: in_flight,
        };
        answer.respond(plans).await
    }
}
