//! One choice of an answer: its tokens become text here, and here stop strings end it.

use std::time::Instant;

use blockwire::clock;
use futures_util::stream::{self, Stream, StreamExt};

use super::FrontState;
use super::plan::ChoicePlan;
use super::stop::{Matched, StopMatcher};
use super::text::TextDecoder;
use crate::backend::{
    FinishReason, GenerateError, Generation, Started, TokenEvent, TokenLogprobs, Usage, before,
};

/// A token and its log probability, where asked for.
pub(super) type Token = (u32, Option<TokenLogprobs>);

/// What becomes certain of a choice, in order: `Started`, deltas, an `Ended` or `Failed`.
#[derive(Debug)]
pub(super) enum ChoiceEvent {
    Started(Started),
    Delta {
        /// May be empty, while a character or a possible stop string is incomplete.
        text: String,
        token: Token,
    },
    Ended {
        /// Text that was held back.
        text: String,
        reason: FinishReason,
        usage: Usage,
    },
    Failed(GenerateError),
}

/// A choice being generated. Dropping it cancels its generation.
pub(super) struct Choice {
    /// Index in the answer.
    index: usize,
    /// None once it has ended.
    generation: Option<Generation>,
    /// The end to report, when a stop string came before the backend's own end.
    stopped: bool,
    decoder: Box<dyn TextDecoder>,
    matcher: StopMatcher,
    min_tokens: u32,
    usage: Usage,
    deadline: Option<Instant>,
    begun: Instant,
    latest_token: Option<Instant>,
    state: FrontState,
}

/// A stream of (index, event) over all choices.
pub(super) type ChoiceEvents = stream::SelectAll<stream::BoxStream<'static, (usize, ChoiceEvent)>>;

/// Starts all generations. When one is refused, those already started are cancelled.
pub(super) async fn start_all(
    state: &FrontState,
    plans: Vec<ChoicePlan>,
    stops: &[String],
    begun: Instant,
) -> Result<ChoiceEvents, GenerateError> {
    let mut choices = Vec::with_capacity(plans.len());
    for (index, plan) in plans.into_iter().enumerate() {
        choices.push(Choice::start(state, index, plan, stops, begun).await?.events().boxed());
    }
    Ok(stream::select_all(choices))
}

impl Choice {
    async fn start(
        state: &FrontState,
        index: usize,
        plan: ChoicePlan,
        stops: &[String],
        begun: Instant,
    ) -> Result<Self, GenerateError> {
        let request = plan.request;
        let (min_tokens, deadline) = (request.min_tokens, request.deadline);
        let prompt_tokens = request.prompt.len() as u32;
        let generating = state.backend().generate(request);
        let generation = before(deadline, generating).await.unwrap_or(Err(GenerateError::Deadline));
        Ok(Self {
            index,
            generation: Some(generation?),
            stopped: false,
            decoder: state.text().decoder(),
            matcher: StopMatcher::new(stops.to_vec()),
            min_tokens,
            usage: Usage { prompt_tokens, ..Usage::default() },
            deadline,
            begun,
            latest_token: None,
            state: state.clone(),
        })
    }

    fn events(self) -> impl Stream<Item = (usize, ChoiceEvent)> + Send {
        stream::unfold(self, |mut choice| async move {
            let event = choice.next().await?;
            Some(((choice.index, event), choice))
        })
    }

    async fn next(&mut self) -> Option<ChoiceEvent> {
        if std::mem::take(&mut self.stopped) {
            return Some(self.ended(String::new(), FinishReason::Stop));
        }
        let generation = self.generation.as_mut()?;
        let event = before(self.deadline, generation.next()).await;
        let event = event.unwrap_or(Some(TokenEvent::Failed(GenerateError::Deadline)));
        Some(match event? {
            TokenEvent::Started(started) => {
                if started.anew {
                    self.begin_anew();
                }
                self.usage.cached_tokens = started.cached_tokens;
                ChoiceEvent::Started(started)
            }
            TokenEvent::Token { id, logprob } => self.token(id, logprob),
            TokenEvent::Finished { reason, usage } => self.finished(reason, usage),
            TokenEvent::Failed(error) => {
                self.generation = None;
                ChoiceEvent::Failed(error)
            }
        })
    }

    /// Forgets the tokens that came so far, which nobody has.
    fn begin_anew(&mut self) {
        self.decoder = self.state.text().decoder();
        let _void = self.matcher.finish();
        self.usage.completion_tokens = 0;
    }

    fn token(&mut self, id: u32, logprob: Option<TokenLogprobs>) -> ChoiceEvent {
        self.observe_token();
        self.usage.completion_tokens += 1;
        let piece = self.decoder.push(id);
        let Matched { text, stopped } = if self.usage.completion_tokens <= self.min_tokens {
            // As vLLM: stop strings are looked for only behind the first `min_tokens` tokens.
            Matched { text: piece, stopped: false }
        } else {
            self.matcher.push(&piece)
        };
        if stopped {
            self.stopped = true;
            self.generation = None;
        }
        ChoiceEvent::Delta { text, token: (id, logprob) }
    }

    fn finished(&mut self, mut reason: FinishReason, usage: Usage) -> ChoiceEvent {
        if usage.completion_tokens != self.usage.completion_tokens {
            let (told, seen) = (usage.completion_tokens, self.usage.completion_tokens);
            tracing::warn!(told, seen, "the backend counts other tokens than it sent");
        }
        self.usage.cached_tokens = usage.cached_tokens;
        let Matched { mut text, stopped } = self.matcher.push(&self.decoder.finish());
        if stopped {
            reason = FinishReason::Stop;
        } else {
            text += &self.matcher.finish();
        }
        self.ended(text, reason)
    }

    fn ended(&mut self, text: String, reason: FinishReason) -> ChoiceEvent {
        self.generation = None;
        self.state.metrics().completed(reason, &self.usage, clock::now() - self.begun);
        ChoiceEvent::Ended { text, reason, usage: self.usage }
    }

    fn observe_token(&mut self) {
        let now = clock::now();
        match self.latest_token.replace(now) {
            None => self.state.metrics().first_token(now - self.begun),
            Some(latest) => self.state.metrics().next_token(now - latest),
        }
    }
}
