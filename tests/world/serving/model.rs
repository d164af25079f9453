//! A model whose next token is a function of what lies in the cache, and of nothing else.

use blockwire::pool::{Dtype, KvSequence, KvSpec};
use blockwire_runtime::files::ModelFingerprint;
use blockwire_runtime::model::{
    Batch, ForwardError, LayerHook, Logits, Model, SequenceStateLayout,
};
use blockwire_serving::backend::FinishReason;

/// Token ids are below this.
pub(super) const VOCAB: usize = 32;
const LAYERS: usize = 2;
/// Ends a text.
pub(super) const EOS: u32 = 0;
/// Most tokens of a sequence.
pub(super) const CONTEXT: usize = 64;

/// The model.
#[derive(Debug)]
pub(super) struct Tiny;

/// The byte that the state of a token consists of.
fn state(token: u32, position: usize) -> u8 {
    let mixed = (u64::from(token) << 32 | position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// The token that follows these states.
fn next(states: impl Iterator<Item = u8>) -> u32 {
    let hash = states.fold(0xcbf2_9ce4_8422_2325_u64, |hash, state| {
        let mixed = (hash ^ u64::from(state)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    });
    (hash >> 33) as u32 % VOCAB as u32
}

/// How many ways prompts begin in.
const BEGINNINGS: u32 = 3;

/// The prompt of a request, whose first `common` tokens are those of many others.
pub(super) fn prompt(id: u32, common: usize, len: usize) -> Vec<u32> {
    let token = |at| {
        let whose = if at < common { id % BEGINNINGS } else { id };
        let mixed = (u64::from(whose) << 8 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 + (mixed >> 40) as u32 % (VOCAB as u32 - 1)
    };
    (0..len).map(token).collect()
}

/// What has to come of it.
pub(super) fn answer(prompt: &[u32], max_tokens: u32) -> (Vec<u32>, FinishReason) {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        let states = tokens.iter().enumerate().map(|(at, token)| state(*token, at));
        tokens.push(next(states));
        if tokens.last() == Some(&EOS) {
            return (tokens.split_off(prompt.len()), FinishReason::Stop);
        }
    }
    (tokens.split_off(prompt.len()), FinishReason::Length)
}

impl Model for Tiny {
    fn family(&self) -> &str {
        "tiny"
    }

    fn kv_spec(&self, block_tokens: u32) -> KvSpec {
        KvSpec::uniform(block_tokens, LAYERS, 1, 4, Dtype::F16)
    }

    fn sequence_state_layout(&self) -> SequenceStateLayout {
        SequenceStateLayout::PoolBacked
    }

    fn vocab(&self) -> usize {
        VOCAB
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn fingerprint(&self) -> ModelFingerprint {
        ModelFingerprint::from_bytes([9; 32])
    }

    fn forward(
        &mut self,
        batch: &mut Batch<'_>,
        hook: &mut dyn LayerHook,
    ) -> Result<Logits, ForwardError> {
        let mut logits = Vec::new();
        for row in &batch.rows {
            let sequence = &mut *batch.sequences[row.sequence];
            let (position, expected) = (row.position, sequence.len());
            assert_eq!(position, expected, "the scheduler leaves no gap and goes not back");
            sequence.fill_token(position, state(row.token, position));
            sequence.set_len(position + 1);
            if row.wants_logits {
                let mut values = vec![0.0; VOCAB];
                values[next_of(sequence) as usize] = 1.0;
                logits.extend(values);
            }
        }
        for layer in 0..LAYERS {
            batch.sequences.iter().for_each(|sequence| sequence.layer_written(layer));
            hook.layer_written(layer);
        }
        Ok(Logits::new(VOCAB, logits))
    }
}

fn next_of(sequence: &KvSequence) -> u32 {
    let mut bytes = Vec::new();
    next((0..sequence.len()).map(|position| {
        bytes.clear();
        sequence.read_token(position, &mut bytes);
        // Torn where it is not all the same: then nothing that can be foretold.
        let same = bytes.iter().all(|byte| *byte == bytes[0]);
        if same { bytes[0] } else { bytes[0] ^ 0x55 }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_differ_and_some_end() {
        let answers: Vec<_> = (0..200).map(|id| answer(&prompt(id, 0, 9), 10)).collect();
        let stopped = answers.iter().filter(|(_, reason)| *reason == FinishReason::Stop).count();
        assert!((10..150).contains(&stopped), "{stopped} of 200");
        assert!(answers.windows(2).filter(|pair| pair[0] == pair[1]).count() < 10);
    }
}
