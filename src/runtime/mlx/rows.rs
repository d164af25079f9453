//! A batch in the form that arrays need: where its tokens lie, and who attends to whom.

use blockwire::pool::Part;
use mlx_rs::{Array, Dtype, ops::concatenate};

use super::pool::{Layers, Pool};
use crate::{
    cpu::plan::{Plan, Run},
    model::ForwardError,
};

/// What all layers need of the rows of a batch.
#[derive(Debug)]
pub(super) struct Rows {
    /// Token ids.
    pub(super) tokens: Array,
    /// Positions as numbers to multiply with: `[row][1]`.
    pub(super) positions: Array,
    /// Where the rows' keys and values go.
    pub(super) at: Array,
    /// Rows that want logits.
    pub(super) wanted: Array,
    /// The pieces of attention work; together all rows, in order.
    pub(super) runs: Vec<RunRows>,
}

/// Consecutive rows at consecutive positions of one sequence.
#[derive(Debug)]
pub(super) struct RunRows {
    /// The rows.
    pub(super) rows: std::ops::Range<i32>,
    /// The peer's pool that holds the sequence's first blocks.
    peer: Option<Layers>,
    /// What is seen by layers without a window, and with one.
    views: [View; 2],
}

/// The tokens that some rows attend to.
#[derive(Debug)]
struct View {
    /// Where they lie in a peer's pool, and behind those in this one.
    peer: Option<Array>,
    own: Option<Array>,
    /// `[row][token]`, true where the one attends to the other; none where all rows do to all.
    mask: Option<Array>,
}

impl Rows {
    /// Of a plan with rows; `window` as in the model's configuration.
    pub(super) fn new(plan: &Plan<'_>, pool: &Pool, window: usize) -> Result<Self, ForwardError> {
        let rows = plan.rows();
        let strides = pool.layers().strides();
        let tokens: Vec<_> = rows.iter().map(|row| row.token as i32).collect();
        let positions: Vec<_> = rows.iter().map(|row| row.position as f32).collect();
        let at = (0..rows.len()).map(|row| strides.at(plan.table(row), rows[row].position));
        let wanted: Vec<_> = plan.wanted().map(|row| row as i32).collect();
        let runs = plan.runs().iter().map(|run| RunRows::new(plan, pool, *run, window));
        Ok(Self {
            tokens: indices(&tokens),
            positions: Array::from_slice(&positions, &[rows.len() as i32, 1]),
            at: indices(&at.collect::<Vec<_>>()),
            wanted: indices(&wanted),
            runs: runs.collect::<Result<_, _>>()?,
        })
    }
}

impl RunRows {
    fn new(
        plan: &Plan<'_>,
        pool: &Pool,
        Run { first_row, rows }: Run,
        window: usize,
    ) -> Result<Self, ForwardError> {
        let adopted = plan.adopted(first_row);
        let peer = adopted.map(Layers::of_peer).transpose()?;
        let first = plan.rows()[first_row].position;
        let block_tokens = plan.sequence(first_row).pool().spec().block_tokens as usize;
        let home = adopted.map_or(0, |adopted| adopted.ids().len() * block_tokens);
        let table = plan.table(first_row);
        let view = |window: usize| {
            let start = (first + 1).saturating_sub(window);
            let end = first + rows;
            let at = |layers: &Layers, positions: std::ops::Range<usize>| {
                let strides = layers.strides();
                let at: Vec<_> = positions.map(|position| strides.at(table, position)).collect();
                (!at.is_empty()).then(|| indices(&at))
            };
            let mask = (rows > 1).then(|| {
                let sees = |row: usize, position: usize| {
                    position <= first + row && first + row < position.saturating_add(window)
                };
                let cells: Vec<bool> = (0..rows)
                    .flat_map(|row| (start..end).map(move |position| sees(row, position)))
                    .collect();
                Array::from_slice(&cells, &[1, 1, rows as i32, (end - start) as i32])
            });
            View {
                peer: peer.as_ref().and_then(|peer| at(peer, start..home.min(end))),
                own: at(pool.layers(), home.max(start)..end),
                mask,
            }
        };
        let views = [view(usize::MAX), view(window.max(1))];
        Ok(Self { rows: first_row as i32..(first_row + rows) as i32, peer, views })
    }

    /// The keys or the values that the rows attend to: `[1][heads][token][head_dim]`.
    pub(super) fn read(
        &self,
        pool: &Pool,
        (layer, windowed): (usize, bool),
        part: Part,
        [heads, head_dim]: [i32; 2],
        dtype: Dtype,
    ) -> Result<Array, ForwardError> {
        let View { peer, own, .. } = &self.views[usize::from(windowed)];
        let mut pieces = Vec::with_capacity(2);
        if let (Some(layers), Some(at)) = (&self.peer, peer) {
            pieces.push(layers.read(layer, part, at)?);
        }
        if let Some(at) = own {
            pieces.push(pool.layers().read(layer, part, at)?);
        }
        let tokens = concatenate(&pieces, 0)?.as_dtype(dtype)?;
        Ok(tokens.reshape(&[1, -1, heads, head_dim])?.transpose_axes(&[0, 2, 1, 3])?)
    }

    /// Who attends to whom of what was [read](Self::read); none where all rows do to all.
    pub(super) fn mask(&self, windowed: bool) -> Option<&Array> {
        self.views[usize::from(windowed)].mask.as_ref()
    }
}

fn indices(indices: &[i32]) -> Array {
    Array::from_slice(indices, &[indices.len() as i32])
}
