//! `POST /v1/completions`.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::FrontState;
use super::asked::Asked;
use super::error::ApiError;
use super::openai::{CompletionBody, Prompt};
use super::plan::DefaultBudget;
use super::shape::Shape;

/// Tokens generated when the caller names no number, as OpenAI.
const MAX_TOKENS_DEFAULT: usize = 16;
/// Most alternatives a token, as vLLM.
const LOGPROBS_MAX: i64 = 20;
/// Most prompts of a request.
const PROMPTS_MAX: usize = 128;

pub(super) async fn completions(
    State(state): State<FrontState>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let (asked, completion) = Asked::read::<CompletionBody>(&state, &headers, bytes)?;
    let logprobs = logprobs(completion.logprobs)?;
    let echo = completion.echo == Some(true);
    if echo && logprobs.is_some() {
        let message = "`echo`: log probabilities are given for generated tokens only; leave out one \
                       of `echo` and `logprobs`";
        return Err(ApiError::unsupported("echo", message));
    }
    let texts = if echo { completion.prompt.texts() } else { vec![] };
    let prompts = prompts(&state, completion.prompt, asked.model.vocab).await?;
    let echoes = match (echo, texts.is_empty()) {
        (true, true) => prompts.iter().map(|prompt| text_of(&state, prompt)).collect(),
        _ => texts,
    };
    let default = DefaultBudget::Tokens(MAX_TOKENS_DEFAULT);
    asked.echoing(echoes).answer(state, Shape::Completion, prompts, logprobs, default).await
}

fn logprobs(wanted: Option<i64>) -> Result<Option<u8>, ApiError> {
    match wanted {
        None => Ok(None),
        Some(top @ 0..=LOGPROBS_MAX) => Ok(Some(top as u8)),
        Some(top) => {
            let message = format!("`logprobs` is {top}; it must be 0 to {LOGPROBS_MAX}");
            Err(ApiError::invalid("logprobs", message))
        }
    }
}

/// What a prompt says that came as token ids.
fn text_of(state: &FrontState, prompt: &[u32]) -> String {
    let mut decoder = state.text().decoder();
    let text: String = prompt.iter().map(|id| decoder.push(*id)).collect();
    text + &decoder.finish()
}

/// The token ids of every prompt.
async fn prompts(
    state: &FrontState,
    prompt: Prompt,
    vocab: usize,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let prompts = match prompt {
        Prompt::Text(text) => encode(state, vec![text]).await?,
        Prompt::Texts(texts) => {
            check_count(texts.len())?;
            encode(state, texts).await?
        }
        Prompt::Tokens(tokens) => vec![tokens],
        Prompt::TokenBatch(prompts) => {
            check_count(prompts.len())?;
            prompts
        }
    };
    for prompt in &prompts {
        if prompt.is_empty() {
            let message = "`prompt` is empty; send at least one token";
            return Err(ApiError::invalid("prompt", message));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            let message = format!("`prompt` has the token id {id}; ids are below {vocab}");
            return Err(ApiError::invalid("prompt", message));
        }
    }
    Ok(prompts)
}

fn check_count(count: usize) -> Result<(), ApiError> {
    if count > PROMPTS_MAX {
        let message = format!("`prompt` has {count} prompts; at most {PROMPTS_MAX}");
        return Err(ApiError::invalid("prompt", message));
    }
    if count == 0 {
        return Err(ApiError::invalid("prompt", "`prompt` is empty; send at least one token"));
    }
    Ok(())
}

async fn encode(state: &FrontState, texts: Vec<String>) -> Result<Vec<Vec<u32>>, ApiError> {
    if texts.iter().any(String::is_empty) {
        return Err(ApiError::invalid("prompt", "`prompt` is empty; send at least one character"));
    }
    state
        .off_the_io_threads(move |state| {
            let prompts = texts.iter().map(|text| state.text().encode(text, true));
            prompts
                .collect::<Result<_, _>>()
                .map_err(|error| ApiError::invalid("prompt", error.to_string()))
        })
        .await
}
