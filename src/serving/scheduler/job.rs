//! One request inside the scheduler.

use std::time::Instant;

use blockwire::pool::{FillingBlock, KvSequence, PrefixChain, SealedBlock};
use blockwire_runtime::model::LayerHook;
use blockwire_runtime::sampling::SamplingParams;
use tokio::sync::mpsc;

use super::stats::PrefillProgress;
use crate::backend::{
    Computed, FinishReason, GenerateError, GenerateRequest, Started, TokenEvent, TokenLogprobs,
    Usage,
};

/// What a prefill delivers: `Layers` while a chunk is computed and `Progress` after it, of the last one `Done`
/// instead; or `Failed`.
#[derive(Debug)]
pub enum PrefillEvent {
    /// One more layer of the chunk's blocks is final, at least; [`FillingBlock::layers`] says how many are.
    Layers {
        /// Index in the sequence of the first of `blocks`. It goes back after a preemption: the same
        /// bytes come again, in other blocks.
        first_block: usize,
        /// With the chunk's first layer, the blocks that it fills, and those before it that were in a cache; later
        /// none. Whoever keeps them keeps them out of the pool.
        blocks: Vec<FillingBlock>,
    },
    /// One more chunk is in the cache.
    Progress {
        /// Prompt tokens in the cache.
        done: usize,
        /// Prompt tokens.
        total: usize,
        /// Index in the sequence of the first of `blocks`, which goes back after a preemption.
        first_block: usize,
        /// The blocks that this chunk filled, final and shareable, to be sent ahead. Whoever keeps
        /// them keeps them out of the pool.
        blocks: Vec<SealedBlock>,
    },
    /// The prompt is in the cache and the first token is drawn.
    Done(Box<PrefillDone>),
    /// Nothing follows.
    Failed(GenerateError),
}

/// A prefilled sequence, to be handed over.
#[derive(Debug)]
pub struct PrefillDone {
    /// The first token of the answer; not in the cache.
    pub first_token: u32,
    /// Its log probability, where asked for.
    pub logprob: Option<TokenLogprobs>,
    /// The prompt's cache, finished: all blocks sealed.
    pub sequence: KvSequence,
    /// Why nothing more has to be generated, if so: then there is nothing to hand over.
    pub finish: Option<FinishReason>,
    /// Prompt tokens that were in a cache already.
    pub cached_tokens: u32,
    /// What computing the others took.
    pub computed: Computed,
}

/// The events of a prefill. Dropping it cancels the prefill, also one that is done but not taken.
pub struct Prefill {
    pub(super) events: mpsc::UnboundedReceiver<PrefillEvent>,
    pub(super) cancel: Option<Box<dyn FnOnce() + Send>>,
}

impl Prefill {
    /// The next event; none after the last one.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<PrefillEvent> {
        self.events.recv().await
    }

    /// Waits for the end, past all progress.
    ///
    /// # Errors
    /// Why the prefill failed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the prefill, and frees its blocks.
    pub async fn done(mut self) -> Result<PrefillDone, GenerateError> {
        loop {
            match self.next().await {
                Some(PrefillEvent::Layers { .. } | PrefillEvent::Progress { .. }) => {}
                Some(PrefillEvent::Done(done)) => return Ok(*done),
                Some(PrefillEvent::Failed(error)) => return Err(error),
                None => return Err(stopped()),
            }
        }
    }
}

impl Drop for Prefill {
    fn drop(&mut self) {
        self.events.close();
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

impl std::fmt::Debug for Prefill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefill").finish_non_exhaustive()
    }
}

/// A refused [`decode_from`](super::BatchScheduler::decode_from): the sequence comes back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct DecodeRefused {
    /// Why.
    #[source]
    pub error: GenerateError,
    /// What was to be decoded.
    pub sequence: Box<KvSequence>,
}

/// Where a job's events go.
#[derive(Debug)]
pub(super) enum Sink {
    Tokens(mpsc::UnboundedSender<TokenEvent>),
    Prefill(mpsc::UnboundedSender<PrefillEvent>),
}

