//! Address-stable memory, mapped once and never moved.
//!
//! A [`Region`] is pages: private ones, or ones that another process can map (`memfd` on Linux,
//! `shm_open` on macOS). It knows nothing of blocks. Its length is a multiple of 16 KiB, the largest
//! page size among the supported systems.
//!
//! Invariants, named by the SAFETY comments of this crate:
//! - R1: `base..base + len` stays mapped and readable and writable for as long as the region lives.
//! - R2: every pointer into the region is `base` plus an offset, so it carries the provenance of the
//!   whole mapping.
//! - R3: the region itself never creates a reference into the pages. Only the block types do, and
//!   they prove exclusive (`Reserved`) or shared read-only (`Sealed`) access.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions, MmapRaw};

use super::list::Extent;
use crate::sys;

/// Granularity of a region's length: Apple's page size, a multiple of Linux's.
pub const REGION_ALIGN: usize = 16 * 1024;

/// Where a region's pages come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Private pages of this process.
    #[default]
    Private,
    /// Pages that another process can map read-only, given the descriptor.
    Shared,
}

/// A mapping of this process.
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
    file: Option<File>,
}

impl Region {
    /// Maps at least `len` bytes of zeroed memory.
    ///
    /// # Errors
    /// What the operating system says, for example when memory does not suffice.
    pub fn new(len: usize, backing: Backing) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(REGION_ALIGN).ok_or_else(too_large)?;
        match backing {
            Backing::Private => Ok(Self { map: MmapMut::map_anon(len)?.into(), file: None }),
            Backing::Shared => {
                let file = sys::memory::create_shared(len)?;
                let map = MmapOptions::new().len(len).map_raw(&file)?;
                sys::memory::seal_for_readers(&file)?;
                Ok(Self { map, file: Some(file) })
            }
        }
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never true: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// First byte, with the provenance of the whole mapping (R2).
    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).expect("a mapping is never at address zero")
    }

    /// The descriptor that lets another process map the region; none for private pages.
    pub fn shared_file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Reads an extent.
    ///
    /// # Safety
    /// Nothing writes to the extent while the slice lives.
    ///
    /// # Panics
    /// When the extent reaches past the region.
    pub(super) unsafe fn bytes(&self, extent: Extent) -> &[u8] {
        self.check(extent);
        // SAFETY: in bounds (checked), mapped (R1), not written (caller).
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().add(extent.offset), extent.len) }
    }

    /// Writes to an extent.
    ///
    /// # Safety
    /// Nothing else reads or writes the extent while the slice lives.
    ///
    /// # Panics
    /// When the extent reaches past the region.
    #[expect(clippy::mut_from_ref, reason = "exclusivity is per extent; the caller holds it")]
    pub(super) unsafe fn bytes_mut(&self, extent: Extent) -> &mut [u8] {
        self.check(extent);
        // SAFETY: in bounds (checked), mapped (R1), exclusive (caller).
        unsafe {
            std::slice::from_raw_parts_mut(self.base().as_ptr().add(extent.offset), extent.len)
        }
    }

    fn check(&self, extent: Extent) {
        let end = extent.offset.checked_add(extent.len);
        assert!(end.is_some_and(|end| end <= self.len()), "{extent:?} reaches past the region");
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "region length overflows the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_up_to_whole_pages() {
        for backing in [Backing::Private, Backing::Shared] {
            let region = Region::new(1, backing).unwrap();
            assert_eq!(region.len(), REGION_ALIGN);
            assert_eq!(region.shared_file().is_some(), backing == Backing::Shared);
        }
        assert!(Region::new(usize::MAX, Backing::Private).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_reader_of_shared_pages_cannot_write_or_resize_them() {
        let region = Region::new(REGION_ALIGN, Backing::Shared).unwrap();
        let file = region.shared_file().unwrap().try_clone().unwrap();
        assert!(MmapOptions::new().map_raw(&file).is_err(), "a writable mapping was allowed");
        assert!(MmapOptions::new().map_raw_read_only(&file).is_ok());
        assert!(file.set_len(1).is_err());
    }

    #[test]
    #[should_panic(expected = "reaches past the region")]
    fn an_extent_past_the_end_is_refused() {
        let region = Region::new(1, Backing::Private).unwrap();
        // SAFETY: nothing else touches the region; the call panics before it makes a slice.
        let _ = unsafe { region.bytes(Extent { offset: REGION_ALIGN - 1, len: 2 }) };
    }
}
