//! How many bytes the peer's system does not have yet (`SO_NWRITE`).

use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were written to a TCP socket and not acknowledged. 0 where the system does not say: the
/// sender then waits for credit too early, never too late.
pub(in crate::mover) fn unacknowledged(socket: impl AsFd) -> u64 {
    let mut len: libc::c_int = 0;
    let mut size = size_of_val(&len) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the system writes at most `size` bytes to `len`.
    let said = unsafe {
        let len = (&raw mut len).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_NWRITE, len, &raw mut size)
    };
    if said == 0 { u64::try_from(len).unwrap_or(0) } else { 0 }
}
