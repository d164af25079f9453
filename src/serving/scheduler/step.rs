//! One forward pass, and what follows from it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use blockwire::clock;
use blockwire::pool::KvSequence;
use blockwire_runtime::model::{Batch, ForwardError, Logits};
use blockwire_runtime::sampling::{History, SampledToken, SamplingError, sample, top_logprobs};

use super::job::{Job, LayerWatches};
use super::stats::count;
use super::worker::Worker;
use crate::backend::{GenerateError, TokenLogprobs};

/// What a forward pass came to.
enum Outcome {
    Done(Logits),
    /// The sequence at this index of the batch made the model refuse it.
    RefusedOne(usize, String),
    Failed(String),
}

impl Worker {
    /// Runs what has tokens to run, as far as the step's rows go.
    pub(super) fn step(&mut self) {
        let rows = self.plan();
        if rows.iter().all(|rows| *rows == 0) {
            return;
        }
        count(&self.counters.steps);
        let begun = clock::now();
        match self.forward(&rows) {
            Outcome::Done(logits) => {
                self.note_prompts(&rows, clock::now() - begun);
                self.advance(&rows, &logits);
            }
            Outcome::RefusedOne(at, reason) => {
                let in_batch = rows.iter().enumerate().filter(|(_, rows)| **rows > 0);
                if let Some(index) = in_batch.map(|(index, _)| index).nth(at) {
                    let job = self.running.remove(index);
                    self.fail(job, GenerateError::NodeFailed(reason));
                }
            }
            Outcome::Failed(reason) => {
                let jobs = std::mem::take(&mut self.running).into_iter().zip(rows);
                for (job, rows) in jobs {
                    match rows {
                        0 => self.running.push(job),
                        _ => self.fail(job, GenerateError::NodeFailed(reason.clone())),
                    }
                }
            }
        }
    }

    /// Rows of each running job in this step, with room for them; none for those that must wait.
    fn plan(&mut self) -> Vec<usize> {
        let mut left = self.options.prefill_rows_max;
        let mut plan = Vec::with_capacity(self.running.len());
        while plan.len() < self.running.len() {
            let index = plan.len();
            let pending = self.running[index].pending();
            let rows = if pending == 1 { 1 } else { pending.min(left) };
            if rows > 0 && !self.grow(index, rows) {
                // It is gone, and whoever follows it has its index now.
                continue;
            }
            if pending > 1 {
                left -= rows;
            }
            plan.push(rows);
        }
        plan
    }

    fn forward(&mut self, rows: &[usize]) -> Outcome {
        let mut batch = Batch::default();
        let mut watches = LayerWatches::default();
        for (job, rows) in self.running.iter_mut().zip(rows).filter(|(_, rows)| **rows > 0) {
            let pending = job.pending();
            watches.0.extend(job.watch(*rows));
            let Some(sequence) = &mut job.sequence else { continue };
            let first = sequence.len();
            batch.sequences.push(sequence);
            let tokens = &job.tokens[first..first + rows];
            batch.push(batch.sequences.len() - 1, first, tokens, *rows == pending);
        }
        let model = &mut self.model;
        // After a panic the batch's sequences are dropped, and a forward pass reads nothing of an
        // earlier one but what lies in blocks.
        let result = catch_unwind(AssertUnwindSafe(|| model.forward(&mut batch, &mut watches)));
        match result {
            Ok(Ok(logits)) => Outcome::Done(logits),
            Ok(Err(error)) => match refused_row(&error).and_then(|row| batch.rows.get(row)) {
                Some(row) => Outcome::RefusedOne(row.sequence, error.to_string()),
                None => Outcome::Failed(error.to_string()),
            },
            Err(panic) => {
                let reason = format!("the model panicked: {}", panic_text(&*panic));
                tracing::error!(reason, "a forward pass failed");
                Outcome::Failed(reason)
            }
        }
    }

