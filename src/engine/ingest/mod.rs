//! From a peer's offer to a sequence of this side's pool: receive, check, commit.

use bytes::Bytes;

use crate::endpoint::{IncomingHandoff, LandedPayload};
use crate::pool::{
    BlockPool, KvSequence, PrefixKey, ReserveError, ReservedBlock, Room, SequenceError,
};
use crate::session::{DeclineCode, LandError, Landed};

/// Why an offer did not become a sequence. Every block is back in the pool, nothing is visible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// More tokens than this side takes.
    #[error("{tokens} tokens offered, the limit here is {limit}")]
    TooLong {
        /// Tokens offered.
        tokens: usize,
        /// Most tokens of a sequence.
        limit: usize,
    },
    /// The pool could never hold it.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The payload did not land, or could not be committed.
    #[error(transparent)]
    Land(#[from] LandError),
    /// The blocks do not make a sequence.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}

/// Lands an offered payload in `blocks`, whole and checked, but does not commit it.
///
/// # Errors
/// [`LandError`]; the blocks are back in the pool, or will be as soon as the link is done with them.
///
/// # Cancel safety
/// Dropping the future declines the offer.
pub async fn recv_handoff_payload(
    incoming: IncomingHandoff,
    pool: &BlockPool,
    blocks: Vec<ReservedBlock>,
) -> Result<LandedPayload, LandError> {
    incoming.accept(pool, blocks, 0).await
}

/// How offers become sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngestOptions<'a> {
    /// Most tokens of a sequence, growth included.
    pub tokens_max: usize,
    /// Tokens for which room is reserved behind those that are offered.
    pub growth: usize,
    /// Whether blocks that can be read in place are left where they are.
    pub adopt: bool,
    /// What the full blocks of the sequence are called in the pool: those of the first ones that it has
    /// are not moved.
    pub keys: &'a [PrefixKey],
}

/// A sequence that came from a peer, and is this side's.
#[derive(Debug)]
pub struct IngestedSequence {
    /// The sequence.
    pub sequence: KvSequence,
    /// What the peer's user said when it was finished.
    pub closing: Bytes,
}

/// Turns an offer into a sequence: checks it, waits for blocks, lands, commits. Of a sequence that is still
/// computed, that takes as long as that.
///
/// The sequence has room for `tokens + growth` tokens, reserved before the first byte moves, so that
/// it can go on at once. The full blocks are sealed, or stay with the peer where they can be read in
/// place and more of them can than are here already; the partial last one is the sequence's own in any case.
///
/// # Errors
/// [`IngestError`].
///
/// # Cancel safety
/// Dropping the future declines the offer and frees every block.
pub async fn ingest_sequence_handoff(
    incoming: IncomingHandoff,
    pool: &BlockPool,
    options: IngestOptions<'_>,
) -> Result<IngestedSequence, IngestError> {
    let IngestOptions { tokens_max, growth, adopt, keys } = options;
    let manifest = incoming.manifest();
    let (tokens, block_tokens) = (manifest.tokens, pool.spec().block_tokens as usize);
    if tokens.saturating_add(growth) > tokens_max {
        let error = IngestError::TooLong { tokens, limit: tokens_max };
        incoming.decline(DeclineCode::DeclineNoRoom, &error.to_string());
        return Err(error);
    }
    let full = tokens / block_tokens;
    // A payload begins on a block of both sides.
    let aligned = block_tokens.is_multiple_of(manifest.order.block_tokens as usize);
    let keys = if aligned { &keys[..keys.len().min(full)] } else { &[] };
    let adoptable = if adopt { manifest.adoptable / block_tokens } else { 0 };
    let adopts = adoptable > pool.cached_run(keys);
    let (stay, keys) = if adopts { (adoptable, &[][..]) } else { (0, keys) };
    let blocks = pool.spec().blocks_for(tokens + growth) - stay;
    let Room { cached, mut reserved } = match pool.reserve_behind(keys.into(), blocks).await {
        Ok(room) => room,
        Err(error) => {
            incoming.decline(DeclineCode::DeclineNoRoom, &error.to_string());
            return Err(error.into());
        }
    };
    let here = cached.len();
    let room = reserved.split_off(pool.spec().blocks_for(tokens) - stay - here);
    let landed = if adopts {
        incoming.adopt(pool, reserved).await?
    } else {
        incoming.accept(pool, reserved, here * block_tokens).await?
    };
    let Landed { adopted, blocks: mut own, closing } = landed.commit().await?;
    if let Some(adopted) = adopted {
        own.extend(room);
        let sequence = KvSequence::from_adopted(pool, adopted, own, tokens)?;
        return Ok(IngestedSequence { sequence, closing });
    }
    let mut tail = own.split_off(full - here);
    tail.extend(room);
    let sealed = cached.into_iter().chain(own.into_iter().map(ReservedBlock::seal)).collect();
    let sequence = KvSequence::from_blocks(pool, sealed, tail, tokens)?.found(here);
    Ok(IngestedSequence { sequence, closing })
}
