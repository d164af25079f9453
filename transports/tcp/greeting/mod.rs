//! The first exchange of a connection: who is there, and whether both have the same cluster key.
//!
//! ```text
//! dialler                                   acceptor
//! greeting  ─────────────────────────────>  nothing is answered to what is not a greeting
//!           <─────────────────────────────  greeting
//!                                  only with a cluster key:
//! proof     ─────────────────────────────>  whoever came proves itself first
//!           <─────────────────────────────  proof
//! frames    <════════════════════════════>  frames
//! ```
//! A proof is a MAC over both greetings, whole, so over both instances, both nonces and the version, and
//! over the role. It is good for this connection and this direction only: recorded, reflected or taken
//! from another pair of processes it is worthless.
//!
//! A side with a key and a side without one part after the greetings, so that both know why. Reads are
//! of fixed lengths and never beyond the exchange: what a stranger can make this side hold is a socket
//! and less than a page, for at most the options' `greeting_timeout`.
//!
//! Where the address says `tls=key`, all of this goes through a TLS session, whose handshake comes first
//! and within the same time (see `tls`). The proofs cover the session too. A side that speaks TLS and one
//! that does not tell each other by the first bytes, in words that the other can read: an alert, or a
//! greeting. Neither goes on without TLS.

mod half_open;
mod layout;

use std::io;

use blockwire::transport::{Address, ConnectError, KeyMismatch, Violation};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) use half_open::HalfOpen;
pub(crate) use layout::{GREETING_LEN, NONCE_LEN, Nonce, Place, STRIPES_MAX};

use crate::key::ClusterKey;
use crate::mover::Channel;
use crate::options::TcpOptions;
use crate::tls::Tls;
use layout::{Greeting, MAGIC};

/// Bytes that a TLS session is told from others by.
pub(crate) const BINDING_LEN: usize = 32;

/// What TLS begins with: the type of a record, an alert or a handshake, and the major version.
const TLS_RECORDS: [[u8; 2]; 2] = [[21, 3], [22, 3]];
/// Bytes of a record's header, the last two of which say how many follow.
const RECORD_HEADER_LEN: usize = 5;

/// Which end of a connection a side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// It opened the connection.
    Dialler = 1,
    /// It listens.
    Acceptor = 2,
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Acceptor,
            Self::Acceptor => Self::Dialler,
        }
    }
}

/// What a side does in the exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    /// It dialled, as this connection of this link.
    Dial(Place),
    /// It answers whoever came.
    Answer,
}

/// What the exchange found out.
#[derive(Debug)]
pub(crate) struct Greeted {
    /// Which connection of which link this is.
    pub(crate) place: Place,
    /// The nonce of the dialler's greeting.
    pub(crate) nonce: Nonce,
    /// The peer's process, as it says.
    pub(crate) instance: Uuid,
    /// The peer's process, where it proved to have the key.
    pub(crate) authenticated: Option<Uuid>,
    /// With a cluster key: keys of the frames of this side, and of the peer's.
    pub(crate) frame_keys: Option<([u8; 32], [u8; 32])>,
}

/// Why there is no link, before anyone knows the address.
#[derive(Debug)]
pub(crate) enum GreetError {
    Violation(Violation),
    Key(KeyMismatch),
    System(io::Error),
}

impl From<Violation> for GreetError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<KeyMismatch> for GreetError {
    fn from(mismatch: KeyMismatch) -> Self {
        Self::Key(mismatch)
    }
}

impl From<io::Error> for GreetError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl GreetError {
    /// The error with the address that was dialled, or who came.
    pub(crate) fn with(self, address: Address) -> ConnectError {
        match self {
            Self::Violation(violation) => ConnectError::Violated { address, violation },
            Self::Key(mismatch) => ConnectError::Unauthenticated { address, mismatch },
            Self::System(source) => ConnectError::System { address, source },
        }
    }
}

/// Makes a fresh connection one of two sides that know each other; encrypted with `tls`.
///
/// # Cancel safety
/// None: the connection is dropped.
pub(crate) async fn greet(
    stream: TcpStream,
    opening: Opening,
    tls: Option<&Tls>,
    options: &TcpOptions,
) -> Result<(Channel, Greeted), GreetError> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the peer did not greet in time");
    let greeting = open(stream, opening, tls, options);
    timeout(options.greeting_timeout, greeting).await.unwrap_or_else(|_| Err(late().into()))
}

async fn open(
    mut stream: TcpStream,
    opening: Opening,
    tls: Option<&Tls>,
    options: &TcpOptions,
) -> Result<(Channel, Greeted), GreetError> {
    let Some(tls) = tls else {
        let exchanged = exchange(&mut stream, opening, &[], options).await;
        if matches!(exchanged, Err(GreetError::Key(KeyMismatch::TlsOnlyThere))) {
            // Whether or not it stays to hear that.
            let _ = answer_tls(&mut stream, opening, options).await;
        }
        return Ok((Channel::Plain(stream), exchanged?));
    };
    let mut session = tls.handshake(stream).await?;
    let binding = session.binding()?;
    let greeted = exchange(session.stream(), opening, &binding, options).await?;
    // Every record has a tag of its own.
    Ok((Channel::Tls(Box::new(session)), Greeted { frame_keys: None, ..greeted }))
}

