//! Going on behind a sealed block that is not full.

use blockwire::pool::{
    Cursor, Digest, GatherList, KvSequence, PayloadOrder, ReservedBlock, ScatterList,
    TransferStats, copy_payload,
};

/// Whether tokens can only follow after a copy of the last block.
pub(super) fn is_sealed(sequence: &KvSequence) -> bool {
    sequence.len() < sequence.writable_from()
}

/// The same sequence with the tokens of its sealed, partial last block copied into `block`: others
/// may be reading the old one.
///
/// Gives none when the blocks do not fit together, which only a foreign `block` can cause.
pub(super) fn copy(mut sequence: KvSequence, block: ReservedBlock) -> Option<KvSequence> {
    let pool = sequence.pool().clone();
    let block_tokens = pool.spec().block_tokens;
    let full = sequence.len() / block_tokens as usize;
    let rest = sequence.len() % block_tokens as usize;
    let order = PayloadOrder { block_tokens };
    let (kept, tail) = sequence.sealed().split_at(full);
    let from = GatherList::new(&pool, &tail[..1], order, 0..rest).ok()?;
    let mut to = ScatterList::new(&pool, vec![block], order, 0..rest).ok()?;
    let start = Cursor::default();
    let (mut digest, stats) = (Digest::default(), TransferStats::default());
    // One pool, one order: both lists have the same extents.
    for (from, to) in from.slices(&start, usize::MAX).zip(to.slices(&start, usize::MAX)) {
        copy_payload(from, to, &mut digest, &stats);
    }
    let kept = kept.to_vec();
    let mut copy = KvSequence::from_blocks(&pool, kept, to.into_blocks(), sequence.len()).ok()?;
    *copy.model_state_mut() = sequence.model_state_mut().take();
    Some(copy)
}
