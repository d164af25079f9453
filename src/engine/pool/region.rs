//! Address-stable memory, mapped once and never moved.
//!
//! A [`Region`] is pages: private ones, or ones that another process can map (`memfd` on Linux,
//! `shm_open` on macOS). It knows nothing of blocks. Its length is a multiple of 16 KiB, the largest
//! page size among the supported systems; in reserved huge pages, of those.
//!
//! A fresh page costs more than a copy of it (2.5 us for 4 KiB of a `memfd`), and an address that is
//! missing in the processor's table costs again at every use. So a region that payloads move through
//! is made by [`Region::faulted_in`]: huge pages where there are any, and no page left for later.
//!
//! Invariants, named by the SAFETY comments of this crate:
//! - R1: `base..base + len` stays mapped and readable and writable for as long as the region lives.
//! - R2: every pointer into the region is `base` plus an offset, so it carries the provenance of the
//!   whole mapping.
//! - R3: the region itself never creates a reference into the pages. Only the block types do, and
//!   they prove exclusive (`Reserved`) or shared read-only (`Sealed`) access.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::list::Extent;
use crate::sys::mapping::Mapping;
use crate::sys::memory;

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

/// How much is faulted in between two reports of progress: whole huge pages.
const STEP: usize = 32 << 20;

/// Which pages hold a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of the usual size.
    Usual,
    /// Huge pages that the system put together of free memory, for so many bytes; the rest is usual.
    Joined(usize),
    /// Huge pages that the administrator had set aside.
    Reserved,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => write!(f, "usual pages"),
            Self::Joined(bytes) => write!(f, "joined huge pages for {} MiB", bytes >> 20),
            Self::Reserved => write!(f, "reserved huge pages"),
        }
    }
}

/// A mapping of this process.
#[derive(Debug)]
pub struct Region {
    map: Mapping,
    file: Option<File>,
    pages: PageKind,
}

impl Region {
    /// Maps at least `len` bytes of zeroed memory. Pages are faulted in as they are used.
    ///
    /// # Errors
    /// What the operating system says, for example when memory does not suffice.
    pub fn new(len: usize, backing: Backing) -> io::Result<Self> {
        let len = whole_pages(len)?;
        match backing {
            Backing::Private => Self::private(len),
            Backing::Shared => Self::shared(memory::create_shared(len)?, len, PageKind::Usual),
        }
    }

    /// Maps at least `len` bytes of zeroed memory, in the largest pages that can be had, and touches
    /// every page: later there are no page faults, and no lack of memory. Calls `progress` with the
    /// bytes done and in all.
    ///
    /// # Errors
    /// What the operating system says, for example when memory does not suffice.
    pub fn faulted_in(
        len: usize,
        backing: Backing,
        progress: &mut dyn FnMut(usize, usize),
    ) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let mut region = match backing {
            Backing::Private => Self::private(len)?,
            Backing::Shared => match memory::create_reserved(len) {
                Some((file, len)) => Self::unsealed(file, len, PageKind::Reserved)?,
                None => Self::unsealed(memory::create_unbacked(len)?, len, PageKind::Usual)?,
            },
        };
        region.fault_in(progress)?;
        if let Some(file) = &region.file {
            memory::seal_for_readers(file)?;
        }
        Ok(region)
    }

    fn private(len: usize) -> io::Result<Self> {
        Ok(Self { map: Mapping::private(len)?, file: None, pages: PageKind::Usual })
    }

    fn shared(file: File, len: usize, pages: PageKind) -> io::Result<Self> {
        let region = Self::unsealed(file, len, pages)?;
        region.file.iter().try_for_each(memory::seal_for_readers)?;
        Ok(region)
    }

    fn unsealed(file: File, len: usize, pages: PageKind) -> io::Result<Self> {
        Ok(Self { map: Mapping::shared(&file, len)?, file: Some(file), pages })
    }

    fn fault_in(&mut self, progress: &mut dyn FnMut(usize, usize)) -> io::Result<()> {
        let (mut joined, mut joinable) = (0, self.pages == PageKind::Usual);
        if joinable {
            memory::prefer_huge(&self.map);
        }
        for start in (0..self.len()).step_by(STEP) {
            let len = STEP.min(self.len() - start);
            if joinable {
                let more = memory::join(&self.map, start, len);
                // Where nothing of a step could be joined, nothing of the next one will be.
                (joined, joinable) = (joined + more, more > 0);
            }
            if let Some(file) = &self.file {
                memory::back(file, start, len)?;
            }
            memory::fault_in(&self.map, start, len)?;
            progress(start + len, self.len());
        }
        if joined > 0 {
            self.pages = PageKind::Joined(joined);
        }
        Ok(())
    }

    /// Which pages hold the region, as far as it was faulted in.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never true: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First byte, with the provenance of the whole mapping (R2).
    pub fn base(&self) -> NonNull<u8> {
        self.map.base()
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

/// Another process's region, mapped for reads.
///
/// What is there may change at any time, so there are no references into it.
#[derive(Debug)]
pub struct RegionView {
    map: Mapping,
}

impl RegionView {
    /// Maps the first `len` bytes of `file`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        Ok(Self { map: Mapping::read_only(file, len)? })
    }

    /// First byte, with the provenance of the whole mapping.
    pub fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Faults in a part, so that reads of it take no page faults.
    ///
    /// # Errors
    /// What the operating system says; the part can still be read.
    ///
    /// # Panics
    /// When the part starts inside a page, or reaches past the mapping.
    pub fn fault_in(&self, part: Range<usize>) -> io::Result<()> {
        assert!(part.start.is_multiple_of(REGION_ALIGN), "{part:?} starts inside a page");
        memory::fault_in_readable(&self.map, part.start, part.len())
    }
}

