//! blockwire-runtime.

pub mod chat;
pub mod files;
#[cfg(test)]
mod testing;
