//! Memory that another process can map, without a name: `memfd_create`.

use std::fs::File;
use std::io;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

/// Creates `len` bytes of nameless shared memory, fully backed.
///
/// The pages are allocated here (`fallocate`), so that a lack of memory is an error now and never a
/// SIGBUS at first touch, and the size is sealed, so that no holder can cut it under a mapping.
pub(crate) fn create_shared(len: usize) -> io::Result<File> {
    let fd = rustix::fs::memfd_create(
        "blockwire-pool",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(File::from(fd))
}

/// Forbids every later writable mapping of `file`, and any later seal.
///
/// Called once the owner has its own writable mapping: whoever receives the descriptor can read only.
pub(crate) fn seal_for_readers(file: &File) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok(())
}
