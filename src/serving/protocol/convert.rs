//! Between frames and the types of the [`backend`](crate::backend) seam.

use std::time::Duration;

use blockwire::clock;
use blockwire::handoff::StateSegment;
use bytes::Bytes;
use uuid::Uuid;

use super::frames::{self, FailureCode, Finish};
use super::{DecodeMetaFrame, FirstTokenFrame, Phase, PrefillRequestFrame, ResultFrame};
use crate::backend::{
    Computed, FinishReason, GenerateError, GenerateRequest, SamplingParams, Started, TokenEvent,
    TokenLogprobs, Usage,
};

/// A frame that cannot be read. It fails its request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Not the protobuf message that its kind announces.
    #[error("a {name} does not decode: {source}")]
    Decode {
        /// What it should be.
        name: &'static str,
        /// What protobuf said.
        source: prost::DecodeError,
    },
    /// A field is missing or senseless.
    #[error("a {name} has no usable {field}")]
    Field {
        /// What it is.
        name: &'static str,
        /// The field.
        field: &'static str,
    },
}

impl PrefillRequestFrame {
    /// Asks a prefill node to compute `request` and hand it to the instance `decode`.
    pub fn new(request: &GenerateRequest, decode: Uuid, reply_to: Uuid) -> Self {
        Self {
            request: Some(request_to_frame(request)),
            decode: uuid_bytes(decode),
            reply_to: uuid_bytes(reply_to),
        }
    }

    /// Reads a frame of the request `id`: the request, the decode instance, the router instance.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn read(id: Uuid, body: Bytes) -> Result<(GenerateRequest, Uuid, Uuid), FrameError> {
        let name = "PrefillRequestFrame";
        let frame = decode::<Self>(name, body)?;
        let request = request_from_frame(name, id, frame.request)?;
        let decode = uuid_from(name, "decode", &frame.decode)?;
        Ok((request, decode, uuid_from(name, "reply_to", &frame.reply_to)?))
    }
}

impl DecodeMetaFrame {
    /// How to go on after the first token, and what no block of the cache holds.
    pub fn new(request: &GenerateRequest, reply_to: Uuid, state: Option<StateSegment>) -> Self {
        let request = Some(request_to_frame(request));
        let state = state.map(|segment| frames::ModelState {
            digest: segment.digest(),
            family: segment.family,
            state: segment.bytes,
        });
        Self { request, reply_to: uuid_bytes(reply_to), state }
    }

    /// Reads the meta of an offer: the request, the router instance, the state beside the cache.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn read(
        id: Uuid,
        meta: Bytes,
    ) -> Result<(GenerateRequest, Uuid, Option<StateSegment>), FrameError> {
        let name = "DecodeMetaFrame";
        let frame = decode::<Self>(name, meta)?;
        let request = request_from_frame(name, id, frame.request)?;
        let state = frame.state.map(|state| {
            let segment = StateSegment { family: state.family, bytes: state.state };
            let good = segment.digest() == state.digest;
            good.then_some(segment).ok_or(FrameError::Field { name, field: "state" })
        });
        Ok((request, uuid_from(name, "reply_to", &frame.reply_to)?, state.transpose()?))
    }
}

impl FirstTokenFrame {
    /// Says which token follows the prompt.
    pub fn new(first_token: u32) -> Self {
        Self { first_token: Some(first_token) }
    }

    /// Reads what came with a cache: its first token.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn read(closing: Bytes) -> Result<u32, FrameError> {
        let (name, field) = ("FirstTokenFrame", "first_token");
        decode::<Self>(name, closing)?.first_token.ok_or(FrameError::Field { name, field })
    }
}

impl ResultFrame {
    /// A frame of `phase` that says nothing yet.
    pub fn of(phase: Phase) -> Self {
        Self { phase: phase.into(), ..Self::default() }
    }

    /// The frame that carries `event`.
    pub fn carrying(phase: Phase, event: TokenEvent) -> Self {
        let mut frame = Self::of(phase);
        match event {
            TokenEvent::Started(Started { cached_tokens, computed, .. }) => {
                frame.cached_tokens = Some(cached_tokens);
                let (tokens, micros) = (computed.tokens, computed.time.as_micros() as u64);
                frame.computed = (tokens > 0).then_some(frames::Computed { tokens, micros });
            }
            TokenEvent::Token { id, logprob } => frame.tokens.push(token_to_frame(id, logprob)),
            TokenEvent::Finished { reason, usage } => {
                frame.finished = Some(finished_to_frame(reason, usage));
            }
            TokenEvent::Failed(error) => frame.failure = Some(failure_to_frame(error)),
        }
        frame
    }

    /// Says where in the answer its tokens are, from 0.
    #[must_use]
    pub fn at(self, position: u32) -> Self {
        Self { position: Some(position), ..self }
    }