    /// Notes for each prompt of a step what the step did for all of them.
    fn note_prompts(&mut self, rows: &[usize], time: Duration) {
        let prompts = self.running.iter_mut().zip(rows);
        let prompts = prompts.filter(|(job, rows)| **rows > 0 && job.computes_prompt());
        let prompts: Vec<_> = prompts.collect();
        let tokens = prompts.iter().map(|(_, rows)| **rows as u64).sum::<u64>();
        for (job, _) in prompts {
            job.computed.tokens += tokens;
            job.computed.time += time;
        }
    }

    fn advance(&mut self, rows: &[usize], logits: &Logits) {
        let mut sampled = 0;
        for (mut job, rows) in std::mem::take(&mut self.running).into_iter().zip(rows) {
            if *rows == 0 {
                self.running.push(job);
                continue;
            }
            let wants_logits = job.pending() == 0;
            sampled += usize::from(wants_logits);
            if !job.sequence.as_ref().is_none_or(KvSequence::is_intact) {
                // What this step read may be torn: none of it is shown to anybody.
                tracing::warn!(request = %job.request.id, "the peer took its blocks back: computed again");
                self.start_over(job);
                continue;
            }
            self.count_rows(&mut job, *rows);
            job.share_full();
            if !wants_logits {
                tracing::debug!(
                    request = %job.request.id, done = job.cached(), total = job.tokens.len(), "prefill"
                );
                job.tell_progress();
                self.running.push(job);
                continue;
            }
            let row = logits.row(sampled - 1);
            if let Some(job) = self.draw(job, row) {
                self.running.push(job);
            }
        }
    }

    /// Counts the `rows` last tokens of the cache.
    fn count_rows(&self, job: &mut Job, rows: usize) {
        let (end, prompt) = (job.cached(), job.request.prompt.len());
        let again = (end - rows)..end.min(job.reached);
        let new = (end - rows).max(job.reached)..end.min(prompt);
        self.counters.recomputed_tokens.fetch_add(again.len() as u64, Relaxed);
        self.counters.prefill_tokens.fetch_add(new.len() as u64, Relaxed);
        job.reached = job.reached.max(end);
    }

    /// Draws the next token of a job whose tokens are all in the cache; gives the job back unless it
    /// has ended.
    fn draw(&self, mut job: Job, logits: &[f32]) -> Option<Job> {
        let (token, logprob) = match choose(&job, logits) {
            Ok(chosen) => chosen,
            Err(error) => {
                self.fail(job, GenerateError::NodeFailed(error.to_string()));
                return None;
            }
        };
        job.tokens.push(token.id);
        count(&self.counters.generated_tokens);
        let reason = job.finish_reason(&self.options.eos);
        if job.is_prefill() {
            count(&self.counters.finished);
            job.finish_prefill(logprob, reason);
            return None;
        }
        job.tell_token(logprob);
        let Some(reason) = reason else { return Some(job) };
        count(&self.counters.finished);
        job.finish(reason);
        None
    }
}

fn choose(
    job: &Job,
    logits: &[f32],
) -> Result<(SampledToken, Option<TokenLogprobs>), SamplingError> {
    let history = History { prompt: &job.request.prompt, output: job.output() };
    let token = sample(logits, job.sampling(), history, job.tokens.len() as u64)?;
    let Some(wanted) = job.request.logprobs else { return Ok((token, None)) };
    let top = top_logprobs(logits, usize::from(wanted))?;
    let top = top.iter().map(|token| (token.id, token.logprob)).collect();
    Ok((token, Some(TokenLogprobs { logprob: token.logprob, top })))
}

/// The row that an error is about.
fn refused_row(error: &ForwardError) -> Option<usize> {
    match error {
        ForwardError::NoSuchSequence { .. } => None,
        ForwardError::NoSuchToken { row, .. }
        | ForwardError::BeyondCapacity { row, .. }
        | ForwardError::Sealed { row, .. }
        | ForwardError::Gap { row, .. }
        | ForwardError::StateElsewhere { row, .. } => Some(*row),
        _ => None,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
