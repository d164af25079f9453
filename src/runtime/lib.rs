//! Runs language models whose KV cache lies in a [`blockwire::pool`].
//!
//! Read in this order: [`files`] (weights and configuration), [`tokenizer`] and [`chat`] (text to
//! tokens and back), [`model`] (what a backend offers), [`cpu`] (the backend in plain Rust), `mlx` (the
//! one on MLX, with feature `mlx`), [`sampling`] (from logits to the next token).

pub mod chat;
pub mod cpu;
pub mod files;
#[cfg(feature = "mlx")]
pub mod mlx;
pub mod model;
pub mod sampling;
#[cfg(test)]
mod testing;
pub mod tokenizer;
