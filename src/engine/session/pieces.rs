//! How a payload is cut into pieces, of which each is a transfer of its own.
//!
//! Pieces are ranges of tokens of one length, from token 0 on; the last one is shorter where the tokens end, and
//! the first one that is needed where the receiver has some of its tokens. A range is whole blocks of the
//! sender's, so that no token of a block is in two of them, and both sides cut at the same bytes whatever the
//! receiver's block length is. A payload that is there as a whole is one piece.
//!
//! From some token on, the ranges are cut by layers too: a model computes the last ones for nobody who could hide
//! their transfer, but layer by layer, and what is done of them can leave while the next layer is computed. Those
//! of a range follow each other.

use std::ops::Range;

use crate::pool::{KvSpec, Span};

/// Most pieces of a payload: each costs both sides an operation, however many bytes it has.
pub(super) const PIECES_MAX: usize = 1024;
/// Tokens of a piece. Few enough that what a step of the model leaves of one, and nothing hides, is a fraction of the step.
const PIECE_TOKENS: usize = 256;
/// Fewest bytes of a piece that is cut by layers: those that a fast link moves while it begins another piece.
const LAYERS_LEN_MIN: usize = 64 << 10;

/// How a sequence that is offered while it is computed is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceCut {
    /// Tokens of a piece: a multiple of the sender's block length.
    pub tokens: u32,
    /// First token of the pieces that are cut by layers too: a multiple of `tokens`.
    pub layered_from: usize,
    /// Layers of a piece from there on; 0: all.
    pub layers: u32,
}

impl PieceCut {
    /// A cut by tokens alone.
    pub fn by_tokens(tokens: u32) -> Self {
        Self { tokens, layered_from: 0, layers: 0 }
    }

    /// What suits a sequence of so many tokens, of which at most `step_tokens` are computed at a time. The tokens of
    /// the last two steps are cut by layers: of a last one that is short, the one before it is waited for too.
    pub fn suiting(spec: &KvSpec, tokens: usize, step_tokens: usize) -> Self {
        let least = tokens.div_ceil(PIECES_MAX / 2).max(PIECE_TOKENS);
        let blocks = least.div_ceil(spec.block_tokens.max(1) as usize);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let piece_tokens = blocks.saturating_mul(spec.block_tokens).max(1);
        let piece = piece_tokens as usize;
        let whole_pieces = tokens.saturating_sub(step_tokens.saturating_mul(2)) / piece;
        let layered = tokens.div_ceil(piece) - whole_pieces;
        let most = (PIECES_MAX - whole_pieces) / layered.max(1);
        let worth = piece.min(tokens) * spec.token_bytes() / LAYERS_LEN_MIN;
        let parts = spec.layers.len().min(most).min(worth).max(1);
        let layers = spec.layers.len().div_ceil(parts) as u32;
        Self { tokens: piece_tokens, layered_from: whole_pieces * piece, layers }
    }
}

/// The cut of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    tokens: usize,
    /// Not 0.
    piece_tokens: usize,
    layered_from: usize,
    /// Not 0.
    piece_layers: usize,
    layers: usize,
}

impl Pieces {
    /// One piece.
    pub(super) fn whole(spec: &KvSpec, tokens: usize) -> Self {
        let layers = spec.layers.len();
        let (piece_tokens, piece_layers) = (tokens.max(1), layers.max(1));
        Self { tokens, piece_tokens, layered_from: tokens, piece_layers, layers }
    }

    /// The pieces of a cut; none where these are not whole blocks of `block_tokens`, or too many.
    pub(super) fn new(
        spec: &KvSpec,
        tokens: usize,
        cut: PieceCut,
        block_tokens: u32,
    ) -> Option<Self> {
        let whole_blocks = cut.tokens > 0 && cut.tokens.is_multiple_of(block_tokens);
        let piece_tokens = cut.tokens as usize;
        if !whole_blocks || !cut.layered_from.is_multiple_of(piece_tokens) {
            return None;
        }
        let layers = spec.layers.len();
        let piece_layers = match cut.layers {
            0 => layers,
            some => layers.min(some as usize),
        };
        let piece_layers = piece_layers.max(1);
        let ranges = tokens.div_ceil(piece_tokens);
        let whole = ranges.min(cut.layered_from / piece_tokens);
        let layered = (ranges - whole).checked_mul(layers.div_ceil(piece_layers))?;
        let layered_from = cut.layered_from;
        (whole.checked_add(layered)? <= PIECES_MAX).then_some(Self {
            tokens,
            piece_tokens,
            layered_from,
            piece_layers,
            layers,
        })
    }

    /// The pieces of the tokens from `from` on, in the order of their numbers.
    pub(super) fn from(self, from: usize) -> impl Iterator<Item = Span> {
        let Self { layered_from, piece_layers, layers, .. } = self;
        self.ranges(from).flat_map(move |tokens| {
            let step = if tokens.start < layered_from { layers.max(1) } else { piece_layers };
            (0..layers).step_by(step).map(move |start| {
                let layers = start..layers.min(start + step);
                Span { tokens: tokens.clone(), layers }
            })
        })
    }

