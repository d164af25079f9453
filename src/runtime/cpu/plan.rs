//! Checks a batch before anything is written, and finds the work in it.
//!
//! Invariant 1, of every [`Plan`]: tokens are in the vocabulary; every row's position lies in a block
//! that its sequence alone writes, and of which others read layers that it was [told](Plan::layer_written) of
//! during the pass, and no others; all positions up to it are written, or rows of the plan;
//! all sequences lie in one pool, whose planes have the model's shape; so have those of the peer's pool
//! in which a sequence's first blocks may lie, in blocks of the same length.

use blockwire::pool::{AdoptedBlocks, BlockPool, KvSequence, KvSpec};

use super::state::{self, StateShape};
use crate::model::{Batch, ForwardError, LayerHook, Row};

/// The checked rows of one forward pass.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pool: Option<&'a BlockPool>,
    sequences: Vec<&'a KvSequence>,
    rows: &'a [Row],
    runs: Vec<Run>,
    /// For every row the one before it of its sequence; as many as rows.
    previous: Vec<Option<usize>>,
    /// For every sequence its last row.
    last: Vec<Option<usize>>,
}

/// Consecutive rows at consecutive positions of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index of the first row.
    pub(crate) first_row: usize,
    /// Number of rows.
    pub(crate) rows: usize,
}

impl<'a> Plan<'a> {
    /// Checks a batch for a model of this vocabulary and geometry; a run has at most `run_rows_max` rows.
    pub(crate) fn new(
        batch: &'a Batch<'_>,
        vocab: usize,
        spec: impl Fn(u32) -> KvSpec,
        run_rows_max: usize,
        state: Option<StateShape>,
    ) -> Result<Self, ForwardError> {
        let pool = batch.sequences.first().map(|sequence| sequence.pool());
        if let Some(pool) = pool {
            check_pool(batch, pool, spec(pool.spec().block_tokens))?;
        }
        check_rows(batch, vocab)?;
        let mut last = vec![None; batch.sequences.len()];
        let rows = batch.rows.iter().enumerate();
        let previous: Vec<_> = rows.map(|(row, at)| last[at.sequence].replace(row)).collect();
        if let Some(shape) = state {
            check_states(batch, &previous, shape)?;
        }
        let sequences = batch.sequences.iter().map(|sequence| &**sequence).collect();
        let runs = runs(&batch.rows, run_rows_max);
        Ok(Self { pool, sequences, rows: &batch.rows, runs, previous, last })
    }

    /// The pool; `None` only when there are no sequences, hence no rows.
    pub(crate) fn pool(&self) -> Option<&'a BlockPool> {
        self.pool
    }

    /// The rows.
    pub(crate) fn rows(&self) -> &'a [Row] {
        self.rows
    }

    /// The block table of a row's sequence.
    pub(crate) fn table(&self, row: usize) -> &'a [u32] {
        self.sequences[self.rows[row].sequence].block_table()
    }

    /// The first blocks of a row's sequence, where they lie in a peer's pool.
    pub(crate) fn adopted(&self, row: usize) -> Option<&'a AdoptedBlocks> {
        self.sequences[self.rows[row].sequence].adopted()
    }

    /// A row's sequence.
    pub(crate) fn sequence(&self, row: usize) -> &'a KvSequence {
        self.sequences[self.rows[row].sequence]
    }

    /// Says that all rows of a layer are in the cache, and will not be written again.
    pub(crate) fn layer_written(&self, layer: usize, hook: &mut dyn LayerHook) {
        self.sequences.iter().for_each(|sequence| sequence.layer_written(layer));
        hook.layer_written(layer);
    }

    /// The row before this one of its sequence; none where that lies in an earlier pass.
    pub(crate) fn previous(&self, row: usize) -> Option<usize> {
        self.previous[row]
    }

    /// For every sequence its last row; none where it has no row.
    pub(crate) fn last_rows(&self) -> &[Option<usize>] {
        &self.last
    }

    /// The pieces of attention work; together all rows, each once.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Indices of the rows that want logits.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = usize> {
        (0..self.rows.len()).filter(|row| self.rows[*row].wants_logits)
    }
}

