//! Hands whole transfers to the kernel, which says when they are done: io_uring.
//!
//! ```text
//! halves ── plan, room ──> Flight ── SENDMSG, RECVMSG ──> ring ── the socket, when it can
//!    <── wrote, filled ──  Flight <──── how many bytes ─── ring ── readable: wakes the link's task
//! ```
//! At most one transfer each way is under way. What it reads or fills stays as it is meanwhile: the
//! halves *lend* it. A half that wants some of it back (an operation was cancelled) has its transfer
//! cancelled, and gets the memory when the kernel has let go of it, never before. The ring wakes the
//! link's task as a socket does: it is itself a descriptor that becomes readable.
//!
//! Registered buffers would spare the kernel a look-up of pages when it does not copy. It copies here:
//! transfers without copies (`SENDMSG_ZC`) copy over loopback all the same, and more slowly.
//!
//! Invariants, named by the SAFETY comments:
//! - U1: every slice of a plan or a room lies in a pool or on the heap, where moving a half does not move
//!   it, and is neither changed, freed nor (a room) read while the half lends it.
//! - U2: a half that lends ends no operation that it needs for it, and is not dropped before the mover:
//!   the link's fields are in that order.
//! - U3: a [`Flight`]'s message lies on the heap, and changes only while nothing is under way.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream as Socket};
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, ready};

use blockwire::transport::LinkEvent;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use super::unacknowledged::unacknowledged;
use super::{Mover, POLL_CALLS_MAX, POLL_LEN_MAX, SLICES_MAX, Stop};
use crate::receive::Receiver;
use crate::send::Sender;

/// Two transfers and a cancellation of each fit at once.
const ENTRIES: u32 = 8;
/// What a submission was for.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const CANCEL: u64 = 3;

/// A socket whose transfers the kernel makes.
#[derive(Debug)]
pub(super) struct Uring {
    socket: Socket,
    ring: AsyncFd<Ring>,
    send: Flight,
    receive: Flight,
}

/// One direction.
#[derive(Debug)]
struct Flight {
    message: Box<Message>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    UnderWay { cancelled: bool },
    Done(i32),
}

/// What became of a transfer.
enum Outcome {
    Moved(usize),
    /// It was cancelled in time, or interrupted.
    Nothing,
    Failed(io::Error),
}

/// What the kernel is given: a header that points to the slices beside it.
struct Message {
    header: libc::msghdr,
    slices: [libc::iovec; SLICES_MAX],
}

struct Ring(IoUring);

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({})", self.0.as_raw_fd())
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({} slices)", self.header.msg_iovlen)
    }
}

impl Flight {
    fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: all zeroes is a message header without anything.
        let header = unsafe { std::mem::zeroed() };
        let message = Box::new(Message { header, slices: [none; SLICES_MAX] });
        Self { message, state: State::Idle }
    }

    /// Sets what the next transfer is about.
    fn set(&mut self, slices: impl Iterator<Item = libc::iovec>) {
        assert_eq!(self.state, State::Idle, "one transfer at a time (U3)");
        let mut count = 0;
        for (place, slice) in self.message.slices.iter_mut().zip(slices) {
            *place = slice;
            count += 1;
        }
        self.message.header.msg_iov = self.message.slices.as_mut_ptr();
        self.message.header.msg_iovlen = count as _;
    }

    fn send(&mut self, socket: &Socket) -> squeue::Entry {
        // All of it: what a full socket does not take at once is not a reason to come back.
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let message = &raw const self.message.header;
        let entry = opcode::SendMsg::new(types::Fd(socket.as_raw_fd()), message).flags(flags);
        entry.build().user_data(SEND)
    }

    fn receive(&mut self, socket: &Socket) -> squeue::Entry {
        let message = &raw mut self.message.header;
        opcode::RecvMsg::new(types::Fd(socket.as_raw_fd()), message).build().user_data(RECEIVE)
    }

    /// Takes the outcome of a transfer that is done.
    fn take(&mut self) -> Option<Outcome> {
        let State::Done(result) = self.state else { return None };
        self.state = State::Idle;
        Some(match usize::try_from(result) {
            Ok(len) => Outcome::Moved(len),
            Err(_negative) => match -result {
                libc::ECANCELED | libc::EINTR | libc::EAGAIN => Outcome::Nothing,
                code => Outcome::Failed(io::Error::from_raw_os_error(code)),
            },
        })
    }
}

