//! Waits until the socket is ready, then gathers into it or scatters out of it: Linux and macOS.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use blockwire::clock;
use blockwire::transport::LinkEvent;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::low_water;
use super::pace::{By, Pace};
use super::pages::{Pages, send_head};
use super::unacknowledged::unacknowledged;
use super::{Mover, POLL_CALLS_MAX, POLL_LEN_MAX, SLICES_MAX, Stop, may_retry};
use crate::options::SendWay;
use crate::receive::Receiver;
use crate::send::Sender;

/// Payload bytes of a frame from which on pages are sent: below, the copy that is saved takes less time
/// than the two further calls.
const PAGES_LEN_MIN: u64 = 64 << 10;

/// Bytes of a payload that a receiver is woken for: each wake-up and its calls cost as much as copying
/// several kilobytes. Small beside any receive buffer, so that the peer never has to wait.
const WAKE_LEN: usize = 64 << 10;

/// A socket that never blocks.
#[derive(Debug)]
pub(super) struct Readiness {
    stream: TcpStream,
    /// Whether pages may be sent.
    sends_pages: bool,
    /// Opened for the first payload that is worth it: most links of a node carry control only.
    pages: Option<Pages>,
    /// Some while there is a choice.
    pace: Option<Pace>,
    lingers: bool,
    /// Bytes that wake this end.
    low_water: usize,
}

impl Readiness {
    /// Takes a connected socket.
    pub(super) fn new(stream: TcpStream, way: SendWay) -> Self {
        let lingers = Pages::SUPPORTED && way != SendWay::Copies;
        let chooses = lingers && way == SendWay::Measured;
        let pace = chooses.then(|| Pace::new(By::Pages));
        Self { stream, sends_pages: lingers, pages: None, pace, lingers, low_water: 1 }
    }

    /// Sets what wakes this end, if it is not so already.
    fn set_low_water(&mut self, len: usize) {
        if len != self.low_water {
            self.low_water = len;
            if let Err(error) = low_water::set(&self.stream, len) {
                tracing::debug!(%error, "every byte wakes the receiver");
            }
        }
    }

    /// Sends once; says how many bytes of the sender's.
    fn send(&mut self, payload: u64, sender: &mut Sender) -> io::Result<usize> {
        let by = self.pace.as_ref().map_or(By::Pages, Pace::by);
        let held = self.pages.as_ref().is_some_and(|pages| pages.held() > 0);
        if held || (self.sends_pages && by == By::Pages && payload >= PAGES_LEN_MIN) {
            let sent = self.send_pages(payload, sender);
            if let Err(error) = &sent
                && !may_retry(error)
                && !is_the_connections(error)
            {
                // Nothing that the pipe holds counts as sent.
                tracing::debug!(%error, "pages can be sent no more, the system copies them");
                (self.sends_pages, self.pages, self.pace) = (false, None, None);
                return Ok(0);
            }
            return sent;
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = sender.plan(&mut slices);
        self.stream.try_write_vectored(&slices[..count])
    }

    /// Sends what comes before a payload, or else the payload's pages.
    fn send_pages(&mut self, payload: u64, sender: &mut Sender) -> io::Result<usize> {
        let Self { stream, pages, .. } = self;
        let pages = match pages {
            Some(pages) => pages,
            None => pages.insert(Pages::open()?),
        };
        if pages.held() == 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = sender.plan_head(&mut slices);
            if count > 0 {
                let head = || send_head(&*stream, &slices[..count]);
                return stream.try_io(Interest::WRITABLE, head);
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = sender.plan_payload(&mut slices);
            pages.fill(&slices[..count])?;
        }
        let more = (pages.held() as u64) < payload;
        stream.try_io(Interest::WRITABLE, || pages.drain(stream.as_fd(), more))
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
            if sender.rests(|| unacknowledged(&self.stream)) {
                if let Some(pace) = self.pace.as_mut().filter(|_| sender.is_idle()) {
                    pace.wait();
                }
                return Poll::Pending;
            }
            let payload = sender.payload_next();
            let paced = self.pace.as_mut().filter(|_| payload >= PAGES_LEN_MIN);
            if let Some(pace) = paced {
                pace.start(clock::now);
            }
            ready!(self.stream.poll_write_ready(cx))?;
            match self.send(payload, sender) {
                Ok(len) => {
                    sender.wrote(len, events);
                    bytes += len;
                    if let Some(pace) = &mut self.pace {
                        pace.moved(len, clock::now);
                    }
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
        // What it was set for may have been cancelled.
        self.set_low_water(wake_len(receiver).min(self.low_water));
        for _ in 0..POLL_CALLS_MAX {
            ready!(self.stream.poll_read_ready(cx)).map_err(Stop::Lost)?;
            let mut slices: [IoSliceMut<'_>; SLICES_MAX] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = receiver.room(&mut slices);
            match self.stream.try_read_vectored(&mut slices[..count]) {
                Ok(0) => return Poll::Ready(Err(Stop::EndOfStream)),
                Ok(len) => {
                    let known = events.len();
                    receiver.filled(len, events).map_err(Stop::Violated)?;
                    bytes += len;
                    if let Some(pace) = &mut self.pace
                        && events[known..]
                            .iter()
                            .any(|event| matches!(event, LinkEvent::Received(_)))
                    {
                        pace.answered(clock::now);
                    }
                }
                // It sleeps next.
                Err(error) if may_retry(&error) => self.set_low_water(wake_len(receiver)),
                Err(error) => return Poll::Ready(Err(Stop::Lost(error))),
            }
            if bytes >= POLL_LEN_MAX {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&self.stream).shutdown(Shutdown::Write))
    }

    fn lingers(&self) -> bool {
        self.lingers
    }

    fn lends(&self) -> bool {
        false
    }
}

fn wake_len(receiver: &Receiver) -> usize {
    if receiver.payload_left() < WAKE_LEN { 1 } else { WAKE_LEN }
}

/// Whether the connection is the reason, and not the way to send. The system tells that once: to try again
/// in another way would give a broken pipe, which reads like the orderly end of a peer that left first.
fn is_the_connections(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable,
        NetworkDown, NetworkUnreachable, NotConnected, TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe
            | ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkDown
            | NetworkUnreachable
            | NotConnected
            | TimedOut
    )
}
