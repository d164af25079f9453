//! `GET /` and `GET /stats`: the service as a person sees it, and as a program reads it.
//!
//! The page is one file without anything from elsewhere; it asks for the numbers each second. Like `/metrics`,
//! neither asks for a key, and neither says anything of what is asked and answered.

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use blockwire::clock;
use serde::Serialize;

use super::FrontState;
use crate::backend::Readiness;
use crate::metrics::TokenStatus;
use crate::status::BackendStatus;

const PAGE: &str = include_str!("live.html");
/// Whatever a node calls itself, the page runs its own script only, and asks nobody but its router.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

#[derive(Debug, Serialize)]
struct Stats {
    version: &'static str,
    /// The first model's name.
    model: String,
    uptime_s: f64,
    ready: bool,
    /// Why not.
    not_ready: Option<String>,
    /// Choices that ended well.
    finished: u64,
    /// Requests refused or failed.
    failed: u64,
    tokens: TokenStatus,
    #[serde(flatten)]
    backend: BackendStatus,
}

pub(super) async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE).into_response()
}

pub(super) async fn stats(State(state): State<FrontState>) -> Response {
    let (backend, metrics, now) = (state.backend(), state.metrics(), clock::now());
    let not_ready = match backend.readiness() {
        Readiness::Ready => None,
        Readiness::NotReady { reason } => Some(reason),
    };
    let stats = Stats {
        version: env!("CARGO_PKG_VERSION"),
        model: backend.models().into_iter().next().map(|model| model.id).unwrap_or_default(),
        uptime_s: metrics.uptime(now).as_secs_f64(),
        ready: not_ready.is_none(),
        not_ready,
        finished: metrics.finished(),
        failed: metrics.failures(),
        tokens: metrics.tokens(now),
        backend: backend.status(),
    };
    ([(CACHE_CONTROL, "no-store")], axum::Json(stats)).into_response()
}
