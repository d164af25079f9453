//! What a model keeps of a sequence outside the pool.
//!
//! Recurrent and convolutional layers carry a state of fixed size from token to token. No block holds it,
//! although the sequence has blocks: for its other layers, or only so that it is counted. The state lies with
//! the [`KvSequence`](super::KvSequence) that it belongs to and is dropped with it, so that whoever has the
//! sequence can see that its blocks are not the whole of it.

use std::any::Any;
use std::fmt;

/// State of one sequence in a form that only its model knows.
pub trait ModelState: Any + fmt::Debug + Send + Sync {
    /// The model's family.
    fn family(&self) -> &str;

    /// The state as bytes, from which a model with the same weights makes it again; none where it has no such
    /// form.
    fn to_bytes(&self) -> Option<Vec<u8>>;
}
