//! How long and how much a socket may hold on to: the system's own choice here. A peer that vanished is
//! still found out, by the session's pings.

use std::io;
use std::time::Duration;

use socket2::SockRef;

/// Leaves it to the system.
pub(crate) fn unacknowledged_max(_socket: &SockRef<'_>, _longest: Duration) -> io::Result<()> {
    Ok(())
}

/// Leaves it to the system.
pub(crate) fn unsent_len_max(_socket: &SockRef<'_>, _len: u32) -> io::Result<()> {
    Ok(())
}
