//! The answer to a request for choices, as one body or as a stream of events.

use std::convert::Infallible;
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::FrontState;
use super::choice::{ChoiceEvent, ChoiceEvents, Token, start_all};
use super::error::ApiError;
use super::plan::ChoicePlan;
use super::shape::Shape;
use crate::backend::{FinishReason, Started, Usage};
use crate::metrics::InFlight;

/// What an answer needs besides its choices.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) shape: Shape,
    pub(super) state: FrontState,
    pub(super) model: String,
    pub(super) prompts: Vec<Vec<u32>>,
    /// Texts before the answers to each prompt; none where nothing is to be repeated.
    pub(super) echoes: Vec<String>,
    pub(super) stops: Vec<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) return_token_ids: bool,
    pub(super) logprobs: bool,
    pub(super) begun: Instant,
    /// Counts the request as being answered.
    pub(super) _in_flight: InFlight,
}

/// A choice as it is gathered for a body.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
    /// Where the text of each token begins, in characters.
    pub(super) offsets: Vec<usize>,
    pub(super) end: Option<(FinishReason, Usage)>,
}

impl Answer {
    /// Generates the choices and answers. Dropping the future, or the body, cancels them all.
    pub(super) async fn respond(self, plans: Vec<ChoicePlan>) -> Result<Response, ApiError> {
        let prompt_of: Vec<usize> = plans.iter().map(|plan| plan.prompt).collect();
        let mut events = start_all(&self.state, plans, &self.stops, self.begun).await?;
        let mut headers = HeaderMap::new();
        // Wait for the first token, so that what fails before it has a status of its own.
        let first = loop {
            match events.next().await {
                Some((_, ChoiceEvent::Started(started))) => add_notes(&mut headers, &started),
                Some((_, ChoiceEvent::Failed(error))) => return Err(error.into()),
                Some(event) => break event,
                None => unreachable!("every choice ends with an event"),
            }
        };
        let id = format!("{}-{}", self.shape.id_prefix(), Uuid::new_v4());
        let head = Head { id, created: super::unix_seconds(), model: self.model.clone() };
        let response = if self.stream {
            self.stream(head, first, events, prompt_of).into_response()
        } else {
            self.gather(head, first, events, prompt_of, &mut headers).await?
        };
        Ok((headers, response).into_response())
    }

    async fn gather(
        self,
        head: Head,
        first: (usize, ChoiceEvent),
        events: ChoiceEvents,
        prompt_of: Vec<usize>,
        headers: &mut HeaderMap,
    ) -> Result<Response, ApiError> {
        let begin = |prompt: usize| Gathered { text: self.echo(prompt), ..Gathered::default() };
        let mut choices: Vec<Gathered> = prompt_of.iter().map(|prompt| begin(*prompt)).collect();
        let mut events = stream::iter([first]).chain(events);
        while let Some((index, event)) = events.next().await {
            let choice = &mut choices[index];
            match event {
                ChoiceEvent::Started(started) => {
                    if started.anew {
                        *choice = begin(prompt_of[index]);
                    }
                    add_notes(headers, &started);
                }
                ChoiceEvent::Delta { text, token } => {
                    choice.offsets.push(choice.text.chars().count());
                    choice.text.push_str(&text);
                    choice.tokens.push(token);
                }
                ChoiceEvent::Ended { text, reason, usage } => {
                    choice.text.push_str(&text);
                    choice.end = Some((reason, usage));
                }
                ChoiceEvent::Failed(error) => return Err(error.into()),
            }
        }
        let usages = choices.iter().map(|choice| choice.end.map(|(_, usage)| usage));
        let usage = total(usages, &prompt_of);
        let choices = choices.iter().enumerate();
        let choices = choices
            .map(|(index, choice)| {
                let value = self.shape.choice(index, choice, self.logprobs, self.state.text());
                self.with_ids(value, choice.tokens.iter().map(|token| token.0), prompt_of[index])
            })
            .collect();
        let mut body = head.body(self.shape.object(), choices);
        body["usage"] = usage_body(&usage);
        if self.return_token_ids && self.shape == Shape::Chat {
            body["prompt_token_ids"] = json!(self.prompts[0]);
        }
        Ok(axum::Json(body).into_response())
    }

    /// What stands before the answers to a prompt.
    fn echo(&self, prompt: usize) -> String {
        self.echoes.get(prompt).cloned().unwrap_or_default()
    }

    /// Adds the ids of a choice's tokens, and of its prompt, where asked for.
    fn with_ids(&self, mut choice: Value, ids: impl Iterator<Item = u32>, prompt: usize) -> Value {
        if self.return_token_ids {
            choice["token_ids"] = ids.collect();
            if self.shape == Shape::Completion {
                choice["prompt_token_ids"] = json!(self.prompts[prompt]);
            }
        }
        choice
    }

    fn stream(
        self,
        head: Head,
        first: (usize, ChoiceEvent),
        events: ChoiceEvents,
        prompt_of: Vec<usize>,
    ) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let events = stream::iter([first]).chain(events).map(Some);
        let events = events.chain(stream::iter([None]));
        let begun = vec![false; prompt_of.len()];
        let offsets = vec![0; prompt_of.len()];
        let usages = vec![None; prompt_of.len()];
        let echoes = prompt_of.iter().map(|prompt| self.echo(*prompt)).collect();
        let (answer, failed) = (self, false);
        let mut writer =
            StreamWriter { answer, head, prompt_of, echoes, begun, offsets, usages, failed };
        let chunks = events.flat_map(move |event| {
            let chunks = match event {
                Some((index, event)) => writer.chunks(index, event),
                None => writer.last_chunks(),
            };
            stream::iter(chunks.into_iter().map(|data| Ok(Event::default().data(data))))
        });
        Sse::new(chunks).keep_alive(KeepAlive::default())
    }
}

