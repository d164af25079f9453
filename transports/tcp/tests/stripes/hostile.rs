//! A peer that says what cannot be: it loses its link, and nothing else happens.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use blockwire::transport::{CloseReason, Violation};
use blockwire::wire::{Header, Kind, body, encode_frame};
use blockwire_conformance::store::Random;
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

use crate::common::*;
use crate::gathering::stripe_greeting;
use crate::run_local;

/// A link of two stripes whose peer is two plain sockets.
async fn raw_stripes() -> (Vec<TcpStream>, Side) {
    let mut listener = listen(&TcpTransport::new(TcpOptions::default()), "tcp://127.0.0.1:0").await;
    let (link, instance) = (Uuid::new_v4(), Uuid::new_v4());
    let dial = |stripe| {
        let mut stream = TcpStream::connect(listener.local_address().target()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&stripe_greeting(link, instance, stripe, 2)).unwrap();
        stream
    };
    let mut streams: Vec<_> = (0..2).map(dial).collect();
    let accepted = accept(&mut listener).await;
    for stream in &mut streams {
        stream.read_exact(&mut [0; GREETING_LEN]).unwrap();
    }
    (streams, accepted)
}

fn head(kind: Kind) -> Header {
    Header::control(kind, Uuid::nil(), 0)
}

fn plan(tag: u64, lens: &[u64]) -> Bytes {
    let part = |(number, len): (usize, &u64)| body::PlanPart {
        len: *len,
        stripe: number as u32,
        stripe_tag: tag,
    };
    let parts = lens.iter().enumerate().map(part).collect();
    encode_frame(head(Kind::Plan), &body::Plan { tag, parts }).unwrap()
}

fn replan(tag: u64, part: u32, stripe: u32) -> Bytes {
    let replan = body::Replan { tag, part, stripe, stripe_tag: 900 };
    encode_frame(head(Kind::Replan), &replan).unwrap()
}

fn over(tag: u64, landed: bool) -> Bytes {
    encode_frame(head(Kind::Over), &body::Over { tag, landed }).unwrap()
}

fn unplanned(tag: u64, len: u64, again: bool) -> Bytes {
    encode_frame(head(Kind::Unplanned), &body::Unplanned { tag, len, again }).unwrap()
}

fn ack(frames: u64) -> Bytes {
    encode_frame(head(Kind::Ack), &body::Ack { frames }).unwrap()
}

pub(crate) fn resume(number: u64) -> Bytes {
    encode_frame(head(Kind::Resume), &body::Resume { number }).unwrap()
}

fn fenced(number: u64) -> Bytes {
    encode_frame(head(Kind::Fenced), &body::Fence { number }).unwrap()
}

pub(crate) fn join(stripe: u32, nonce: &[u8]) -> Bytes {
    let nonce = Bytes::copy_from_slice(nonce);
    encode_frame(head(Kind::Join), &body::Join { stripe, nonce }).unwrap()
}

pub(crate) fn joined(stripe: u32) -> Bytes {
    encode_frame(head(Kind::Joined), &body::Joined { stripe }).unwrap()
}

pub(crate) fn lost(stripe: u32) -> Bytes {
    encode_frame(head(Kind::Lost), &body::Lost { stripe }).unwrap()
}

/// Sends frames, each on a stripe, to a side that has a payload of 96 KiB under tag 1 planned and a room
/// of 32 KiB under tag 1; how the side's link ends.
async fn ends(frames: &[(usize, Bytes)]) -> Violation {
    let (mut streams, mut side) = raw_stripes().await;
    let pool = pool(8);
    let landed = land(&mut side, 1, room(&pool, 16));
    streams[0].write_all(&plan(1, &[64 << 10, 32 << 10])).unwrap();
    let (list, ..) = payload(&pool, 48, 0);
    let sent = stream(&mut side, 1, list);
    let waiting = side.control(&message(b"x"));
    for (stripe, frame) in frames {
        // The link may have ended by an earlier one.
        let _ = streams[*stripe].write_all(frame);
    }
    let mut sides = [&mut side];
    let ending = until(&mut sides, |sides| sides[0].closed().is_some());
    let ended = tokio::time::timeout(Duration::from_secs(20), ending).await;
    assert!(ended.is_ok(), "the link goes on after {:?}", frames.last());
    assert!([landed, sent, waiting].iter().all(|op| side.completion(*op).is_some()));
    let reason = side.closed().cloned().unwrap();
    side.events.clear();
    assert_eq!(pool.accounting().free, 8);
    match reason {
        CloseReason::Violated(violation) => violation,
        other => panic!("{frames:?} end the link otherwise: {other}"),
    }
}

