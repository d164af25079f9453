//! Sequences in a pool, and models that run them.

use std::sync::Arc;

use blockwire::pool::{AdoptedBlocks, BlockPool, KvSequence, Lease, PeerPool, SealedBlock};

use crate::model::{Batch, Model};

/// Sequences for so many tokens each, whose blocks lie scattered and interleaved.
pub(crate) fn sequences(pool: &BlockPool, tokens: &[usize]) -> Vec<KvSequence> {
    let mut blocks = pool.try_reserve(pool.options().blocks).unwrap();
    let most = tokens.iter().map(|tokens| pool.spec().blocks_for(*tokens)).max().unwrap_or(0);
    let mut owned: Vec<Vec<_>> = tokens.iter().map(|_| Vec::new()).collect();
    for index in 0..most {
        for (tokens, owned) in tokens.iter().zip(&mut owned) {
            if index < pool.spec().blocks_for(*tokens) {
                let at = if index % 2 == 0 { blocks.len() - 1 } else { 0 };
                owned.push(blocks.remove(at));
            }
        }
    }
    let sequence = |blocks| KvSequence::from_blocks(pool, Vec::new(), blocks, 0).unwrap();
    owned.into_iter().map(sequence).collect()
}

/// Runs a prompt in chunks; gives the logits of every position.
pub(crate) fn prefill(
    model: &mut dyn Model,
    sequence: &mut KvSequence,
    prompt: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    for tokens in prompt.chunks(chunk) {
        let first = sequence.len();
        let mut batch = Batch::new([&mut *sequence]);
        batch.push(0, first, tokens, true);
        batch.rows.iter_mut().for_each(|row| row.wants_logits = true);
        let result = model.forward(&mut batch, &mut ()).unwrap();
        logits.extend((0..result.rows()).map(|row| result.row(row).to_vec()));
    }
    logits
}

/// Appends the likeliest tokens.
pub(crate) fn greedy(
    model: &mut dyn Model,
    sequence: &mut KvSequence,
    first: u32,
    count: usize,
) -> Vec<u32> {
    let mut tokens = vec![first];
    while tokens.len() < count {
        let position = sequence.len();
        let mut batch = Batch::new([&mut *sequence]);
        batch.push(0, position, &tokens[tokens.len() - 1..], true);
        let logits = model.forward(&mut batch, &mut ()).unwrap();
        tokens.push(likeliest(logits.row(0)));
    }
    tokens
}

pub(crate) fn likeliest(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.unwrap() as u32
}

pub(crate) fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|x| x.to_bits()).collect()
}

/// Keys and values of all layers in token order: the bytes that would go to another process.
pub(crate) fn cache_bytes(sequence: &KvSequence) -> Vec<u8> {
    let pool = sequence.pool();
    let block_tokens = pool.spec().block_tokens as usize;
    let mut bytes = Vec::new();
    for (layer, spec) in pool.spec().layers.iter().enumerate() {
        for segment in &spec.segments {
            let plane = pool.plane(layer, segment.part).unwrap();
            for token in 0..sequence.len() {
                let block = sequence.block_table()[token / block_tokens] as usize;
                let offset = plane.offset
                    + block * plane.block_stride
                    + token % block_tokens * plane.token_stride;
                // SAFETY: the token lies inside the region, and no forward pass is running.
                bytes.extend_from_slice(unsafe {
                    let at = pool.base().as_ptr().add(offset);
                    std::slice::from_raw_parts(at, plane.token_stride)
                });
            }
        }
    }
    bytes
}

/// The sealed blocks of a sequence under a lease, as if another process had adopted them.
pub(crate) fn lend(sequence: &KvSequence) -> AdoptedBlocks {
    let pool = sequence.pool();
    let mut grant = pool.grant().unwrap();
    let peer = PeerPool::new(pool.region().clone(), pool.shape().clone()).unwrap();
    let lease = Arc::new(Lease::new(Arc::new(peer), grant.id()).unwrap());
    grant.lend(sequence.sealed().into());
    let adopted =
        AdoptedBlocks::new(lease, sequence.sealed().iter().map(SealedBlock::id).collect()).unwrap();
    adopted.on_release(move || drop(grant))
}
