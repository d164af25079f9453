//! The socket of a link: rings the doorbell, carries descriptors, and shows by its end that the peer
//! is gone, however it went.
//!
//! ```text
//! doorbell   01
//! region     02 00 00 00 | key u32 | len u64      with the descriptor attached to the first byte
//! ```
//! Both are little-endian. The greeting (`setup.rs`) comes before them.
//!
//! A doorbell that does not fit is dropped: a full socket has bytes that the peer has not read, and
//! these wake it as well.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use blockwire::pool::Region;
use blockwire::transport::{RegionKey, Violation};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, Shutdown,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::sys::descriptors::{RECEIVE_FLAGS, SEND_FLAGS, prepare_received};

const DOORBELL: u8 = 1;
const REGION: u8 = 2;
const REGION_LEN: usize = 16;
/// Bytes read at a time: many doorbells, few regions.
const READ_LEN: usize = 256;

static DOORBELLS: AtomicU64 = AtomicU64::new(0);

/// Doorbells that this process rang so far, over all its links. Each is a system call, and wakes a
/// peer that slept; between peers that are awake there are none.
pub fn doorbells() -> u64 {
    DOORBELLS.load(Relaxed)
}

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// Messages; there may be more.
    Some,
    /// Nothing now.
    Empty,
    /// The peer is gone; nothing will follow.
    End,
}

/// A region that the peer announced.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) key: RegionKey,
    pub(crate) len: u64,
    pub(crate) descriptor: OwnedFd,
}

/// Why the socket is of no more use.
#[derive(Debug)]
pub(crate) enum LifelineError {
    /// The peer wrote nonsense.
    Violation(Violation),
    /// The system refused something.
    System(io::Error),
}

/// A region still to be announced, and how much of its record has left.
#[derive(Debug)]
struct Outgoing {
    record: [u8; REGION_LEN],
    sent: usize,
    region: Arc<Region>,
}

#[derive(Debug)]
pub(crate) struct Lifeline {
    stream: UnixStream,
    outgoing: VecDeque<Outgoing>,
    partial: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Lifeline {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let (outgoing, partial, descriptors) = <_>::default();
        Self { stream, outgoing, partial, descriptors }
    }

    /// Wakes the peer. Whether it is still there is what [`receive`](Self::receive) says.
    pub(crate) fn ring(&self) {
        if self.outgoing.is_empty() {
            DOORBELLS.fetch_add(1, Relaxed);
            let _ = send(self.stream.as_fd(), &[DOORBELL], None);
        }
    }

    /// Announces a region, before everything that is sent from now on.
    pub(crate) fn announce(&mut self, key: RegionKey, region: &Arc<Region>) {
        let mut record = [0; REGION_LEN];
        record[0] = REGION;
        record[4..8].copy_from_slice(&key.0.to_le_bytes());
        record[8..].copy_from_slice(&(region.len() as u64).to_le_bytes());
        self.outgoing.push_back(Outgoing { record, sent: 0, region: Arc::clone(region) });
        // What does not fit now, or never will, is for `poll_flush`.
        let _ = flush(self.stream.as_fd(), &mut self.outgoing);
    }

    /// Whether every announcement has left.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Waits until the socket takes announcements again. True when some left.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> bool {
        let Self { stream, outgoing, .. } = self;
        let before = outgoing.len();
        while !outgoing.is_empty() && stream.poll_write_ready(cx).is_ready() {
            let flushed = stream.try_io(Interest::WRITABLE, || flush(stream.as_fd(), outgoing));
            if flushed.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
                // A peer that is gone takes none; reading tells so.
                outgoing.clear();
            }
        }
        outgoing.len() < before
    }

    /// Waits until something can be read, then reads it.
    pub(crate) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<Announced>,
    ) -> Poll<Result<Incoming, LifelineError>> {
        loop {
            match self.stream.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(LifelineError::System(error)));
                }
                Poll::Ready(Ok(())) => {}
            }
            let mut buffer = [0; READ_LEN];
            let stream = &self.stream;
            let descriptors = &mut self.descriptors;
            let read = stream
                .try_io(Interest::READABLE, || receive(stream.as_fd(), &mut buffer, descriptors));
            match self.sort(&buffer, read, into) {
                Ok(Incoming::Empty) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// Reads what is there, without waiting for the reactor to say so.
    pub(crate) fn receive(&mut self, into: &mut Vec<Announced>) -> Result<Incoming, LifelineError> {
        let mut buffer = [0; READ_LEN];
        let read = receive(self.stream.as_fd(), &mut buffer, &mut self.descriptors);
        self.sort(&buffer, read, into)
    }

    /// No more is sent; the peer sees the end once it has read everything.
    pub(crate) fn shut_down(&mut self) {
        self.outgoing.clear();
        // It fails only where the peer was faster.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }

    fn sort(
        &mut self,
        buffer: &[u8],
        read: io::Result<usize>,
        into: &mut Vec<Announced>,
    ) -> Result<Incoming, LifelineError> {
        match read {
            Ok(0) => Ok(Incoming::End),
            Ok(len) => self.parse(&buffer[..len], into).map(|()| Incoming::Some),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(Incoming::Empty),
                // A peer that died with unread bytes resets the connection.
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(Incoming::End),
                _ => Err(LifelineError::System(error)),
            },
        }
    }

    fn parse(&mut self, bytes: &[u8], into: &mut Vec<Announced>) -> Result<(), LifelineError> {
        let refuse = |what| Err(LifelineError::Violation(Violation::SharedMemory(what)));
        for byte in bytes {
            match (self.partial.is_empty(), *byte) {
                (true, DOORBELL) => continue,
                (true, REGION) | (false, _) => self.partial.push(*byte),
                (true, _) => return refuse("unknown message on the socket"),
            }
            if self.partial.len() < REGION_LEN {
                continue;
            }
            let Some(descriptor) = self.descriptors.pop_front() else {
                return refuse("a region came without its descriptor");
            };
            let key = u32::from_le_bytes(self.partial[4..8].try_into().expect("four bytes"));
            let len = u64::from_le_bytes(self.partial[8..].try_into().expect("eight bytes"));
            self.partial.clear();
            into.push(Announced { key: RegionKey(key), len, descriptor });
        }
        // A record that is not whole yet may own one; every other is nobody's.
        if self.descriptors.len() > usize::from(!self.partial.is_empty()) {
            return refuse("a descriptor came without its region");
        }
        Ok(())
    }
}

/// Sends what announcements the socket takes.
fn flush(socket: BorrowedFd<'_>, outgoing: &mut VecDeque<Outgoing>) -> io::Result<()> {
    while let Some(front) = outgoing.front_mut() {
        let file = front.region.shared_file().filter(|_| front.sent == 0);
        front.sent += send(socket, &front.record[front.sent..], file.map(AsFd::as_fd))?;
        if front.sent == REGION_LEN {
            outgoing.pop_front();
        }
    }
    Ok(())
}

/// Sends bytes, with a descriptor attached to the first of them.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "space for one");
    }
    let sent =
        retry(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SEND_FLAGS))?;
    Ok(sent)
}

/// Receives bytes and descriptors. The kernel never passes on more than one message's descriptors.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = retry(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RECEIVE_FLAGS)
    })?;
    let before = descriptors.len();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    for descriptor in descriptors.iter().skip(before) {
        prepare_received(descriptor.as_fd())?;
    }
    if message.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() == before {
        // The kernel had one for us and could not install it.
        return Err(Errno::MFILE.into());
    }
    Ok(message.bytes)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
