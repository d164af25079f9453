//! Attention over paged keys and values, in ranges of 64 positions.
//!
//! The work of one call: some consecutive rows of one sequence, some neighbouring KV heads, and the
//! query heads that share each of these: queries `[KV head][row][head]`. Per range of positions, in
//! order (as in "FlashAttention-2", Dao 2023):
//! ```text
//! score[q][t]  = fma over the dimensions in order, from 0            lanes: positions
//! largest'     = max(largest, scores)
//! weight[q][t] = exp(score - largest')
//! sum, out    *= exp(largest - largest')
//! sum         += weights, position t in lane t % 16
//! out[q][d]    = fma(weight, value) over the positions in order       lanes: dimensions
//! ```
//! and in the end `out / sum`. Each query's operations depend on its own position alone: how queries
//! are grouped, and where blocks lie, cannot change a bit. A query's loops end at its own position, and begin
//! where its window does; no position beyond the last query's, or before the first one's window, is read:
//! what lies there may be anything.
//!
//! All KV heads of a range come before the next range, so that memory is read in whole rows.

use std::ops::Range;

use blockwire::pool::Dtype;
use half::{bf16, f16};

use super::{
    Kernel,
    elementwise::{SUM_LANES, exp, sum_lanes},
    pages::{Pages, gather, prefetch},
    simd::Simd,
};

/// Positions per range: a multiple of twice the widest vector.
pub(crate) const RANGE: usize = 64;

/// Queries that share one load of keys or values.
const GROUP: usize = 4;

/// Working memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[RANGE][head_dim]`: keys or values of the range.
    rows: Vec<f32>,
    /// `[head_dim][RANGE]`: the keys transposed.
    keys: Vec<f32>,
    /// `[queries][head_dim]`: what to attend with.
    pub(crate) queries: Vec<f32>,
    /// `[queries][RANGE]`: scores, then weights.
    scores: Vec<f32>,
    /// `[queries][head_dim]`: what came out.
    pub(crate) out: Vec<f32>,
    /// Per query: the largest score so far, and the sum of weights.
    states: Vec<(f32, [f32; SUM_LANES])>,
}

impl Scratch {
    /// Makes room.
    pub(crate) fn reshape(&mut self, shape: Shape) {
        let (queries, head_dim) = (shape.queries(), shape.head_dim);
        self.rows.resize(RANGE * head_dim, 0.0);
        self.keys.resize(RANGE * head_dim, 0.0);
        self.queries.resize(queries * head_dim, 0.0);
        self.scores.resize(queries * RANGE, 0.0);
        self.out.clear();
        self.out.resize(queries * head_dim, 0.0);
        self.states.clear();
        self.states.resize(queries, (f32::NEG_INFINITY, [0.0; SUM_LANES]));
    }
}

/// How many heads and rows the queries are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Neighbouring KV heads.
    pub(crate) kv_heads: usize,
    /// Consecutive rows.
    pub(crate) rows: usize,
    /// Query heads per KV head.
    pub(crate) group: usize,
    /// Elements per head.
    pub(crate) head_dim: usize,
}

impl Shape {
    /// Queries of one KV head.
    #[inline(always)]
    fn per_kv_head(self) -> usize {
        self.rows * self.group
    }

    /// All queries.
    #[inline(always)]
    fn queries(self) -> usize {
        self.kv_heads * self.per_kv_head()
    }
}

/// Fills `scratch.out` from `scratch.queries`.
///
/// Invariant 1: the positions from the first row's window on, below `first_position + shape.rows`, are readable
/// through both pages.
pub(crate) struct Attend<'a> {
    keys: Pages<'a>,
    values: Pages<'a>,
    shape: Shape,
    first_position: usize,
    window: usize,
    scratch: &'a mut Scratch,
}

/// What a query sees of a range of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    first: usize,
    end: usize,
}

impl View {
    #[inline(always)]
    fn is_empty(self) -> bool {
        self.first == self.end
    }
}

