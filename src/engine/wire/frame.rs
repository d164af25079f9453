//! Whole control frames: header and protobuf body in one buffer.

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::header::{BODY_LEN_MAX, HEADER_LEN, Header, HeaderError};

/// Why bytes are not one whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The header is not acceptable.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The buffer does not hold exactly header and body.
    #[error("frame of {found} bytes, its header says {expected}")]
    Length {
        /// Bytes given.
        found: usize,
        /// Bytes that the header asks for.
        expected: usize,
    },
}

/// A body that does not decode, or that is too long to send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// Not the protobuf message that the kind announces.
    #[error("body of a {kind:?} frame does not decode: {source}")]
    Decode {
        /// The frame's kind.
        kind: super::Kind,
        /// What protobuf said.
        source: prost::DecodeError,
    },
    /// Longer than a frame may be.
    #[error("body of {found} bytes, the limit is {BODY_LEN_MAX}")]
    TooLong {
        /// Bytes that the message would take.
        found: usize,
    },
}

/// A frame in one buffer.
///
/// # Errors
/// [`BodyError::TooLong`]: nothing is truncated silently.
pub fn encode_frame(header: Header, body: &impl Message) -> Result<Bytes, BodyError> {
    let len = body.encoded_len();
    if len > BODY_LEN_MAX {
        return Err(BodyError::TooLong { found: len });
    }
    let mut frame = BytesMut::with_capacity(HEADER_LEN + len);
    frame.resize(HEADER_LEN, 0);
    body.encode(&mut frame).expect("the buffer grows");
    let header = Header { body_len: len as u32, ..header };
    let (head, body) = frame.split_at_mut(HEADER_LEN);
    head.copy_from_slice(&header.encode(body));
    Ok(frame.freeze())
}

/// Splits one whole frame into its checked header and its body.
///
/// # Errors
/// [`FrameError`]: the peer violated the protocol.
pub fn split_frame(frame: &Bytes) -> Result<(Header, Bytes), FrameError> {
    let found = frame.len();
    let short = FrameError::Length { found, expected: HEADER_LEN };
    let head: &[u8; HEADER_LEN] = frame.first_chunk().ok_or(short)?;
    let header = Header::parse(head)?;
    let expected = HEADER_LEN + header.body_len as usize;
    if found != expected {
        return Err(FrameError::Length { found, expected });
    }
    let body = frame.slice(HEADER_LEN..);
    Header::verify(head, &body)?;
    Ok((header, body))
}

/// Decodes a body.
///
/// # Errors
/// [`BodyError::Decode`]: the peer violated the protocol.
pub fn decode_body<M: Message + Default>(header: &Header, body: Bytes) -> Result<M, BodyError> {
    M::decode(body).map_err(|source| BodyError::Decode { kind: header.kind, source })
}
