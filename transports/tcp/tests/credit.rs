//! How far a link sends ahead of a peer that does not read, and what it tells of what it read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use blockwire::transport::{CloseReason, Violation};
use blockwire::wire::{HEADER_LEN, Header, Kind};
use common::*;

/// Tokens of a payload of 8 MiB, which a receive buffer of the loopback may take as a whole.
const TOKENS: usize = 4 * 1024;
/// What may be sent ahead: 512 KiB, and a frame that begins then.
const AHEAD_MAX: u64 = 1 << 20;

/// Bytes that wait in a socket's receive buffer.
fn waiting(socket: &TcpStream) -> u64 {
    rustix::io::ioctl_fionread(socket).unwrap()
}

/// Gives a socket a receive buffer that the system alone would fill; false where it may not have one.
#[cfg(target_os = "linux")]
fn holds_everything(socket: &TcpStream) -> bool {
    rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, TOKENS * 4096).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn holds_everything(_socket: &TcpStream) -> bool {
    false
}

/// Polls the link for a while.
async fn go_on(side: &mut Side) {
    for _ in 0..200 {
        until_idle(side).await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

async fn until_idle(side: &mut Side) {
    std::future::poll_fn(|cx| {
        while side.link.poll_progress(cx, &mut side.events).is_ready() {
            if side.closed().is_some() {
                break;
            }
        }
        std::task::Poll::Ready(())
    })
    .await;
}

#[test]
fn a_peer_that_does_not_read_gets_no_more_than_it_has_to_hold() {
    run(async {
        let (mut socket, mut link) = raw().await;
        if !holds_everything(&socket) {
            return println!("SKIPPED: only root may have a receive buffer of this length");
        }
        let pool = pool(TOKENS / 16);
        let (list, bytes, _) = payload(&pool, TOKENS, 0);
        let sending = stream(&mut link, 1, list);
        go_on(&mut link).await;
        let sent = link.link.stats().sent();
        assert!(sent >= AHEAD_MAX / 2, "{sent} bytes are less than may be unread");
        let held = waiting(&socket);
        assert!(held <= AHEAD_MAX + 4096, "{held} bytes are with the peer");

        // It reads, and tells: so it gets the rest.
        let mut read = 0;
        while read < bytes.len() as u64 {
            let mut head = [0; HEADER_LEN];
            while waiting(&socket) < HEADER_LEN as u64 {
                until_idle(&mut link).await;
                tokio::task::yield_now().await;
            }
            socket.read_exact(&mut head).unwrap();
            let len = Header::parse(&head).unwrap().payload_len;
            let mut rest = vec![0; len as usize];
            for part in rest.chunks_mut(4096) {
                while waiting(&socket) < part.len() as u64 {
                    until_idle(&mut link).await;
                    tokio::task::yield_now().await;
                }
                socket.read_exact(part).unwrap();
            }
            assert!(rest[..] == bytes[read as usize..][..rest.len()]);
            read += len;
            socket.write_all(&credit(read)).unwrap();
        }
        until(&mut [&mut link], |sides| sides[0].completion(sending).is_some()).await;
    });
}

#[test]
fn payload_that_is_read_is_told() {
    run(async {
        let (mut socket, mut link) = raw().await;
        let pool = pool(TOKENS / 16);
        let landing = land(&mut link, 1, room(&pool, TOKENS));
        let bytes = vec![7; TOKENS * 2048];
        let writing = std::thread::spawn(move || {
            let (mut told, mut head) = (0, [0; HEADER_LEN]);
            for (number, part) in bytes.chunks(1 << 20).enumerate() {
                socket.write_all(&payload_frame(1, (number as u64) << 20, part)).unwrap();
                let sent = ((number as u64) << 20) + part.len() as u64;
                // The next one only once all but the last step is known to be read.
                while told + (256 << 10) <= sent {
                    socket.read_exact(&mut head).unwrap();
                    let header = Header::parse(&head).unwrap();
                    assert_eq!((header.kind, header.body_len), (Kind::Credit, 0));
                    assert!((told + 1..=sent).contains(&header.offset), "{header:?} after {told}");
                    told = header.offset;
                }
            }
            socket
        });
        until(&mut [&mut link], |sides| sides[0].completion(landing).is_some()).await;
        while !writing.is_finished() {
            until_idle(&mut link).await;
            tokio::task::yield_now().await;
        }
        writing.join().unwrap();
    });
}

#[test]
fn a_credit_for_what_was_not_sent_is_a_violation() {
    run(async {
        let (mut socket, mut link) = raw().await;
        let pool = pool(1);
        let (list, bytes, _) = payload(&pool, 16, 0);
        stream(&mut link, 1, list);
        go_on(&mut link).await;
        let sent = bytes.len() as u64;
        socket.write_all(&credit(sent)).unwrap();
        go_on(&mut link).await;
        assert!(link.closed().is_none(), "all of it may be read");
        socket.write_all(&credit(sent + 1)).unwrap();
        until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
        let reason = link.closed().unwrap();
        assert!(
            matches!(reason, CloseReason::Violated(Violation::Credit { .. })),
            "ended with {reason}"
        );
    });
}
