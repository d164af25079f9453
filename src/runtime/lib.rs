//! blockwire-runtime.

pub mod chat;
pub mod cpu;
pub mod files;
pub mod model;
pub mod sampling;
#[cfg(test)]
mod testing;
pub mod tokenizer;
