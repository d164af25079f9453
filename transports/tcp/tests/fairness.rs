//! Who goes first on the wire, by the bytes that a peer reads: control overtakes at the next frame, payloads
//! take turns, a cancelled one ends on the frame that was begun.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use blockwire::transport::{OpError, OpId};
use blockwire::wire::{HEADER_LEN, Header, Kind, PAYLOAD_LEN_MAX};
use common::*;

/// Tokens of a payload that no kernel takes as a whole: 32 MiB.
const LONG: usize = 16 * 1024;
/// The last frame that is read.
const LAST: &[u8] = b"last";

/// A frame as it lies on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Control,
    Payload { tag: u64, len: u64 },
}

/// Reads until the last frame, on a thread of its own, and tells how much it has read.
fn read_all(mut from: TcpStream) -> std::thread::JoinHandle<Vec<Frame>> {
    std::thread::spawn(move || {
        let (mut frames, mut head, mut rest) = (Vec::new(), [0; HEADER_LEN], Vec::new());
        let mut payload = 0;
        loop {
            from.read_exact(&mut head).unwrap();
            let header = Header::parse(&head).unwrap();
            let len = u64::from(header.body_len) + header.payload_len;
            rest.resize(len as usize, 0);
            from.read_exact(&mut rest).unwrap();
            match header.kind {
                Kind::Payload => {
                    frames.push(Frame::Payload { tag: header.tag, len });
                    payload += len;
                    from.write_all(&credit(payload)).unwrap();
                }
                _ if rest.windows(LAST.len()).any(|window| window == LAST) => return frames,
                _ => frames.push(Frame::Control),
            }
        }
    })
}

/// Lets the link send until the sockets are full.
async fn fill(link: &mut Side) {
    until(&mut [link], |sides| sides[0].link.stats().sent() > 0).await;
    loop {
        let before = link.link.stats().sent();
        std::future::poll_fn(|cx| {
            let _ = link.link.poll_progress(cx, &mut link.events);
            std::task::Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
        if link.link.stats().sent() == before {
            return;
        }
    }
}

/// Lets the link send everything: the frames in their order.
async fn finish(link: &mut Side, streams: &[OpId], socket: TcpStream) -> Vec<Frame> {
    let reading = read_all(socket);
    let done = |sides: &[&mut Side], op| sides[0].completion(op).is_some();
    until(&mut [&mut *link], |sides| streams.iter().all(|op| done(sides, *op))).await;
    let last = link.control(&message(LAST));
    until(&mut [&mut *link], |sides| done(sides, last)).await;
    reading.join().unwrap()
}

fn of_tag(frames: &[Frame], wanted: u64) -> u64 {
    let lens = frames.iter().map(|frame| match frame {
        Frame::Payload { tag, len } if *tag == wanted => *len,
        _ => 0,
    });
    lens.sum()
}

#[test]
fn control_follows_the_frame_that_was_begun() {
    run(async {
        let (socket, mut link) = raw().await;
        let pool = pool(LONG / 16);
        let (list, bytes, _) = payload(&pool, LONG, 0);
        let sending = stream(&mut link, 1, list);
        fill(&mut link).await;
        let sent = link.link.stats().sent();
        assert!(sent < bytes.len() as u64 / 2, "the kernel took too much to see anything");
        link.control(&message(b"urgent"));
        let frames = finish(&mut link, &[sending], socket).await;
        let at = frames.iter().position(|frame| *frame == Frame::Control).unwrap();
        let before = of_tag(&frames[..at], 1);
        assert!(before >= sent && before <= sent + PAYLOAD_LEN_MAX, "{before} after {sent}");
        assert_eq!(of_tag(&frames, 1), bytes.len() as u64);
    });
}

#[test]
fn payloads_take_turns_frame_by_frame() {
    run(async {
        let (socket, mut link) = raw().await;
        let pool = pool(LONG / 16 + LONG / 32);
        let (long, ..) = payload(&pool, LONG, 0);
        let (short, bytes, _) = payload(&pool, LONG / 2, 0);
        let sending = [stream(&mut link, 1, long)];
        fill(&mut link).await;
        let sent = link.link.stats().sent();
        let sending = [sending[0], stream(&mut link, 2, short)];
        let frames = finish(&mut link, &sending, socket).await;
        let tag = |frame: &Frame| if let Frame::Payload { tag, .. } = frame { *tag } else { 0 };
        let tags: Vec<_> = frames.iter().map(tag).collect();
        let begin = tags.iter().position(|tag| *tag == 2).unwrap();
        let end = tags.iter().rposition(|tag| *tag == 2).unwrap();
        assert!(of_tag(&frames[..begin], 1) <= sent + PAYLOAD_LEN_MAX, "the second one waited");
        assert_eq!(of_tag(&frames[begin..=end], 2), bytes.len() as u64);
        let alternates = tags[begin..=end].windows(2).all(|pair| pair[0] != pair[1]);
        assert!(alternates && end - begin > 10, "{tags:?}");
    });
}

#[test]
fn a_cancelled_payload_ends_on_the_frame_that_was_begun() {
    run(async {
        let (socket, mut link) = raw().await;
        let pool = pool(LONG / 16 + LONG / 32);
        let (long, ..) = payload(&pool, LONG, 0);
        let (short, bytes, _) = payload(&pool, LONG / 2, 0);
        let (long, short) = (stream(&mut link, 1, long), stream(&mut link, 2, short));
        fill(&mut link).await;
        let sent = link.link.stats().sent();
        link.link.cancel(long);
        let frames = finish(&mut link, &[long, short], socket).await;
        assert!(matches!(link.outcome(long), Some(Err(OpError::Cancelled))));
        assert!(of_tag(&frames, 1) <= sent + PAYLOAD_LEN_MAX, "it went on");
        assert_eq!(of_tag(&frames, 2), bytes.len() as u64);
    });
}
