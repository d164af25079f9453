//! Replays the vectors of `manual/wire.md`, and throws rubbish at the parser.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blockwire::wire::{
    FrameError, HEADER_LEN, Header, HeaderError, Kind, body, encode_frame, split_frame,
};
use bytes::Bytes;
use proptest::prelude::*;
use uuid::Uuid;

const MANUAL: &str = include_str!("../manual/wire.md");
const REQUEST: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

/// The frames that the manual writes down, by name.
fn frames() -> Vec<(&'static str, Bytes)> {
    let control = |kind| Header::control(kind, REQUEST, 7);
    let rts = body::Rts {
        tokens: 17,
        block_tokens: 16,
        meta: Bytes::from_static(b"meta"),
        blocks: [7_u32, 300].into_iter().flat_map(u32::to_le_bytes).collect(),
        lease: Some(body::Lease { slot: 2, generation: 5 }),
        ..body::Rts::default()
    };
    let streamed = body::Rts {
        tokens: 4097,
        block_tokens: 16,
        meta: Bytes::from_static(b"meta"),
        piece_tokens: 256,
        piece_layers: 2,
        layered_from: 3072,
        ..body::Rts::default()
    };
    let rtr = body::Rtr { tag: 3, needed_from: 16, adopts: false };
    let adopting = body::Rtr { tag: 0, needed_from: 16, adopts: true };
    let atp = body::Atp { digest: 0x0123_4567_89ab_cdef, closing: Bytes::from_static(b"closing") };
    let message = body::AppMessage { kind: 2, body: Bytes::from_static(b"hi") };
    vec![
        ("rts", encode_frame(control(Kind::Rts), &rts).unwrap()),
        ("rts in pieces", encode_frame(control(Kind::Rts), &streamed).unwrap()),
        ("rtr", encode_frame(control(Kind::Rtr), &rtr).unwrap()),
        ("rtr adopting", encode_frame(control(Kind::Rtr), &adopting).unwrap()),
        ("atp", encode_frame(control(Kind::Atp), &atp).unwrap()),
        ("ats", encode_frame(control(Kind::Ats), &body::Ats {}).unwrap()),
        ("release", encode_frame(control(Kind::Release), &body::Release {}).unwrap()),
        ("recall", encode_frame(control(Kind::Recall), &body::Recall {}).unwrap()),
        ("message", encode_frame(control(Kind::Message), &message).unwrap()),
        ("payload header", Header::payload(3, 65_536, 4096).encode(&[]).to_vec().into()),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_vector_of_the_manual_is_what_this_code_writes() {
    let vectors = MANUAL.split("```vectors\n").nth(1).and_then(|rest| rest.split("```").next());
    let written: String =
        frames().iter().map(|(name, frame)| format!("{name}: {}\n", hex(frame))).collect();
    assert_eq!(vectors.unwrap(), written, "the wire format changed: say so in the changelog");
}

#[test]
fn a_frame_reads_back_as_it_was_written() {
    for (name, frame) in frames() {
        if name != "payload header" {
            let (header, body) = split_frame(&frame).unwrap();
            assert_eq!((header.request, header.epoch), (REQUEST, 7));
            assert_eq!(body.len(), header.body_len as usize);
        }
    }
}

#[test]
fn what_is_outside_the_limits_is_named() {
    let (_, frame) = frames().remove(0);
    let change = |at: usize, to: u8| {
        let mut bytes = frame.to_vec();
        bytes[at] = to;
        split_frame(&bytes.into()).unwrap_err()
    };
    assert!(matches!(change(0, b'X'), FrameError::Header(HeaderError::Magic { .. })));
    assert!(matches!(change(4, 9), FrameError::Header(HeaderError::Version { found: 9 })));
    assert!(matches!(change(6, 99), FrameError::Header(HeaderError::Kind { found: 99 })));
    assert!(matches!(change(11, 0xff), FrameError::Header(HeaderError::BodyTooLong { .. })));
    assert!(matches!(change(48, 1), FrameError::Header(HeaderError::PayloadLen { .. })));
    assert!(matches!(change(20, 1), FrameError::Header(HeaderError::Checksum { .. })));
    assert!(matches!(change(HEADER_LEN, 1), FrameError::Header(HeaderError::Checksum { .. })));
    let short = frame.slice(..frame.len() - 1);
    assert!(matches!(split_frame(&short), Err(FrameError::Length { .. })));
    assert!(matches!(split_frame(&Bytes::new()), Err(FrameError::Length { .. })));
}

proptest! {
    #[test]
    fn rubbish_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = split_frame(&bytes.into());
    }

    #[test]
    fn no_flipped_bit_passes(at in 0usize..HEADER_LEN + 20, bit in 0u8..8) {
        let (_, frame) = frames().remove(0);
        let at = at % frame.len();
        let mut bytes = frame.to_vec();
        bytes[at] ^= 1 << bit;
        prop_assert!(split_frame(&bytes.into()).is_err());
    }
}
