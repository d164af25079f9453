//! The order of payload bytes on the wire, whatever the layouts of the two pools are.
//!
//! A payload is the concatenation of *wire blocks* of [`PayloadOrder::block_tokens`] tokens; each is
//! `[layer][K|V][token][head][dim]`. A short last block simply has fewer tokens: bytes of tokens that
//! were never written are never sent. Where a pool is block-major with blocks of that length, a whole
//! wire block is one extent of it; in every other pool each (wire block, layer, part) is a few.

use std::ops::Range;

use super::layout::PoolShape;
use super::list::Extent;
use super::spec::KvSpec;

/// Order of the bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadOrder {
    /// Tokens per wire block: the sender's block length.
    pub block_tokens: u32,
}

impl PayloadOrder {
    /// Bytes that `tokens` tokens take on the wire.
    pub fn payload_len(self, spec: &KvSpec, tokens: usize) -> u64 {
        spec.token_bytes() as u64 * tokens as u64
    }

    /// Appends where the bytes of `tokens` lie in a pool, in wire order; neighbours are joined.
    ///
    /// `table[i]` is the block that holds tokens from `first_token + i * block_tokens` on, in the pool's own
    /// block length; `tokens` starts on a wire block.
    pub(crate) fn extents(
        self,
        pool: &PoolShape,
        table: &[u32],
        first_token: usize,
        tokens: Range<usize>,
        out: &mut Vec<Extent>,
    ) {
        let wire = self.block_tokens as usize;
        let own = pool.spec().block_tokens as usize;
        let whole = pool.whole_block_stride().filter(|_| wire == own);
        let mut start = tokens.start;
        while start < tokens.end {
            let end = (start + wire).min(tokens.end);
            match whole {
                Some(stride) if end - start == own => {
                    let block = table[(start - first_token) / own] as usize;
                    push(out, Extent { offset: block * stride, len: pool.spec().block_bytes() });
                }
                _ => wire_block(pool, table, first_token, start..end, out),
            }
            start = end;
        }
    }
}

/// One wire block, part by part.
fn wire_block(
    pool: &PoolShape,
    table: &[u32],
    first_token: usize,
    tokens: Range<usize>,
    out: &mut Vec<Extent>,
) {
    let own = pool.spec().block_tokens as usize;
    for layer in 0..pool.spec().layers.len() {
        for plane in pool.layer(layer) {
            let mut token = tokens.start;
            while token < tokens.end {
                let (index, within) = ((token - first_token) / own, (token - first_token) % own);
                let run = (own - within).min(tokens.end - token);
                let block = table[index] as usize;
                let offset =
                    plane.offset + block * plane.block_stride + within * plane.token_stride;
                push(out, Extent { offset, len: run * plane.token_stride });
                token += run;
            }
        }
    }
}

fn push(out: &mut Vec<Extent>, next: Extent) {
    match out.last_mut() {
        Some(last) if last.offset + last.len == next.offset => last.len += next.len,
        _ => out.push(next),
    }
}
