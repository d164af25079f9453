//! How bytes move between a socket and the two halves of a link: one file a mechanism.
//!
//! A [`Mover`] knows a socket, and no framing: what goes next is the [`Sender`]'s to say, what belongs
//! where is the [`Receiver`]'s.

#[cfg_attr(target_os = "linux", path = "linux/low_water.rs")]
#[cfg_attr(not(target_os = "linux"), path = "macos/low_water.rs")]
#[cfg_attr(target_os = "linux", expect(unsafe_code, reason = "an option that no library sets"))]
mod low_water;
mod pace;
#[cfg_attr(target_os = "linux", path = "linux/pages.rs")]
#[cfg_attr(not(target_os = "linux"), path = "macos/pages.rs")]
#[cfg_attr(target_os = "linux", expect(unsafe_code, reason = "vmsplice takes raw slices"))]
mod pages;
mod readiness;
#[cfg(all(feature = "tls", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tls;
#[cfg_attr(target_os = "linux", path = "linux/unacknowledged.rs")]
#[cfg_attr(not(target_os = "linux"), path = "macos/unacknowledged.rs")]
#[expect(unsafe_code, reason = "no library asks that")]
mod unacknowledged;
#[cfg(all(target_os = "linux", feature = "uring"))]
#[expect(unsafe_code, reason = "the kernel is given addresses")]
mod uring;

use std::fmt;
use std::io;
use std::sync::Once;
use std::task::{Context, Poll};

use blockwire::transport::{LinkEvent, Violation};
use tokio::net::TcpStream;

use crate::options::{SocketPath, TcpOptions};
use crate::receive::Receiver;
use crate::send::Sender;
use crate::tls::Session;

use self::readiness::Readiness;
#[cfg(all(feature = "tls", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use self::tls::Records;

/// Slices of one gathering write or scattering read. The system takes 1024; with fewer, setting up
/// the array stays cheap beside the call, and blocks of 2 KiB still make half a megabyte.
const SLICES_MAX: usize = 256;
/// Bytes that one direction may move in one poll, so that neither starves the other or other links.
const POLL_LEN_MAX: usize = 512 << 10;
/// System calls of one direction in one poll, for the same reason.
const POLL_CALLS_MAX: usize = 64;

/// Why nothing more will be received.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The peer ended its half of the stream.
    EndOfStream,
    /// The system broke the connection.
    Lost(io::Error),
    /// The peer broke the rules.
    Violated(Violation),
}

/// A connection after the greeting.
#[derive(Debug)]
pub(crate) enum Channel {
    /// What is sent is what the socket takes.
    Plain(TcpStream),
    /// It is encrypted on the way.
    Tls(Box<Session>),
}

impl Channel {
    /// The socket, whatever is done with its bytes.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(session) => session.socket(),
        }
    }
}

/// How often each payload byte is copied in user space, by way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// On its way out of this side's blocks.
    pub(crate) sent: u8,
    /// On its way into this side's blocks.
    pub(crate) landed: u8,
}

/// A connected socket, and a way to use it. Every poll does bounded work.
pub(crate) trait Mover: fmt::Debug {
    /// Sends what the sender has.
    ///
    /// `Ready(Ok)`: more can be done at once. `Pending`: the waker will be woken when there is room, or
    /// there is nothing to send.
    ///
    /// # Errors
    /// What the system says; nothing can be sent any more.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut Sender,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<io::Result<()>>;

    /// Receives what is there.
    ///
    /// `Ready(Ok)`: more can be done at once. `Pending`: the waker will be woken when something comes.
    ///
    /// # Errors
    /// [`Stop`]: nothing can be received any more.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut Receiver,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<Result<(), Stop>>;

    /// Sends what the sender handed over before, and tells the peer that nothing follows.
    ///
    /// # Errors
    /// What the system says: the connection is gone.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether payload may be read from its blocks after it was sent, until the peer has it.
    fn lingers(&self) -> bool;

    /// Whether plans and rooms are with the kernel between two polls.
    fn lends(&self) -> bool;

    /// How often payload is copied in user space.
    fn copies(&self) -> Copies {
        Copies::default()
    }
}

/// The mover for a connection.
///
/// # Errors
/// What the system says to the socket.
pub(crate) fn choose(channel: Channel, options: &TcpOptions) -> io::Result<Box<dyn Mover>> {
    let stream = match channel {
        Channel::Plain(stream) => stream,
        Channel::Tls(session) => return Ok(session.into_mover()),
    };
    if options.path == SocketPath::Uring {
        #[cfg(all(target_os = "linux", feature = "uring"))]
        match uring::open() {
            Ok(ring) => return Ok(Box::new(uring::Uring::new(stream, ring)?)),
            Err(error) => no_ring(&error),
        }
        #[cfg(not(all(target_os = "linux", feature = "uring")))]
        no_ring(&io::ErrorKind::Unsupported.into());
    }
    Ok(Box::new(Readiness::new(stream, options.send_way)))
}

/// Whether links can move their bytes by io_uring here ([`SocketPath::Uring`]).
///
/// # Errors
/// Why not: the system has none, does not allow it, or this was built without.
pub fn probe_uring() -> io::Result<()> {
    #[cfg(all(target_os = "linux", feature = "uring"))]
    return uring::open().map(drop);
    #[cfg(not(all(target_os = "linux", feature = "uring")))]
    Err(io::ErrorKind::Unsupported.into())
}

/// Says once that links go another way than was asked for.
fn no_ring(error: &io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(%error, "no io_uring here; sockets are asked whether they are ready instead");
    });
}

/// Whether the socket was only not ready.
fn may_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
