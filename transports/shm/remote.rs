//! A peer's regions, mapped here to be read.
//!
//! A page that is not in this process's tables costs a fault at the first read of it: 318 ms per GiB of
//! pages of 4 KiB, and 81 ms where they are asked for in one go. A region is announced on the thread
//! that drives every link, so the asking is not done there: a thread of its own does it for regions
//! larger than [`FAULT_IN_AT_ONCE`], and ends with its work or with the region. A pull that comes
//! earlier takes the faults of the pages that it reads, as without the thread. Huge pages make all of
//! this a matter of a millisecond.
//!
//! Invariant, named by the SAFETY comment below:
//! - G1: a [`RemoteRegion`] is mapped for reads over its whole length for as long as it lives, and
//!   passed the checks that make every read of it safe (`check_memory`).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use blockwire::pool::{PeerMemory, RegionView};
use blockwire::transport::Violation;

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

    /// Ends the faulting in soon, without waiting for it. Who lets go of many regions asks all of them
    /// first: their threads end side by side, while each waits for the processor.
    pub(crate) fn stop_faulting_in(&self) {
        self.wanted.store(false, Ordering::Relaxed);
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
}

// SAFETY: G1.
unsafe impl PeerMemory for RemoteRegion {
    fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    fn len(&self) -> usize {
        self.map.len()
    }
}

impl Drop for RemoteRegion {
    fn drop(&mut self) {
        self.stop_faulting_in();
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
