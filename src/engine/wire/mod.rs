//! What crosses a wire: a fixed header, a protobuf body, and for payload the bytes themselves.
//!
//! `manual/wire.md` is the description for people who write another implementation; the golden
//! vectors beside it are replayed by a test.

mod frame;
mod header;
mod words;

pub use frame::{BodyError, FrameError, decode_body, encode_frame, split_frame};
pub use header::{
    BODY_LEN_MAX, FRAME_VERSION, HEADER_LEN, Header, HeaderError, Kind, PAYLOAD_LEN_MAX,
};
pub use words::describe;

/// Protobuf bodies, generated from `wire.proto`.
pub mod body {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/blockwire.wire.rs"));
}
