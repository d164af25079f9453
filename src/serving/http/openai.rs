//! The bodies of requests, as OpenAI and vLLM define them. Unknown fields are ignored, as vLLM does;
//! those that would change the answer are refused by name (see `body`).
//!
//! A body is read twice, for [`CommonBody`] and for the fields of its endpoint: that keeps the path
//! of a wrong field exact, which flattened structs do not.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// What both endpoints take.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CommonBody {
    pub(super) model: Option<String>,
    pub(super) max_tokens: Option<i64>,
    pub(super) max_completion_tokens: Option<i64>,
    pub(super) min_tokens: Option<i64>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<i64>,
    pub(super) min_p: Option<f64>,
    pub(super) repetition_penalty: Option<f64>,
    pub(super) frequency_penalty: Option<f64>,
    pub(super) presence_penalty: Option<f64>,
    pub(super) logit_bias: Option<BTreeMap<String, f64>>,
    pub(super) seed: Option<i64>,
    pub(super) n: Option<i64>,
    pub(super) stop: Option<StopStrings>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) return_token_ids: Option<bool>,
    pub(super) cache_salt: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of up to 4 strings")]
pub(super) enum StopStrings {
    One(String),
    Many(Vec<String>),
}

/// `/v1/chat/completions` only.
#[derive(Debug, Deserialize)]
pub(super) struct ChatBody {
    pub(super) messages: Vec<ChatMessage>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<i64>,
    pub(super) chat_template_kwargs: Option<BTreeMap<String, Value>>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) echo: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatMessage {
    pub(super) role: String,
    pub(super) content: Option<Content>,
    pub(super) tool_calls: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of text parts")]
pub(super) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
pub(super) struct ContentPart {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) text: Option<String>,
}

/// `/v1/completions` only.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionBody {
    pub(super) prompt: Prompt,
    pub(super) logprobs: Option<i64>,
    pub(super) echo: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, an array of strings, an array of token ids, or an array of \
                 arrays of token ids"
)]
pub(super) enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenBatch(Vec<Vec<u32>>),
}

impl Prompt {
    /// The texts as they came; none of token ids.
    pub(super) fn texts(&self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.clone()],
            Self::Texts(texts) => texts.clone(),
            Self::Tokens(_) | Self::TokenBatch(_) => vec![],
        }
    }
}
