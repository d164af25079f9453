//! The first exchange: who is there, and whose memory is what.
//!
//! Both sides send the same 32 bytes with the descriptor of their own half attached. Whoever dialled
//! begins, and the other answers a good greeting only: a client that says nothing, or nonsense, costs
//! the listener no memory.
//!
//! ```text
//!  0         8          12        16          24
//!  magic     version    flags     control     payload       little-endian
//!  8 bytes   u32        u32 = 0   ring, u64   ring, u64
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use blockwire::transport::{Address, ConnectError, Violation};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::control::{Receiver, Sender};
use crate::half::{Lane, MapError, OwnHalf, PeerHalf, RingLens};
use crate::land::Lands;
use crate::lifeline::{self, Lifeline};
use crate::link::{Parts, ShmLink};
use crate::ring::{Consumer, Producer};
use crate::spin::Spin;
use crate::stream::Streams;
use crate::sys::descriptors::prepare_socket;
use crate::transport::ShmOptions;

const MAGIC: [u8; 8] = *b"BWIR-SHM";
const VERSION: u32 = 3;
const GREETING_LEN: usize = 32;

/// Why there is no link, before anyone knows the address.
#[derive(Debug)]
enum SetupError {
    Violation(Violation),
    System(io::Error),
}

impl From<io::Error> for SetupError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<MapError> for SetupError {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Violation(violation) => Self::Violation(violation),
            MapError::System(error) => Self::System(error),
        }
    }
}

impl SetupError {
    fn with(self, address: Address) -> ConnectError {
        match self {
            Self::Violation(violation) => ConnectError::Violated { address, violation },
            Self::System(source) => ConnectError::System { address, source },
        }
    }
}

/// Which end of a fresh connection this side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Dialled,
    Accepted,
}

/// Makes a link of a fresh connection, within the options' limit.
///
/// # Cancel safety
/// Dropping the future closes the connection and frees the memory.
pub(crate) async fn set_up(
    stream: UnixStream,
    role: Role,
    address: Address,
    options: ShmOptions,
) -> Result<ShmLink, ConnectError> {
    let greeting = greet(stream, role, &address, &options);
    let greeted = tokio::time::timeout(options.setup_limit, greeting).await;
    let late = |_| Err(SetupError::System(io::ErrorKind::TimedOut.into()));
    greeted.unwrap_or_else(late).map_err(|error| error.with(address))
}

async fn greet(
    stream: UnixStream,
    role: Role,
    address: &Address,
    options: &ShmOptions,
) -> Result<ShmLink, SetupError> {
    let peer = stream.peer_cred()?;
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse("the peer runs as another user"));
    }
    prepare_socket(stream.as_fd())?;
    let lens = RingLens { control: options.ring_len, payload: options.payload_ring_len };
    let (own, theirs) = match role {
        Role::Dialled => {
            let own = send_half(&stream, lens).await?;
            (own, receive_half(&stream).await?)
        }
        Role::Accepted => {
            let theirs = receive_half(&stream).await?;
            (send_half(&stream, lens).await?, theirs)
        }
    };
    let (own, theirs) = (Rc::new(own), Rc::new(theirs));
    let name = match peer.pid() {
        Some(pid) => format!("{address} (pid {pid})"),
        None => address.to_string(),
    };
    let stats = Arc::default();
    let producer = |lane| Producer::new(lane, Rc::clone(&own), Rc::clone(&theirs));
    let consumer = |lane| Consumer::new(lane, Rc::clone(&own), Rc::clone(&theirs));
    let parts = Parts {
        lifeline: Lifeline::new(stream),
        sender: Sender::new(producer(Lane::Control)),
        receiver: Receiver::new(consumer(Lane::Control)),
        streams: Streams::new(producer(Lane::Payload), Arc::clone(&stats)),
        lands: Lands::new(consumer(Lane::Payload), Arc::clone(&stats)),
        spin: Spin::new(options.spin_limit),
        stats,
        peer: name,
    };
    Ok(ShmLink::new(parts))
}

async fn send_half(stream: &UnixStream, lens: RingLens) -> io::Result<OwnHalf> {
    let own = OwnHalf::new(lens)?;
    let mut greeting = [0; GREETING_LEN];
    greeting[..8].copy_from_slice(&MAGIC);
    greeting[8..12].copy_from_slice(&VERSION.to_le_bytes());
    greeting[16..24].copy_from_slice(&(lens.control as u64).to_le_bytes());
    greeting[24..].copy_from_slice(&(lens.payload as u64).to_le_bytes());
    let mut sent = 0;
    while sent < GREETING_LEN {
        let memory = (sent == 0).then(|| own.file().as_fd());
        sent += stream
            .async_io(Interest::WRITABLE, || {
                lifeline::send(stream.as_fd(), &greeting[sent..], memory)
            })
            .await?;
    }
    Ok(own)
}

async fn receive_half(stream: &UnixStream) -> Result<PeerHalf, SetupError> {
    let (greeting, descriptor) = receive_greeting(stream).await?;
    Ok(PeerHalf::map(descriptor, check_greeting(&greeting)?)?)
}

/// Reads exactly the greeting: what follows it belongs to the link.
async fn receive_greeting(
    stream: &UnixStream,
) -> Result<([u8; GREETING_LEN], OwnedFd), SetupError> {
    let mut greeting = [0; GREETING_LEN];
    let mut descriptors = VecDeque::new();
    let mut have = 0;
    while have < GREETING_LEN {
        let read = stream
            .async_io(Interest::READABLE, || {
                lifeline::receive(stream.as_fd(), &mut greeting[have..], &mut descriptors)
            })
            .await?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        have += read;
        if !MAGIC.starts_with(&greeting[..have.min(MAGIC.len())]) {
            return Err(refuse("not a Blockwire peer"));
        }
        if descriptors.len() > 1 {
            return Err(refuse("more than one descriptor"));
        }
    }
    let descriptor = descriptors.pop_front().ok_or_else(|| refuse("no descriptor"))?;
    Ok((greeting, descriptor))
}

/// The lengths of the peer's rings, not yet checked.
fn check_greeting(greeting: &[u8; GREETING_LEN]) -> Result<[u64; 2], SetupError> {
    let (version, rest) = greeting[MAGIC.len()..].split_at(4);
    if version != VERSION.to_le_bytes() {
        return Err(refuse("another version of the shared-memory transport"));
    }
    let len = |at| u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight bytes"));
    Ok([len(4), len(12)])
}

fn refuse(what: &'static str) -> SetupError {
    SetupError::Violation(Violation::Greeting(what))
}