/// The fields that every body and chunk begins with.
#[derive(Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn body(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }
}

/// Turns events into the data of server-sent events.
#[derive(Debug)]
struct StreamWriter {
    answer: Answer,
    head: Head,
    prompt_of: Vec<usize>,
    /// What stands before the text of each choice, until it is sent.
    echoes: Vec<String>,
    /// Which choices have had their first chunk.
    begun: Vec<bool>,
    /// Characters sent of each choice.
    offsets: Vec<usize>,
    usages: Vec<Option<Usage>>,
    failed: bool,
}

impl StreamWriter {
    fn chunks(&mut self, index: usize, event: ChoiceEvent) -> Vec<String> {
        if self.failed {
            return vec![];
        }
        match event {
            ChoiceEvent::Started(_) => vec![],
            ChoiceEvent::Delta { text, token } => {
                let mut chunks = self.opening(index);
                let wanted = self.answer.logprobs || self.answer.return_token_ids;
                if wanted || !text.is_empty() || !self.echoes[index].is_empty() {
                    chunks.push(self.chunk(index, &text, Some(token), None));
                }
                chunks
            }
            ChoiceEvent::Ended { text, reason, usage } => {
                self.usages[index] = Some(usage);
                let mut chunks = self.opening(index);
                chunks.push(self.chunk(index, &text, None, Some(reason)));
                chunks
            }
            ChoiceEvent::Failed(error) => {
                self.failed = true;
                let error = ApiError::from(error);
                self.answer.state.metrics().failed(error.code.unwrap_or("unknown"));
                vec![to_json(&error.body())]
            }
        }
    }

    fn last_chunks(&mut self) -> Vec<String> {
        let mut chunks = Vec::new();
        if self.answer.include_usage && !self.failed {
            let mut chunk = self.head.body(self.answer.shape.chunk_object(), vec![]);
            let usage = total(self.usages.iter().copied(), &self.prompt_of);
            chunk["usage"] = usage_body(&usage);
            chunks.push(chunk.to_string());
        }
        chunks.push("[DONE]".to_owned());
        chunks
    }

    /// The chunk with the role, once a choice.
    fn opening(&mut self, index: usize) -> Vec<String> {
        if self.answer.shape != Shape::Chat || std::mem::replace(&mut self.begun[index], true) {
            return vec![];
        }
        let choice = json!({
            "index": index, "delta": {"role": "assistant", "content": ""},
            "logprobs": null, "finish_reason": null,
        });
        let mut chunk = self.framed(choice);
        if self.answer.return_token_ids {
            chunk["prompt_token_ids"] = json!(self.answer.prompts[self.prompt_of[index]]);
        }
        vec![chunk.to_string()]
    }

    fn chunk(
        &mut self,
        index: usize,
        text: &str,
        token: Option<Token>,
        reason: Option<FinishReason>,
    ) -> String {
        let text = std::mem::take(&mut self.echoes[index]) + text;
        let offset = self.offsets[index];
        self.offsets[index] += text.chars().count();
        let answer = &self.answer;
        let logprobs = token.as_ref().filter(|_| answer.logprobs).map(|token| {
            answer.shape.logprobs(std::slice::from_ref(token), &[offset], answer.state.text())
        });
        let mut choice = answer.shape.delta(index, &text, logprobs, reason);
        if answer.return_token_ids {
            choice["token_ids"] = token.iter().map(|token| token.0).collect();
            if answer.shape == Shape::Completion && !std::mem::replace(&mut self.begun[index], true)
            {
                choice["prompt_token_ids"] = json!(answer.prompts[self.prompt_of[index]]);
            }
        }
        self.framed(choice).to_string()
    }

    fn framed(&self, choice: Value) -> Value {
        let mut chunk = self.head.body(self.answer.shape.chunk_object(), vec![choice]);
        if self.answer.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

/// Sums: each prompt counts once, however many choices continue it.
fn total(usages: impl Iterator<Item = Option<Usage>>, prompt_of: &[usize]) -> Usage {
    let mut total = Usage::default();
    let mut counted = None;
    for (usage, prompt) in usages.zip(prompt_of) {
        let usage = usage.unwrap_or_default();
        total.completion_tokens += usage.completion_tokens;
        if counted.replace(*prompt) != Some(*prompt) {
            total.prompt_tokens += usage.prompt_tokens;
            total.cached_tokens += usage.cached_tokens;
        }
    }
    total
}

fn usage_body(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// Adds what is not there yet: a request may have a thousand choices, and clients take a hundred headers.
fn add_notes(headers: &mut HeaderMap, started: &Started) {
    for (name, value) in &started.notes {
        let name = HeaderName::try_from(format!("x-blockwire-{name}"));
        let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) else { continue };
        if !headers.get_all(&name).iter().any(|there| *there == value) {
            headers.append(name, value);
        }
    }
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