impl<'a> Attend<'a> {
    /// Queries lie in the scratch, scaled; row `i` sees the last `window` of the positions up to and with
    /// `first_position + i`.
    ///
    /// # Panics
    /// When the window is empty, the head dimension is no multiple of 16, the scratch was reshaped for another shape, or
    /// a table is too short.
    ///
    /// # Safety
    /// Every visible position is readable at `start + table[t / block_tokens] * block_stride +
    /// t % block_tokens * token_stride` of its block's slab, for `kv_heads * head_dim` elements of
    /// `dtype`, of any alignment, and nobody of this process writes there until the kernel has run.
    pub(crate) unsafe fn new(
        keys: Pages<'a>,
        values: Pages<'a>,
        shape: Shape,
        first_position: usize,
        window: usize,
        scratch: &'a mut Scratch,
    ) -> Self {
        let Shape { rows, head_dim, .. } = shape;
        assert!(window > 0, "an empty window");
        assert!(head_dim.is_multiple_of(16) && head_dim > 0, "head dimension {head_dim}");
        let (queries, len) = (scratch.states.len(), scratch.queries.len());
        let expected = (shape.queries(), shape.queries() * head_dim);
        assert_eq!((queries, len), expected, "scratch of another shape");
        let visible = first_position + rows;
        for pages in [&keys, &values] {
            assert!(visible <= pages.table.len() * pages.block_tokens, "{visible} positions");
        }
        Self { keys, values, shape, first_position, window, scratch }
    }

    /// What a query sees of the range from `start` on.
    #[inline(always)]
    fn view(&self, query: usize, start: usize) -> View {
        let row = query % self.shape.per_kv_head() / self.shape.group;
        let visible = self.first_position + row + 1;
        let within = |position: usize| position.saturating_sub(start).min(RANGE);
        View { first: within(visible.saturating_sub(self.window)), end: within(visible) }
    }

    /// The queries from `query` on, below `end`, that see as much as it, at most four with it.
    #[inline(always)]
    fn group(&self, query: usize, end: usize, start: usize) -> (usize, View) {
        let view = self.view(query, start);
        let mut count = 1;
        while count < GROUP && query + count < end && self.view(query + count, start) == view {
            count += 1;
        }
        (count, view)
    }

    #[inline(always)]
    fn gather<S: Simd>(
        &mut self,
        simd: S,
        mut pages: Pages<'_>,
        head: usize,
        start: usize,
        range: Range<usize>,
    ) {
        let head_dim = self.shape.head_dim;
        let rows = &mut self.scratch.rows[(range.start - start) * head_dim..];
        let rows = &mut rows[..range.len() * head_dim];
        // SAFETY: invariant 1, for the elements of this one of `kv_heads` heads.
        unsafe {
            pages.own = pages.own.from(head * head_dim, pages.dtype);
            pages.peer = pages.peer.from(head * head_dim, pages.dtype);
            match pages.dtype {
                Dtype::F16 => gather::<S, f16>(simd, pages, range.start, rows, head_dim),
                Dtype::Bf16 => gather::<S, bf16>(simd, pages, range.start, rows, head_dim),
                Dtype::F32 => gather::<S, f32>(simd, pages, range.start, rows, head_dim),
            }
        }
    }

    /// Rows outside the positions that were gathered hold older numbers, whose scores nobody looks at.
    #[inline(always)]
    fn transpose_keys<S: Simd>(&mut self, simd: S, count: usize) {
        let head_dim = self.shape.head_dim;
        let Scratch { rows, keys, .. } = &mut *self.scratch;
        for token in (0..count).step_by(S::LANES) {
            for dimension in (0..head_dim).step_by(S::LANES) {
                // SAFETY: `LANES` divides 64 and the head dimension, so that the square lies inside
                // `[64][head_dim]` and inside `[head_dim][64]`, which `reshape` allocated.
                unsafe {
                    let from = rows.as_ptr().add(token * head_dim + dimension);
                    let to = keys.as_mut_ptr().add(dimension * RANGE + token);
                    simd.transpose(from, head_dim, to, RANGE);
                }
            }
        }
    }

