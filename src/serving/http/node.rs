//! What every node shows over HTTP: that it lives, and its metrics. A prefill or decode node shows
//! nothing else: requests go to the router.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::metrics::Metrics;

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `/health` and `/metrics` of a node.
pub fn node_app(metrics: Metrics) -> Router {
    let show = async |State(metrics): State<Metrics>| render(&metrics);
    Router::new().route("/health", get(health)).route("/metrics", get(show)).with_state(metrics)
}

/// The process answers: that is all.
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

pub(super) fn render(metrics: &Metrics) -> Response {
    ([(CONTENT_TYPE, OPEN_METRICS)], metrics.render()).into_response()
}
