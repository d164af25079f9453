//! How a payload is cut into pieces, of which each is a transfer of its own.
//!
//! Pieces are ranges of tokens of one length, from token 0 on; the last one is shorter where the tokens end, and
//! the first one that is needed where the receiver has some of its tokens. A piece is whole blocks of the
//! sender's, so that no block is in two of them, and both sides cut at the same bytes whatever the receiver's
//! block length is. A payload that is there as a whole is one piece.

use std::ops::Range;

/// Most pieces of a payload: each costs both sides an operation, however many bytes it has.
pub(super) const PIECES_MAX: usize = 1024;
/// Tokens of a piece. Few enough that the last piece, which nothing hides, is a fraction of a usual chunk.
const PIECE_TOKENS: usize = 256;

/// Tokens of a piece that suits a sequence of so many tokens in blocks of `block_tokens`.
pub fn piece_tokens_for(tokens: usize, block_tokens: u32) -> u32 {
    let least = tokens.div_ceil(PIECES_MAX).max(PIECE_TOKENS);
    let blocks = least.div_ceil(block_tokens.max(1) as usize);
    u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(block_tokens)
}

/// The cut of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    tokens: usize,
    /// Not 0.
    piece_tokens: usize,
}

impl Pieces {
    /// One piece.
    pub(super) fn whole(tokens: usize) -> Self {
        Self { tokens, piece_tokens: tokens.max(1) }
    }

    /// Pieces of `piece_tokens`; none where these are not whole blocks, or too many pieces.
    pub(super) fn new(tokens: usize, piece_tokens: u32, block_tokens: u32) -> Option<Self> {
        let fits = piece_tokens > 0 && piece_tokens.is_multiple_of(block_tokens);
        let piece_tokens = piece_tokens as usize;
        (fits && tokens.div_ceil(piece_tokens) <= PIECES_MAX)
            .then_some(Self { tokens, piece_tokens })
    }

    /// The pieces of the tokens from `from` on.
    pub(super) fn from(self, from: usize) -> impl Iterator<Item = Range<usize>> {
        let Self { tokens, piece_tokens } = self;
        let end =
            move |start: usize| (start / piece_tokens + 1).saturating_mul(piece_tokens).min(tokens);
        let first = (from < tokens).then(|| from..end(from));
        std::iter::successors(first, move |last| {
            (last.end < tokens).then(|| last.end..end(last.end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(tokens: usize, piece: u32, block: u32, from: usize) -> Vec<Range<usize>> {
        Pieces::new(tokens, piece, block).unwrap().from(from).collect()
    }

    #[test]
    fn pieces_lie_one_after_the_other_from_where_they_are_needed() {
        assert_eq!(ranges(20, 8, 4, 0), [0..8, 8..16, 16..20]);
        assert_eq!(ranges(20, 8, 4, 4), [4..8, 8..16, 16..20]);
        assert_eq!(ranges(16, 8, 4, 8), vec![8..16]);
        assert_eq!(ranges(3, 8, 4, 0), vec![0..3]);
        assert!(ranges(16, 8, 4, 16).is_empty());
        assert_eq!(Pieces::whole(20).from(8).collect::<Vec<_>>(), vec![8..20]);
        assert_eq!(Pieces::whole(20).from(20).count(), 0);
    }

    #[test]
    fn what_is_no_whole_block_or_too_much_is_no_cut() {
        for (tokens, piece, block) in [(20, 0, 4), (20, 6, 4), (20, 2, 4), (1 << 31, 4, 4)] {
            assert_eq!(Pieces::new(tokens, piece, block), None, "{tokens} {piece} {block}");
        }
        assert!(Pieces::new(PIECES_MAX * 4, 4, 4).is_some());
        assert!(Pieces::new(PIECES_MAX * 4 + 1, 4, 4).is_none());
    }

    #[test]
    fn a_suitable_piece_cuts_every_sequence() {
        for tokens in [1, 255, 256, 257, 100_000, 1 << 20, 1 << 31] {
            for block in [1, 5, 16, 300] {
                let piece = piece_tokens_for(tokens, block);
                assert!(Pieces::new(tokens, piece, block).is_some(), "{tokens} {block}: {piece}");
                let most = tokens.div_ceil(PIECES_MAX).max(PIECE_TOKENS) + block as usize;
                assert!((piece as usize) < most);
            }
        }
    }
}
