//! From logits to the next token.
//!
//! The choice is a function of the logits, the parameters, the tokens so far and the position:
//! there is no generator whose state would have to move with a sequence. Randomness is counter
//! based, keyed by (seed, position), so a sequence that is handed over goes on with the samples
//! it would have had. The arithmetic that decides is IEEE basic operations in a fixed order, with
//! an exponential of our own, so that every machine chooses alike.
//!
//! The order of steps is vLLM's: bias, penalties, temperature, min-p, top-k, top-p.

mod philox;
mod portable;

use std::collections::BTreeMap;

/// How tokens are chosen. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits, from 0; 0 takes the most probable token (of equals the lowest id).
    pub temperature: f32,
    /// Keep the most probable tokens that together reach this probability, in (0, 1]; 1 is off.
    pub top_p: f32,
    /// Keep this many most probable tokens; 0 is off.
    pub top_k: usize,
    /// Keep tokens at least this fraction as probable as the most probable, in [0, 1]; 0 is off.
    pub min_p: f32,
    /// Key of the randomness.
    pub seed: u64,
    /// Divides positive and multiplies negative logits of tokens that occurred in prompt or
    /// output (CTRL, arXiv 1909.05858); above 0, 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from a logit once per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of every token that occurred in the output; 0 is off.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens; negative infinity forbids one.
    pub logit_bias: BTreeMap<u32, f32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: BTreeMap::new(),
        }
    }
}

/// The tokens before the one to be chosen; only penalties look at them.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// What the caller gave.
    pub prompt: &'a [u32],
    /// What was generated since.
    pub output: &'a [u32],
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of the probability that the model itself gives it, before bias,
    /// penalties and temperature. It decides nothing, and may differ between machines in the last
    /// bit.
    pub logprob: f32,
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A logit is no number, or positive infinity: the computation went wrong.
    #[error("the logit of token {id} is {value}")]
    NotFinite {
        /// The first such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// There are no logits, or every token is forbidden.
    #[error("no token can be chosen: {tokens} tokens, all forbidden")]
    NoCandidate {
        /// Number of logits.
        tokens: usize,
    },
    /// A parameter is outside its range: the caller's fault.
    #[error("`{name}` is {value}; expected {expected}")]
    InvalidParameter {
        /// The parameter's name.
        name: &'static str,
        /// Its value.
        value: f32,
        /// Its range.
        expected: &'static str,
    },
}

impl SamplingParams {
    /// Checks every parameter's range.
    ///
    /// # Errors
    ///
    /// [`SamplingError::InvalidParameter`].
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = f32::is_finite;
        let t = self.temperature;
        let checks = [
            ("temperature", t, finite(t) && t >= 0.0, "a number from 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, up to 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                finite(self.repetition_penalty) && self.repetition_penalty > 0.0,
                "a number above 0",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                finite(self.frequency_penalty),
                "a number",
            ),
            ("presence_penalty", self.presence_penalty, finite(self.presence_penalty), "a number"),
        ];
        if let Some((name, value, _, expected)) = checks.into_iter().find(|check| !check.2) {
            return Err(SamplingError::InvalidParameter { name, value, expected });
        }
        match self.logit_bias.values().find(|b| b.is_nan() || **b == f32::INFINITY) {
            None => Ok(()),
            Some(value) => Err(SamplingError::InvalidParameter {
                name: "logit_bias",
                value: *value,
                expected: "numbers, or negative infinity",
            }),
        }
    }

    fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || !self.logit_bias.is_empty()
    }
}

/// Chooses the token at `position` of the sequence, counted from 0 over prompt and output, from
/// its `logits`, one per token of the vocabulary.
///
/// # Errors
///
/// Any [`SamplingError`]; never panics on odd logits.
pub fn choose(
    logits: &[f32],
    params: &SamplingParams,
    history: History<'_>,
    position: u64,
) -> Result<u32, SamplingError> {
    params.validate()?;
    check(logits)?;
    let changed = match params.changes_logits() {
        true => Some(change(logits, params, history)?),
        false => None,
    };
    let adjusted = changed.as_deref().unwrap_or(logits);
    let (best, max) = argmax(adjusted)?;
    Ok(match params.temperature {
        0.0 => best,
        _ => draw(adjusted, max, params, position),
    })
}

/// As [`choose`], with the token's log probability, which costs one more pass over the logits.
///
/// # Errors
///
/// As [`choose`].
pub fn sample(
    logits: &[f32],
    params: &SamplingParams,
    history: History<'_>,
    position: u64,
) -> Result<SampledToken, SamplingError> {
    let id = choose(logits, params, history, position)?;
    Ok(SampledToken { id, logprob: logprob(logits, id, log_sum(logits)) })
}

/// The `n` most probable tokens with the model's own log probabilities, best first, of equals the
/// lower id first. Fewer when there are fewer tokens.
///
/// # Errors
///
/// [`SamplingError::NotFinite`] or [`SamplingError::NoCandidate`].
pub fn top_logprobs(logits: &[f32], n: usize) -> Result<Vec<SampledToken>, SamplingError> {
    check(logits)?;
    let (_, max) = argmax(logits)?;
    let weights = weights(logits, max, 1.0);
    let log_sum = f64::from(max) + weights.iter().sum::<f64>().ln();
    let mut best = candidates(logits, &weights);
    keep_best(&mut best, n);
    Ok(best
        .iter()
        .map(|c| SampledToken { id: c.id, logprob: logprob(logits, c.id, log_sum) })
        .collect())
}

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Probability relative to the most probable token's.
    weight: f64,
}

