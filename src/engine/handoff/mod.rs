//! From a sequence to a peer: extract, send, at its end or while it is computed; and the probe that tells what
//! a pool really holds.

mod probe;
mod sender;
mod state;

pub use probe::{BlockGeometry, ProbeError, ProbeTarget, probe_block_geometry};
pub use sender::{HandoffSender, SendReport, send_handoff_payload};
pub use state::{STATE_LEN_MAX, StateSegment};

use crate::pool::{KvSequence, ModelState, SealedRun};

/// Why a sequence cannot be handed over. It concerns one request; nothing is leaked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtractError {
    /// No token was computed.
    #[error("the sequence is empty: there is nothing to hand over")]
    Empty,
    /// Blocks of the sequence lie with a peer.
    #[error("{blocks} blocks of the sequence lie in a peer's pool: bring them home first")]
    Adopted {
        /// How many.
        blocks: usize,
    },
    /// The pool does not hold all of the sequence's state, and the rest has no form in which it could go along.
    #[error("handoff is not supported for {family}: the model owns state that is not in the pool")]
    ModelOwned {
        /// The model's family.
        family: String,
    },
    /// What the model keeps outside the pool is too long to go along.
    #[error(
        "handoff is not supported for {family}: its state of {len} bytes is longer than {STATE_LEN_MAX}"
    )]
    StateLen {
        /// The model's family.
        family: String,
        /// Bytes of the state.
        len: usize,
    },
}

/// A finished sequence, ready to be offered. No payload was copied.
#[derive(Clone, Debug)]
pub struct SequenceHandoff(SealedRun);

impl SequenceHandoff {
    /// Its blocks.
    pub fn run(&self) -> &SealedRun {
        &self.0
    }
}

/// Seals a sequence and takes a share of its blocks.
///
/// Afterwards the sequence can be read but not extended; unwritten blocks are free again. A sequence with
/// [state of its model's own](KvSequence::model_state) is refused whatever its blocks hold: without that state
/// the peer would compute something else. [`extract_with_state`] takes it along.
///
/// # Errors
/// [`ExtractError`], before anything was changed.
pub fn extract_sequence_handoff(
    sequence: &mut KvSequence,
) -> Result<SequenceHandoff, ExtractError> {
    if let Some(state) = sequence.model_state() {
        return Err(ExtractError::ModelOwned { family: state.family().to_owned() });
    }
    seal(sequence)
}

/// The same with the state that the model keeps of the sequence outside the pool, where there is any: whoever
/// takes the blocks over must get it too.
///
/// # Errors
/// [`ExtractError`], before anything was changed.
pub fn extract_with_state(
    sequence: &mut KvSequence,
) -> Result<(SequenceHandoff, Option<StateSegment>), ExtractError> {
    let state = sequence.model_state().map(segment).transpose()?;
    Ok((seal(sequence)?, state))
}

fn segment(state: &dyn ModelState) -> Result<StateSegment, ExtractError> {
    let family = state.family().to_owned();
    match state.to_bytes() {
        None => Err(ExtractError::ModelOwned { family }),
        Some(bytes) if bytes.len() > STATE_LEN_MAX => {
            Err(ExtractError::StateLen { family, len: bytes.len() })
        }
        Some(bytes) => Ok(StateSegment { family, bytes: bytes.into() }),
    }
}

fn seal(sequence: &mut KvSequence) -> Result<SequenceHandoff, ExtractError> {
    if sequence.is_empty() {
        return Err(ExtractError::Empty);
    }
    if let Some(adopted) = sequence.adopted() {
        return Err(ExtractError::Adopted { blocks: adopted.ids().len() });
    }
    let tokens = sequence.len();
    let blocks = sequence.finish().to_vec();
    let run = SealedRun::new(sequence.pool(), blocks, tokens);
    Ok(SequenceHandoff(run.expect("the blocks of a finished sequence")))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::pool::{BlockPool, Dtype, KvSpec, PoolOptions};

    /// A state of so many bytes, or without such a form.
    #[derive(Debug)]
    struct Recurrent(Option<usize>);

    impl ModelState for Recurrent {
        fn family(&self) -> &str {
            "recurrent"
        }

        fn to_bytes(&self) -> Option<Vec<u8>> {
            self.0.map(|len| vec![7; len])
        }
    }

    /// Second criterion of the fault B30: the block table is full of blocks, and no byte of them is asked for.
    #[test]
    fn fault_b30_a_populated_block_table_does_not_make_a_model_owned_sequence_pool_backed() {
        let spec = KvSpec::uniform(4, 1, 1, 8, Dtype::F16);
        let pool = BlockPool::new(PoolOptions::new(spec, 8)).unwrap();
        let mut sequence = KvSequence::new(&pool);
        sequence.push(pool.try_reserve(3).unwrap()).unwrap();
        sequence.set_len(9);
        *sequence.model_state_mut() = Some(Box::new(Recurrent(None)));
        let before = pool.accounting();
        let family = || "recurrent".to_owned();
        for _ in 0..2 {
            let refused = extract_sequence_handoff(&mut sequence).unwrap_err();
            assert_eq!(refused, ExtractError::ModelOwned { family: family() });
            assert!(refused.to_string().contains("recurrent"), "{refused}");
            assert_eq!(extract_with_state(&mut sequence).unwrap_err(), refused);
        }
        let len = STATE_LEN_MAX + 1;
        *sequence.model_state_mut() = Some(Box::new(Recurrent(Some(len))));
        let refused = extract_with_state(&mut sequence).unwrap_err();
        assert_eq!(refused, ExtractError::StateLen { family: family(), len });
        let untouched = (sequence.len(), sequence.block_table().len(), sequence.sealed().len());
        assert_eq!((untouched, pool.accounting()), ((9, 3, 0), before));
        *sequence.model_state_mut() = Some(Box::new(Recurrent(Some(3))));
        assert!(extract_sequence_handoff(&mut sequence).is_err(), "it would go without its state");
        let (handoff, state) = extract_with_state(&mut sequence).unwrap();
        let bytes = Bytes::from_static(&[7; 3]);
        assert_eq!(
            (handoff.run().tokens(), state),
            (9, Some(StateSegment { family: family(), bytes }))
        );
    }

    #[test]
    fn extraction_seals_what_is_written_and_frees_the_rest() {
        let spec = KvSpec::uniform(4, 1, 1, 8, Dtype::F16);
        let pool = BlockPool::new(PoolOptions::new(spec, 8)).unwrap();
        let mut sequence = KvSequence::new(&pool);
        let empty = extract_sequence_handoff(&mut sequence);
        assert_eq!(empty.unwrap_err(), ExtractError::Empty);
        sequence.push(pool.try_reserve(4).unwrap()).unwrap();
        sequence.set_len(5);
        let handoff = extract_sequence_handoff(&mut sequence).unwrap();
        assert_eq!((handoff.run().tokens(), handoff.run().blocks().len()), (5, 2));
        assert_eq!(handoff.run().payload_len(), 5 * 32);
        drop(sequence);
        assert_eq!((pool.accounting().sealed, pool.accounting().free), (2, 6));
        drop(handoff);
        assert_eq!(pool.accounting().free, 8);
    }
}