/// A ring, where the system has any and lets this process use it.
///
/// # Errors
/// What the system says; `Unsupported` when its rings cannot do what is needed here.
pub(super) fn open() -> io::Result<IoUring> {
    let ring = IoUring::new(ENTRIES)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::SendMsg::CODE, opcode::RecvMsg::CODE, opcode::AsyncCancel::CODE];
    if needed.into_iter().all(|code| probe.is_supported(code)) {
        Ok(ring)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Uring {
    /// Takes a connected socket.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new(stream: TcpStream, ring: IoUring) -> io::Result<Self> {
        let socket = stream.into_std()?;
        // A ring waits for a socket that may block, and not for one that may not.
        socket.set_nonblocking(false)?;
        // SAFETY: a ring has one descriptor from its making to its end.
        let ring = unsafe { AsyncFd::register_with_interest(Ring(ring), Interest::READABLE) }?;
        let (send, receive) = (Flight::new(), Flight::new());
        Ok(Self { socket, ring, send, receive })
    }

    /// Queues a submission for [`enter`](Self::enter).
    ///
    /// # Safety
    /// Whatever it points to stays as it is until its completion was seen.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's.
        let pushed = unsafe { self.ring.get_mut().0.submission().push(entry) };
        pushed.map_err(|_full| io::ErrorKind::WouldBlock.into())
    }

    /// Gives the kernel what is queued.
    fn enter(&self) -> io::Result<()> {
        loop {
            match self.ring.get_ref().0.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                entered => return entered.map(|_count| ()),
            }
        }
    }

    fn start_send(&mut self) -> io::Result<()> {
        let entry = self.send.send(&self.socket);
        // SAFETY: the sender lends the slices (U1, U2), the message stays (U3).
        unsafe { self.push(&entry) }?;
        self.send.state = State::UnderWay { cancelled: false };
        self.enter()
    }

    fn start_receive(&mut self) -> io::Result<()> {
        let entry = self.receive.receive(&self.socket);
        // SAFETY: the receiver lends the slices (U1, U2), the message stays (U3).
        unsafe { self.push(&entry) }?;
        self.receive.state = State::UnderWay { cancelled: false };
        self.enter()
    }

    /// Asks for the end of a transfer, once; it still completes.
    fn cancel(&mut self, tag: u64) -> io::Result<()> {
        let flight = if tag == SEND { &self.send } else { &self.receive };
        if flight.state != (State::UnderWay { cancelled: false }) {
            return Ok(());
        }
        let entry = opcode::AsyncCancel::new(tag).build().user_data(CANCEL);
        // SAFETY: it points to nothing.
        unsafe { self.push(&entry) }?;
        let flight = if tag == SEND { &mut self.send } else { &mut self.receive };
        flight.state = State::UnderWay { cancelled: true };
        self.enter()
    }

    /// Notes what is done; says whether anything was.
    fn reap(&mut self) -> bool {
        let mut any = false;
        for completion in self.ring.get_mut().0.completion() {
            let flight = match completion.user_data() {
                SEND => &mut self.send,
                RECEIVE => &mut self.receive,
                _ => continue,
            };
            flight.state = State::Done(completion.result());
            any = true;
        }
        any
    }

    /// Waits until a transfer is done.
    fn poll_reap(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.reap() {
            // Cleared before the next look, so that what comes in between is seen or wakes.
            ready!(self.ring.poll_read_ready_mut(cx))?.clear_ready();
        }
        Poll::Ready(Ok(()))
    }
}

impl Mover for Uring {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut Sender,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = 0;
        for _ in 0..POLL_CALLS_MAX {
            if self.send.state == State::Idle {
                if sender.rests(|| unacknowledged(&self.socket)) {
                    return Poll::Pending;
                }
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = sender.plan(&mut slices);
                self.send.set(slices[..count].iter().map(|slice| libc::iovec {
                    iov_base: slice.as_ptr().cast_mut().cast(),
                    iov_len: slice.len(),
                }));
                sender.lend();
                self.start_send()?;
            }
            self.reap();
            let Some(sent) = self.send.take() else {
                if sender.wants_back() {
                    self.cancel(SEND)?;
                }
                ready!(self.poll_reap(cx))?;
                continue;
            };
            let len = if let Outcome::Moved(len) = sent { len } else { 0 };
            sender.wrote(len, events);
            if let Outcome::Failed(error) = sent {
                return Poll::Ready(Err(error));
            }
            bytes += len;
            if bytes >= POLL_LEN_MAX {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut Receiver,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<Result<(), Stop>> {
        let mut bytes = 0;
        for _ in 0..POLL_CALLS_MAX {
            if self.receive.state == State::Idle {
                let mut slices: [IoSliceMut<'_>; SLICES_MAX] =
                    std::array::from_fn(|_| IoSliceMut::new(&mut []));
                let count = receiver.room(&mut slices);
                self.receive.set(slices[..count].iter_mut().map(|slice| libc::iovec {
                    iov_base: slice.as_mut_ptr().cast(),
                    iov_len: slice.len(),
                }));
                receiver.lend();
                self.start_receive().map_err(Stop::Lost)?;
            }
            self.reap();
            let Some(received) = self.receive.take() else {
                if receiver.wants_back() {
                    self.cancel(RECEIVE).map_err(Stop::Lost)?;
                }
                ready!(self.poll_reap(cx)).map_err(Stop::Lost)?;
                continue;
            };
            let len = if let Outcome::Moved(len) = received { len } else { 0 };
            receiver.filled(len, events).map_err(Stop::Violated)?;
            match received {
                Outcome::Moved(0) => return Poll::Ready(Err(Stop::EndOfStream)),
                Outcome::Failed(error) => return Poll::Ready(Err(Stop::Lost(error))),
                Outcome::Moved(_) | Outcome::Nothing => bytes += len,
            }
            if bytes >= POLL_LEN_MAX {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }

    fn lingers(&self) -> bool {
        false
    }

    fn lends(&self) -> bool {
        true
    }
}

impl Drop for Uring {
    /// Waits until the kernel has let go of everything; a socket that is shut down holds nothing up.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.cancel(SEND).and(self.cancel(RECEIVE));
        let under_way = |flight: &Flight| matches!(flight.state, State::UnderWay { .. });
        while under_way(&self.send) || under_way(&self.receive) {
            let _ = self.ring.get_ref().0.submit_and_wait(1);
            self.reap();
        }
    }
}
