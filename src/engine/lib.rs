//! Blockwire: moves the paged KV cache of a language model from pool block to wire and from wire to
//! pool block.
//!
//! Read the modules in the order that data flows: [`pool`], [`transport`], [`wire`].
pub mod clock;
pub mod endpoint;
pub mod handoff;
pub mod ingest;
pub mod pool;
pub mod session;
mod sys;
pub mod transport;
pub mod wire;