    /// Says how many of the prompt's first tokens its node keeps.
    #[must_use]
    pub fn keeping(self, tokens: usize) -> Self {
        Self { kept_tokens: Some(tokens as u32), ..self }
    }

    /// How fast its node computed; nothing where it does not say.
    pub fn computed(&self) -> Computed {
        let told = self.computed.unwrap_or_default();
        Computed { tokens: told.tokens, time: Duration::from_micros(told.micros) }
    }

    /// Reads a result.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn read(body: Bytes) -> Result<Self, FrameError> {
        decode::<Self>("ResultFrame", body)
    }

    /// The tokens and the end that the frame carries, in order.
    pub fn into_events(self) -> impl Iterator<Item = TokenEvent> {
        let tokens = self.tokens.into_iter().map(token_from_frame);
        let finished = self.finished.map(finished_from_frame);
        let failed = self.failure.map(|failure| TokenEvent::Failed(failure_from_frame(failure)));
        tokens.chain(finished).chain(failed)
    }
}

fn decode<M: prost::Message + Default>(name: &'static str, body: Bytes) -> Result<M, FrameError> {
    M::decode(body).map_err(|source| FrameError::Decode { name, source })
}

fn uuid_bytes(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn uuid_from(name: &'static str, field: &'static str, bytes: &[u8]) -> Result<Uuid, FrameError> {
    Uuid::from_slice(bytes).map_err(|_| FrameError::Field { name, field })
}

fn request_to_frame(request: &GenerateRequest) -> frames::Request {
    let sampling = &request.sampling;
    frames::Request {
        prompt: request.prompt.clone(),
        max_tokens: request.max_tokens,
        min_tokens: request.min_tokens,
        sampling: Some(frames::Sampling {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k as u64,
            min_p: sampling.min_p,
            seed: sampling.seed,
            repetition_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            logit_bias: sampling.logit_bias.clone(),
        }),
        ignore_eos: request.ignore_eos,
        logprobs: request.logprobs.map(u32::from),
        deadline_ms: request
            .deadline
            .map(|end| end.saturating_duration_since(clock::now()).as_millis() as u64),
        cache_salt: request.cache_salt.clone(),
    }
}

fn request_from_frame(
    name: &'static str,
    id: Uuid,
    request: Option<frames::Request>,
) -> Result<GenerateRequest, FrameError> {
    let missing = |field| FrameError::Field { name, field };
    let request = request.ok_or_else(|| missing("request"))?;
    let sampling = request.sampling.ok_or_else(|| missing("sampling"))?;
    let logprobs = request.logprobs.map(u8::try_from).transpose();
    let top_k = usize::try_from(sampling.top_k).map_err(|_| missing("top_k"))?;
    Ok(GenerateRequest {
        id,
        prompt: request.prompt,
        max_tokens: request.max_tokens,
        min_tokens: request.min_tokens,
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            repetition_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            logit_bias: sampling.logit_bias,
        },
        ignore_eos: request.ignore_eos,
        logprobs: logprobs.map_err(|_| missing("logprobs"))?,
        deadline: request.deadline_ms.map(|left| clock::now() + Duration::from_millis(left)),
        cache_salt: request.cache_salt,
        // It is the router that begins an answer anew.
        retractable: false,
    })
}

fn token_to_frame(id: u32, logprob: Option<TokenLogprobs>) -> frames::Token {
    let (logprob, top) = logprob.map_or((None, vec![]), |l| (Some(l.logprob), l.top));
    let top = top.into_iter().map(|(id, logprob)| frames::Alternative { id, logprob }).collect();
    frames::Token { id, logprob, top }
}

fn token_from_frame(token: frames::Token) -> TokenEvent {
    let top = token.top.into_iter().map(|other| (other.id, other.logprob)).collect();
    let logprob = token.logprob.map(|logprob| TokenLogprobs { logprob, top });
    TokenEvent::Token { id: token.id, logprob }
}

fn finished_to_frame(reason: FinishReason, usage: Usage) -> frames::Finished {
    let reason = match reason {
        FinishReason::Stop => Finish::Stop,
        FinishReason::Length => Finish::Length,
    };
    frames::Finished {
        reason: reason.into(),
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.cached_tokens,
    }
}

fn finished_from_frame(finished: frames::Finished) -> TokenEvent {
    let reason = match finished.reason() {
        Finish::Length => FinishReason::Length,
        Finish::Stop | Finish::Unspecified => FinishReason::Stop,
    };
    let usage = Usage {
        prompt_tokens: finished.prompt_tokens,
        completion_tokens: finished.completion_tokens,
        cached_tokens: finished.cached_tokens,
    };
    TokenEvent::Finished { reason, usage }
}