fn whole_pages(len: usize) -> io::Result<usize> {
    len.max(1).checked_next_multiple_of(REGION_ALIGN).ok_or_else(too_large)
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "region length overflows the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg_attr(miri, ignore = "it has no shared mappings")]
    #[test]
    fn lengths_round_up_to_whole_pages() {
        for backing in [Backing::Private, Backing::Shared] {
            let region = Region::new(1, backing).unwrap();
            assert_eq!(region.len(), REGION_ALIGN);
            assert_eq!(region.shared_file().is_some(), backing == Backing::Shared);
        }
        assert!(Region::new(usize::MAX, Backing::Private).is_err());
    }

    #[cfg_attr(miri, ignore = "it has no shared mappings")]
    #[cfg(target_os = "linux")]
    #[test]
    fn a_reader_of_shared_pages_cannot_write_or_resize_them() {
        let regions = [
            Region::new(REGION_ALIGN, Backing::Shared).unwrap(),
            Region::faulted_in(5 << 20, Backing::Shared, &mut |_, _| {}).unwrap(),
        ];
        for region in regions {
            let file = region.shared_file().unwrap().try_clone().unwrap();
            assert!(
                Mapping::shared(&file, REGION_ALIGN).is_err(),
                "a writable mapping was allowed"
            );
            assert!(RegionView::new(&file, region.len()).is_ok());
            assert!(file.set_len(1).is_err());
            use rustix::fs::SealFlags;
            let seals = rustix::fs::fcntl_get_seals(&file).unwrap();
            let expected =
                SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            assert!(seals.contains(expected), "{seals:?}");
        }
    }

    #[cfg_attr(miri, ignore = "it has no shared mappings")]
    #[test]
    fn every_page_of_a_faulted_region_is_there_and_readers_see_it() {
        // More than one step, and not whole huge pages.
        let len = STEP + (5 << 20) + REGION_ALIGN;
        for backing in [Backing::Private, Backing::Shared] {
            let mut reports = Vec::new();
            let mut progress = |done, total| reports.push((done, total));
            let region = Region::faulted_in(len, backing, &mut progress).unwrap();
            assert_eq!(reports, [(STEP, region.len()), (region.len(), region.len())]);
            match region.pages() {
                PageKind::Usual => {}
                PageKind::Joined(bytes) => assert!(bytes <= region.len()),
                PageKind::Reserved => assert_ne!(region.len(), len),
            }
            let end = Extent { offset: region.len() - 3, len: 3 };
            // SAFETY: nothing else touches the region.
            unsafe { region.bytes_mut(end) }.copy_from_slice(b"end");
            if let Some(file) = region.shared_file() {
                assert!(all_there(file, region.len()));
                let view = RegionView::new(file, region.len()).unwrap();
                view.fault_in(0..view.len()).unwrap();
                // SAFETY: inside the view, and nobody writes.
                let seen =
                    unsafe { view.base().add(end.offset).cast::<[u8; 3]>().read_unaligned() };
                assert_eq!(&seen, b"end");
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn all_there(file: &File, len: usize) -> bool {
        use std::os::unix::fs::MetadataExt;
        file.metadata().unwrap().blocks() * 512 >= len as u64
    }

    #[cfg(target_os = "macos")]
    fn all_there(_file: &File, _len: usize) -> bool {
        true
    }

    #[test]
    #[should_panic(expected = "reaches past the region")]
    fn an_extent_past_the_end_is_refused() {
        let region = Region::new(1, Backing::Private).unwrap();
        // SAFETY: nothing else touches the region; the call panics before it makes a slice.
        let _ = unsafe { region.bytes(Extent { offset: REGION_ALIGN - 1, len: 2 }) };
    }
}
