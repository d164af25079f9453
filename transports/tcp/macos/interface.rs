//! One interface for a socket, whatever the routing table says.

use std::io;
use std::num::NonZeroU32;

use socket2::SockRef;

/// Keeps a socket's packets on an interface.
pub(crate) fn pin(socket: &SockRef<'_>, index: NonZeroU32, is_v4: bool) -> io::Result<()> {
    if is_v4 {
        socket.bind_device_by_index_v4(Some(index))
    } else {
        socket.bind_device_by_index_v6(Some(index))
    }
}
