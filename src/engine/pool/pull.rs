//! Copying out of a peer's memory, in bounded pieces.
//!
//! Invariant, named by the SAFETY comments below:
//! - U1: every extent of a [`Pull`] lies inside its memory, checked before the pull is made.

use std::fmt;
use std::sync::Arc;

use super::copy::{Stores, TransferStats, copy_payload_from_peer};
use super::digest::Digest;
use super::list::{Cursor, Extent, ScatterList};
use super::peer::PeerMemory;

/// Bytes on their way from a peer's memory into blocks of this side.
pub struct Pull {
    memory: Arc<dyn PeerMemory>,
    extents: Vec<Extent>,
    room: ScatterList,
    from: Cursor,
    to: Cursor,
    stores: Stores,
    digest: Digest,
}

impl Pull {
    /// Prepares a pull of `extents`, in this order, into `room`.
    ///
    /// # Errors
    /// Both lists come back when an extent reaches past the memory, or when they differ in length.
    pub fn new(
        memory: Arc<dyn PeerMemory>,
        mut extents: Vec<Extent>,
        room: ScatterList,
    ) -> Result<Self, (Vec<Extent>, ScatterList)> {
        let holds = |extent: &Extent| {
            extent.offset.checked_add(extent.len).is_some_and(|end| end <= memory.len())
        };
        let total = extents.iter().try_fold(0u64, |sum, extent| {
            sum.checked_add(extent.len as u64).filter(|_| holds(extent))
        });
        if total != Some(room.len()) {
            return Err((extents, room));
        }
        // A cursor's window ends where an extent is empty.
        extents.retain(|extent| extent.len > 0);
        let (from, to, digest) = <_>::default();
        let stores = Stores::for_payload(room.len());
        Ok(Self { memory, extents, room, from, to, stores, digest })
    }

    /// Copies at most `bytes_max` bytes and returns how many.
    pub fn copy(&mut self, bytes_max: usize, stats: &TransferStats) -> usize {
        let Self { memory, extents, room, from, to, stores, digest } = self;
        let mut sources = from.window(extents, bytes_max);
        let mut targets = room.slices(to, bytes_max);
        let (mut source, mut target) = (Extent { offset: 0, len: 0 }, <&mut [u8]>::default());
        let pieces = std::iter::from_fn(|| {
            if target.is_empty() {
                target = targets.next()?;
            }
            if source.len == 0 {
                source = sources.next().expect("both sides have one length");
            }
            let len = source.len.min(target.len());
            let (now, later) = std::mem::take(&mut target).split_at_mut(len);
            // SAFETY: the extent lies in the memory (U1).
            let address = unsafe { memory.base().as_ptr().cast_const().add(source.offset) };
            source = Extent { offset: source.offset + len, len: source.len - len };
            target = later;
            Some((address, now))
        });
        // SAFETY: every piece lies in the memory (U1), which is mapped and readable for as long as it is
        // held (`PeerMemory`).
        let copied = unsafe { copy_payload_from_peer(pieces, *stores, Some(digest), stats) };
        drop(targets);
        drop(sources);
        from.advance(extents, copied);
        to.advance(room.extents(), copied);
        stats.add_landed(copied as u64);
        copied
    }

    /// Whether everything was copied.
    pub fn is_complete(&self) -> bool {
        self.to.position() == self.room.len()
    }

    /// Digest of what arrived so far.
    pub fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// Ends the loan's stay here.
    pub fn into_room(self) -> ScatterList {
        self.room
    }
}

impl fmt::Debug for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pull({} of {} bytes)", self.to.position(), self.room.len())
    }
}
