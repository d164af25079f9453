//! What convolutions remember of a sequence: the inputs of the last tokens.
//!
//! A convolution over `taps` tokens needs `taps - 1` inputs before the current one, in every layer that has
//! one. They are exact copies of what the pass computed, so that a sequence goes on as if it had been computed
//! in one pass.

use std::any::Any;

use blockwire::pool::{KvSequence, ModelState};

use crate::{
    files::{Family, Mixer, ModelConfig},
    model::{Batch, StateError, StateReader},
};

/// The extent of a model's states: `[layer][tap][hidden]` numbers, oldest tap first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateShape {
    family: Family,
    layers: usize,
    taps: usize,
    hidden: usize,
}

impl StateShape {
    /// None for a model without convolutions.
    pub(crate) fn new(config: &ModelConfig) -> Option<Self> {
        let taps = config.convolution_taps.checked_sub(1)?;
        let layers = config.layers.iter().filter(|mixer| **mixer == Mixer::Convolution).count();
        Some(Self { family: config.family, layers, taps, hidden: config.hidden })
    }

    /// Numbers of a state.
    pub(crate) fn len(self) -> usize {
        self.layers * self.taps * self.hidden
    }

    /// Inputs that a state has of each layer.
    pub(crate) fn taps(self) -> usize {
        self.taps
    }

    /// Where the input `tap` of a layer begins in a state.
    pub(crate) fn at(self, layer: usize, tap: usize) -> usize {
        (layer * self.taps + tap) * self.hidden
    }
}

#[derive(Debug)]
struct ConvolutionState {
    shape: StateShape,
    /// Tokens seen.
    len: usize,
    inputs: Vec<f32>,
}

impl ModelState for ConvolutionState {
    fn family(&self) -> &str {
        self.shape.family.name()
    }

    fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(self.inputs.iter().flat_map(|input| input.to_le_bytes()).collect())
    }
}

impl StateReader for StateShape {
    fn read(&self, tokens: usize, bytes: &[u8]) -> Result<Box<dyn ModelState>, StateError> {
        let (numbers, rest) = bytes.as_chunks();
        if numbers.len() != self.len() || !rest.is_empty() {
            let expected = self.len() * size_of::<f32>();
            return Err(StateError::Len { expected, found: bytes.len() });
        }
        let inputs = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
        Ok(Box::new(ConvolutionState { shape: *self, len: tokens, inputs }))
    }
}

/// The state of a sequence after so many tokens; none where the sequence has none of this shape.
pub(crate) fn of(sequence: &KvSequence, shape: StateShape) -> Option<(usize, &[f32])> {
    let state: &dyn Any = sequence.model_state()?;
    let state = state.downcast_ref::<ConvolutionState>().filter(|state| state.shape == shape)?;
    Some((state.len, &state.inputs))
}

/// Puts what a pass left behind, one state after the other, with the sequences that had rows in it.
pub(crate) fn advance(batch: &mut Batch<'_>, shape: StateShape, states: &[f32]) {
    let states = states.chunks_exact(shape.len());
    let mut has_rows = vec![false; batch.sequences.len()];
    batch.rows.iter().for_each(|row| has_rows[row.sequence] = true);
    for ((sequence, inputs), _) in
        batch.sequences.iter_mut().zip(states).zip(has_rows).filter(|(_, has_rows)| *has_rows)
    {
        let (len, inputs) = (sequence.len(), inputs.to_vec());
        *sequence.model_state_mut() = Some(Box::new(ConvolutionState { shape, len, inputs }));
    }
}
