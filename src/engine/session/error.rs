//! How sessions, offers and landings end badly, by who is at fault.

use crate::transport::{CloseReason, OpError, Violation};
use crate::wire::{BodyError, Kind};

use super::identity::Mismatch;

pub use crate::wire::body::DeclineCode;

/// Why a session is over. It is a fact about one connection; everything else goes on.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// This side closed.
    #[error("closed by this side")]
    Local,
    /// The peer said goodbye.
    #[error("the peer said goodbye: {0}")]
    Goodbye(String),
    /// The link ended.
    #[error(transparent)]
    Link(#[from] CloseReason),
    /// This side found that the two do not fit.
    #[error("refused the peer: {0}")]
    Refused(#[from] Mismatch),
    /// The peer found that the two do not fit.
    #[error("the peer refused: {0}")]
    RefusedByPeer(String),
    /// No hello in time.
    #[error("the peer sent no hello in time")]
    NoHello,
    /// Nothing was heard for too long, not even an answer to a ping.
    #[error("the peer is silent")]
    Silent,
    /// The peer broke the rules of the session.
    #[error("the peer violated the protocol: {0}")]
    Violated(#[from] SessionViolation),
}

/// A frame that the rules do not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionViolation {
    /// Not a frame.
    #[error(transparent)]
    Wire(#[from] Violation),
    /// Not the body that its kind announces.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// Before the hello, or where its kind has no business.
    #[error("{0:?} frame out of place")]
    OutOfPlace(Kind),
    /// A range of tokens that was never offered.
    #[error("the peer asked for tokens that were not offered")]
    BadRange,
    /// The same offer twice.
    #[error("an offer was made twice")]
    DuplicateOffer,
    /// More comes with a digest than may.
    #[error("{0} bytes come with a digest")]
    ClosingLen(usize),
    /// It asks, and leaves the answers unread.
    #[error("the peer asks without reading the answers")]
    Unread,
}

/// Why an offer was not committed. The offered blocks are the sender's alone again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// The receiver did not take it.
    #[error("the peer declined ({code:?}): {reason}")]
    Declined {
        /// Kind of refusal.
        code: DeclineCode,
        /// For people.
        reason: String,
    },
    /// The connection ended first.
    #[error("connection ended: {0}")]
    Ended(SessionEnd),
    /// The same request and epoch is on offer already.
    #[error("this request and epoch is on offer already")]
    Duplicate,
    /// The manifest is larger than a frame.
    #[error(transparent)]
    TooLarge(#[from] BodyError),
    /// No piece has so many tokens.
    #[error("a piece is whole blocks, and a payload of few enough pieces")]
    Pieces,
    /// The blocks given are not those of the tokens offered.
    #[error(transparent)]
    Blocks(#[from] crate::pool::ListError),
    /// The link failed to send the payload.
    #[error("sending failed: {0}")]
    Transport(OpError),
}

/// Why a payload did not land. The blocks are back in the pool.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandError {
    /// The sender took the offer back.
    #[error("the sender withdrew the offer")]
    Withdrawn,
    /// The connection ended first.
    #[error("connection ended: {0}")]
    Ended(SessionEnd),
    /// What arrived is not what was sent.
    #[error("payload digest {arrived:016x}, the sender's is {sent:016x}")]
    Digest {
        /// Of the bytes that arrived.
        arrived: u64,
        /// Of the bytes that were sent.
        sent: u64,
    },
    /// Neither side can move the payload to the other.
    #[error("no way of moving the payload in common")]
    NoPath,
    /// The link failed to receive the payload.
    #[error("receiving failed: {0}")]
    Transport(OpError),
    /// The blocks given do not fit the manifest.
    #[error(transparent)]
    Room(#[from] crate::pool::ListError),
}

// A link that ends completes what it was doing first, and says that it ended after that. Users hear the same
// error whichever of the two reaches them.

impl From<OpError> for OfferError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Closed(reason) => Self::Ended(SessionEnd::Link(reason)),
            error => Self::Transport(error),
        }
    }
}

impl From<OpError> for LandError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Closed(reason) => Self::Ended(SessionEnd::Link(reason)),
            error => Self::Transport(error),
        }
    }
}
