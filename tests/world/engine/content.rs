//! What the tokens of a sequence look like in memory.

use blockwire::pool::{KvSequence, ReservedBlock, SealedBlock};
use bytes::Bytes;

use super::BLOCK;

/// What free blocks are overwritten with.
pub(super) const SPOILT: u8 = 0xee;

/// The byte that a token's state consists of; never what an unused block has, or a spoilt one.
fn byte(id: u32, token: usize) -> u8 {
    let mixed = (u64::from(id) << 20 | token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 | 1
}

/// Writes the first `tokens` tokens of a sequence.
pub(super) fn write(blocks: &mut [ReservedBlock], id: u32, tokens: usize) {
    for token in 0..tokens {
        blocks[token / BLOCK].fill_token((token % BLOCK) as u32, byte(id, token));
    }
}

/// What is said of a sequence when it is finished.
pub(super) fn closing(id: u32) -> Bytes {
    Bytes::copy_from_slice(&id.to_le_bytes())
}

/// The first token of `blocks` that is not what it should be; the blocks begin with token `first`.
pub(super) fn wrong_token(
    blocks: &[SealedBlock],
    id: u32,
    first: usize,
    tokens: usize,
) -> Option<usize> {
    (first..tokens).find(|token| {
        let at = token - first;
        let bytes = blocks[at / BLOCK].token_bytes((at % BLOCK) as u32);
        !bytes.iter().flatten().flat_map(|bytes| bytes.iter()).all(|b| *b == byte(id, *token))
    })
}

/// Likewise of a whole sequence, which has to be at home.
pub(super) fn wrong_in(sequence: &mut KvSequence, id: u32) -> Option<usize> {
    let tokens = sequence.len();
    wrong_token(sequence.finish(), id, 0, tokens)
}
