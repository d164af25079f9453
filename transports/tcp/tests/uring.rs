//! Links whose transfers the kernel makes: what is cancelled while the kernel has it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(all(target_os = "linux", feature = "uring"))]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwire::transport::{CloseReason, OpError};
use blockwire_tcp::{SocketPath, TcpOptions};
use common::*;

/// Tests count the rings of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// None where the system lets nobody use io_uring.
fn options() -> Option<(TcpOptions, MutexGuard<'static, ()>)> {
    let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = io_uring::IoUring::new(2) {
        eprintln!("SKIPPED: no io_uring here: {error}");
        return None;
    }
    let mut options = TcpOptions::default();
    options.path = SocketPath::Uring;
    Some((options, one))
}

fn rings() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("[io_uring]")).count()
}

/// A link over a ring, and a peer that reads and writes when it is told to.
async fn ringed(options: TcpOptions) -> (TcpStream, Side) {
    let before = rings();
    let raw = raw_at(options).await;
    assert_eq!(rings(), before + 1, "the link has no ring");
    raw
}

/// The kernel fills a room while its `Land` is cancelled: it comes back, and nothing is written to it.
#[test]
fn a_room_that_is_cancelled_comes_back_untouched_by_what_follows() {
    let Some((options, _one)) = options() else { return };
    run(async {
        let (mut socket, mut link) = ringed(options).await;
        let to = pool(8);
        let (_, bytes, digest) = payload(&pool(8), 4 * 16, 3);
        let landed = land(&mut link, 1, room(&to, 4 * 16));
        let frame = payload_frame(1, 0, &bytes);
        socket.write_all(&frame[..1000]).unwrap();
        until(&mut [&mut link], |sides| sides[0].link.stats().landed() > 0).await;
        // Now the kernel waits for the rest, with the room in its hands.
        link.link.cancel(landed);
        until(&mut [&mut link], |sides| sides[0].completion(landed).is_some()).await;
        assert!(matches!(link.outcome(landed), Some(Err(OpError::Cancelled))));
        link.events.clear();
        assert_eq!(to.accounting().free, 8);
        for mut block in to.try_reserve(8).unwrap() {
            block.fill(0x55);
        }
        let again = land(&mut link, 2, room(&to, 4 * 16));
        socket.write_all(&frame[1000..]).unwrap();
        socket.write_all(&message(b"between")).unwrap();
        until(&mut [&mut link], |sides| !sides[0].received().is_empty()).await;
        assert!(link.completion(again).is_none());
        socket.write_all(&payload_frame(2, 0, &bytes)).unwrap();
        until(&mut [&mut link], |sides| sides[0].completion(again).is_some()).await;
        assert_eq!(link.outcome(again).unwrap().unwrap(), digest);
        assert!(link.landed(again) == bytes);
        assert_eq!(link.link.stats().copied(), 0);
    });
}

/// A stream is cancelled while the kernel sends it to a peer that reads nothing: its frame stays whole.
#[test]
fn a_stream_that_is_cancelled_ends_on_a_whole_frame() {
    let Some((options, _one)) = options() else { return };
    run(async {
        let (mut socket, mut link) = ringed(options).await;
        let from = pool(2048);
        let (list, bytes, _) = payload(&from, 2000 * 16, 0);
        let sent = stream(&mut link, 1, list);
        let first = link.control(&message(b"first"));
        // As much as the socket takes; the rest waits in the kernel.
        for _ in 0..100 {
            until(&mut [&mut link], |_| true).await;
        }
        link.link.cancel(sent);
        let last = link.control(&message(b"last"));
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            socket.read_to_end(&mut all).unwrap();
            all
        });
        until(&mut [&mut link], |sides| sides[0].completion(last).is_some()).await;
        assert!(matches!(link.outcome(sent), Some(Err(OpError::Cancelled))));
        assert!(link.outcome(first).unwrap().is_ok());
        link.events.clear();
        assert_eq!(from.accounting().free, 2048);
        link.link.close();
        until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
        assert!(matches!(link.closed(), Some(CloseReason::Local)));
        let all = reader.join().unwrap();
        let (first, last) = (message(b"first"), message(b"last"));
        let mut rest = &all[..];
        let mut offset = 0;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix(&first[..]).or(rest.strip_prefix(&last[..])) {
                rest = after;
                continue;
            }
            let len = (bytes.len() - offset).min(TcpOptions::default().payload_len_max as usize);
            let frame = payload_frame(1, offset as u64, &bytes[offset..offset + len]);
            rest = rest.strip_prefix(&frame[..]).expect("a whole frame of the stream's bytes");
            offset += len;
        }
        assert!(all.ends_with(&last));
    });
}

/// A link is dropped while the kernel has memory both ways.
#[test]
fn a_dropped_link_waits_for_the_kernel() {
    let Some((options, _one)) = options() else { return };
    run(async {
        let (mut socket, mut link) = ringed(options).await;
        let pool = pool(4096);
        let (list, ..) = payload(&pool, 2000 * 16, 0);
        let (_, bytes, _) = payload(&pool, 16, 0);
        land(&mut link, 1, room(&pool, 16));
        stream(&mut link, 1, list);
        socket.write_all(&payload_frame(1, 0, &bytes)[..100]).unwrap();
        until(&mut [&mut link], |sides| {
            let stats = sides[0].link.stats();
            stats.landed() > 0 && stats.sent() > 0
        })
        .await;
        let before = rings();
        drop(link);
        assert_eq!(rings(), before - 1);
        assert_eq!(pool.accounting().free, 4096);
    });
}
