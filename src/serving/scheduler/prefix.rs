//! Prompts that begin alike: what one request has computed, the next one finds.
//!
//! A job offers its blocks to the pool's index as soon as they are full and their bytes are in the cache,
//! so that also those find them who come while it still runs. At its admission it looks for its own. One
//! token at least is always computed: the logits that the next token is drawn from are not in the cache. So
//! a job writes behind what it shares, never into it.

use std::sync::atomic::Ordering::Relaxed;

use blockwire::pool::{KvSequence, PrefixChain, PrefixKey, PrefixRoot, Room, SequenceError};

use super::handle::ModelFacts;
use super::job::Job;
use super::worker::Worker;
use crate::backend::GenerateRequest;

/// The names of a request's blocks.
pub(super) fn chain(
    facts: &ModelFacts,
    request: &GenerateRequest,
    block_tokens: u32,
) -> PrefixChain {
    let salt = request.cache_salt.as_deref().unwrap_or_default();
    PrefixChain::new(PrefixRoot::new(facts.fingerprint.as_bytes(), "", salt), block_tokens)
}

impl Job {
    /// The names of the blocks that the job could share: all full ones but for the last token's.
    pub(super) fn shareable(&mut self) -> &[PrefixKey] {
        let tokens = &self.tokens[..self.tokens.len() - 1];
        self.chain.as_mut().map_or(&[], |chain| chain.keys(tokens))
    }

    /// Lets others find what is full. The bytes of all tokens in the cache are final.
    pub(super) fn share_full(&mut self) {
        let (Some(chain), Some(sequence)) = (&mut self.chain, &mut self.sequence) else { return };
        sequence.cache_full(chain.keys(&self.tokens[..sequence.len()]));
    }
}

impl Worker {
    /// Gives a job its blocks; it goes on behind those that were cached.
    pub(super) fn furnish(&self, job: &mut Job, room: Room) -> Result<(), SequenceError> {
        let cached = room.cached.len() * self.pool.spec().block_tokens as usize;
        job.sequence =
            Some(KvSequence::from_blocks(&self.pool, room.cached, room.reserved, cached)?);
        if job.chain.is_some() && job.cached_tokens.is_none() {
            self.counters.prefix_queries.fetch_add(job.tokens.len() as u64, Relaxed);
            self.counters.prefix_hits.fetch_add(cached as u64, Relaxed);
        }
        // What it finds of its own after a preemption does not count.
        job.cached_tokens.get_or_insert(cached as u32);
        Ok(())
    }
}
