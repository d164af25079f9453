//! What goes wrong on a link, by who is at fault.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use super::address::Address;
use super::{RegionKey, StreamTag};
use crate::wire::{FrameError, HeaderError};

/// The peer broke the rules of the wire: its connection ends, everything else goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A header outside the limits.
    #[error("bad header: {0}")]
    Header(#[from] HeaderError),
    /// A frame that does not hold together.
    #[error("bad frame: {0}")]
    Frame(#[from] FrameError),
    /// Payload that nobody asked for.
    #[error("payload for tag {} that was never given out", .0.0)]
    UnknownTag(StreamTag),
    /// Payload that does not continue where the last frame of its tag ended, or does not fit.
    #[error("payload bytes {offset}..{end} of tag {}, expected {expected} of {len}", tag.0)]
    PayloadRange {
        /// Tag of the payload.
        tag: StreamTag,
        /// First byte of the frame.
        offset: u64,
        /// One past its last byte.
        end: u64,
        /// Where it should start.
        expected: u64,
        /// Bytes of the whole payload.
        len: u64,
    },
    /// A frame that the peer did not send like this: it was changed, replayed, left out or moved.
    #[error("frame {frame} has a tag that is not the peer's: changed, replayed or out of order")]
    Seal {
        /// Its number in its direction, from 0.
        frame: u64,
    },
    /// Shared words that cannot be, as a ring index beyond its ring.
    #[error("shared memory is corrupt: {0}")]
    SharedMemory(&'static str),
    /// More payload was read than sent.
    #[error("the peer says that it read {read} payload bytes of {sent}")]
    Credit {
        /// What it says.
        read: u64,
        /// Payload bytes that were sent.
        sent: u64,
    },
    /// A frame between the stripes of a link that cannot be.
    #[error("bad frame of a striped link: {0}")]
    Stripes(&'static str),
    /// The first exchange of the transport went wrong.
    #[error("bad greeting: {0}")]
    Greeting(&'static str),
    /// What came through an encrypted connection is not what the peer sent, or is not TLS.
    #[error("broken TLS: {0}")]
    Tls(&'static str),
}

/// Why a link is no more.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer ended or died.
    #[error("the peer is gone")]
    PeerGone,
    /// The operating system broke the connection.
    #[error("connection lost: {0}")]
    Lost(#[source] Arc<io::Error>),
    /// The peer broke the rules.
    #[error("the peer violated the protocol: {0}")]
    Violated(#[from] Violation),
}

/// Why an operation did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// It was cancelled before it was done.
    #[error("cancelled")]
    Cancelled,
    /// The link ended first.
    #[error("link closed: {0}")]
    Closed(CloseReason),
    /// This link cannot do that; see its capabilities.
    #[error("{0} is not among the link's capabilities")]
    Unsupported(&'static str),
    /// The caller named a tag that does not rise.
    #[error("tag {} was used before", .0.0)]
    TagReused(StreamTag),
    /// The peer never registered that region.
    #[error("no region with key {}", .0.0)]
    UnknownRegion(RegionKey),
    /// The extents reach past the peer's region, or do not have the room's length.
    #[error("extents do not fit the peer's region or the room")]
    BadExtents,
    /// A control frame longer than the limit.
    #[error("control frame of {0} bytes is too long")]
    ControlTooLong(usize),
}

/// Why a region could not be registered.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The link has no `get`.
    #[error("peers cannot reach memory over this link")]
    Unsupported,
    /// The pages are private: make the pool with shared backing.
    #[error("the region's pages are private; make the pool with shared backing")]
    PrivatePages,
    /// The operating system refused.
    #[error("registering failed: {0}")]
    System(#[source] Arc<io::Error>),
}

/// Why there is no link to a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not one of this transport's.
    #[error("{address}: {reason}")]
    Address {
        /// What was dialled.
        address: Address,
        /// What is wrong with it.
        reason: Cow<'static, str>,
    },
    /// The operating system said no.
    #[error("{address}: {source}")]
    System {
        /// What was dialled.
        address: Address,
        /// What it said.
        source: io::Error,
    },
    /// The peer is not one, or not of this user.
    #[error("{address}: {violation}")]
    Violated {
        /// What was dialled, or who came.
        address: Address,
        /// What it did.
        violation: Violation,
    },
    /// The peer could not be authenticated, or this side not at the peer.
    #[error("{address}: {mismatch}")]
    Unauthenticated {
        /// What was dialled, or who came.
        address: Address,
        /// What differs.
        mismatch: KeyMismatch,
    },
}

/// Why two sides do not trust each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyMismatch {
    /// The peer asks for a proof, and this side has nothing to prove.
    #[error("the peer has a cluster key, this side has none: start both with the same key")]
    NoneHere,
    /// This side asks for a proof, and the peer has nothing to prove.
    #[error("the peer has no cluster key, this side has one: start both with the same key")]
    NoneThere,
    /// The peer's proof is not one of this side's key.
    #[error("the peer has another cluster key: start both with the same key")]
    Different,
    /// The peer left when it read this side's proof.
    #[error(
        "the peer did not accept this side's cluster key: start both with the same key (a peer that is \
         full of strangers leaves too, once: then the next try succeeds)"
    )]
    NotAccepted,
    /// The peer's first bytes are none of TLS.
    #[error(
        "this side speaks TLS, the peer does not: write `?tls=key` behind the address on both sides, \
         or on neither"
    )]
    TlsOnlyHere,
    /// The peer's first bytes are those of TLS.
    #[error(
        "the peer speaks TLS, this side does not: write `?tls=key` behind the address on both sides, \
         or on neither"
    )]
    TlsOnlyThere,
}

/// Why an address could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is not one of this transport's.
    #[error("{address}: {reason}")]
    Address {
        /// What was to be bound.
        address: Address,
        /// What is wrong with it.
        reason: Cow<'static, str>,
    },
    /// Somebody else has it.
    #[error("{address} is in use by another process")]
    InUse {
        /// What was to be bound.
        address: Address,
    },
    /// The operating system said no.
    #[error("{address}: {source}")]
    System {
        /// What was to be bound.
        address: Address,
        /// What it said.
        source: io::Error,
    },
}
