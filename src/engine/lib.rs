//! Blockwire: moves the paged KV cache of a language model from pool block to wire and from wire to
//! pool block.
//!
//! Read the modules in the order that data flows: [`pool`].
pub mod clock;
pub mod pool;
mod sys;
