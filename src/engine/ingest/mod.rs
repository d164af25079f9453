//! From a peer's offer to a sequence of this side's pool: receive, check, commit.

use crate::endpoint::{IncomingHandoff, LandedPayload};
use crate::pool::{BlockPool, KvSequence, ReserveError, ReservedBlock, SequenceError};
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
pub struct IngestOptions {
    /// Most tokens of a sequence, growth included.
    pub tokens_max: usize,
    /// Tokens for which room is reserved behind those that are offered.
    pub growth: usize,
    /// Whether blocks that can be read in place are left where they are.
    pub adopt: bool,
}

/// Turns an offer into a sequence: checks it, waits for blocks, lands, commits.
///
/// The sequence has room for `tokens + growth` tokens, reserved before the first byte moves, so that
/// it can go on at once. The full blocks are sealed, or stay with the peer where they can be read in
/// place; the partial last one is the sequence's own in any case.
///
/// # Errors
/// [`IngestError`].
///
/// # Cancel safety
/// Dropping the future declines the offer and frees every block.
pub async fn ingest_sequence_handoff(
    incoming: IncomingHandoff,
    pool: &BlockPool,
    options: IngestOptions,
) -> Result<KvSequence, IngestError> {
    let IngestOptions { tokens_max, growth, adopt } = options;
    let (tokens, block_tokens) = (incoming.manifest().tokens, pool.spec().block_tokens as usize);
    if tokens.saturating_add(growth) > tokens_max {
        let error = IngestError::TooLong { tokens, limit: tokens_max };
        incoming.decline(DeclineCode::DeclineNoRoom, &error.to_string());
        return Err(error);
    }
    let adopts = adopt && incoming.manifest().adoptable > 0;
    let stay = if adopts { incoming.manifest().adoptable / block_tokens } else { 0 };
    let needed = pool.spec().blocks_for(tokens) - stay;
    let mut blocks = match pool.reserve(pool.spec().blocks_for(tokens + growth) - stay).await {
        Ok(blocks) => blocks,
        Err(error) => {
            incoming.decline(DeclineCode::DeclineNoRoom, &error.to_string());
            return Err(error.into());
        }
    };
    let room = blocks.split_off(needed);
    let landed = if adopts {
        incoming.adopt(pool, blocks).await?
    } else {
        recv_handoff_payload(incoming, pool, blocks).await?
    };
    let Landed { adopted, blocks: mut own } = landed.commit().await?;
    if let Some(adopted) = adopted {
        own.extend(room);
        return Ok(KvSequence::from_adopted(pool, adopted, own, tokens)?);
    }
    let mut tail = own.split_off(tokens / block_tokens);
    tail.extend(room);
    let sealed = own.into_iter().map(ReservedBlock::seal).collect();
    Ok(KvSequence::from_blocks(pool, sealed, tail, tokens)?)
}
