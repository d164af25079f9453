//! How many bytes wake a sleeping receiver (`SO_RCVLOWAT`). The end of the stream and errors always do.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets it, to 1 or more.
///
/// # Errors
/// What the system says; the mark stays as it was.
pub(in crate::mover) fn set(socket: impl AsFd, len: usize) -> io::Result<()> {
    let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
    let size = size_of_val(&len) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the option's value is read from `size` bytes that are there.
    let set = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const len).cast(), size)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
