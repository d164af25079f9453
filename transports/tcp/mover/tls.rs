//! Moves bytes through a TLS session: Linux and macOS.
//!
//! ```text
//! blocks ── encrypt ──> records ── write ──> socket ── read ──> record ── decrypt ──> record ──> blocks
//!           1 copy                                              in place    1 copy      1 copy
//! ```
//! The copies are counted where the bytes are, in the two halves: rustls gathers a record's bytes out of
//! their blocks and encrypts them where they then lie; what it decrypted it keeps in a buffer of its own,
//! and hands it out by copying. So a block is free as soon as its bytes are records, before they are
//! sent.
//!
//! Both queues of rustls are bounded. Records to be sent are made only when all before them are written,
//! and at most [`RECORDS_LEN`] of them. A record is read only when the one before it was taken, as far as
//! the peer's writes allow to tell them apart: what is read at once is at most as long as one record.
//! Records that carry nothing (empty ones, key updates) are counted by rustls, which ends the session
//! after 32 of them in a row, and each read counts as a call of the poll.
//!
//! TLS knows its own end (`close_notify`). A TCP stream that ends before is cut off: it may be the peer
//! that died, or somebody in between who wants it to look finished. So that is a lost connection, never
//! the peer's end.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::task::{Context, Poll, ready};

use blockwire::transport::LinkEvent;
use rustls::{Connection, Error};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::unacknowledged::unacknowledged;
use super::{Copies, Mover, POLL_CALLS_MAX, POLL_LEN_MAX, SLICES_MAX, Stop, may_retry};
use crate::receive::Receiver;
use crate::send::Sender;
use crate::tls::violation;

/// Bytes of frames that are made records at once: a control frame waits behind them, and one write takes
/// them while they are in the cache.
const RECORDS_LEN: usize = 128 << 10;

/// Slices of a room. What one record holds rarely goes to more places.
const ROOM_SLICES_MAX: usize = 64;

/// A session over a socket that never blocks.
pub(crate) struct Records {
    socket: TcpStream,
    session: Connection,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// The socket, as rustls wants it.
struct Wire<'a>(&'a TcpStream);

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Records {
    /// Copies of a payload byte in user space, on its way out.
    const COPIES_OUT: u8 = 1;
    /// And on its way in.
    const COPIES_IN: u8 = 2;

    /// Goes on with a session that is made.
    pub(crate) fn new(socket: TcpStream, mut session: Connection) -> Self {
        session.set_buffer_limit(Some(RECORDS_LEN));
        Self { socket, session }
    }

    /// Makes records of what the sender has, as many as may wait.
    fn encrypt(&mut self, sender: &mut Sender, events: &mut Vec<LinkEvent>) -> io::Result<()> {
        while !sender.rests(|| unacknowledged(&self.socket)) {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = sender.plan(&mut slices);
            let len = self.session.writer().write_vectored(&slices[..count])?;
            if len == 0 {
                break;
            }
            sender.wrote(len, events);
        }
        Ok(())
    }

    /// Writes records once; says how many bytes, 0 when the socket takes none now.
    fn write(&mut self) -> io::Result<usize> {
        match self.session.write_tls(&mut Wire(&self.socket)) {
            Err(error) if may_retry(&error) => Ok(0),
            written => written,
        }
    }

    /// Puts what is decrypted where it belongs; says how many bytes, 0 at the end of the session.
    fn take(&mut self, receiver: &mut Receiver) -> io::Result<usize> {
        let mut slices: [IoSliceMut<'_>; ROOM_SLICES_MAX] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let count = receiver.room(&mut slices);
        let mut taken = 0;
        for slice in &mut slices[..count] {
            match self.session.reader().read(slice) {
                Ok(len) => {
                    taken += len;
                    if len < slice.len() {
                        break;
                    }
                }
                // What came before is taken; the next call says it again.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Reads from the socket once, and decrypts what is whole.
    fn read(&mut self) -> Result<(), Stop> {
        match self.session.read_tls(&mut Wire(&self.socket)) {
            Err(error) if may_retry(&error) => return Ok(()),
            read => read.map_err(Stop::Lost)?,
        };
        match self.session.process_new_packets() {
            Ok(_state) => Ok(()),
            Err(error) => {
                // Tells the peer why, if the socket has room for that.
                let _ = self.write();
                Err(match error {
                    Error::AlertReceived(_) => {
                        Stop::Lost(io::Error::new(io::ErrorKind::ConnectionAborted, error))
                    }
                    broken => Stop::Violated(violation(&broken)),
                })
            }
        }
    }
}

impl Mover for Records {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut Sender,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = 0;
        for _ in 0..POLL_CALLS_MAX {
            if !self.session.wants_write() {
                self.encrypt(sender, events)?;
            }
            if !self.session.wants_write() {
                return Poll::Pending;
            }
            ready!(self.socket.poll_write_ready(cx))?;
            bytes += self.write()?;
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
            match self.take(receiver) {
                Ok(0) => return Poll::Ready(Err(Stop::EndOfStream)),
                Ok(len) => {
                    receiver.filled(len, events).map_err(Stop::Violated)?;
                    bytes += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx)).map_err(Stop::Lost)?;
                    self.read()?;
                }
                Err(error) => return Poll::Ready(Err(Stop::Lost(error))),
            }
            if bytes >= POLL_LEN_MAX {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only the first call does anything.
        self.session.send_close_notify();
        while self.session.wants_write() {
            ready!(self.socket.poll_write_ready(cx))?;
            self.write()?;
        }
        Poll::Ready(SockRef::from(&self.socket).shutdown(Shutdown::Write))
    }

    fn lingers(&self) -> bool {
        false
    }

    fn lends(&self) -> bool {
        false
    }

    fn copies(&self) -> Copies {
        Copies { sent: Self::COPIES_OUT, landed: Self::COPIES_IN }
    }
}
