//! One interface for a socket, whatever the routing table says.

use std::io;
use std::num::NonZeroU32;

use socket2::SockRef;

/// Keeps a socket's packets on an interface. Kernels before 5.7 want rights for it.
pub(crate) fn pin(socket: &SockRef<'_>, index: NonZeroU32, _is_v4: bool) -> io::Result<()> {
    socket.bind_device_by_index_v4(Some(index))
}
