//! Memory that another process can map, without a name (`memfd_create`), and the pages behind it.

use std::fs::File;
use std::io;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::Advice;

use super::mapping::{HUGE_PAGE, Mapping};

/// Advice of Linux 6.1: join the pages of a range into huge ones, now.
const MADV_COLLAPSE: libc::c_int = 25;

/// Creates `len` bytes of nameless shared memory, fully backed.
///
/// The pages are allocated here (`fallocate`), so that a lack of memory is an error now and never a
/// SIGBUS at first touch, and the size is sealed, so that no holder can cut it under a mapping.
pub(crate) fn create_shared(len: usize) -> io::Result<File> {
    let file = create_unbacked(len)?;
    back(&file, 0, len)?;
    Ok(file)
}

/// Like [`create_shared`], without any page yet.
pub(crate) fn create_unbacked(len: usize) -> io::Result<File> {
    create(len, MemfdFlags::empty())
}

/// At least `len` bytes of shared memory in huge pages that the administrator set aside, where enough of
/// them are free, and how many bytes that are: such a file is made of whole ones.
pub(crate) fn create_reserved(len: usize) -> Option<(File, usize)> {
    let count = |name: &str| -> Option<usize> {
        let file = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
    let pages = len.div_ceil(HUGE_PAGE);
    if free < pages {
        return None;
    }
    let len = pages * HUGE_PAGE;
    let file = create(len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).ok()?;
    // Others may have been faster: then there are pages of the usual kind.
    back(&file, 0, len).ok()?;
    Some((file, len))
}

fn create(len: usize, flags: MemfdFlags) -> io::Result<File> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("blockwire-pool", flags)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(File::from(fd))
}

/// Allocates the pages of `start..start + len` that are not there yet.
pub(crate) fn back(file: &File, start: usize, len: usize) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), start as u64, len as u64)?)
}

/// Forbids every later writable mapping of `file`, and any later seal.
///
/// Called once the owner has its own writable mapping: whoever receives the descriptor can read only.
pub(crate) fn seal_for_readers(file: &File) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok(())
}

/// Asks for huge pages at first touch, where the system gives them on request.
pub(crate) fn prefer_huge(map: &Mapping) {
    // SAFETY: about the whole of a mapping of ours; a hint that changes no contents.
    let _ = unsafe {
        rustix::mm::madvise(map.base().as_ptr().cast(), map.len(), Advice::LinuxHugepage)
    };
}

/// Joins the whole huge pages of `start..start + len` as far as the system does that, and returns
/// how many bytes lie in huge pages now. `start` is a multiple of [`HUGE_PAGE`].
///
/// One page of each is touched first. What is joined then is one page and a hole, so that 511 pages are
/// neither allocated nor copied: a third of a second per GiB at best, where 512 pages each took 1.2. On a
/// busy machine with scattered free memory the kernel moves others' pages first, which takes up to 4.
pub(crate) fn join(map: &Mapping, start: usize, len: usize) -> usize {
    let mut joined = 0;
    for at in (start..start + len / HUGE_PAGE * HUGE_PAGE).step_by(HUGE_PAGE) {
        let base = map.base().as_ptr().wrapping_add(at).cast::<libc::c_void>();
        if populate(map, at, rustix::param::page_size(), Advice::LinuxPopulateWrite).is_err() {
            break;
        }
        // SAFETY: inside a mapping of ours; the advice changes no contents.
        if unsafe { libc::madvise(base, HUGE_PAGE, MADV_COLLAPSE) } == 0 {
            joined += HUGE_PAGE;
        } else if io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
            break;
        }
    }
    joined
}

/// Faults in the pages of `start..start + len` for writes. A lack of memory is an error of this call.
///
/// A kernel before 5.14 does not know how; the pages then come at first touch.
pub(crate) fn fault_in(map: &Mapping, start: usize, len: usize) -> io::Result<()> {
    populate(map, start, len, Advice::LinuxPopulateWrite)
}

/// Like [`fault_in`], for reads, where the pages are there already.
pub(crate) fn fault_in_readable(map: &Mapping, start: usize, len: usize) -> io::Result<()> {
    populate(map, start, len, Advice::LinuxPopulateRead)
}

fn populate(map: &Mapping, start: usize, len: usize, advice: Advice) -> io::Result<()> {
    assert!(start + len <= map.len(), "{start} + {len} reaches past the mapping");
    let base = map.base().as_ptr().wrapping_add(start);
    // SAFETY: inside a mapping of ours (checked); the advice changes no contents.
    match unsafe { rustix::mm::madvise(base.cast(), len, advice) } {
        Err(rustix::io::Errno::INVAL) => Ok(()),
        result => Ok(result?),
    }
}
