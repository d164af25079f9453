//! Pulling payload out of a peer's region: one copy, in bounded pieces.
//!
//! A page that is not in this process's tables costs a fault at the first read of it: 318 ms per GiB of
//! pages of 4 KiB, and 81 ms where they are asked for in one go. A region is announced on the thread
//! that drives every link, so the asking is not done there: a thread of its own does it for regions
//! larger than [`FAULT_IN_AT_ONCE`], and ends with its work or with the region. A pull that comes
//! earlier takes the faults of the pages that it reads, as without the thread. Huge pages make all of
//! this a matter of a millisecond.
//!
//! Invariants, named by the SAFETY comment below:
//! - G1: a [`RemoteRegion`] is mapped for reads over its whole length for as long as it lives, and
//!   passed the checks that make every read of it safe (`check_memory`).
//! - G2: every extent of a [`Get`] lies inside its region, checked before the operation is accepted.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use blockwire::pool::{
    Cursor, Digest, Extent, RegionView, ScatterList, Stores, TransferStats, copy_payload_from_peer,
};
use blockwire::transport::{OpError, OpId, Violation};

use crate::half::MapError;
use crate::sys::descriptors::check_memory;

/// Longest region that a peer may announce: as much as a pool may have.
const REGION_LEN_MAX: u64 = 1 << 46;

/// Regions of this many bytes are faulted in while they are mapped: a third of a millisecond.
const FAULT_IN_AT_ONCE: usize = 4 << 20;
/// What a thread faults in before it looks whether the region is still wanted: two milliseconds.
const FAULT_IN_STEP: usize = 16 << 20;

/// A peer's region, mapped read-only.
#[derive(Debug)]
pub(crate) struct RemoteRegion {
    map: Arc<RegionView>,
    wanted: Arc<AtomicBool>,
    faulting: Option<JoinHandle<()>>,
}

impl RemoteRegion {
    pub(crate) fn map(descriptor: OwnedFd, len: u64) -> Result<Self, MapError> {
        let refuse = |what| MapError::Violation(Violation::SharedMemory(what));
        let bytes = usize::try_from(len)
            .ok()
            .filter(|_| (1..=REGION_LEN_MAX).contains(&len))
            .ok_or_else(|| refuse("region length out of bounds"))?;
        check_memory(&descriptor, len).map_err(refuse)?;
        let map = RegionView::new(&File::from(descriptor), bytes).map_err(MapError::System)?;
        Ok(Self::faulting_in(Arc::new(map)))
    }

    /// Faults are avoided as far as that works; a read that faults is slower, not wrong.
    fn faulting_in(map: Arc<RegionView>) -> Self {
        let wanted = Arc::new(AtomicBool::new(true));
        if map.len() <= FAULT_IN_AT_ONCE {
            fault_in(&map, &wanted);
            return Self { map, wanted, faulting: None };
        }
        let faulting = {
            let (map, wanted) = (Arc::clone(&map), Arc::clone(&wanted));
            let thread = thread::Builder::new().name("blockwire-pages".to_owned());
            thread.spawn(move || fault_in(&map, &wanted)).ok()
        };
        Self { map, wanted, faulting }
    }

    fn holds(&self, extent: &Extent) -> bool {
        extent.offset.checked_add(extent.len).is_some_and(|end| end <= self.map.len())
    }
}

impl Drop for RemoteRegion {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
        if let Some(faulting) = self.faulting.take() {
            // It looks at the flag every two milliseconds, and cannot panic.
            let _ = faulting.join();
        }
    }
}

fn fault_in(map: &RegionView, wanted: &AtomicBool) {
    for start in (0..map.len()).step_by(FAULT_IN_STEP) {
        let end = map.len().min(start + FAULT_IN_STEP);
        if !wanted.load(Ordering::Relaxed) || map.fault_in(start..end).is_err() {
            return;
        }
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
            let address = unsafe { region.map.base().as_ptr().cast_const().add(source.offset) };
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
