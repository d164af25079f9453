//! Waits until the socket is ready, then gathers into it or scatters out of it: Linux and macOS.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::task::{Context, Poll, ready};

use blockwire::transport::LinkEvent;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::{Mover, POLL_CALLS_MAX, POLL_LEN_MAX, SLICES_MAX, Stop};
use crate::receive::Receiver;
use crate::send::Sender;

/// A socket that never blocks.
#[derive(Debug)]
pub(super) struct Readiness {
    stream: TcpStream,
}

impl Readiness {
    /// Takes a connected socket.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream }
    }
}

impl Mover for Readiness {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut Sender,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = 0;
        for _ in 0..POLL_CALLS_MAX {
            if sender.is_idle() {
                return Poll::Pending;
            }
            ready!(self.stream.poll_write_ready(cx))?;
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = sender.plan(&mut slices);
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(len) => {
                    sender.wrote(len, events);
                    bytes += len;
                }
                Err(error) if may_retry(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
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
            ready!(self.stream.poll_read_ready(cx)).map_err(Stop::Lost)?;
            let mut slices: [IoSliceMut<'_>; SLICES_MAX] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = receiver.room(&mut slices);
            match self.stream.try_read_vectored(&mut slices[..count]) {
                Ok(0) => return Poll::Ready(Err(Stop::EndOfStream)),
                Ok(len) => {
                    receiver.filled(len, events).map_err(Stop::Violated)?;
                    bytes += len;
                }
                Err(error) if may_retry(&error) => {}
                Err(error) => return Poll::Ready(Err(Stop::Lost(error))),
            }
            if bytes >= POLL_LEN_MAX {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn finish(&mut self) -> io::Result<()> {
        SockRef::from(&self.stream).shutdown(Shutdown::Write)
    }
}

fn may_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
