//! The order of payload bytes on the wire, whatever the layouts of the two pools are.
//!
//! A payload is the concatenation of *wire blocks* of [`PayloadOrder::block_tokens`] tokens; each is
//! `[layer][K|V][token][head][dim]`. A short last block simply has fewer tokens: bytes of tokens that
//! were never written are never sent. Of a payload of some layers, each has those alone. Where a pool is block-major with blocks of that length, a whole
//! wire block is one extent of it; in every other pool each (wire block, layer, part) is a few.

use std::ops::Range;

use super::layout::PoolShape;
use super::list::Extent;
use super::spec::{KvSpec, LayerSpec};

/// Which bytes of a sequence: those of some layers of some tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The tokens.
    pub tokens: Range<usize>,
    /// The layers.
    pub layers: Range<usize>,
}

impl Span {
    /// All layers of some tokens.
    pub fn whole(spec: &KvSpec, tokens: Range<usize>) -> Self {
        Self { tokens, layers: 0..spec.layers.len() }
    }

    /// Bytes that it takes on the wire.
    pub fn payload_len(&self, spec: &KvSpec) -> u64 {
        let layers = &spec.layers[self.layers.clone()];
        let token_len: usize = layers.iter().map(LayerSpec::token_bytes).sum();
        token_len as u64 * self.tokens.len() as u64
    }
}

/// Order of the bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadOrder {
    /// Tokens per wire block: the sender's block length.
    pub block_tokens: u32,
}

impl PayloadOrder {
    /// Appends where the bytes of a span lie in a pool, in wire order; neighbours are joined.
    ///
    /// `table[i]` is the block that holds tokens from `first_token + i * block_tokens` on, in the pool's own
    /// block length; the span starts on a wire block.
    pub(crate) fn extents(
        self,
        pool: &PoolShape,
        table: &[u32],
        first_token: usize,
        span: &Span,
        out: &mut Vec<Extent>,
    ) {
        let Span { tokens, layers } = span;
        let wire = self.block_tokens as usize;
        let own = pool.spec().block_tokens as usize;
        let all = layers.len() == pool.spec().layers.len();
        let whole = pool.whole_block_stride().filter(|_| wire == own && all);
        let mut start = tokens.start;
        while start < tokens.end {
            let end = (start + wire).min(tokens.end);
            match whole {
                Some(stride) if end - start == own => {
                    let block = table[(start - first_token) / own] as usize;
                    push(out, Extent { offset: block * stride, len: pool.spec().block_bytes() });
                }
                _ => {
                    let part = Span { tokens: start..end, layers: layers.clone() };
                    wire_block(pool, table, first_token, &part, out);
                }
            }
            start = end;
        }
    }
}

/// A span of one wire block, part by part.
fn wire_block(
    pool: &PoolShape,
    table: &[u32],
    first_token: usize,
    span: &Span,
    out: &mut Vec<Extent>,
) {
    let tokens = &span.tokens;
    let own = pool.spec().block_tokens as usize;
    for layer in span.layers.clone() {
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
