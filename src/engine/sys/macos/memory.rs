//! Memory that another process can map, without a lasting name (`shm_open` and an immediate unlink),
//! and the pages behind it.

use std::fs::File;
use std::io;

use rustix::fs::Mode;
use rustix::mm::Advice;
use rustix::shm::OFlags;

use super::mapping::Mapping;

/// Creates `len` bytes of shared memory whose name is gone before this returns.
///
/// A name may have 31 bytes at most (`PSHMNAMLEN`), and `ftruncate` works once on such a file.
pub(crate) fn create_shared(len: usize) -> io::Result<File> {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let name = format!("/bw-{}", &unique[..16]);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    let fd = rustix::shm::open(&name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::shm::unlink(&name)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(File::from(fd))
}

/// There are no seals here: the descriptor itself is what a peer is trusted with (same uid).
#[expect(clippy::unnecessary_wraps, reason = "the twin on Linux can fail")]
pub(crate) fn seal_for_readers(_file: &File) -> io::Result<()> {
    Ok(())
}

/// The system backs memory at first touch only.
pub(crate) fn create_unbacked(len: usize) -> io::Result<File> {
    create_shared(len)
}

/// There are no pages to set aside.
pub(crate) fn create_reserved(_len: usize) -> Option<(File, usize)> {
    None
}

/// Nothing to do ahead of [`fault_in`].
#[expect(clippy::unnecessary_wraps, reason = "the twin on Linux can fail")]
pub(crate) fn back(_file: &File, _start: usize, _len: usize) -> io::Result<()> {
    Ok(())
}

/// There are no huge pages.
pub(crate) fn prefer_huge(_map: &Mapping) {}

/// There are no huge pages.
pub(crate) fn join(_map: &Mapping, _start: usize, _len: usize) -> usize {
    0
}

/// Touches the pages of `start..start + len`.
#[expect(clippy::unnecessary_wraps, reason = "the twin on Linux can fail")]
pub(crate) fn fault_in(map: &Mapping, start: usize, len: usize) -> io::Result<()> {
    assert!(start + len <= map.len(), "{start} + {len} reaches past the mapping");
    for at in (start..start + len).step_by(rustix::param::page_size()) {
        let byte = map.base().as_ptr().wrapping_add(at);
        // SAFETY: inside the mapping (checked), which is readable and writable, and fresh: nobody else
        // uses it yet.
        unsafe { byte.write_volatile(byte.read_volatile()) }
    }
    Ok(())
}

/// Asks for the pages of `start..start + len`.
pub(crate) fn fault_in_readable(map: &Mapping, start: usize, len: usize) -> io::Result<()> {
    assert!(start + len <= map.len(), "{start} + {len} reaches past the mapping");
    let base = map.base().as_ptr().wrapping_add(start);
    // SAFETY: inside a mapping of ours (checked); the advice changes no contents.
    unsafe { rustix::mm::madvise(base.cast(), len, Advice::WillNeed)? };
    Ok(())
}
