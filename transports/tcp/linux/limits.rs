//! How long and how much a socket may hold on to.

use std::io;
use std::time::Duration;

use socket2::SockRef;

/// Ends the connection when sent bytes stay unacknowledged for so long. Without it the kernel tries for a
/// quarter of an hour.
pub(crate) fn unacknowledged_max(socket: &SockRef<'_>, longest: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(longest))
}

/// Takes no more bytes while so many are not sent.
pub(crate) fn unsent_len_max(socket: &SockRef<'_>, len: u32) -> io::Result<()> {
    socket.set_tcp_notsent_lowat(len)
}
