//! How many bytes the peer's system does not have yet (`SIOCOUTQ`).

use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were written to a TCP socket and not acknowledged. 0 where the system does not say: the
/// sender then waits for credit too early, never too late.
pub(in crate::mover) fn unacknowledged(socket: impl AsFd) -> u64 {
    let mut len: libc::c_int = 0;
    // `SIOCOUTQ` has the number of `TIOCOUTQ`.
    // SAFETY: the descriptor is open, and the kernel writes one `int` to `len`.
    let said = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut len) };
    if said == 0 { u64::try_from(len).unwrap_or(0) } else { 0 }
}