#[test]
fn what_cannot_be_ends_the_link() {
    run_local(async {
        let many = |frame: &Bytes, count| vec![(0, frame.clone()); count];
        let long = body::AppMessage { kind: 0, body: vec![0; 5000].into() };
        for (frames, wanted) in [
            (vec![(0, plan(1, &[1]))], "does not rise"),
            (vec![(0, plan(2, &[]))], "impossible parts"),
            (vec![(0, plan(2, &[0]))], "impossible parts"),
            (vec![(0, plan(2, &[u64::MAX, 1]))], "impossible parts"),
            (vec![(0, plan(2, &[1, 1, 1]))], "does not have"),
            (vec![(0, encode_frame(head(Kind::Plan), &long).unwrap())], "too long"),
            ((2..5000).map(|tag| (0, plan(tag, &[1]))).collect(), "more plans"),
            (vec![(0, replan(1, 2, 1))], "never planned"),
            (vec![(0, replan(2, 0, 1))], "never planned"),
            (vec![(0, replan(1, 0, 2))], "does not have"),
            (many(&replan(1, 0, 1), 2), "more often"),
            (vec![(0, over(2, false))], "never planned"),
            (vec![(0, plan(2, &[1])), (0, over(2, true))], "was not sent"),
            (vec![(0, unplanned(2, 1, false))], "never given out"),
            (vec![(0, unplanned(1, 7, false))], "expected 0 of 32768"),
            (vec![(0, unplanned(1, 32768, true))], "of 32768"),
            (vec![(0, lost(2))], "does not have"),
            (vec![(0, ack(4))], "never sent"),
            (vec![(1, ack(u64::MAX))], "never sent"),
            (vec![(0, resume(0))], "that it is on"),
            (vec![(1, resume(7))], "left out"),
            (vec![(1, resume(0)), (1, resume(0))], "that it is on"),
            (vec![(1, message(b"y"))], "did not change to"),
            (vec![(1, fenced(1))], "was not sent"),
            (vec![(0, join(2, &[7; 32]))], "than the link had"),
            (vec![(0, lost(1)), (0, join(1, &[7; 32]))], "cannot be"),
            (vec![(0, lost(1)), (0, join(1 << 16, &[7; 32]))], "cannot be"),
            (vec![(0, lost(1)), (0, join(2, &[7; 31]))], "does not decode"),
            (
                vec![(0, lost(1)), (0, join(2, &[7; 32])), (0, join(3, &[7; 32]))],
                "while another does",
            ),
            (vec![(0, joined(1))], "dialled no stripe"),
            (vec![(0, joined(2))], "does not have"),
        ] {
            let found = ends(&frames).await.to_string();
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
    });
}

#[test]
fn a_plain_link_knows_none_of_these_frames() {
    run_local(async {
        let (mut socket, mut link) = raw().await;
        socket.write_all(&over(1, true)).unwrap();
        // It hands them on, and the session takes them for what they are: out of place.
        until(&mut [&mut link], |sides| sides[0].received() == [over(1, true)]).await;
    });
}

#[test]
fn fences_are_answered_once_for_all() {
    run_local(async {
        let (mut streams, mut side) = raw_stripes().await;
        let fence = |number| encode_frame(head(Kind::Fence), &body::Fence { number }).unwrap();
        let all: Vec<u8> = (1..=2000).flat_map(|number| fence(number).to_vec()).collect();
        streams[1].write_all(&all).unwrap();
        streams[1].set_nonblocking(true).unwrap();
        let (mut came, mut bytes) = (Vec::new(), [0; 4096]);
        while !came.ends_with(&fenced(2000)) {
            until(&mut [&mut side], |_| true).await;
            tokio::task::yield_now().await;
            while let Ok(len) = streams[1].read(&mut bytes) {
                came.extend_from_slice(&bytes[..len]);
            }
        }
        assert!(came.len() < all.len() / 4, "{} bytes of answers", came.len());
    });
}

#[test]
fn nonsense_in_good_frames_is_survived() {
    const KINDS: [Kind; 12] = [
        Kind::Plan,
        Kind::Replan,
        Kind::Over,
        Kind::Unplanned,
        Kind::Lost,
        Kind::Finish,
        Kind::Ack,
        Kind::Resume,
        Kind::Fence,
        Kind::Fenced,
        Kind::Join,
        Kind::Joined,
    ];
    for seed in 0..150 {
        run_local(async move {
            let mut random = Random::new(seed);
            let (mut streams, mut side) = raw_stripes().await;
            let pool = pool(16);
            for tag in 1..4 {
                land(&mut side, tag, room(&pool, 16));
                let (list, ..) = payload(&pool, 16, 0);
                stream(&mut side, tag, list);
            }
            for _ in 0..40 {
                let mut small = || [0, 1, 2, 3, 7, u64::MAX][random.below(6)];
                // Varints under the field numbers that the bodies have, whatever they mean there.
                let mut body = Vec::new();
                for field in 1..=4_u64 {
                    body.push((field << 3) as u8);
                    let mut number = small();
                    while number >= 0x80 {
                        body.push(number as u8 | 0x80);
                        number >>= 7;
                    }
                    body.push(number as u8);
                }
                body.truncate(random.below(2 * body.len()));
                let kind = KINDS[random.below(KINDS.len())];
                let frame = match random.below(4) {
                    0 => plan(random.below(5) as u64, &[random.below(40_000) as u64]),
                    1 => message(b"y"),
                    _ => {
                        let header = Header { body_len: body.len() as u32, ..head(kind) };
                        [&header.encode(&body)[..], &body].concat().into()
                    }
                };
                let _ = streams[random.below(2)].write_all(&frame);
                until(&mut [&mut side], |_| true).await;
            }
            side.link.close();
            drop(streams);
            until(&mut [&mut side], |sides| sides[0].closed().is_some()).await;
            side.events.clear();
            assert_eq!(pool.accounting().free, 16, "seed {seed}");
        });
    }
}