/// Says hello. What the proofs cover besides is `binding`.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    opening: Opening,
    binding: &[u8],
    options: &TcpOptions,
) -> Result<Greeted, GreetError> {
    let (role, transcript, nonce, theirs) = match opening {
        Opening::Dial(place) => {
            let ours = ours(place, options)?;
            send(stream, &ours.encode()).await?;
            let bytes = read_greeting(stream).await?;
            let theirs = Greeting::parse(&bytes)?;
            if theirs.place != place {
                return Err(Violation::Greeting("the answer is about another link").into());
            }
            (Role::Dialler, [&ours.encode(), &bytes[..], binding].concat(), ours.nonce, theirs)
        }
        Opening::Answer => {
            let bytes = read_greeting(stream).await?;
            let theirs = Greeting::parse(&bytes);
            // One that cannot be understood is answered too: then the dialler finds what differs.
            let unknown = Place::alone(Uuid::nil());
            let ours = ours(theirs.as_ref().map_or(unknown, |theirs| theirs.place), options)?;
            send(stream, &ours.encode()).await?;
            let theirs = theirs?;
            (Role::Acceptor, [&bytes, &ours.encode()[..], binding].concat(), theirs.nonce, theirs)
        }
    };
    let Greeting { place, instance, .. } = theirs;
    match (&options.cluster_key, theirs.keyed) {
        (None, false) => {
            Ok(Greeted { place, nonce, instance, authenticated: None, frame_keys: None })
        }
        (None, true) => Err(KeyMismatch::NoneHere.into()),
        (Some(_), false) => Err(KeyMismatch::NoneThere.into()),
        (Some(key), true) => {
            prove(stream, role, key, &transcript).await?;
            let of = |role| key.of_frames(role, &transcript);
            let frame_keys = Some((of(role), of(role.other())));
            Ok(Greeted { place, nonce, instance, authenticated: Some(instance), frame_keys })
        }
    }
}

fn ours(place: Place, options: &TcpOptions) -> Result<Greeting, GreetError> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    let keyed = options.cluster_key.is_some();
    Ok(Greeting { keyed, instance: options.instance, place, nonce })
}

/// Writes, also what a session would keep for later.
async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Tells a dialler that speaks TLS to a side that does not: a greeting is not what it waits for. Its first
/// record is read to the end, since closing with bytes unread could destroy the answer.
async fn answer_tls(
    stream: &mut TcpStream,
    opening: Opening,
    options: &TcpOptions,
) -> Result<(), GreetError> {
    if let Opening::Answer = opening {
        let mut len = [0; 2];
        stream.read_exact(&mut len).await?;
        let mut rest = stream.take(u16::from_be_bytes(len).into());
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        send(stream, &ours(Place::alone(Uuid::nil()), options)?.encode()).await?;
    }
    Ok(())
}

/// Whoever speaks another protocol is found out by its first bytes.
async fn read_greeting(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<[u8; GREETING_LEN], GreetError> {
    let mut bytes = [0; GREETING_LEN];
    let (magic, rest) = bytes.split_at_mut(MAGIC.len());
    // An alert is shorter than the magic.
    let (first, second) = magic.split_at_mut(RECORD_HEADER_LEN - 2);
    stream.read_exact(first).await?;
    if TLS_RECORDS.iter().any(|record| first.starts_with(record)) {
        return Err(KeyMismatch::TlsOnlyThere.into());
    }
    stream.read_exact(second).await?;
    if magic != MAGIC {
        return Err(Violation::Greeting("not a Blockwire peer").into());
    }
    stream.read_exact(rest).await?;
    Ok(bytes)
}

/// The acceptor proves nothing to a stranger.
async fn prove(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    role: Role,
    key: &ClusterKey,
    transcript: &[u8],
) -> Result<(), GreetError> {
    let (own, wanted) = (key.proof(role, transcript), key.proof(role.other(), transcript));
    match role {
        Role::Dialler => {
            send(stream, own.as_bytes()).await?;
            let answer = read_proof(stream).await;
            // The acceptor read all that was sent: only a proof that it does not like makes it leave.
            let left = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
            match answer {
                Err(error) if left(&error) => Err(KeyMismatch::NotAccepted.into()),
                answer => Ok(check(&answer?, &wanted)?),
            }
        }
        Role::Acceptor => {
            check(&read_proof(stream).await?, &wanted)?;
            Ok(send(stream, own.as_bytes()).await?)
        }
    }
}

async fn read_proof(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; 32]> {
    let mut proof = [0; 32];
    stream.read_exact(&mut proof).await?;
    Ok(proof)
}

/// Takes the same time whatever differs: so `blake3::Hash` compares.
fn check(proof: &[u8; 32], wanted: &blake3::Hash) -> Result<(), KeyMismatch> {
    if wanted == proof { Ok(()) } else { Err(KeyMismatch::Different) }
}

/// Reads a greeting and writes it again.
#[cfg(test)]
pub(crate) fn reencode(bytes: &[u8]) -> [u8; GREETING_LEN] {
    Greeting::parse(bytes.try_into().expect("a greeting")).expect("a good one").encode()
}
