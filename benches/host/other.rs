//! Systems without affinity for user programs, and without /proc.

use std::io;
use std::net::TcpStream;

/// Never.
pub fn pin(_cpu: usize) -> bool {
    false
}

/// Nothing to undo.
pub fn unpin() {}

/// Not known here.
pub fn used() -> Option<super::Used> {
    None
}

/// Not here.
pub(crate) fn lend_pages(_stream: &TcpStream) -> io::Result<i32> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Nothing is lent.
pub(crate) fn lends_too_much(_error: &io::Error) -> bool {
    false
}