#[derive(Debug)]
pub(super) struct Job {
    /// Order of arrival: the oldest is preempted last.
    pub(super) ticket: u64,
    pub(super) request: GenerateRequest,
    /// Prompt and output.
    pub(super) tokens: Vec<u32>,
    /// Blocks, while it holds some. Its length is the number of tokens in the cache.
    pub(super) sequence: Option<KvSequence>,
    /// Tokens that were in the cache at some time, here or where it came from.
    pub(super) reached: usize,
    /// Whether its cache came from another node.
    pub(super) handed_over: bool,
    /// Blocks that were told of as sealed.
    pub(super) blocks_told: usize,
    /// Names its blocks; none where they are not to be shared.
    pub(super) chain: Option<PrefixChain>,
    /// Tokens that were in the pool's cache at its first admission.
    pub(super) cached_tokens: Option<u32>,
    /// What the steps did in which its prompt was computed.
    pub(super) computed: Computed,
    sink: Sink,
    /// The parameters without the tokens that end a text, for the first `min_tokens`.
    sampling_unended: Option<SamplingParams>,
}

impl Job {
    pub(super) fn new(ticket: u64, request: GenerateRequest, sink: Sink, eos: &[u32]) -> Self {
        let sampling_unended = (request.min_tokens > 0).then(|| {
            let mut sampling = request.sampling.clone();
            sampling.logit_bias.extend(eos.iter().map(|id| (*id, f32::NEG_INFINITY)));
            sampling
        });
        Self {
            ticket,
            tokens: request.prompt.clone(),
            request,
            sequence: None,
            reached: 0,
            handed_over: false,
            blocks_told: 0,
            chain: None,
            cached_tokens: None,
            computed: Computed::default(),
            sink,
            sampling_unended,
        }
    }

    /// The same, sharing what it computes with others, under these names.
    pub(super) fn sharing(self, chain: Option<PrefixChain>) -> Self {
        Self { chain, ..self }
    }

    /// The same with a cache and an output so far.
    pub(super) fn continuing(mut self, sequence: KvSequence, output: &[u32]) -> Self {
        self.tokens.extend_from_slice(output);
        self.reached = sequence.len();
        self.sequence = Some(sequence);
        self.handed_over = true;
        // Whoever computed the prompt knows how much of it was cached.
        self.cached_tokens = Some(0);
        self
    }

    /// Tokens in the cache.
    pub(super) fn cached(&self) -> usize {
        self.sequence.as_ref().map_or(0, KvSequence::len)
    }

