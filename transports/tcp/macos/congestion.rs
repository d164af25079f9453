//! Congestion control cannot be chosen by socket here.

use socket2::SockRef;

/// Leaves the system's choice, which is cubic.
pub(crate) fn prefer_local(_socket: &SockRef<'_>) -> &'static str {
    "default"
}
