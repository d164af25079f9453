//! Arbitrary bytes as a frame: no panic, and what is taken is taken as it stands.

use blockwire::wire::{HEADER_LEN, Header, Kind, body, decode_body, encode_frame, split_frame};
use bytes::Bytes;
use prost::Message;

/// Reads `bytes` as a frame, and once more with what a checksum would keep the fuzzer from: good magic,
/// version, lengths and checksum around the same kind and body.
///
/// # Panics
/// When a frame that was taken does not read back as it was.
pub(crate) fn play(bytes: &[u8]) {
    read(Bytes::copy_from_slice(bytes));
    read(repaired(bytes));
}

fn read(frame: Bytes) {
    let Ok((header, body)) = split_frame(&frame) else { return };
    assert_eq!(frame.len(), HEADER_LEN + body.len());
    assert_eq!(
        header.encode(&body)[..],
        frame[..HEADER_LEN],
        "a header has bits that nobody reads"
    );
    match header.kind {
        Kind::Hello => reread::<body::Hello>(&header, body),
        Kind::Refuse => reread::<body::Refuse>(&header, body),
        Kind::Rts => reread::<body::Rts>(&header, body),
        Kind::Rtr => reread::<body::Rtr>(&header, body),
        Kind::Atp => reread::<body::Atp>(&header, body),
        Kind::Decline => reread::<body::Decline>(&header, body),
        Kind::Message => reread::<body::AppMessage>(&header, body),
        Kind::Ping | Kind::Pong => reread::<body::Ping>(&header, body),
        Kind::Goodbye => reread::<body::Goodbye>(&header, body),
        Kind::Plan => reread::<body::Plan>(&header, body),
        Kind::Replan => reread::<body::Replan>(&header, body),
        Kind::Over => reread::<body::Over>(&header, body),
        Kind::Unplanned => reread::<body::Unplanned>(&header, body),
        Kind::Lost => reread::<body::Lost>(&header, body),
        Kind::Ack => reread::<body::Ack>(&header, body),
        Kind::Resume => reread::<body::Resume>(&header, body),
        Kind::Fence | Kind::Fenced => reread::<body::Fence>(&header, body),
        Kind::Join => reread::<body::Join>(&header, body),
        Kind::Joined => reread::<body::Joined>(&header, body),
        Kind::Payload => assert!(header.payload_len > 0),
        // The others say all that they say by their kind and by the numbers of the header.
        _ => {}
    }
}

/// What a body says is still said after it was written again.
fn reread<M: Message + Default + PartialEq + std::fmt::Debug>(header: &Header, body: Bytes) {
    let Ok(said) = decode_body::<M>(header, body) else { return };
    let frame = encode_frame(*header, &said).expect("no longer than it came");
    let (again, body) = split_frame(&frame).expect("a frame of this side's");
    assert_eq!(
        (again.kind, again.request, again.epoch),
        (header.kind, header.request, header.epoch)
    );
    assert_eq!(decode_body::<M>(&again, body).expect("a body of this side's"), said);
}

/// A frame with the kind, the numbers and the body that the bytes give.
fn repaired(bytes: &[u8]) -> Bytes {
    let mut head = Header::control(Kind::Ats, uuid::Uuid::nil(), 0).encode(&[]);
    let (given, body) = bytes.split_at(bytes.len().min(HEADER_LEN));
    // From the kind on: what stands before it is the same in every frame.
    if let Some(numbers) = given.get(6..) {
        head[6..6 + numbers.len()].copy_from_slice(numbers);
    }
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    match Header::parse(&head) {
        Ok(header) => [&header.encode(body)[..], body].concat().into(),
        Err(_) => Bytes::copy_from_slice(&head),
    }
}