    /// Tokens that are not in the cache; at least one between two steps.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.cached()
    }

    pub(super) fn progress(&self) -> PrefillProgress {
        PrefillProgress { id: self.request.id, done: self.cached(), total: self.tokens.len() }
    }

    /// Tokens generated.
    pub(super) fn output(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    /// The parameters for the next token.
    pub(super) fn sampling(&self) -> &SamplingParams {
        match &self.sampling_unended {
            Some(unended) if self.output().len() < self.request.min_tokens as usize => unended,
            _ => &self.request.sampling,
        }
    }

    /// Whether its prompt was not computed yet, neither here nor elsewhere.
    pub(super) fn computes_prompt(&self) -> bool {
        self.output().is_empty()
    }

    /// Why the job ends with its last token, if it does.
    pub(super) fn finish_reason(&self, eos: &[u32]) -> Option<FinishReason> {
        let output = self.output();
        let ended = output.last().is_some_and(|id| eos.contains(id)) && !self.request.ignore_eos;
        if ended {
            return Some(FinishReason::Stop);
        }
        (output.len() >= self.request.max_tokens as usize).then_some(FinishReason::Length)
    }

    /// Whether nobody waits for it any more.
    pub(super) fn cancelled(&self) -> bool {
        match &self.sink {
            Sink::Tokens(sender) => sender.is_closed(),
            Sink::Prefill(sender) => sender.is_closed(),
        }
    }

    pub(super) fn expired(&self, now: Instant) -> bool {
        self.request.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Ends it. Its blocks are free before its caller hears of it.
    pub(super) fn fail(mut self, error: GenerateError) {
        self.sequence = None;
        // Nobody listening is fine: the job ends either way.
        match &self.sink {
            Sink::Tokens(sender) => drop(sender.send(TokenEvent::Failed(error))),
            Sink::Prefill(sender) => drop(sender.send(PrefillEvent::Failed(error))),
        }
    }

    /// Tells of the newly drawn last token.
    pub(super) fn tell_token(&self, logprob: Option<TokenLogprobs>) {
        let (Sink::Tokens(sender), Some(id)) = (&self.sink, self.output().last()) else { return };
        if self.output().len() == 1 {
            let cached_tokens = self.cached_tokens.unwrap_or_default();
            let computed = self.computed;
            let started = Started { cached_tokens, computed, ..Started::default() };
            // A closed channel is noticed as a cancellation at the next step.
            let _ = sender.send(TokenEvent::Started(started));
        }
        let _ = sender.send(TokenEvent::Token { id: *id, logprob });
    }

    /// Tells of the layers of the next `rows` tokens while they are computed, if somebody listens.
    pub(super) fn watch(&mut self, rows: usize) -> Option<LayerWatch> {
        let (Sink::Prefill(sender), Some(sequence)) = (&self.sink, &mut self.sequence) else {
            return None;
        };
        let (end, all) = (sequence.len() + rows, self.tokens.len());
        // Of a block that a later chunk goes on to fill, nothing is final.
        let unfinished =
            if end < all { end % sequence.pool().spec().block_tokens as usize } else { 0 };
        let filling = sequence.share_layers(end - unfinished);
        let first_block = self.blocks_told.min(sequence.sealed().len());
        let sealed = sequence.sealed()[first_block..].iter().cloned().map(FillingBlock::from);
        let blocks = sealed.chain(filling).collect();
        Some(LayerWatch { sender: sender.clone(), first_block, blocks })
    }

    /// Tells of a chunk, with the blocks it filled.
    pub(super) fn tell_progress(&mut self) {
        let (Sink::Prefill(sender), Some(sequence)) = (&self.sink, &mut self.sequence) else {
            return;
        };
        sequence.seal_full();
        let first_block = self.blocks_told.min(sequence.sealed().len());
        let blocks = sequence.sealed()[first_block..].to_vec();
        self.blocks_told = sequence.sealed().len();
        let (done, total) = (sequence.len(), self.tokens.len());
        let _ = sender.send(PrefillEvent::Progress { done, total, first_block, blocks });
    }

    /// Whether it ends after its first token.
    pub(super) fn is_prefill(&self) -> bool {
        matches!(self.sink, Sink::Prefill(_))
    }

    /// Ends it well.
    pub(super) fn finish(mut self, reason: FinishReason) {
        self.sequence = None;
        let usage = Usage {
            prompt_tokens: self.request.prompt.len() as u32,
            completion_tokens: self.output().len() as u32,
            cached_tokens: self.cached_tokens.unwrap_or_default(),
        };
        if let Sink::Tokens(sender) = &self.sink {
            let _ = sender.send(TokenEvent::Finished { reason, usage });
        }
    }

    /// Ends a prefill well: its sequence goes to the caller.
    pub(super) fn finish_prefill(
        mut self,
        logprob: Option<TokenLogprobs>,
        finish: Option<FinishReason>,
    ) {
        let (Some(mut sequence), Some(&first_token)) = (self.sequence.take(), self.output().last())
        else {
            return;
        };
        sequence.finish();
        let cached_tokens = self.cached_tokens.unwrap_or_default();
        let computed = self.computed;
        let done = PrefillDone { first_token, logprob, sequence, finish, cached_tokens, computed };
        if let Sink::Prefill(sender) = &self.sink {
            // When nobody listens, the sequence comes back in the error and is freed here.
            let _ = sender.send(PrefillEvent::Done(Box::new(done)));
        }
    }
}

/// Tells whoever sends a cache away what of it is there.
#[derive(Debug)]
pub(super) struct LayerWatch {
    sender: mpsc::UnboundedSender<PrefillEvent>,
    first_block: usize,
    blocks: Vec<FillingBlock>,
}

/// Those of all requests of a step.
#[derive(Debug, Default)]
pub(super) struct LayerWatches(pub(super) Vec<LayerWatch>);

impl LayerHook for LayerWatches {
    fn layer_written(&mut self, _: usize) {
        for LayerWatch { sender, first_block, blocks } in &mut self.0 {
            let (first_block, blocks) = (*first_block, std::mem::take(blocks));
            let _ = sender.send(PrefillEvent::Layers { first_block, blocks });
        }
    }
}

/// What a caller hears when the scheduler is gone.
pub(super) fn stopped() -> GenerateError {
    GenerateError::NoNode("the node is shutting down".to_owned())
}
