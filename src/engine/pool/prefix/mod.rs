//! Blocks that are computed once for all prompts that begin with the same tokens.
//!
//! A full block is named by everything that its bytes depend on: the model, its adapter, and all
//! tokens up to the block's last one ([`PrefixKey`], a chain of hashes; `manual/prefix.md` writes it down).
//! The [index](PrefixIndex) of a pool finds the block of a key. Whoever has computed a block gives it to the
//! index ([`KvSequence::cache_full`](super::KvSequence::cache_full)); whoever needs blocks says which keys
//! would do ([`BlockPool::reserve_behind`](super::BlockPool::reserve_behind)) and gets those that are there
//! with the room for the others, in one step: nobody can evict between the look and the hold.
//!
//! ```text
//!                     cache_full                          last owner gone
//! KvSequence, sealed ───────────> known and held: sealed ────────────────> cached ──evicted──> free
//!                                        ^                                   │
//!                                        └────────── reserve_behind ─────────┘
//! ```
//! Invariants:
//! - X1: the index knows sealed and cached blocks only, each under one key, and at most one of a key.
//!   So its memory is bounded by the pool, and what it finds is never written to.
//! - X2: where it knows a block, it knows the one before. So the longest run of known keys can be found
//!   by bisection, and what is known can be reached.
//! - X3: a cached block can always be had: a reservation fails only when free and cached blocks together
//!   are too few.
//!
//! The block that was used longest ago goes first, and of a sequence the last block first: a block is of
//! use only together with those before it.

mod index;
mod key;
mod room;
#[cfg(test)]
mod tests;

pub(super) use index::PrefixIndex;
pub use key::{PrefixChain, PrefixKey, PrefixRoot};
pub(super) use room::Demand;
pub use room::{ReserveRoom, Room};