fn check(logits: &[f32]) -> Result<(), SamplingError> {
    let bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    // The fold has no early exit, so it compiles to vector code; nearly always it is all there is.
    if !logits.iter().fold(false, |any, logit| any | bad(logit)) {
        return Ok(());
    }
    match logits.iter().position(bad) {
        Some(at) => Err(SamplingError::NotFinite { id: at as u32, value: logits[at] }),
        None => Ok(()),
    }
}

/// The best token, of equals the lowest id, and its logit.
fn argmax(logits: &[f32]) -> Result<(u32, f32), SamplingError> {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    // Sixteen maxima side by side, for vector code.
    let (rows, rest) = logits.as_chunks::<16>();
    let mut maxima = [f32::NEG_INFINITY; 16];
    for row in rows {
        maxima.iter_mut().zip(row).for_each(|(max, logit)| *max = larger(*logit, *max));
    }
    let max = maxima.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger);
    let first = logits.iter().position(|logit| *logit == max);
    match first.filter(|_| max > f32::NEG_INFINITY) {
        Some(at) => Ok((at as u32, max)),
        None => Err(SamplingError::NoCandidate { tokens: logits.len() }),
    }
}

/// Applies bias and penalties; tokens outside the vocabulary have no effect.
fn change(
    logits: &[f32],
    params: &SamplingParams,
    history: History<'_>,
) -> Result<Vec<f32>, SamplingError> {
    let mut changed = logits.to_vec();
    for (id, bias) in &params.logit_bias {
        if let Some(logit) = changed.get_mut(*id as usize) {
            *logit += bias;
        }
    }
    let mut counts: BTreeMap<u32, u32> = history.prompt.iter().map(|id| (*id, 0)).collect();
    for id in history.output {
        *counts.entry(*id).or_insert(0) += 1;
    }
    for (id, count) in counts {
        let Some(logit) = changed.get_mut(id as usize) else { continue };
        match *logit > 0.0 {
            true => *logit /= params.repetition_penalty,
            false => *logit *= params.repetition_penalty,
        }
        if count > 0 {
            *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
        }
    }
    // Finite numbers beyond reason may add up to an infinite one.
    check(&changed)?;
    Ok(changed)
}

/// Draws among the tokens that the filters leave.
fn draw(logits: &[f32], max: f32, params: &SamplingParams, position: u64) -> u32 {
    let scale = 1.0 / f64::from(params.temperature);
    let weights = weights(logits, max, scale);
    let min_p = f64::from(params.min_p);
    let mut kept = candidates(logits, &weights);
    kept.retain(|candidate| candidate.weight > 0.0 && candidate.weight >= min_p);
    if params.top_k > 0 {
        keep_best(&mut kept, params.top_k);
    }
    if params.top_p < 1.0 {
        keep_nucleus(&mut kept, f64::from(params.top_p));
    }
    let target = philox::uniform(params.seed, position) * total(&kept);
    let mut sum = 0.0;
    let reached = kept.iter().find(|candidate| {
        sum += candidate.weight;
        sum > target
    });
    // Rounding may leave the sum a hair below the target; the most probable token is always kept.
    reached.or(kept.last()).map_or(0, |candidate| candidate.id)
}

/// Every token's probability relative to that of a token with the logit `max`.
fn weights(logits: &[f32], max: f32, scale: f64) -> Vec<f64> {
    let max = f64::from(max);
    logits.iter().map(|logit| portable::exp((f64::from(*logit) - max) * scale)).collect()
}

fn candidates(logits: &[f32], weights: &[f64]) -> Vec<Candidate> {
    let all = (0..).zip(logits.iter().zip(weights));
    all.map(|(id, (logit, weight))| Candidate { id, logit: *logit, weight: *weight }).collect()
}

/// Keeps the `n` best, best first, of equals the lower id first.
fn keep_best(candidates: &mut Vec<Candidate>, n: usize) {
    let order = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n, order);
        candidates.truncate(n);
    }
    candidates.sort_unstable_by(order);
}

/// Keeps the fewest best whose probabilities reach `top_p`, at least one.
///
/// Tokens below `(1 - top_p) / count` add up to less than `1 - top_p`, so they are outside, and
/// need no sorting.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f64) {
    let total = total(candidates);
    let negligible = (1.0 - top_p) * total / candidates.len() as f64;
    candidates.retain(|candidate| candidate.weight >= negligible);
    keep_best(candidates, usize::MAX);
    let mut sum = 0.0;
    let reached = candidates.iter().position(|candidate| {
        sum += candidate.weight;
        sum >= top_p * total
    });
    candidates.truncate(reached.map_or(candidates.len(), |last| last + 1));
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

/// Logarithm of the sum of the exponentials.
fn log_sum(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = weights(logits, max, 1.0).iter().sum();
    f64::from(max) + sum.ln()
}

fn logprob(logits: &[f32], id: u32, log_sum: f64) -> f32 {
    (f64::from(logits[id as usize]) - log_sum) as f32
}

#[cfg(test)]
mod tests;
