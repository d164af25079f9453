//! Errors as OpenAI's clients expect them.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::routes::ErrorCode;
use crate::backend::GenerateError;

/// A refused or failed request: a status and `{"error":{"message","type","param","code"}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What is wrong, where, and what to do.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// A name for programs.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: Some(code) }
    }

    /// 400: the value of `param` is not possible.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", message).at(param)
    }

    /// 400: this server does not do what `param` asks for.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message).at(param)
    }

    /// The same with the field at fault.
    #[must_use]
    pub fn at(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// The body, also sent as an event when a stream has begun already.
    pub(super) fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorObject {
                message: &self.message,
                kind: kind(self.status),
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

/// OpenAI's error types.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

impl From<GenerateError> for ApiError {
    fn from(error: GenerateError) -> Self {
        let (status, code) = match &error {
            GenerateError::BadRequest(_) => (StatusCode::BAD_REQUEST, "invalid_value"),
            GenerateError::Unsupported(_) => (StatusCode::BAD_REQUEST, "unsupported_model"),
            GenerateError::UnknownModel(_) => (StatusCode::NOT_FOUND, "model_not_found"),
            GenerateError::TooLong { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "context_length_exceeded")
            }
            GenerateError::Busy { .. } => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            GenerateError::NodeFailed(_) | GenerateError::NodeLost(_) => {
                (StatusCode::BAD_GATEWAY, "node_failed")
            }
            GenerateError::NodesLost { .. } => (StatusCode::BAD_GATEWAY, "nodes_lost"),
            GenerateError::NoNode(_) => (StatusCode::SERVICE_UNAVAILABLE, "no_node"),
            GenerateError::Deadline => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
        };
        let param = matches!(error, GenerateError::UnknownModel(_)).then(|| "model".to_owned());
        Self { param, ..Self::new(status, code, error.to_string()) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        response.extensions_mut().insert(ErrorCode(self.code.unwrap_or("unknown")));
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}
