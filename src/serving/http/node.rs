//! What a prefill or decode node shows over HTTP: that it lives, and its metrics. No requests.

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::metrics::Metrics;

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `/health` and `/metrics` of a node.
pub fn node_app(metrics: Metrics) -> Router {
    Router::new()
        .route("/health", get(async || "ok\n"))
        .route("/metrics", get(show))
        .with_state(metrics)
}

async fn show(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, OPEN_METRICS)], metrics.render())
}
