//! blockwire-runtime.

pub mod chat;
pub mod cpu;
pub mod files;
pub mod model;
#[cfg(test)]
mod testing;
