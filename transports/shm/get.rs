//! Pulling payload out of a peer's region: one copy, in bounded pieces.
//!
//! Invariants, named by the SAFETY comment below:
//! - G1: a [`RemoteRegion`] is mapped for reads over its whole length for as long as it lives, and
//!   passed the checks that make its pages readable without a fault (`half.rs`, H1).
//! - G2: every extent of a [`Get`] lies inside its region, checked before the operation is accepted.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use blockwire::pool::{
    Cursor, Digest, Extent, ScatterList, Stores, TransferStats, copy_payload_from_peer,
};
use blockwire::transport::{OpError, OpId, Violation};
use memmap2::MmapRaw;

use crate::half::{MapError, map_checked};

/// Longest region that a peer may announce: as much as a pool may have.
const REGION_LEN_MAX: u64 = 1 << 46;

/// A peer's region, mapped read-only.
#[derive(Debug)]
pub(crate) struct RemoteRegion {
    map: MmapRaw,
}

impl RemoteRegion {
    pub(crate) fn map(descriptor: OwnedFd, len: u64) -> Result<Self, MapError> {
        let refuse = MapError::Violation(Violation::SharedMemory("region length out of bounds"));
        match usize::try_from(len) {
            Ok(bytes) if (1..=REGION_LEN_MAX).contains(&len) => {
                Ok(Self { map: map_checked(descriptor, bytes)? })
            }
            _ => Err(refuse),
        }
    }

    fn holds(&self, extent: &Extent) -> bool {
        extent.offset.checked_add(extent.len).is_some_and(|end| end <= self.map.len())
    }
}

/// A pull in progress.
#[derive(Debug)]
pub(crate) struct Get {
    pub(crate) op: OpId,
    region: Rc<RemoteRegion>,
    extents: Vec<Extent>,
    room: ScatterList,
    from: Cursor,
    to: Cursor,
    stores: Stores,
    digest: Digest,
}

impl Get {
    /// Whether the extents lie in the region and fill the room.
    pub(crate) fn check(
        region: &RemoteRegion,
        extents: &[Extent],
        room: &ScatterList,
    ) -> Result<(), OpError> {
        let total = extents.iter().try_fold(0u64, |sum, extent| {
            sum.checked_add(extent.len as u64).filter(|_| region.holds(extent))
        });
        if total == Some(room.len()) { Ok(()) } else { Err(OpError::BadExtents) }
    }

    /// A pull that passed [`check`](Self::check).
    pub(crate) fn new(
        op: OpId,
        region: Rc<RemoteRegion>,
        mut extents: Vec<Extent>,
        room: ScatterList,
    ) -> Self {
        // A cursor's window ends where an extent is empty.
        extents.retain(|extent| extent.len > 0);
        let (from, to, digest) = <_>::default();
        let stores = Stores::for_payload(room.len());
        Self { op, region, extents, room, from, to, stores, digest }
    }

    /// Copies at most `bytes_max` bytes and returns how many.
    pub(crate) fn copy(&mut self, bytes_max: usize, stats: &TransferStats) -> usize {
        let Self { region, extents, room, from, to, stores, digest, .. } = self;
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
            // SAFETY: the extent lies in the region (G2).
            let address = unsafe { region.map.as_ptr().add(source.offset) };
            source = Extent { offset: source.offset + len, len: source.len - len };
            target = later;
            Some((address, now))
        });
        // SAFETY: every piece lies in the region (G2), which is mapped and readable (G1).
        let copied = unsafe { copy_payload_from_peer(pieces, *stores, Some(digest), stats) };
        drop(targets);
        drop(sources);
        from.advance(extents, copied);
        to.advance(room.extents(), copied);
        stats.add_landed(copied as u64);
        copied
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.to.position() == self.room.len()
    }

    /// Digest of what arrived.
    pub(crate) fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// Ends the loan's stay here.
    pub(crate) fn into_room(self) -> ScatterList {
        self.room
    }
}
