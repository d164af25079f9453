//! Paths, and what every request passes through.

use std::future::Future;
use std::io;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tracing::Instrument;
use uuid::Uuid;

use super::error::ApiError;
use super::{FrontState, chat, completions, live, models, node};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id taken from a caller.
const REQUEST_ID_LEN_MAX: usize = 128;

/// The routes of the OpenAI API, of the live page, of health and of metrics.
pub fn app(state: FrontState) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models::models))
        .route("/v1/models/{*name}", get(models::model));
    let numbers =
        Router::new().route("/stats", get(live::stats)).route("/metrics", get(models::metrics));
    let (keyed, open) = match state.options().keyed_metrics {
        true => (api.merge(numbers), Router::new()),
        false => (api, numbers),
    };
    open.merge(keyed.route_layer(middleware::from_fn_with_state(state.clone(), check_key)))
        .route("/", get(live::page))
        .route("/health", get(node::health))
        .route("/ready", get(models::ready))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(state.options().body_len_max))
        .layer(middleware::from_fn_with_state(state.clone(), frame))
        .with_state(state)
}

/// Answers on `listener` until `shutdown` completes, and then until the answers begun are complete.
///
/// # Errors
/// What the listener reports.
///
/// # Cancel safety
/// Dropping the future closes the listener; answers begun go on.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, app).with_graceful_shutdown(shutdown).await
}

/// Gives every request an id, in its log lines and in its answer; makes every error an OpenAI error.
async fn frame(State(state): State<FrontState>, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let span = tracing::info_span!(
        "request", id = id.to_str().unwrap_or(""), method = %request.method(),
        path = request.uri().path(),
    );
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let response = next.run(request).instrument(span.clone()).await;
    let mut response = uniform(response, state.options().body_len_max).await;
    let _entered = span.enter();
    match response.extensions().get::<ErrorCode>() {
        None => tracing::debug!(status = response.status().as_u16(), "answered"),
        Some(ErrorCode(code)) => {
            state.metrics().failed(code);
            tracing::info!(status = response.status().as_u16(), code, "refused or failed");
        }
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The error code of a response, for logs and metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorCode(pub(super) &'static str);

/// The caller's id where it has one that can be repeated; else a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID).filter(|id| {
        (1..=REQUEST_ID_LEN_MAX).contains(&id.len())
            && id.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    given.cloned().unwrap_or_else(|| {
        HeaderValue::try_from(Uuid::new_v4().to_string())
            .unwrap_or_else(|_| HeaderValue::from_static("none"))
    })
}

/// Errors that axum itself makes, such as one for a body that is too large, become OpenAI errors.
async fn uniform(response: Response, body_len_max: usize) -> Response {
    let status = response.status();
    let ours = response.extensions().get::<ErrorCode>().is_some();
    if ours || !(status.is_client_error() || status.is_server_error()) || is_json(&response) {
        return response;
    }
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!("the body is larger than {body_len_max} bytes; send less");
        return ApiError::new(status, "body_too_large", message).into_response();
    }
    let message = axum::body::to_bytes(response.into_body(), 1024).await.unwrap_or_default();
    ApiError::new(status, "invalid_request", String::from_utf8_lossy(&message)).into_response()
}

/// `/ready` says why in a body of its own.
fn is_json(response: &Response) -> bool {
    let json = HeaderValue::from_static("application/json");
    response.headers().get(header::CONTENT_TYPE) == Some(&json)
}

async fn check_key(
    State(state): State<FrontState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &state.options().api_keys;
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| given.strip_prefix(b"Bearer "));
    if keys.is_empty() || given.is_some_and(|given| keys.iter().any(|key| equal(given, key))) {
        return Ok(next.run(request).await);
    }
    let message = "the API key is missing or wrong; send `Authorization: Bearer <key>`";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
}

/// Compares in a time that says nothing about where the two differ.
fn equal(given: &[u8], key: &str) -> bool {
    given.len() == key.len()
        && given.iter().zip(key.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

async fn unknown_path(uri: Uri) -> ApiError {
    let message = format!("nothing is served at `{}`; the API begins at /v1", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", message)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{method}` is not possible at `{}`", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
