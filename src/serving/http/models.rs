//! `GET /v1/models`, `/v1/models/{id}`, `/ready`, `/metrics`.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::FrontState;
use super::error::ApiError;
use super::node;
use crate::backend::{ModelCard, Readiness};

pub(super) async fn models(State(state): State<FrontState>) -> Response {
    let data: Vec<Value> = state.backend().models().iter().map(card).collect();
    axum::Json(json!({"object": "list", "data": data})).into_response()
}

pub(super) async fn model(
    State(state): State<FrontState>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    Ok(axum::Json(card(&state.model(Some(&name))?)).into_response())
}

fn card(model: &ModelCard) -> Value {
    json!({
        "id": model.id, "object": "model", "created": model.created, "owned_by": "blockwire",
        "root": model.id, "max_model_len": model.context_len,
    })
}

pub(super) async fn ready(State(state): State<FrontState>) -> Response {
    match state.backend().readiness() {
        Readiness::Ready => axum::Json(json!({"ready": true})).into_response(),
        Readiness::NotReady { reason } => {
            let body = axum::Json(json!({"ready": false, "reason": reason}));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

pub(super) async fn metrics(State(state): State<FrontState>) -> Response {
    node::render(state.metrics())
}
