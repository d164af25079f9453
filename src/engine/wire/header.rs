//! The fixed 64-byte little-endian header that opens every frame.
//!
//! ```text
//!  0        4        6       8          12      16           32      40       48            56
//!  magic    version  kind    body_len   epoch   request      tag     offset   payload_len   checksum
//!  u32      u16      u16     u32        u32     16 bytes     u64     u64      u64           u64
//! ```
//! `checksum` is XXH3-64 over the header with a zero checksum, followed by the body. Payload bytes are
//! not part of it: they have a digest of their own.

use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER_LEN: usize = 64;
/// Layout of header and frame; a peer with another one is refused at its first frame.
pub const FRAME_VERSION: u16 = 1;
/// Most bytes of a body: room for the token ids and extents of a million-token prompt.
pub const BODY_LEN_MAX: usize = 16 << 20;
/// Most payload bytes of one frame, so that a small message never waits for a gigabyte.
pub const PAYLOAD_LEN_MAX: u64 = 1 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"BWIR");

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// First frame of both sides: versions, identity, geometry.
    Hello = 1,
    /// A hello that is not acceptable, and why.
    Refuse = 2,
    /// Ready to send: the manifest of a handoff.
    Rts = 16,
    /// Ready to receive: which tokens are still needed, and under which tag.
    Rtr = 17,
    /// All sent: the digest of the payload.
    Atp = 18,
    /// Committed: the receiver owns a good copy.
    Ats = 19,
    /// The receiver does not take the handoff.
    Decline = 20,
    /// The sender takes the offer back.
    Withdraw = 21,
    /// The receiver lets go of blocks that it read in place.
    Release = 22,
    /// The sender asks for blocks that the receiver reads in place.
    Recall = 23,
    /// A message of the layer above.
    Message = 32,
    /// Are you there?
    Ping = 48,
    /// Yes.
    Pong = 49,
    /// Orderly end; nothing follows.
    Goodbye = 50,
    /// Payload bytes for a tag follow the header.
    Payload = 64,
    /// Between the ends of a TCP connection: how many payload bytes were read, in the field `offset`.
    Credit = 65,
    /// Between the ends of a striped link: how the payload of a tag is split.
    Plan = 80,
    /// A part of a payload goes over another stripe.
    Replan = 81,
    /// A payload needs its sender's memory no more.
    Over = 82,
    /// A payload that no plan is known for.
    Unplanned = 83,
    /// A stripe is given up.
    Lost = 84,
    /// Orderly end of a striped link.
    Finish = 85,
    /// How many control frames arrived.
    Ack = 86,
    /// Control goes on over this stripe.
    Resume = 87,
    /// Tell when all before this is read.
    Fence = 88,
    /// All before a fence is read.
    Fenced = 89,
    /// A connection was dialled in place of a lost stripe.
    Join = 90,
    /// It is taken for a stripe.
    Joined = 91,
}

impl Kind {
    fn parse(raw: u16) -> Option<Self> {
        use Kind::{
            Ack, Atp, Ats, Credit, Decline, Fence, Fenced, Finish, Goodbye, Hello, Join, Joined,
            Lost, Message, Over, Payload, Ping, Plan, Pong, Recall, Refuse, Release, Replan,
            Resume, Rtr, Rts, Unplanned, Withdraw,
        };
        [
            Hello, Refuse, Rts, Rtr, Atp, Ats, Decline, Withdraw, Release, Recall, Message, Ping,
            Pong, Goodbye, Payload, Credit, Plan, Replan, Over, Unplanned, Lost, Finish, Ack,
            Resume, Fence, Fenced, Join, Joined,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == raw)
    }
}

/// Why 64 bytes are not a header. Whoever sent them is no peer of ours, or violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not our protocol at all.
    #[error("magic {found:#010x} instead of {MAGIC:#010x}: not a Blockwire peer")]
    Magic {
        /// What stands there.
        found: u32,
    },
    /// Another layout of frames.
    #[error("frame version {found}, this side speaks {FRAME_VERSION}")]
    Version {
        /// What stands there.
        found: u16,
    },
    /// Not a frame of this version.
    #[error("frame kind {found} is unknown")]
    Kind {
        /// What stands there.
        found: u16,
    },
    /// More than the limit.
    #[error("body of {found} bytes, the limit is {BODY_LEN_MAX}")]
    BodyTooLong {
        /// What stands there.
        found: u32,
    },
    /// A payload frame is empty or too long, or another frame has payload.
    #[error("payload of {found} bytes in a {kind:?} frame")]
    PayloadLen {
        /// The frame's kind.
        kind: Kind,
        /// What stands there.
        found: u64,
    },
    /// Header or body changed on the way.
    #[error("checksum {found:016x} instead of {expected:016x}")]
    Checksum {
        /// What stands there.
        found: u64,
        /// What the bytes give.
        expected: u64,
    },
}