fn failure_to_frame(error: GenerateError) -> frames::Failure {
    let (mut actual, mut limit) = (0, 0);
    let code = match &error {
        GenerateError::BadRequest(_) | GenerateError::UnknownModel(_) => {
            FailureCode::FailureBadRequest
        }
        GenerateError::TooLong { tokens, limit: most } => {
            (actual, limit) = (*tokens as u64, *most as u64);
            FailureCode::FailureTooLong
        }
        GenerateError::Busy { waiting } => {
            actual = *waiting as u64;
            FailureCode::FailureBusy
        }
        GenerateError::NodeFailed(_) => FailureCode::FailureNode,
        // Only a router counts the nodes that a request takes with it.
        GenerateError::NodeLost(_) | GenerateError::NodesLost { .. } => {
            FailureCode::FailureNodeLost
        }
        GenerateError::NoNode(_) => FailureCode::FailureNoNode,
        GenerateError::Deadline => FailureCode::FailureDeadline,
        GenerateError::Unsupported(_) => FailureCode::FailureUnsupported,
    };
    frames::Failure { code: code.into(), message: error.to_string(), actual, limit }
}

fn failure_from_frame(failure: frames::Failure) -> GenerateError {
    let (actual, limit) = (failure.actual as usize, failure.limit as usize);
    match failure.code() {
        FailureCode::FailureBadRequest => GenerateError::BadRequest(failure.message),
        FailureCode::FailureTooLong => GenerateError::TooLong { tokens: actual, limit },
        FailureCode::FailureBusy => GenerateError::Busy { waiting: actual },
        FailureCode::FailureNode | FailureCode::FailureUnspecified => {
            GenerateError::NodeFailed(failure.message)
        }
        FailureCode::FailureNodeLost => GenerateError::NodeLost(failure.message),
        FailureCode::FailureNoNode => GenerateError::NoNode(failure.message),
        FailureCode::FailureDeadline => GenerateError::Deadline,
        FailureCode::FailureUnsupported => GenerateError::Unsupported(failure.message),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn request() -> GenerateRequest {
        GenerateRequest {
            id: Uuid::new_v4(),
            prompt: vec![1, 2, 300_000],
            max_tokens: 7,
            min_tokens: 2,
            sampling: SamplingParams {
                temperature: 0.7,
                seed: u64::MAX,
                logit_bias: [(5, -1.5)].into(),
                ..SamplingParams::default()
            },
            ignore_eos: true,
            logprobs: Some(3),
            deadline: None,
            cache_salt: Some("tenant".to_owned()),
            retractable: false,
        }
    }

    #[test]
    fn a_request_reads_back_as_it_was_written() {
        let (sent, decode, router) = (request(), Uuid::new_v4(), Uuid::new_v4());
        let frame = PrefillRequestFrame::new(&sent, decode, router).encode_to_vec();
        let (read, to, back) = PrefillRequestFrame::read(sent.id, frame.into()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{sent:?}"));
        assert_eq!((to, back), (decode, router));
    }

    #[test]
    fn every_failure_keeps_its_kind() {
        for error in [
            GenerateError::BadRequest("x".into()),
            GenerateError::TooLong { tokens: 9, limit: 8 },
            GenerateError::Busy { waiting: 3 },
            GenerateError::NodeFailed("x".into()),
            GenerateError::NodeLost("x".into()),
            GenerateError::NoNode("x".into()),
            GenerateError::Deadline,
            GenerateError::Unsupported("x".into()),
        ] {
            assert_eq!(failure_from_frame(failure_to_frame(error.clone())), error);
        }
    }

    #[test]
    fn rubbish_is_an_error_and_nothing_else() {
        let id = Uuid::new_v4();
        assert!(PrefillRequestFrame::read(id, Bytes::from_static(b"\xff\xff\xff")).is_err());
        assert!(PrefillRequestFrame::read(id, Bytes::new()).is_err());
        assert!(DecodeMetaFrame::read(id, Bytes::from_static(b"\x0a\x00")).is_err());
        assert!(FirstTokenFrame::read(Bytes::from_static(b"\xff\xff\xff")).is_err());
        assert!(FirstTokenFrame::read(Bytes::new()).is_err());
        assert_eq!(FirstTokenFrame::read(FirstTokenFrame::new(0).encode_to_vec().into()), Ok(0));
    }

    #[test]
    fn a_state_is_what_was_sent_or_nothing() {
        let (id, router) = (Uuid::new_v4(), Uuid::new_v4());
        let sent = StateSegment { family: "x".into(), bytes: vec![1, 2, 3].into() };
        let mut frame = DecodeMetaFrame::new(&request(), router, Some(sent.clone()));
        let read = |frame: &DecodeMetaFrame| {
            DecodeMetaFrame::read(id, frame.encode_to_vec().into()).map(|(_, _, state)| state)
        };
        assert_eq!(read(&frame), Ok(Some(sent)));
        frame.state.as_mut().unwrap().state = vec![1, 2, 4].into();
        let (name, field) = ("DecodeMetaFrame", "state");
        assert_eq!(read(&frame), Err(FrameError::Field { name, field }));
    }
}
