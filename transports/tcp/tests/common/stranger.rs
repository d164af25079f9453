//! The other end of a connection, written from the manual alone: it does what a test tells it to.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use uuid::Uuid;

/// Bytes of a greeting.
pub(crate) const GREETING_LEN: usize = 80;
/// Bytes of a proof.
pub(crate) const PROOF_LEN: usize = 32;
/// Bytes of the tag behind a frame.
pub(crate) const TAG_LEN: usize = 16;
/// Text of a key.
pub(crate) const KEY: &str = "a cluster key for tests, 0123456789abcdef";

pub(crate) const DIALLER: u8 = 1;
pub(crate) const ACCEPTOR: u8 = 2;

/// A greeting with a nonce of its own.
pub(crate) fn greeting(keyed: bool) -> [u8; GREETING_LEN] {
    let mut bytes = [0; GREETING_LEN];
    bytes[..8].copy_from_slice(b"BWIR-TCP");
    bytes[8] = 1;
    bytes[10] = keyed.into();
    bytes[14] = 1;
    for at in [16, 32, 48, 64] {
        bytes[at..at + 16].copy_from_slice(Uuid::new_v4().as_bytes());
    }
    bytes
}

fn secret(text: &str) -> [u8; 32] {
    blake3::derive_key("blockwire 2026-11 cluster key", text.as_bytes())
}

/// What a side with the key proves itself with, after both greetings.
pub(crate) fn proof(text: &str, role: u8, transcript: &[u8]) -> [u8; PROOF_LEN] {
    let key = blake3::derive_key("blockwire 2026-11 tcp proof", &secret(text));
    blake3::keyed_hash(&key, &[&[role], transcript].concat()).into()
}

/// Key of the frames that a side sends.
pub(crate) fn frame_key(text: &str, role: u8, transcript: &[u8]) -> [u8; 32] {
    let context = match role {
        DIALLER => "blockwire 2026-11 tcp frames of the dialler",
        _ => "blockwire 2026-11 tcp frames of the acceptor",
    };
    blake3::derive_key(context, &[&secret(text)[..], transcript].concat())
}

/// A frame with the tag of its number behind it.
pub(crate) fn sealed(key: &[u8; 32], number: u64, frame: &[u8]) -> Vec<u8> {
    let hash = blake3::keyed_hash(key, &[&number.to_le_bytes(), frame].concat());
    [frame, &hash.as_bytes()[..TAG_LEN]].concat()
}

/// A greeted connection, and the keys of both directions.
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
    /// Everything that this side sent so far.
    pub(crate) sent: Vec<u8>,
    pub(crate) own_key: [u8; 32],
    pub(crate) their_key: [u8; 32],
    /// Frames sent with [`frame`](Self::frame).
    pub(crate) frames: u64,
}

impl Stranger {
    /// Dials, greets, and proves that it has a key.
    pub(crate) fn dial(to: &str, text: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        let (ours, mut theirs) = (greeting(true), [0; GREETING_LEN]);
        stream.write_all(&ours)?;
        stream.read_exact(&mut theirs)?;
        let transcript = [ours, theirs].concat();
        let own = proof(text, DIALLER, &transcript);
        stream.write_all(&own)?;
        let mut answer = [0; PROOF_LEN];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, proof(text, ACCEPTOR, &transcript));
        let sent = [&ours[..], &own].concat();
        let own_key = frame_key(text, DIALLER, &transcript);
        let their_key = frame_key(text, ACCEPTOR, &transcript);
        Ok(Self { stream, sent, own_key, their_key, frames: 0 })
    }

    /// Waits for one who dials, and does with it what `talk` says.
    pub(crate) fn accept<T>(listener: &TcpListener, talk: impl FnOnce(&mut TcpStream) -> T) -> T {
        talk(&mut listener.accept().unwrap().0)
    }

    /// Sends a frame as it should be.
    pub(crate) fn frame(&mut self, frame: &[u8]) {
        let bytes = sealed(&self.own_key, self.frames, frame);
        self.stream.write_all(&bytes).unwrap();
        self.frames += 1;
    }
}
