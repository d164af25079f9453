//! From a body's fields to the generations it asks for. Everything that can be refused is refused
//! here, before a backend hears of the request.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use blockwire::clock;
use uuid::Uuid;

use super::error::ApiError;
use super::openai::{CommonBody, StopStrings};
use crate::backend::{GenerateRequest, ModelCard, SamplingParams};

/// Most choices of one request: prompts times `n`.
const CHOICES_MAX: usize = 128;
/// Most stop strings, as OpenAI.
const STOPS_MAX: usize = 4;
/// Most bytes of a cache salt: it travels with the request.
const SALT_LEN_MAX: usize = 256;

/// The budget when the caller names none.
#[derive(Clone, Copy, Debug)]
pub(super) enum DefaultBudget {
    /// So many tokens, or what fits.
    Tokens(usize),
    /// What the context leaves.
    Rest,
}

/// The checked fields that do not depend on the prompts.
#[derive(Debug)]
pub(super) struct Fields {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) return_token_ids: bool,
    pub(super) stops: Vec<String>,
    n: usize,
    max_tokens: Option<usize>,
    min_tokens: usize,
    ignore_eos: bool,
    sampling: SamplingParams,
    cache_salt: Option<String>,
}

/// One generation that a request asks for.
#[derive(Debug)]
pub(super) struct ChoicePlan {
    /// Which prompt it continues.
    pub(super) prompt: usize,
    pub(super) request: GenerateRequest,
}

impl Fields {
    pub(super) fn check(body: &CommonBody) -> Result<Self, ApiError> {
        let budget = match (body.max_completion_tokens, body.max_tokens) {
            (Some(max), _) => Some(("max_completion_tokens", max)),
            (None, Some(max)) => Some(("max_tokens", max)),
            (None, None) => None,
        };
        let max_tokens = budget
            .map(|(field, max)| match usize::try_from(max) {
                Ok(max @ 1..) => Ok(max),
                _ => {
                    Err(ApiError::invalid(field, format!("`{field}` is {max}; ask for 1 or more")))
                }
            })
            .transpose()?;
        let min = body.min_tokens.unwrap_or(0);
        let min_tokens =
            usize::try_from(min).ok().filter(|min| Some(*min) <= max_tokens.or(Some(*min)));
        let min_tokens = min_tokens.ok_or_else(|| {
            let message =
                format!("`min_tokens` is {min}; it must be 0 to the most tokens asked for");
            ApiError::invalid("min_tokens", message)
        })?;
        let options = body.stream_options.as_ref();
        let stream = body.stream.unwrap_or(false);
        if options.is_some() && !stream {
            let message = "`stream_options` need `stream`: true";
            return Err(ApiError::invalid("stream_options", message));
        }
        Ok(Self {
            stream,
            include_usage: options.and_then(|options| options.include_usage).unwrap_or(false),
            return_token_ids: body.return_token_ids.unwrap_or(false),
            stops: stops(body.stop.as_ref())?,
            n: choices_of_a_prompt(body.n)?,
            max_tokens,
            min_tokens,
            ignore_eos: body.ignore_eos.unwrap_or(false),
            sampling: sampling(body)?,
            cache_salt: cache_salt(body.cache_salt.as_deref())?,
        })
    }

    /// The generations for `prompts`: first all choices of the first prompt, then of the next.
    pub(super) fn choices(
        &self,
        prompts: &[Vec<u32>],
        model: &ModelCard,
        logprobs: Option<u8>,
        default: DefaultBudget,
        timeout: Option<Duration>,
    ) -> Result<Vec<ChoicePlan>, ApiError> {
        let count = prompts.len() * self.n;
        if count > CHOICES_MAX {
            let message =
                format!("{count} choices asked for, prompts times `n`; at most {CHOICES_MAX}");
            return Err(ApiError::invalid("n", message));
        }
        let deadline = timeout.map(|timeout| clock::now() + timeout);
        let mut choices = Vec::with_capacity(count);
        for (index, prompt) in prompts.iter().enumerate() {
            let max_tokens = self.budget(prompt.len(), model.context_len, default)?;
            for choice in 0..self.n {
                let seed = self.sampling.seed.wrapping_add(choice as u64);
                let request = GenerateRequest {
                    id: Uuid::new_v4(),
                    prompt: prompt.clone(),
                    max_tokens,
                    min_tokens: self.min_tokens.min(max_tokens as usize) as u32,
                    sampling: SamplingParams { seed, ..self.sampling.clone() },
                    ignore_eos: self.ignore_eos,
                    logprobs,
                    deadline,
                    cache_salt: self.cache_salt.clone(),
                    retractable: !self.stream,
                };
                choices.push(ChoicePlan { prompt: index, request });
            }
        }
        Ok(choices)
    }

