//! Blockwire: moves the paged KV cache of a language model from pool block to wire and from wire to
//! pool block.
//!
//! Read the modules in the order that data flows: [`pool`], [`transport`], [`wire`].
pub mod clock;
pub mod pool;
mod sys;
pub mod transport;
pub mod wire;
