//! Pages cannot be sent without a copy here.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

/// There are none.
#[derive(Debug)]
pub(in crate::mover) enum Pages {}

impl Pages {
    /// Whether pages can be sent at all.
    pub(in crate::mover) const SUPPORTED: bool = false;

    /// Never.
    pub(in crate::mover) fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing.
    pub(in crate::mover) fn held(&self) -> usize {
        match *self {}
    }

    /// Cannot be called.
    pub(in crate::mover) fn fill(&mut self, _slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match *self {}
    }

    /// Cannot be called.
    pub(in crate::mover) fn drain(
        &mut self,
        _socket: BorrowedFd<'_>,
        _more: bool,
    ) -> io::Result<usize> {
        match *self {}
    }
}

/// Is never needed: no pages follow.
pub(in crate::mover) fn send_head(
    _socket: impl AsFd,
    _slices: &[IoSlice<'_>],
) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
