//! Descriptors that cross the socket: flags, and what is demanded of memory that a peer hands over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::SealFlags;
use rustix::net::{RecvFlags, SendFlags};

/// A peer that left is an error of the call, not a signal.
pub(crate) const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// Received descriptors do not leak into child processes.
pub(crate) const RECEIVE_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC.union(RecvFlags::DONTWAIT);

/// Bytes of a block in `st_blocks`, whatever the file system's own block is (stat(2)).
const STAT_BLOCK: u64 = 512;

/// File system type of memory in reserved huge pages (`HUGETLBFS_MAGIC`, statfs(2)).
const HUGE_PAGE_FILES: u64 = 0x9584_58F6;

/// Nothing to do: [`SEND_FLAGS`] says it in every call.
#[expect(clippy::unnecessary_wraps, reason = "the twin on macOS can fail")]
pub(crate) fn prepare_socket(_socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}

/// Nothing to do: [`RECEIVE_FLAGS`] says it.
#[expect(clippy::unnecessary_wraps, reason = "the twin on macOS can fail")]
pub(crate) fn prepare_received(_descriptor: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}

/// Whether `len` bytes of `memory` can be mapped and read without a fault, for ever.
///
/// - `SHRINK` is sealed: nobody can cut the file under the mapping.
/// - `FUTURE_WRITE` is sealed: nobody can punch holes into it (`fallocate` and `MADV_REMOVE` fail).
/// - Every page is there: a hole in a huge-page file is a SIGBUS where no huge page is left.
/// - In reserved huge pages, `len` is whole ones: the system unmaps no part of one.
///
/// Pipes, sockets and files on a disk have no seals and are refused by the first check.
pub(crate) fn check_memory(memory: impl AsFd, len: u64) -> Result<(), &'static str> {
    let seals = rustix::fs::fcntl_get_seals(&memory).map_err(|_| "not sealable memory")?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE) {
        return Err("memory is not sealed");
    }
    let stat = rustix::fs::fstat(&memory).map_err(|_| "memory cannot be examined")?;
    if u64::try_from(stat.st_size).unwrap_or(0) < len {
        return Err("memory is smaller than announced");
    }
    if u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK) < len {
        return Err("memory has holes");
    }
    let files = rustix::fs::fstatfs(&memory).map_err(|_| "memory cannot be examined")?;
    let page = u64::try_from(files.f_bsize).unwrap_or(u64::MAX);
    if files.f_type as u64 & 0xFFFF_FFFF == HUGE_PAGE_FILES && !len.is_multiple_of(page) {
        return Err("memory is cut inside a huge page");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, MemfdFlags};

    use super::*;

    #[test]
    fn reserved_huge_pages_are_taken_whole() {
        const HUGE: u64 = 2 << 20;
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let Ok(memory) = rustix::fs::memfd_create("test", flags) else { return };
        rustix::fs::ftruncate(&memory, HUGE).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
        assert_eq!(check_memory(&memory, HUGE), Err("memory has holes"));
        if rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, HUGE).is_err() {
            eprintln!("SKIPPED: no huge page is set aside on this machine");
            return;
        }
        assert_eq!(check_memory(&memory, HUGE), Ok(()));
        assert_eq!(check_memory(&memory, 4096), Err("memory is cut inside a huge page"));
    }
}
