//! From the bytes of a body to its fields, with errors that name the place.

use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::openai::CommonBody;

/// Fields that would change the answer and that this server does not know, with what to do instead.
/// A value that asks for nothing (null, false, zero, empty) is accepted.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("tools", "tool calls are not supported; leave it out"),
    ("functions", "function calls are not supported; leave it out"),
    ("function_call", "function calls are not supported; leave it out"),
    ("audio", "audio is not supported; leave it out"),
    ("prediction", "predicted output is not supported; leave it out"),
    ("suffix", "text can only be completed at its end; leave it out"),
    ("stop_token_ids", "use `stop` with strings"),
    ("bad_words", "banning of words is not supported; leave it out"),
    ("allowed_token_ids", "restricting of tokens is not supported; leave it out"),
    ("prompt_logprobs", "log probabilities are given for generated tokens only; leave it out"),
    ("use_beam_search", "beam search is not supported; leave it out"),
    ("guided_json", "guided decoding is not supported; leave it out"),
    ("guided_regex", "guided decoding is not supported; leave it out"),
    ("guided_choice", "guided decoding is not supported; leave it out"),
    ("guided_grammar", "guided decoding is not supported; leave it out"),
    ("structured_outputs", "guided decoding is not supported; leave it out"),
    ("include_stop_str_in_output", "text ends before the stop string; leave it out"),
    ("continue_final_message", "a turn can only be begun; leave it out"),
];

/// A body that is one JSON object.
#[derive(Debug)]
pub(super) struct JsonBody {
    bytes: bytes::Bytes,
}

impl JsonBody {
    /// Checks the content type and that `bytes` are a JSON object, and refuses what would have to be
    /// ignored silently.
    pub(super) fn new(headers: &HeaderMap, bytes: bytes::Bytes) -> Result<Self, ApiError> {
        check_content_type(headers)?;
        let fields: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
            let message = format!("the body must be one JSON object: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message)
        })?;
        refuse_unsupported(&fields)?;
        Ok(Self { bytes })
    }

    /// The fields that `T` knows.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(&self.bytes);
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let reason = error.into_inner().to_string();
            // A missing field is reported at the object that lacks it.
            let missing = reason.strip_prefix("missing field `").and_then(|r| r.split('`').next());
            let param = match (path.as_str(), missing) {
                (".", Some(field)) => field.to_owned(),
                (path, Some(field)) => format!("{path}.{field}"),
                (path, None) => path.to_owned(),
            };
            ApiError::invalid(&param, format!("`{param}`: {reason}"))
        })
    }

    /// The fields that both endpoints take.
    pub(super) fn common(&self) -> Result<CommonBody, ApiError> {
        self.read()
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        return Ok(());
    }
    let given = given.map_or_else(|| "none".to_owned(), |given| format!("`{given}`"));
    let message = format!("the content type is {given}; send JSON with `application/json`");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_content_type", message))
}

fn refuse_unsupported(fields: &Map<String, Value>) -> Result<(), ApiError> {
    for (field, advice) in UNSUPPORTED {
        if fields.get(*field).is_some_and(asks_for_something) {
            return Err(ApiError::unsupported(field, format!("`{field}`: {advice}")));
        }
    }
    let choice = fields.get("tool_choice").and_then(Value::as_str);
    if !matches!(choice, None | Some("none" | "auto"))
        || fields.get("tool_choice").is_some_and(Value::is_object)
    {
        let message = "`tool_choice`: tool calls are not supported; leave it out";
        return Err(ApiError::unsupported("tool_choice", message));
    }
    let format = fields.get("response_format").filter(|format| !format.is_null());
    if format.is_some_and(|format| format.get("type").and_then(Value::as_str) != Some("text")) {
        let message = "`response_format`: only {\"type\": \"text\"} is supported";
        return Err(ApiError::unsupported("response_format", message));
    }
    if fields.get("skip_special_tokens") == Some(&Value::Bool(false)) {
        let message = "`skip_special_tokens`: special tokens have no text here; leave it out, and \
                       use `return_token_ids` to see them";
        return Err(ApiError::unsupported("skip_special_tokens", message));
    }
    let modalities = fields.get("modalities").and_then(Value::as_array);
    if modalities.is_some_and(|all| all.iter().any(|one| one != "text")) {
        let message = "`modalities`: only text is supported";
        return Err(ApiError::unsupported("modalities", message));
    }
    let best_of = fields.get("best_of").and_then(Value::as_i64).unwrap_or(1);
    let n = fields.get("n").and_then(Value::as_i64).unwrap_or(1);
    if best_of != 1 && best_of != n {
        let message = "`best_of`: choices are not ranked; leave it out, or give the value of `n`";
        return Err(ApiError::unsupported("best_of", message));
    }
    Ok(())
}

fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(asked) => *asked,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "none" | "auto"),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.values().any(asks_for_something),
    }
}