    fn ranges(self, from: usize) -> impl Iterator<Item = Range<usize>> {
        let Self { tokens, piece_tokens, .. } = self;
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
    use crate::pool::Dtype;

    fn spec(layers: usize, block_tokens: u32) -> KvSpec {
        KvSpec::uniform(block_tokens, layers, 2, 64, Dtype::F16)
    }

    fn spans(tokens: usize, cut: PieceCut, from: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let pieces = Pieces::new(&spec(3, 4), tokens, cut, 4).unwrap();
        pieces.from(from).map(|span| (span.tokens, span.layers)).collect()
    }

    #[test]
    fn pieces_lie_one_after_the_other_from_where_they_are_needed() {
        let ranges = |tokens, from| {
            let spans = spans(tokens, PieceCut::by_tokens(8), from);
            assert!(spans.iter().all(|(_, layers)| *layers == (0..3)));
            spans.into_iter().map(|(tokens, _)| tokens).collect::<Vec<_>>()
        };
        assert_eq!(ranges(20, 0), [0..8, 8..16, 16..20]);
        assert_eq!(ranges(20, 4), [4..8, 8..16, 16..20]);
        assert_eq!(ranges(16, 8), vec![8..16]);
        assert_eq!(ranges(3, 0), vec![0..3]);
        assert!(ranges(16, 16).is_empty());
        let whole = Pieces::whole(&spec(3, 4), 20);
        assert_eq!(whole.from(8).collect::<Vec<_>>(), [Span { tokens: 8..20, layers: 0..3 }]);
        assert_eq!(whole.from(20).count(), 0);
    }

    #[test]
    fn from_some_token_on_each_range_is_cut_by_layers() {
        let cut = PieceCut { tokens: 8, layered_from: 8, layers: 2 };
        let last = [(8..16, 0..2), (8..16, 2..3), (16..19, 0..2), (16..19, 2..3)];
        assert_eq!(spans(19, cut, 0), [vec![(0..8, 0..3)], last.to_vec()].concat());
        assert_eq!(spans(19, cut, 12)[0], (12..16, 0..2));
        assert_eq!(spans(19, PieceCut { layers: 9, ..cut }, 8), [(8..16, 0..3), (16..19, 0..3)]);
        assert_eq!(spans(8, PieceCut { layered_from: 1 << 40, ..cut }, 0), vec![(0..8, 0..3)]);
    }

    #[test]
    fn what_is_no_whole_block_or_too_much_is_no_cut() {
        let spec = spec(3, 4);
        let new = |tokens, cut| Pieces::new(&spec, tokens, cut, 4);
        for (tokens, piece) in [(20, 0), (20, 6), (20, 2), (1 << 31, 4)] {
            assert_eq!(new(tokens, PieceCut::by_tokens(piece)), None, "{tokens} {piece}");
        }
        let layered = |layered_from| PieceCut { tokens: 4, layered_from, layers: 1 };
        assert!(new(20, layered(6)).is_none());
        assert!(new(PIECES_MAX * 4, PieceCut::by_tokens(4)).is_some());
        assert!(new(PIECES_MAX * 4 + 1, PieceCut::by_tokens(4)).is_none());
        assert!(new(PIECES_MAX / 3 * 4, layered(0)).is_some());
        assert!(new(PIECES_MAX / 3 * 4 + 4, layered(0)).is_none());
        assert!(new(PIECES_MAX / 3 * 4 + 4, layered(8)).is_some());
    }

    #[test]
    fn a_suitable_cut_cuts_every_sequence() {
        for tokens in [1, 255, 256, 257, 100_000, 1 << 20, 1 << 31] {
            for (layers, block) in [(1, 16), (30, 1), (30, 5), (30, 16), (126, 300), (2000, 16)] {
                for step in [1, 16, 512, 8192, usize::MAX] {
                    let spec = spec(layers, block);
                    let cut = PieceCut::suiting(&spec, tokens, step);
                    let case = format!("{tokens} {layers} {block} {step}: {cut:?}");
                    assert!(Pieces::new(&spec, tokens, cut, block).is_some(), "{case}");
                    let most = tokens.div_ceil(PIECES_MAX / 2).max(PIECE_TOKENS) + block as usize;
                    assert!((cut.tokens as usize) < most, "{case}");
                    let steps = tokens.saturating_sub(step.saturating_mul(2));
                    assert!(cut.layered_from <= steps, "{case}");
                    assert!(cut.layered_from + cut.tokens as usize > steps, "{case}");
                }
            }
        }
    }

    #[test]
    fn a_piece_by_layers_has_bytes_enough() {
        let cut = |layers, tokens| PieceCut::suiting(&spec(layers, 16), tokens, 512).layers;
        // A layer of a piece is 128 KiB.
        assert_eq!((cut(30, 4096), cut(30, 256), cut(30, 128), cut(30, 64)), (1, 1, 1, 2));
        assert_eq!((cut(30, 2), cut(30, 1)), (30, 30));
    }
}