    /// Tokens that may be generated after a prompt of `prompt` tokens.
    fn budget(
        &self,
        prompt: usize,
        context: usize,
        default: DefaultBudget,
    ) -> Result<u32, ApiError> {
        if prompt >= context {
            let message = format!(
                "the prompt has {prompt} tokens, but the context has {context}, and the answer \
                 needs at least one; shorten the prompt"
            );
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(ApiError::new(status, "context_length_exceeded", message));
        }
        let rest = context - prompt;
        let budget = match (self.max_tokens, default) {
            (Some(max), _) if max > rest => {
                let message = format!(
                    "`max_tokens` is {max}, but after a prompt of {prompt} tokens the context of \
                     {context} leaves {rest}; ask for fewer"
                );
                let status = StatusCode::BAD_REQUEST;
                let error = ApiError::new(status, "context_length_exceeded", message);
                return Err(error.at("max_tokens"));
            }
            (Some(max), _) => max,
            (None, DefaultBudget::Tokens(tokens)) => {
                tokens.min(rest).max(self.min_tokens.min(rest))
            }
            (None, DefaultBudget::Rest) => rest,
        };
        Ok(u32::try_from(budget).unwrap_or(u32::MAX))
    }
}

fn stops(given: Option<&StopStrings>) -> Result<Vec<String>, ApiError> {
    let stops = match given {
        None => vec![],
        Some(StopStrings::One(stop)) => vec![stop.clone()],
        Some(StopStrings::Many(stops)) => stops.clone(),
    };
    if stops.len() > STOPS_MAX {
        let message = format!("`stop` has {} strings; at most {STOPS_MAX}", stops.len());
        return Err(ApiError::invalid("stop", message));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "`stop` holds an empty string; leave it out"));
    }
    Ok(stops)
}

fn cache_salt(given: Option<&str>) -> Result<Option<String>, ApiError> {
    let Some(salt) = given else { return Ok(None) };
    if salt.is_empty() || salt.len() > SALT_LEN_MAX {
        let len = salt.len();
        let message =
            format!("`cache_salt` has {len} bytes; send 1 to {SALT_LEN_MAX}, or leave it out");
        return Err(ApiError::invalid("cache_salt", message));
    }
    Ok(Some(salt.to_owned()))
}

fn choices_of_a_prompt(n: Option<i64>) -> Result<usize, ApiError> {
    let n = n.unwrap_or(1);
    usize::try_from(n)
        .ok()
        .filter(|n| (1..=CHOICES_MAX).contains(n))
        .ok_or_else(|| ApiError::invalid("n", format!("`n` is {n}; it must be 1 to {CHOICES_MAX}")))
}

/// The sampling parameters; a missing seed is drawn, so that every node uses the same.
fn sampling(body: &CommonBody) -> Result<SamplingParams, ApiError> {
    let top_k = match body.top_k.unwrap_or(0) {
        -1 => Some(0),
        top_k => u32::try_from(top_k).ok(),
    };
    let top_k = top_k.map(|top_k| top_k as usize).ok_or_else(|| {
        ApiError::invalid("top_k", "`top_k` must be 1 or more, or -1 or 0 for all tokens")
    })?;
    let penalty =
        |field, value| number(field, value, 0.0, |p| (-2.0..=2.0).contains(&p), "-2 to 2");
    Ok(SamplingParams {
        temperature: number(
            "temperature",
            body.temperature,
            1.0,
            |t| (0.0..=1e6).contains(&t),
            "0 or more",
        )?,
        top_k,
        top_p: number("top_p", body.top_p, 1.0, |p| p > 0.0 && p <= 1.0, "above 0, up to 1")?,
        min_p: number("min_p", body.min_p, 0.0, |p| (0.0..=1.0).contains(&p), "0 to 1")?,
        repetition_penalty: number(
            "repetition_penalty",
            body.repetition_penalty,
            1.0,
            |p| p > 0.0 && p <= 1e6,
            "above 0",
        )?,
        frequency_penalty: penalty("frequency_penalty", body.frequency_penalty)?,
        presence_penalty: penalty("presence_penalty", body.presence_penalty)?,
        seed: body.seed.map_or_else(|| Uuid::new_v4().as_u64_pair().0, |seed| seed as u64),
        logit_bias: body.logit_bias.as_ref().map_or_else(|| Ok(BTreeMap::new()), logit_bias)?,
    })
}

fn logit_bias(given: &BTreeMap<String, f64>) -> Result<BTreeMap<u32, f32>, ApiError> {
    let entries = given.iter().map(|(id, bias)| match id.parse::<u32>() {
        Ok(id) if (-100.0..=100.0).contains(bias) => Ok((id, *bias as f32)),
        Ok(_) => Err(format!("`logit_bias` of token {id} is {bias}; it must be -100 to 100")),
        Err(_) => Err(format!("`logit_bias` has the key `{id}`; keys are token ids")),
    });
    let bias: Result<_, String> = entries.collect();
    bias.map_err(|message| ApiError::invalid("logit_bias", message))
}

fn number(
    field: &str,
    value: Option<f64>,
    default: f32,
    possible: impl Fn(f64) -> bool,
    range: &str,
) -> Result<f32, ApiError> {
    match value {
        None => Ok(default),
        Some(value) if possible(value) => Ok(value as f32),
        Some(value) => {
            Err(ApiError::invalid(field, format!("`{field}` is {value}; it must be {range}")))
        }
    }
}