/// A header, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Bytes of body after the header.
    pub body_len: u32,
    /// Generation of the request: grows with every retry.
    pub epoch: u32,
    /// The request that the frame belongs to; nil for the connection itself.
    pub request: Uuid,
    /// Payload: the tag that the receiver gave out in its RTR.
    pub tag: u64,
    /// Payload: position of the first byte in the tag's payload.
    pub offset: u64,
    /// Payload: bytes after the header.
    pub payload_len: u64,
}

impl Header {
    /// A header without payload; [`encode_frame`](super::encode_frame) fills in the body's length.
    pub fn control(kind: Kind, request: Uuid, epoch: u32) -> Self {
        Self { kind, body_len: 0, epoch, request, tag: 0, offset: 0, payload_len: 0 }
    }

    /// The header of a payload frame.
    pub fn payload(tag: u64, offset: u64, payload_len: u64) -> Self {
        let control = Self::control(Kind::Payload, Uuid::nil(), 0);
        Self { tag, offset, payload_len, ..control }
    }

    /// The bytes of the header, with the checksum over itself and `body`.
    pub fn encode(&self, body: &[u8]) -> [u8; HEADER_LEN] {
        let mut raw = RawHeader {
            magic: U32::new(MAGIC),
            version: U16::new(FRAME_VERSION),
            kind: U16::new(self.kind as u16),
            body_len: U32::new(self.body_len),
            epoch: U32::new(self.epoch),
            request: self.request.into_bytes(),
            tag: U64::new(self.tag),
            offset: U64::new(self.offset),
            payload_len: U64::new(self.payload_len),
            checksum: U64::ZERO,
        };
        raw.checksum = U64::new(checksum(&raw, body));
        zerocopy::transmute!(raw)
    }

    /// Reads everything but the checksum, so that a reader knows how much follows.
    ///
    /// # Errors
    /// [`HeaderError`] for whatever is outside the limits; nothing needs to be allocated before.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        let raw = RawHeader::read_from_bytes(bytes).expect("64 bytes are a raw header");
        if raw.magic.get() != MAGIC {
            return Err(HeaderError::Magic { found: raw.magic.get() });
        }
        if raw.version.get() != FRAME_VERSION {
            return Err(HeaderError::Version { found: raw.version.get() });
        }
        let found = raw.kind.get();
        let kind = Kind::parse(found).ok_or(HeaderError::Kind { found })?;
        let body_len = raw.body_len.get();
        if body_len as usize > BODY_LEN_MAX {
            return Err(HeaderError::BodyTooLong { found: body_len });
        }
        let found = raw.payload_len.get();
        let allowed = if kind == Kind::Payload { 1..=PAYLOAD_LEN_MAX } else { 0..=0 };
        if !allowed.contains(&found) {
            return Err(HeaderError::PayloadLen { kind, found });
        }
        Ok(Self {
            kind,
            body_len,
            epoch: raw.epoch.get(),
            request: Uuid::from_bytes(raw.request),
            tag: raw.tag.get(),
            offset: raw.offset.get(),
            payload_len: found,
        })
    }

    /// Checks the checksum of `header` and the body that follows it.
    ///
    /// # Errors
    /// [`HeaderError::Checksum`].
    pub fn verify(header: &[u8; HEADER_LEN], body: &[u8]) -> Result<(), HeaderError> {
        let mut raw = RawHeader::read_from_bytes(header).expect("64 bytes are a raw header");
        let found = std::mem::take(&mut raw.checksum).get();
        let expected = checksum(&raw, body);
        if found == expected { Ok(()) } else { Err(HeaderError::Checksum { found, expected }) }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    kind: U16,
    body_len: U32,
    epoch: U32,
    request: [u8; 16],
    tag: U64,
    offset: U64,
    payload_len: U64,
    checksum: U64,
}

fn checksum(raw: &RawHeader, body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(raw.as_bytes());
    hash.update(body);
    hash.digest()
}
