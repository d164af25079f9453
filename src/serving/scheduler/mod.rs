//! Continuous batching: one loop runs the model for all requests, a step at a time. It has a thread of
//! its own, or is a task of the caller's runtime.
//!
//! ```text
//! generate / prefill_for_handoff ──> waiting ──admit──> running ──step──> events
//!                                       ^                  │
//! decode_from ─────────────────> arriving ─────────────────┤ pool full: the youngest gives its
//!                                       └────preempted─────┘ blocks back and is computed again
//! ```
//! A step runs every sequence that has tokens not yet in the cache: those with one (decoding) in one
//! row each, those with more (prefill) in chunks. Nothing else distinguishes the two, so that chunks,
//! preemption and sequences that come from another node need no cases of their own.
//!
//! Invariants:
//! - A request holds blocks only between its admission and its end; they are reserved through the
//!   pool before a token is written.
//! - A request that could not finish with the whole pool to itself is refused before it takes
//!   anything. So the oldest one, for which the others are preempted, always gets on.
//! - What a request computes depends on its own tokens only: it gets the same tokens in every batch,
//!   in chunks of every size, and after a preemption.
//! - Errors belong to requests. A panic of the model fails the batch that it happened in.

mod admission;
mod handle;
mod job;
mod local;
mod prefix;
mod state;
mod stats;
mod step;
mod tail;
mod worker;

#[cfg(test)]
mod tests;

pub use handle::{BatchScheduler, ModelFacts, SchedulerOptions, StartError};
pub use job::{DecodeRefused, Prefill, PrefillDone, PrefillEvent};
pub use local::LocalBackend;
pub use stats::{PrefillProgress, SchedulerStats};