/// Says in every sequence how many tokens it has after its rows were run.
pub(crate) fn advance(batch: &mut Batch<'_>) {
    for row in &batch.rows {
        batch.sequences[row.sequence].set_len(row.position + 1);
    }
}

fn check_pool(batch: &Batch<'_>, pool: &BlockPool, model: KvSpec) -> Result<(), ForwardError> {
    let foreign = batch.sequences.iter().position(|sequence| !sequence.pool().same_pool(pool));
    if let Some(sequence) = foreign {
        return Err(ForwardError::SeveralPools { sequence });
    }
    let adopted = batch.sequences.iter().filter_map(|sequence| sequence.adopted());
    let specs = adopted.map(|adopted| adopted.peer().shape().spec()).chain([pool.spec()]);
    for spec in specs {
        if *spec != model {
            return Err(ForwardError::Geometry { model, pool: spec.clone() });
        }
    }
    Ok(())
}

fn check_rows(batch: &Batch<'_>, vocab: usize) -> Result<(), ForwardError> {
    let mut next = vec![None; batch.sequences.len()];
    for (row, &Row { sequence, position, token, .. }) in batch.rows.iter().enumerate() {
        let sequences = batch.sequences.len();
        let Some(cache) = batch.sequences.get(sequence) else {
            return Err(ForwardError::NoSuchSequence { row, sequence, sequences });
        };
        if token as usize >= vocab {
            return Err(ForwardError::NoSuchToken { row, token, vocab });
        }
        let (capacity, writable_from) = (cache.capacity(), cache.writable_from());
        if position >= capacity {
            return Err(ForwardError::BeyondCapacity { row, position, capacity });
        }
        if position < writable_from {
            return Err(ForwardError::Sealed { row, position, writable_from });
        }
        let expected = next[sequence].unwrap_or(cache.len());
        let follows = match next[sequence] {
            Some(next) => position == next,
            None => position <= cache.len(),
        };
        if !follows {
            return Err(ForwardError::Gap { row, position, expected });
        }
        next[sequence] = Some(position + 1);
    }
    Ok(())
}

/// The model's own state cannot go back, but to the start.
fn check_states(
    batch: &Batch<'_>,
    previous: &[Option<usize>],
    shape: StateShape,
) -> Result<(), ForwardError> {
    let rows = batch.rows.iter().zip(previous).enumerate();
    let firsts = rows.filter(|(_, (_, previous))| previous.is_none());
    for (row, (&Row { sequence, position, .. }, _)) in firsts {
        let state = state::of(batch.sequences[sequence], shape).map_or(0, |(len, _)| len);
        if position != 0 && position != state {
            return Err(ForwardError::StateElsewhere { row, position, state });
        }
    }
    Ok(())
}

fn runs(rows: &[Row], most: usize) -> Vec<Run> {
    let together = |a: &Row, b: &Row| a.sequence == b.sequence;
    let mut runs = Vec::new();
    let mut first_row = 0;
    for chunk in rows.chunk_by(together).flat_map(|chunk| chunk.chunks(most)) {
        runs.push(Run { first_row, rows: chunk.len() });
        first_row += chunk.len();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_consecutive_rows_of_one_sequence() {
        let row = |sequence| Row { sequence, position: 0, token: 0, wants_logits: false };
        let rows: Vec<_> = [0, 0, 0, 1, 0].map(row).into();
        let run = |first_row, rows| Run { first_row, rows };
        assert_eq!(runs(&rows, 2), [run(0, 2), run(2, 1), run(3, 1), run(4, 1)]);
        assert_eq!(runs(&rows, 8), [run(0, 3), run(3, 1), run(4, 1)]);
    }
}
