//! How the two endpoints write a choice.

use serde_json::{Value, json};

use super::answer::Gathered;
use super::choice::Token;
use super::text::TextCodec;
use crate::backend::FinishReason;

/// The endpoint whose form an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    Completion,
}

impl Shape {
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Completion => "cmpl",
        }
    }

    pub(super) fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completion => "text_completion",
        }
    }

    pub(super) fn chunk_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Completion => "text_completion",
        }
    }

    /// A whole choice.
    pub(super) fn choice(
        self,
        index: usize,
        choice: &Gathered,
        logprobs: bool,
        text: &dyn TextCodec,
    ) -> Value {
        let reason = choice.end.map(|(reason, _)| reason.name());
        let logprobs = logprobs.then(|| self.logprobs(&choice.tokens, &choice.offsets, text));
        match self {
            Self::Chat => json!({
                "index": index, "message": {"role": "assistant", "content": choice.text},
                "logprobs": logprobs, "finish_reason": reason,
            }),
            Self::Completion => json!({
                "index": index, "text": choice.text,
                "logprobs": logprobs, "finish_reason": reason,
            }),
        }
    }

    /// A piece of a choice.
    pub(super) fn delta(
        self,
        index: usize,
        text: &str,
        logprobs: Option<Value>,
        reason: Option<FinishReason>,
    ) -> Value {
        let reason = reason.map(FinishReason::name);
        match self {
            Self::Chat => {
                let delta = match (reason, text) {
                    (Some(_), "") => json!({}),
                    _ => json!({"content": text}),
                };
                json!({
                    "index": index, "delta": delta,
                    "logprobs": logprobs, "finish_reason": reason,
                })
            }
            Self::Completion => json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason,
            }),
        }
    }

    /// The log probabilities of `tokens`, whose texts begin at `offsets`.
    pub(super) fn logprobs(
        self,
        tokens: &[Token],
        offsets: &[usize],
        text: &dyn TextCodec,
    ) -> Value {
        match self {
            Self::Chat => {
                let content: Vec<Value> = tokens.iter().map(|t| chat_logprob(t, text)).collect();
                json!({"content": content})
            }
            Self::Completion => completion_logprobs(tokens, offsets, text),
        }
    }
}

fn chat_logprob((id, logprobs): &Token, text: &dyn TextCodec) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = text.token_bytes(id);
        json!({
            "token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes,
        })
    };
    let mut value = entry(*id, logprobs.as_ref().map_or(0.0, |logprobs| logprobs.logprob));
    let top = logprobs.iter().flat_map(|logprobs| &logprobs.top);
    value["top_logprobs"] = top.map(|(id, logprob)| entry(*id, *logprob)).collect();
    value
}

fn completion_logprobs(tokens: &[Token], offsets: &[usize], text: &dyn TextCodec) -> Value {
    let name = |id: u32| {
        let bytes = text.token_bytes(id);
        match String::from_utf8(bytes) {
            Ok(text) => text,
            // As OpenAI: a token that is a part of a character is named by its bytes.
            Err(error) => error
                .as_bytes()
                .iter()
                .fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
        }
    };
    let logprob = |token: &Token| token.1.as_ref().map(|logprobs| finite(logprobs.logprob));
    let top = |token: &Token| -> Option<Value> {
        let logprobs = token.1.as_ref()?;
        // The drawn token is always among them.
        let drawn = std::iter::once((name(token.0), json!(finite(logprobs.logprob))));
        let top = logprobs.top.iter().map(|(id, logprob)| (name(*id), json!(finite(*logprob))));
        Some(Value::Object(drawn.chain(top).collect()))
    };
    json!({
        "tokens": tokens.iter().map(|token| name(token.0)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// JSON has no infinities; OpenAI writes -9999 for a token that cannot come.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
