//! What a backend offers: one call that advances any mix of sequences.
//!
//! [`Model::forward`] takes rows of (sequence, position, token). Prefill is many rows of one sequence,
//! decode one row of each; chunked prefill, batching, and continuing after a prefix that came from
//! elsewhere are the same call with other rows.

use std::{fmt, sync::Arc};

use blockwire::pool::{KvSequence, KvSpec, ModelState};

use crate::files::ModelFingerprint;

/// A loaded model.
pub trait Model: Send {
    /// Name of the family, such as `llama`.
    fn family(&self) -> &str;

    /// Geometry of the cache, in blocks of `block_tokens` tokens.
    fn kv_spec(&self, block_tokens: u32) -> KvSpec;

    /// Where the state of a sequence lives.
    fn sequence_state_layout(&self) -> SequenceStateLayout;

    /// Makes the states of sequences again that came from another node; none where the pool holds all of them,
    /// or where they have no form in which they could travel.
    fn state_reader(&self) -> Option<Arc<dyn StateReader>> {
        None
    }

    /// Token ids are below this; also the length of a row of logits.
    fn vocab(&self) -> usize;

    /// Longest context the model was trained for, in tokens.
    fn context(&self) -> usize;

    /// The identity of the model's files.
    fn fingerprint(&self) -> ModelFingerprint;

    /// Runs the rows: writes their keys and values to the cache, and gives the logits of the rows that
    /// want them.
    ///
    /// It writes layer after layer, and [tells](KvSequence::layer_written) every sequence of one that is written
    /// for all rows, and then the hook; it may leave layers out, and tell of them with a later one.
    ///
    /// A sequence's rows must have ascending positions without gaps, and start at most at the
    /// sequence's length; where the model [owns state](SequenceStateLayout::ModelOwned), exactly there, or
    /// at 0. Other sequences' rows may lie between them. A row attends to all positions
    /// of its sequence up to its own. Afterwards the sequence's length is its last row's position
    /// plus one: what followed a rewritten token no longer counts.
    ///
    /// # Errors
    /// [`ForwardError`]; the sequences are as they were then.
    fn forward(
        &mut self,
        batch: &mut Batch<'_>,
        hook: &mut dyn LayerHook,
    ) -> Result<Logits, ForwardError>;
}

/// How far loading a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: usize,
    /// Steps in all: one per layer, one for the rest.
    pub total: usize,
}

/// Where the state of a sequence lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SequenceStateLayout {
    /// All of it in pool blocks: they can be handed over and shared.
    PoolBacked,
    /// Some of it as [`ModelState`], which no block holds.
    ModelOwned {
        /// Names the form of that memory.
        family: String,
    },
}

/// Makes a [`ModelState`] of bytes that a model with the same weights [gave](ModelState::to_bytes).
pub trait StateReader: fmt::Debug + Send + Sync {
    /// The state of a sequence of `tokens` tokens.
    ///
    /// # Errors
    /// [`StateError`].
    fn read(&self, tokens: usize, bytes: &[u8]) -> Result<Box<dyn ModelState>, StateError>;
}

/// Bytes that are no state of this model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Too many or too few.
    #[error("the state of a sequence takes {expected} bytes, there are {found}")]
    Len {
        /// Bytes of a state.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
}

/// One token to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// Position of the token in its sequence.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// Whether to compute logits after it.
    pub wants_logits: bool,
}

/// What one call runs.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// Sequences that rows refer to, all of one pool.
    pub sequences: Vec<&'a mut KvSequence>,
    /// The tokens.
    pub rows: Vec<Row>,
}

