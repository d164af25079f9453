//! `POST /v1/chat/completions`.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use blockwire_runtime::chat::{ChatError, Message};

use super::FrontState;
use super::asked::Asked;
use super::error::ApiError;
use super::openai::{ChatBody, ChatMessage, Content};
use super::plan::DefaultBudget;
use super::shape::Shape;

/// Most alternatives a token, as OpenAI.
const TOP_LOGPROBS_MAX: i64 = 20;

pub(super) async fn chat_completions(
    State(state): State<FrontState>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let (asked, chat) = Asked::read::<ChatBody>(&state, &headers, bytes)?;
    if chat.echo == Some(true) {
        let message = "`echo`: messages are not repeated; leave it out, or use /v1/completions";
        return Err(ApiError::unsupported("echo", message));
    }
    let logprobs = logprobs(&chat)?;
    let prompts = vec![prompt(&state, chat).await?];
    asked.answer(state, Shape::Chat, prompts, logprobs, DefaultBudget::Rest).await
}

fn logprobs(chat: &ChatBody) -> Result<Option<u8>, ApiError> {
    let wanted = chat.logprobs.unwrap_or(false);
    match chat.top_logprobs {
        None | Some(0) => Ok(wanted.then_some(0)),
        Some(_) if !wanted => {
            Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs`: true"))
        }
        Some(top @ 1..=TOP_LOGPROBS_MAX) => Ok(Some(top as u8)),
        Some(top) => {
            let message = format!("`top_logprobs` is {top}; it must be 0 to {TOP_LOGPROBS_MAX}");
            Err(ApiError::invalid("top_logprobs", message))
        }
    }
}

/// The conversation as the model's tokens.
async fn prompt(state: &FrontState, chat: ChatBody) -> Result<Vec<u32>, ApiError> {
    if chat.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty; send at least one"));
    }
    if state.chat_template().is_none() {
        let message = "the model has no chat template; use /v1/completions";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "no_chat_template", message));
    }
    let messages = chat.messages.into_iter().enumerate();
    let messages: Vec<Message> =
        messages.map(|(index, message)| plain(index, message)).collect::<Result<_, _>>()?;
    let variables = chat.chat_template_kwargs.unwrap_or_default();
    let add_generation_prompt = chat.add_generation_prompt.unwrap_or(true);
    state
        .off_the_io_threads(move |state| {
            let Some(template) = state.chat_template() else { return Ok(vec![]) };
            let text = template
                .render_with(&messages, add_generation_prompt, &variables)
                .map_err(template_error)?;
            // The template writes the tokens that begin a text itself.
            let prompt = state.text().encode(&text, false);
            prompt.map_err(|error| ApiError::invalid("messages", error.to_string()))
        })
        .await
        .and_then(|prompt| match prompt.is_empty() {
            true => Err(ApiError::invalid("messages", "the conversation has no tokens")),
            false => Ok(prompt),
        })
}

fn plain(index: usize, message: ChatMessage) -> Result<Message, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    if message.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        let field = at("tool_calls");
        let text = format!("`{field}`: tool calls are not supported");
        return Err(ApiError::unsupported(&field, text));
    }
    let content = match message.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let mut text = String::new();
            for (part_index, part) in parts.into_iter().enumerate() {
                let field = format!("{}[{part_index}]", at("content"));
                match (part.kind.as_str(), part.text) {
                    ("text", Some(part)) => text.push_str(&part),
                    (kind, _) => {
                        let text = format!(
                            "`{field}`: a part must be {{\"type\": \"text\", \"text\": ...}}, not \
                             `{kind}`"
                        );
                        return Err(ApiError::unsupported(&field, text));
                    }
                }
            }
            text
        }
    };
    Ok(Message::new(message.role, content))
}

fn template_error(error: ChatError) -> ApiError {
    match &error {
        ChatError::Refused { .. } | ChatError::TooMuch => {
            ApiError::invalid("messages", error.to_string())
        }
        _ => {
            tracing::error!(error = &error as &dyn std::error::Error, "chat template failed");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            ApiError::new(status, "chat_template_failed", error.to_string())
        }
    }
}
