//! Descriptors that cross the socket: flags, and what is demanded of memory that a peer hands over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::FdFlags;
use rustix::net::{RecvFlags, SendFlags};

/// The socket is non-blocking and raises no signal; see [`prepare_socket`].
pub(crate) const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;
/// There is no flag to close received descriptors in children; see [`prepare_received`].
pub(crate) const RECEIVE_FLAGS: RecvFlags = RecvFlags::DONTWAIT;

/// A peer that left is an error of the call, not a signal.
pub(crate) fn prepare_socket(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_nosigpipe(socket, true)?)
}

/// The descriptor does not leak into child processes started from now on.
pub(crate) fn prepare_received(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC)?)
}

/// Whether `len` bytes of `memory` can be mapped and read.
///
/// There are no seals here. What protects the mapping is that `ftruncate` works only once on such
/// memory, and that peers run as the same user.
pub(crate) fn check_memory(memory: impl AsFd, len: u64) -> Result<(), &'static str> {
    let stat = rustix::fs::fstat(&memory).map_err(|_| "memory cannot be examined")?;
    if u64::try_from(stat.st_size).unwrap_or(0) < len {
        return Err("memory is smaller than announced");
    }
    Ok(())
}