impl<'a> Batch<'a> {
    /// A batch without rows.
    pub fn new(sequences: impl IntoIterator<Item = &'a mut KvSequence>) -> Self {
        Self { sequences: sequences.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds `tokens` at the positions from `first` on; only the last one wants logits, if `logits`.
    pub fn push(&mut self, sequence: usize, first: usize, tokens: &[u32], logits: bool) {
        self.rows.extend(tokens.iter().enumerate().map(|(i, token)| Row {
            sequence,
            position: first + i,
            token: *token,
            wants_logits: logits && i + 1 == tokens.len(),
        }));
    }
}

/// Hears how far a forward pass is, in the thread that computes, which waits meanwhile. `()` ignores it.
pub trait LayerHook {
    /// The keys and values of this layer of the pool are in the cache, for all rows of the batch.
    fn layer_written(&mut self, layer: usize);
}

impl LayerHook for () {
    fn layer_written(&mut self, _: usize) {}
}

/// Rows of logits, one per row that wanted them, in order.
#[derive(Clone, PartialEq)]
pub struct Logits {
    vocab: usize,
    values: Vec<f32>,
}

impl Logits {
    /// Rows of `vocab` logits each.
    ///
    /// # Panics
    /// When `values` are not whole rows.
    pub fn new(vocab: usize, values: Vec<f32>) -> Self {
        assert!(values.len().is_multiple_of(vocab.max(1)), "{} of {vocab}", values.len());
        Self { vocab, values }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.vocab.max(1)
    }

    /// The logits of one row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.vocab..][..self.vocab]
    }
}

impl fmt::Debug for Logits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Logits({} x {})", self.rows(), self.vocab)
    }
}

/// Why a batch was not run. Nothing was written, or nothing that counts: no sequence is longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// A row names a sequence that is not in the batch.
    #[error("row {row} is of sequence {sequence}, but the batch has {sequences}")]
    NoSuchSequence {
        /// Index of the row.
        row: usize,
        /// The sequence it names.
        sequence: usize,
        /// Sequences in the batch.
        sequences: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("row {row} has token {token}, but the vocabulary ends at {vocab}")]
    NoSuchToken {
        /// Index of the row.
        row: usize,
        /// The token.
        token: u32,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// The sequence has no block for the position.
    #[error("row {row} is at position {position}, but its sequence has room for {capacity} tokens")]
    BeyondCapacity {
        /// Index of the row.
        row: usize,
        /// Its position.
        position: usize,
        /// Tokens that the sequence's blocks hold.
        capacity: usize,
    },
    /// The position lies in a block that others may be reading.
    #[error("row {row} is at position {position}, which is sealed; writable from {writable_from}")]
    Sealed {
        /// Index of the row.
        row: usize,
        /// Its position.
        position: usize,
        /// First writable position.
        writable_from: usize,
    },
    /// Positions before the row's would stay unwritten.
    #[error("row {row} is at position {position}, but its sequence continues at {expected}")]
    Gap {
        /// Index of the row.
        row: usize,
        /// Its position.
        position: usize,
        /// The position that would follow.
        expected: usize,
    },
    /// What the model keeps of the sequence is of another length than the row's position.
    #[error(
        "row {row} is at position {position}, but the model's own state is after {state} tokens"
    )]
    StateElsewhere {
        /// Index of the row.
        row: usize,
        /// Its position.
        position: usize,
        /// Tokens that the state has seen.
        state: usize,
    },
    /// The pool holds another geometry than the model's.
    #[error("the model's cache is {model}, the pool's {pool}")]
    Geometry {
        /// What the model needs, in the pool's blocks.
        model: KvSpec,
        /// What the pool holds.
        pool: KvSpec,
    },
    /// The batch's sequences lie in several pools.
    #[error("sequence {sequence} lies in another pool than sequence 0")]
    SeveralPools {
        /// Index of the sequence.
        sequence: usize,
    },
    /// The backend cannot compute on a pool of this shape.
    #[error("the pool cannot be used: {reason}")]
    Pool {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The backend's library copied a layer of the pool instead of writing to it in place.
    #[error("layer {layer} of the pool was copied instead of written to")]
    PoolCopied {
        /// The layer.
        layer: usize,
    },
    /// The backend's library failed.
    #[error("the model could not be computed: {what}")]
    Library {
        /// In the library's words.
        what: String,
    },
}