    #[inline(always)]
    fn score_range<S: Simd>(&mut self, simd: S, head: usize, start: usize) {
        let mut query = head * self.shape.per_kv_head();
        let end = query + self.shape.per_kv_head();
        while query < end {
            let (count, view) = self.group(query, end, start);
            match count {
                _ if view.is_empty() => {}
                1 => self.score::<S, 1>(simd, query, view),
                2 => self.score::<S, 2>(simd, query, view),
                3 => self.score::<S, 3>(simd, query, view),
                _ => self.score::<S, 4>(simd, query, view),
            }
            query += count;
        }
    }

    #[inline(always)]
    fn score<S: Simd, const M: usize>(&mut self, simd: S, query: usize, view: View) {
        let dimensions = self.shape.head_dim;
        let queries = self.scratch.queries[query * dimensions..][..M * dimensions].as_ptr();
        let scores = self.scratch.scores[query * RANGE..][..M * RANGE].as_mut_ptr();
        let keys = self.scratch.keys[..dimensions * RANGE].as_ptr();
        let from = view.first / (2 * S::LANES) * (2 * S::LANES);
        for token in (from..view.end).step_by(2 * S::LANES) {
            let mut sums = [[simd.splat(0.0); 2]; M];
            // SAFETY: two vectors divide 64, so `token + 2 * LANES` is at most 64; the slices above
            // have `M` rows of queries and scores, and `dimensions` rows of keys.
            unsafe {
                for dimension in 0..dimensions {
                    let key = keys.add(dimension * RANGE + token);
                    let (low, high) = (simd.load(key), simd.load(key.add(S::LANES)));
                    for (m, sum) in sums.iter_mut().enumerate() {
                        let query = simd.splat(*queries.add(m * dimensions + dimension));
                        *sum = [simd.fma(query, low, sum[0]), simd.fma(query, high, sum[1])];
                    }
                }
                for (m, sum) in sums.into_iter().enumerate() {
                    let score = scores.add(m * RANGE + token);
                    simd.store(score, sum[0]);
                    simd.store(score.add(S::LANES), sum[1]);
                }
            }
        }
    }

    /// Scores become weights.
    #[inline(always)]
    fn weigh_range<S: Simd>(&mut self, simd: S, start: usize) {
        for query in 0..self.scratch.states.len() {
            let view = self.view(query, start);
            if view.is_empty() {
                continue;
            }
            let scores = &mut self.scratch.scores[query * RANGE..][..RANGE];
            let (largest, sums) = &mut self.scratch.states[query];
            let decay = weigh(simd, scores, view, largest, sums);
            if decay != 1.0 {
                let head_dim = self.shape.head_dim;
                let out = &mut self.scratch.out[query * head_dim..][..head_dim];
                out.iter_mut().for_each(|out| *out *= decay);
            }
        }
    }

    #[inline(always)]
    fn add_range<S: Simd>(&mut self, simd: S, head: usize, start: usize) {
        let mut query = head * self.shape.per_kv_head();
        let end = query + self.shape.per_kv_head();
        while query < end {
            let (count, view) = self.group(query, end, start);
            match count {
                _ if view.is_empty() => {}
                1 => self.add::<S, 1>(simd, query, view),
                2 => self.add::<S, 2>(simd, query, view),
                3 => self.add::<S, 3>(simd, query, view),
                _ => self.add::<S, 4>(simd, query, view),
            }
            query += count;
        }
    }

