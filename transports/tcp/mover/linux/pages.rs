//! Sends pages instead of copies of them: a pipe takes references to memory (`vmsplice`), and the socket
//! takes them over (`splice`). No byte is copied on the way out, over loopback neither: the reader's
//! copy, out of these very pages, is the first one. Any memory will do, shared or private.
//!
//! The price: nobody says when the system is done with the pages. They are read when the peer reads
//! over loopback, and when it acknowledges over a wire. Memory that is freed meanwhile stays with the
//! socket, page by page, so nothing can break; but bytes that are changed meanwhile arrive changed. So
//! links that send like this say that they linger, and the session keeps the blocks (see
//! `blockwire::session`). Where that fails (the link ended, and nobody can be asked) changed bytes
//! cannot be committed: the digest that follows them is that of the old ones.
//!
//! `sendfile` from the pool's file does the same for shared memory, extent by extent. It was measured
//! as well, and never was faster: 0.5 times a gathering write with blocks of 16 KiB, where this is 1.2
//! to 1.5 times.
//!
//! `MSG_ZEROCOPY` would tell when the pages are free. It cannot win where it could be measured: over loopback
//! and across a veth pair the system copies all the same (where notifications were read, each of 1,024 said
//! `SO_EE_CODE_ZEROCOPY_COPIED`). Bare calls that leave them unread took 0.96 to 1.22 of the processor time of
//! bare gathering writes (`cargo bench -p blockwire-benches --bench tcp_cpu`, as root). What notifications tell,
//! the session's ping tells once a handoff.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags};

/// Bytes that the pipe is asked to hold: as much as an unprivileged process may ask for. With less it
/// works too, in more calls.
const PIPE_LEN: usize = 1 << 20;

/// A pipe whose bytes are on their way to one socket.
#[derive(Debug)]
pub(in crate::mover) struct Pages {
    out: OwnedFd,
    into: OwnedFd,
    held: usize,
}

impl Pages {
    /// Whether pages can be sent at all.
    pub(in crate::mover) const SUPPORTED: bool = true;

    /// An empty pipe.
    ///
    /// # Errors
    /// What the system says, as a lack of descriptors.
    pub(in crate::mover) fn open() -> io::Result<Self> {
        let (out, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if let Err(error) = rustix::pipe::fcntl_setpipe_size(&into, PIPE_LEN) {
            tracing::debug!(%error, "a pipe stays small");
        }
        Ok(Self { out, into, held: 0 })
    }

    /// Bytes in the pipe: they have to go next.
    pub(in crate::mover) fn held(&self) -> usize {
        self.held
    }

    /// Puts the pages of the first bytes of `slices` into the pipe, which is empty; says how many bytes.
    ///
    /// # Errors
    /// What the system says; the pipe is still empty.
    pub(in crate::mover) fn fill(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        debug_assert_eq!(self.held, 0, "what the pipe has goes first");
        let slices: Vec<_> = slices.iter().map(|slice| IoSliceRaw::from_slice(slice)).collect();
        // SAFETY: into the writing end of a pipe memory is only read from, never written to. The pages
        // outlive the slices: the pipe holds references of its own to them.
        self.held = unsafe { rustix::pipe::vmsplice(&self.into, &slices, SpliceFlags::NONBLOCK) }?;
        Ok(self.held)
    }

    /// Moves pages to the socket; says how many bytes. `more` follows soon.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` until the socket has room.
    pub(in crate::mover) fn drain(
        &mut self,
        socket: BorrowedFd<'_>,
        more: bool,
    ) -> io::Result<usize> {
        let more = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let flags = SpliceFlags::NONBLOCK | more;
        let len = rustix::pipe::splice(&self.out, None, socket, None, self.held, flags)?;
        self.held -= len;
        Ok(len)
    }
}

/// Sends slices that pages follow at once: they share a segment.
///
/// # Errors
/// What the system says.
pub(in crate::mover) fn send_head(socket: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::MORE | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut nothing = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket, slices, &mut nothing, flags)?)
}
