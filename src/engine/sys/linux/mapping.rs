//! Mappings that begin on a huge page.
//!
//! The kernel uses huge pages only where address and file offset agree, and gives such addresses to
//! few kinds of memory by itself. So the addresses are reserved first, with room to spare, and the
//! mapping replaces the part that begins well.
//!
//! Invariant, named by the SAFETY comments below:
//! - M1: `base..base + len` is mapped as asked for until the value is dropped, and by nobody else.

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Bytes of a huge page, of the common size on x86-64 and on 64-bit ARM with base pages of 4 KiB.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Memory of this process's address space.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; whoever uses the memory proves access.
unsafe impl Send for Mapping {}
// SAFETY: as above: the type itself reads and writes nothing.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed pages of this process.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Self::new(len, |at, fixed| {
            // An interpreter of this code knows private pages, and no more of them than that.
            let lazily = if cfg!(miri) { MapFlags::empty() } else { MapFlags::NORESERVE };
            let flags = MapFlags::PRIVATE | lazily | fixed;
            // SAFETY: `new` gives an address of its own, or leaves the choice to the kernel.
            unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }
        })
    }

    /// A file from its beginning, for reads and writes.
    pub(crate) fn shared(file: &File, len: usize) -> io::Result<Self> {
        Self::file(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// A file from its beginning, for reads.
    pub(crate) fn read_only(file: &File, len: usize) -> io::Result<Self> {
        Self::file(file, len, ProtFlags::READ)
    }

    fn file(file: &File, len: usize, access: ProtFlags) -> io::Result<Self> {
        Self::new(len, |at, fixed| {
            // SAFETY: `new` gives an address of its own, or leaves the choice to the kernel.
            unsafe { mmap(at, len, access, MapFlags::SHARED | fixed, file, 0) }
        })
    }

    fn new(
        len: usize,
        map: impl FnOnce(*mut libc::c_void, MapFlags) -> rustix::io::Result<*mut libc::c_void>,
    ) -> io::Result<Self> {
        if len < HUGE_PAGE {
            let base = map(ptr::null_mut(), MapFlags::empty())?;
            return Ok(Self::owned(base.cast(), len));
        }
        let room = Self::reserve(len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?)?;
        let start = room.base.addr().get();
        let before = start.next_multiple_of(HUGE_PAGE) - start;
        let at = room.base.as_ptr().wrapping_add(before);
        map(at.cast(), MapFlags::FIXED)?;
        let room_len = room.len;
        std::mem::forget(room);
        // A file of huge pages takes whole ones, whatever the length.
        let end = len.next_multiple_of(rustix::param::page_size());
        // SAFETY: the reservation around the new mapping, of which this function is the only owner.
        unsafe {
            unmap(at.wrapping_sub(before), before);
            unmap(at.wrapping_add(end), room_len - before - end);
        }
        Ok(Self::owned(at, len))
    }

    /// Addresses without memory.
    fn reserve(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        Ok(Self::owned(base.cast(), len))
    }

    fn owned(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).expect("a mapping is never at address zero"), len }
    }

    /// First byte, with the provenance of the whole mapping.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: M1; nobody can reach the memory after its owner.
        unsafe { unmap(self.base.as_ptr(), self.len) }
    }
}

/// # Safety
/// The caller owns the mapping and lets go of it.
unsafe fn unmap(base: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller's.
        let unmapped = unsafe { munmap(base.cast(), len) };
        debug_assert!(unmapped.is_ok(), "{base:?} + {len}: {unmapped:?}");
    }
}
