//! Peers that break the rules lose their own connection, and nothing else happens.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Write;
use std::net::TcpStream;

use blockwire::transport::{CloseReason, Op, OpError, Violation};
use blockwire::wire::{FrameError, HeaderError};
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use common::*;

async fn violation(bytes: &[u8]) -> Violation {
    let (mut socket, mut link) = raw().await;
    let pool = pool(8);
    let landed = land(&mut link, 5, room(&pool, 1));
    // The link may end while bytes are still being written.
    let _ = socket.write_all(bytes);
    until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
    assert!(matches!(link.outcome(landed), Some(Err(OpError::Closed(_)))));
    match link.closed() {
        Some(CloseReason::Violated(violation)) => violation.clone(),
        other => panic!("{other:?}"),
    }
}

/// A good frame with some bytes overwritten.
fn bent(at: usize, with: &[u8]) -> Vec<u8> {
    let mut frame = message(b"body").to_vec();
    frame[at..at + with.len()].copy_from_slice(with);
    frame
}

#[test]
fn broken_headers_are_violations() {
    run(async {
        let http =
            b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: a scanner of ports/1.0\r\n\r\n";
        for (bytes, want) in [
            (http.to_vec(), "magic"),
            (vec![0xff; 100_000], "magic"),
            (bent(4, &[9]), "version"),
            (bent(6, &[99]), "kind"),
            (bent(8, &u32::MAX.to_le_bytes()), "the limit"),
            (bent(48, &1u64.to_le_bytes()), "payload"),
            (payload_frame(5, 0, &[]), "payload"),
        ] {
            let found = violation(&bytes).await;
            assert!(matches!(found, Violation::Header(_)), "{found}");
            assert!(found.to_string().contains(want), "{found}");
        }
    });
}

#[test]
fn payload_outside_its_room_is_a_violation() {
    run(async {
        let whole = payload(&pool(1), 1, 0).1;
        let range = |found| matches!(found, Violation::PayloadRange { .. });
        assert!(matches!(
            violation(&payload_frame(6, 0, b"x")).await,
            Violation::UnknownTag(tag) if tag.0 == 6
        ));
        assert!(range(violation(&payload_frame(5, 1, b"x")).await));
        assert!(range(violation(&payload_frame(5, u64::MAX, b"x")).await));
        assert!(range(violation(&payload_frame(5, 0, &[&whole[..], b"x"].concat())).await));
        // Its room is full, and given back: the tag takes no more.
        let again =
            [payload_frame(5, 0, &whole), payload_frame(5, whole.len() as u64, b"x")].concat();
        let (mut socket, mut link) = raw().await;
        let pool = pool(1);
        let landed = land(&mut link, 5, room(&pool, 1));
        socket.write_all(&again).unwrap();
        until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
        assert!(link.outcome(landed).unwrap().is_ok());
        assert!(matches!(
            link.closed(),
            Some(CloseReason::Violated(Violation::PayloadRange { .. }))
        ));
        let gap = [payload_frame(5, 0, b"abc"), payload_frame(5, 4, b"x")].concat();
        assert!(range(violation(&gap).await));
    });
}

#[test]
fn a_payload_header_is_checked_whole() {
    run(async {
        let mut frame = payload_frame(5, 0, b"x");
        frame[56] ^= 1;
        let found = violation(&frame).await;
        assert!(matches!(found, Violation::Header(HeaderError::Checksum { .. })), "{found}");
        let mut frame = payload_frame(5, 0, b"x");
        frame[8] = 1;
        let found = violation(&frame).await;
        assert!(matches!(found, Violation::Frame(FrameError::Length { .. })), "{found}");
    });
}

#[test]
fn a_cut_header_is_a_lost_connection() {
    run(async {
        let (mut socket, mut link) = raw().await;
        socket.write_all(&message(b"body")[..63]).unwrap();
        drop(socket);
        until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
        assert!(matches!(link.closed(), Some(CloseReason::Lost(_))));
    });
}

#[test]
fn one_bad_peer_does_not_disturb_the_others() {
    run(async {
        let transport = TcpTransport::default();
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let mut bad = TcpStream::connect(listener.local_address().target()).unwrap();
        bad.write_all(&greeting(false)).unwrap();
        let mut bad_side = accept(&mut listener).await;
        let (mut good, mut good_side) = meet(&transport, &mut listener).await;
        bad.write_all(&[0; 1000]).unwrap();
        until(&mut [&mut bad_side], |sides| sides[0].closed().is_some()).await;
        good.control(&message(b"hello"));
        until(&mut [&mut good, &mut good_side], |sides| !sides[1].received().is_empty()).await;
    });
}

#[test]
fn control_that_would_break_the_stream_is_refused() {
    run(async {
        let (mut a, _b) = pair().await;
        let whole = message(b"body");
        for bad in [
            Bytes::new(),
            whole.slice(..whole.len() - 1),
            Bytes::from([&whole[..], b"x"].concat()),
            Bytes::from(payload_frame(0, 0, b"x")),
        ] {
            let refused = a.link.submit(Op::Control(bad.clone())).unwrap_err();
            assert!(matches!(refused.op, Op::Control(back) if back == bad));
        }
        let long = Bytes::from(vec![0; (16 << 20) + 65]);
        let refused = a.link.submit(Op::Control(long)).unwrap_err();
        assert!(matches!(refused.error, OpError::ControlTooLong(_)));
    });
}
