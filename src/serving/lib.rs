//! Blockwire's serving roles: the scheduler that runs a model, and the OpenAI front.
//!
//! Read in this order: [`backend`] (the seam between text and tokens), [`scheduler`] (continuous
//! batching over the engine's pool), [`protocol`] and [`coordinator`] (the roles), [`router`],
//! [`http`] (the OpenAI API and the live page), [`status`] (what that shows), [`metrics`].

#![forbid(unsafe_code)]

pub mod backend;
pub mod coordinator;
pub mod http;
pub mod metrics;
pub mod protocol;
pub mod router;
pub mod scheduler;
pub mod status;
mod throughput;