    #[inline(always)]
    fn add<S: Simd, const M: usize>(&mut self, simd: S, query: usize, view: View) {
        let dimensions = self.shape.head_dim;
        let weights = self.scratch.scores[query * RANGE..][..M * RANGE].as_ptr();
        let out = self.scratch.out[query * dimensions..][..M * dimensions].as_mut_ptr();
        let values = self.scratch.rows[..RANGE * dimensions].as_ptr();
        for dimension in (0..dimensions).step_by(S::LANES) {
            // SAFETY: `LANES` divides the head dimension, and the view ends at 64 at most; the slices
            // above have `M` rows of weights and of `out`, and 64 rows of values.
            unsafe {
                let mut sums = [simd.splat(0.0); M];
                for (m, sum) in sums.iter_mut().enumerate() {
                    *sum = simd.load(out.add(m * dimensions + dimension));
                }
                for token in view.first..view.end {
                    let value = simd.load(values.add(token * dimensions + dimension));
                    for (m, sum) in sums.iter_mut().enumerate() {
                        *sum = simd.fma(simd.splat(*weights.add(m * RANGE + token)), value, *sum);
                    }
                }
                for (m, sum) in sums.into_iter().enumerate() {
                    simd.store(out.add(m * dimensions + dimension), sum);
                }
            }
        }
    }
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (keys, values) = (self.keys, self.values);
        let Shape { kv_heads, rows, head_dim, .. } = self.shape;
        let visible = self.first_position + rows;
        let first = (self.first_position + 1).saturating_sub(self.window);
        for start in (first / RANGE * RANGE..visible).step_by(RANGE) {
            let end = visible.min(start + RANGE);
            let range = first.max(start)..end;
            let next = end..visible.min(end + RANGE);
            prefetch(simd, keys, next.clone(), kv_heads * head_dim);
            for head in 0..kv_heads {
                self.gather(simd, keys, head, start, range.clone());
                self.transpose_keys(simd, end - start);
                self.score_range(simd, head, start);
            }
            self.weigh_range(simd, start);
            prefetch(simd, values, next, kv_heads * head_dim);
            for head in 0..kv_heads {
                self.gather(simd, values, head, start, range.clone());
                self.add_range(simd, head, start);
            }
        }
        let Scratch { out, states, .. } = &mut *self.scratch;
        for (out, (_, sums)) in out.chunks_exact_mut(head_dim).zip(states) {
            let inverse = 1.0 / sum_lanes(*sums);
            out.iter_mut().for_each(|out| *out *= inverse);
        }
    }
}

/// Turns the scores in view into weights and adds them up; gives the factor for what came before.
#[inline(always)]
fn weigh<S: Simd>(
    simd: S,
    scores: &mut [f32],
    View { first, end: visible }: View,
    largest: &mut f32,
    sums: &mut [f32; SUM_LANES],
) -> f32 {
    let padded = visible.next_multiple_of(SUM_LANES);
    scores[..first].fill(f32::NEG_INFINITY);
    scores[visible..padded].fill(f32::NEG_INFINITY);
    let before = *largest;
    let mut most = simd.splat(before);
    for chunk in scores[..padded].chunks_exact(S::LANES) {
        // SAFETY: the chunk holds `LANES` floats.
        most = simd.max(unsafe { simd.load(chunk.as_ptr()) }, most);
    }
    *largest = simd.largest(most);
    let shift = simd.splat(*largest);
    for chunk in scores[..padded].chunks_exact_mut(S::LANES) {
        // SAFETY: the chunk holds `LANES` floats.
        unsafe {
            let weight = exp(simd, simd.sub(simd.load(chunk.as_ptr()), shift));
            simd.store(chunk.as_mut_ptr(), weight);
        }
    }
    scores[..first].fill(0.0);
    scores[visible..padded].fill(0.0);
    let decay = decay(simd, before, *largest);
    for lane in (0..SUM_LANES).step_by(S::LANES) {
        // SAFETY: `lane + LANES` is at most 16, the length of `sums` and of every chunk.
        unsafe {
            let sum = sums.as_mut_ptr().add(lane);
            let mut total = simd.mul(simd.load(sum), simd.splat(decay));
            for chunk in scores[..padded].chunks_exact(SUM_LANES) {
                total = simd.add(total, simd.load(chunk.as_ptr().add(lane)));
            }
            simd.store(sum, total);
        }
    }
    decay
}

/// `exp(before - now)`: 1 when nothing changed, tiny on what is still zero in the first range.
#[inline(always)]
fn decay<S: Simd>(simd: S, before: f32, now: f32) -> f32 {
    if before == now {
        return 1.0;
    }
    let mut lanes = [0.0; SUM_LANES];
    // SAFETY: the array holds 16 floats, and `LANES` is at most 16.
    unsafe { simd.store(lanes.as_mut_ptr(), exp(simd, simd.splat(before - now))) }
    lanes[0]
}
