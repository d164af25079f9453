//! The interface that every transport implements: mechanism only, no protocol.
//!
//! A [`Transport`] makes links, by dialling or by listening. A [`Link`] is the mechanism to one peer:
//! it has one owner, it is polled, it knows no request. It moves two kinds of things: *control*, whole
//! small frames in order, and *payload*, bytes between the pool blocks of the two sides.
//!
//! ```text
//!          push                                   pull
//! sender   Stream{tag, gather}                    register(region)  ->  key in the offer
//! receiver Land{tag, scatter}, posted first       Get{key, extents, scatter}
//! ```
//! The rules, which `tests/conformance` holds every transport to:
//! - Every accepted operation completes exactly once, also after the peer died, and its completion
//!   gives the memory back. A refused operation comes back whole.
//! - Control frames arrive in order, whole, once.
//! - A `Land` is posted before its tag is told to the peer. Payload for a tag that was posted and then
//!   cancelled is read and dropped; for a tag that was never posted it is a violation.
//! - A `Stream` has the length of its `Land`'s room. A longer one is a violation; a shorter one may be, or
//!   leaves the `Land` waiting until it is cancelled.
//! - A region's key works at the peer once a control frame that was submitted after `register` arrived.
//! - A completed `Stream` means that the link needs its memory no more, not that the peer has it. Where
//!   the link *lingers*, the system still reads that memory until the peer has it: its bytes must not
//!   change before the peer has answered something that was submitted after the completion.
//! - `Closed` comes last, after the completion of every operation.
//!
//! There is no remote write here yet: no transport of this project could carry it out.

mod address;
mod error;
mod tags;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use address::{Address, AddressError};
pub use error::{
    CloseReason, ConnectError, KeyMismatch, ListenError, OpError, RegisterError, Violation,
};
pub use tags::TagSet;

use uuid::Uuid;

use crate::pool::{Extent, GatherList, PeerMemory, Region, ScatterList, TransferStats};

/// A future of the driver's thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Makes links of one kind, chosen by address scheme.
pub trait Transport: Send + Sync + fmt::Debug {
    /// The scheme of its addresses: `mem`, `shm`, `tcp`.
    fn scheme(&self) -> &'static str;

    /// Dials a peer. Runs on the driver's thread, inside a tokio runtime with I/O and time.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>>;

    /// Binds an address. Runs on the driver's thread, inside a tokio runtime with I/O and time.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>>;
}

/// A bound address. Dropping it unbinds.
pub trait Listener {
    /// What peers dial; a port of 0 is replaced by the real one.
    fn local_address(&self) -> Address;

    /// The next link. An error concerns one peer that came and failed: the listener goes on.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>>;
}

/// Number of an accepted operation on its link, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// Names a payload on a link: given out by the receiver, rising, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamTag(pub u64);

/// Lets a peer reach a registered region through its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u32);

/// What a link can do: data that callers plan with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `Stream` and `Land` work: copies that a payload byte makes in user space on this way, both sides
    /// together.
    pub stream: Option<u8>,
    /// `register` and `Get` work: copies likewise.
    pub get: Option<u8>,
    /// `peer_memory` works: payload can be read where it lies, and nothing is copied.
    pub adopt: bool,
    /// Both ends run on one host.
    pub same_host: bool,
    /// The memory of a `Stream` may be read after its completion, until the peer has the bytes.
    pub lingers: bool,
}

/// An operation. It owns its memory until it completes.
#[derive(Debug)]
pub enum Op {
    /// Send one whole control frame.
    Control(Bytes),
    /// Push a payload; the peer has posted a `Land` of the same tag and length.
    Stream {
        /// From the peer's RTR.
        tag: StreamTag,
        /// What to send.
        payload: GatherList,
    },
    /// Receive a payload into blocks.
    Land {
        /// Larger than every tag before it.
        tag: StreamTag,
        /// Where to put it.
        room: ScatterList,
    },
    /// Pull bytes of a peer's registered region into blocks.
    Get {
        /// The peer's region.
        region: RegionKey,
        /// Where the bytes lie there, in wire order; as many as `room` takes.
        extents: Vec<Extent>,
        /// Where to put them.
        room: ScatterList,
    },
}

/// An operation that a link did not take, and why.
#[derive(Debug, thiserror::Error)]
#[error("operation refused: {error}")]
pub struct Refused {
    /// The operation, whole.
    pub op: Op,
    /// Why.
    pub error: OpError,
}

/// Memory that an operation held.
#[derive(Debug)]
pub enum OpMemory {
    /// It held none of a pool.
    None,
    /// Of a `Stream`.
    Payload(GatherList),
    /// Of a `Land` or a `Get`. Its bytes are complete only if the operation succeeded.
    Room(ScatterList),
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Which one.
    pub op: OpId,
    /// What it held.
    pub memory: OpMemory,
    /// The digest of the payload that passed (0 for control), or why it failed.
    pub outcome: Result<u64, OpError>,
}

/// What a link reports.
#[derive(Debug)]
pub enum LinkEvent {
    /// An operation ended.
    Completed(Completion),
    /// A whole control frame arrived; header and checksum are not checked yet.
    Received(Bytes),
    /// The end: no event follows, every later operation is refused.
    Closed(CloseReason),
}

/// The mechanism to one peer. One owner; need not be `Send`.
pub trait Link {
    /// What this link can do.
    fn capabilities(&self) -> Capabilities;

    /// Payload traffic so far.
    fn stats(&self) -> &Arc<TransferStats>;

    /// The peer's address, for people.
    fn peer(&self) -> String;

    /// The instance that the link proved the peer to be, where it proves any: a peer that says another
    /// one in its hello is refused.
    fn authenticated_instance(&self) -> Option<Uuid> {
        None
    }

    /// Makes a region reachable for the peer's `Get`.
    ///
    /// # Errors
    /// [`RegisterError`] where the link has no `get`, or the region's pages cannot be shared.
    fn register(&mut self, region: &Arc<Region>) -> Result<RegionKey, RegisterError>;

    /// A region that the peer registered, to be read in place; none where the link cannot reach it. It
    /// stays mapped for as long as it is held, also after the link's and the peer's end.
    fn peer_memory(&mut self, key: RegionKey) -> Option<Arc<dyn PeerMemory>>;

    /// Takes an operation.
    ///
    /// # Errors
    /// [`Refused`] with the operation, whole.
    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    fn submit(&mut self, op: Op) -> Result<OpId, Refused>;

    /// Asks for an early end of an operation, which still completes exactly once: as cancelled, or as
    /// done when that came first. Unknown ids are ignored.
    fn cancel(&mut self, op: OpId);

    /// Begins an orderly end: accepted control frames are still sent, payload is not.
    fn close(&mut self);

    /// Makes progress and reports it. Bounded work a call.
    ///
    /// `Ready`: events were added, or more can be done at once. `Pending`: the waker will be woken
    /// when there is something to do. `submit`, `cancel` and `close` need a poll after them.
    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()>;
}
