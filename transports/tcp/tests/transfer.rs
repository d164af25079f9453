//! Bytes arrive as they were sent, whatever the segments look like.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::poll_fn;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use blockwire::transport::{CloseReason, Op, OpError};
use blockwire_tcp::{SocketPath, TcpOptions};
use common::*;

/// Streams of several lengths and control frames, both ways at once.
async fn exchange(options: TcpOptions, at: &str, scale: usize) {
    let (mut a, mut b) = pair_at(options, at).await;
    let (from, to) = (pool(1200), pool(1200));
    let mut expected = Vec::new();
    for (tag, tokens) in [(1, 30 * scale), (2, 1), (3, 17), (7, 50 * scale)] {
        let (there, there_bytes, there_digest) = payload(&from, tokens, tag as u8);
        let (back, back_bytes, back_digest) = payload(&from, tokens, tag as u8 ^ 0x80);
        let landed = (land(&mut b, tag, room(&to, tokens)), land(&mut a, tag, room(&to, tokens)));
        let sent = (stream(&mut a, tag, there), stream(&mut b, tag, back));
        expected.push((sent, landed, (there_digest, back_digest), (there_bytes, back_bytes)));
    }
    let frames: Vec<_> = (0..5 * scale).map(|i| message(&vec![i as u8; i * 3])).collect();
    for frame in &frames {
        a.control(frame);
        b.control(frame);
    }
    until(&mut [&mut a, &mut b], |sides| {
        let all = |side: &Side| {
            side.received().len() == frames.len() && side.events.len() == frames.len() * 2 + 8
        };
        all(sides[0]) && all(sides[1])
    })
    .await;
    assert!(a.received() == frames && b.received() == frames);
    for (sent, landed, digest, bytes) in expected {
        assert_eq!(a.outcome(sent.0).unwrap().unwrap(), digest.0);
        assert_eq!(b.outcome(sent.1).unwrap().unwrap(), digest.1);
        assert_eq!(b.outcome(landed.0).unwrap().unwrap(), digest.0);
        assert_eq!(a.outcome(landed.1).unwrap().unwrap(), digest.1);
        assert!(b.landed(landed.0) == bytes.0 && a.landed(landed.1) == bytes.1);
    }
    assert_eq!((a.link.stats().copied(), b.link.stats().copied()), (0, 0));
    assert_eq!(a.link.stats().sent(), b.link.stats().landed());
    drop((a, b));
    assert_eq!((from.accounting().free, to.accounting().free), (1200, 1200));
}

#[test]
fn payload_and_control_cross_both_ways() {
    run(exchange(TcpOptions::default(), "tcp://127.0.0.1:0", 100));
}

#[test]
fn the_same_with_a_cluster_key() {
    run(exchange(keyed(KEY), "tcp://127.0.0.1:0", 100));
}

#[test]
fn ipv6_and_names_work_too() {
    run(exchange(TcpOptions::default(), "tcp://[::1]:0", 100));
    run(exchange(TcpOptions::default(), "tcp://localhost:0", 100));
}

#[test]
fn tiny_kernel_buffers_cut_every_frame() {
    for mut options in [TcpOptions::default(), keyed(KEY)] {
        (options.send_buffer_len, options.receive_buffer_len) = (Some(4096), Some(4096));
        options.payload_len_max = 5000;
        run(exchange(options, "tcp://127.0.0.1:0", 4));
    }
}

#[test]
fn the_kernel_makes_the_same_transfers() {
    let mut options = TcpOptions::default();
    options.path = SocketPath::Uring;
    run(exchange(options.clone(), "tcp://127.0.0.1:0", 100));
    (options.send_buffer_len, options.receive_buffer_len) = (Some(4096), Some(4096));
    options.payload_len_max = 5000;
    run(exchange(options, "tcp://127.0.0.1:0", 4));
}

#[test]
fn frames_of_one_byte_work() {
    let mut options = TcpOptions::default();
    options.payload_len_max = 1;
    run(async {
        let (mut a, mut b) = pair_at(options, "tcp://127.0.0.1:0").await;
        let pool = pool(4);
        let (list, bytes, digest) = payload(&pool, 2, 0);
        let landed = land(&mut b, 0, room(&pool, 2));
        stream(&mut a, 0, list);
        until(&mut [&mut a, &mut b], |sides| sides[1].completion(landed).is_some()).await;
        assert_eq!(b.outcome(landed).unwrap().unwrap(), digest);
        assert!(b.landed(landed) == bytes);
    });
}

#[test]
fn control_does_not_wait_for_a_long_stream() {
    run(async {
        let (mut a, mut b) = pair().await;
        let (from, to) = (pool(8192), pool(8192));
        let (list, ..) = payload(&from, 8192 * 16, 0);
        let landed = land(&mut b, 0, room(&to, 8192 * 16));
        stream(&mut a, 0, list);
        // The stream has begun and fills the socket.
        until(&mut [&mut a], |sides| sides[0].link.stats().sent() > 128 << 10).await;
        let at = a.link.stats().sent();
        a.control(&message(b"urgent"));
        until(&mut [&mut a, &mut b], |sides| !sides[1].received().is_empty()).await;
        assert!(b.completion(landed).is_none());
        // The rest of one frame before it, and what the same poll read after it.
        assert!(b.link.stats().landed() <= at + (3 << 20), "it waited for more than one frame");
        until(&mut [&mut a, &mut b], |sides| sides[1].completion(landed).is_some()).await;
    });
}

#[test]
fn many_frames_in_one_segment_and_one_frame_in_many() {
    run(async {
        let (mut socket, mut link) = raw().await;
        let frames: Vec<_> = (0..300).map(|i| message(&vec![7; i % 40])).collect();
        socket.write_all(&frames.concat()).unwrap();
        until(&mut [&mut link], |sides| sides[0].received().len() == 300).await;
        assert!(link.received() == frames);
        let pool = pool(4);
        let (_, bytes, digest) = payload(&pool, 1, 0);
        let landed = land(&mut link, 0, room(&pool, 1));
        for byte in [&payload_frame(0, 0, &bytes)[..], &frames[9]].concat() {
            socket.write_all(&[byte]).unwrap();
            let _ = poll_fn(|cx| Poll::Ready(link.link.poll_progress(cx, &mut link.events))).await;
        }
        until(&mut [&mut link], |sides| sides[0].received().len() == 301).await;
        assert_eq!(link.outcome(landed).unwrap().unwrap(), digest);
        assert!(link.landed(landed) == bytes);
        assert_eq!(link.link.stats().copied(), 0);
    });
}

#[test]
fn a_cancelled_stream_ends_on_a_whole_frame() {
    run(async {
        let (mut a, mut b) = pair().await;
        let (from, to) = (pool(2048), pool(2048));
        let (list, ..) = payload(&from, 2000 * 16, 0);
        let landed = land(&mut b, 3, room(&to, 2000 * 16));
        let sent = stream(&mut a, 3, list);
        until(&mut [&mut a], |sides| sides[0].link.stats().sent() > 0).await;
        a.link.cancel(sent);
        a.control(&message(b"after"));
        until(&mut [&mut a, &mut b], |sides| !sides[1].received().is_empty()).await;
        assert!(matches!(a.outcome(sent), Some(Err(OpError::Cancelled))));
        assert!(b.completion(landed).is_none());
        // The receiver gives up as well: the rest, had it come, would be dropped.
        b.link.cancel(landed);
        let (list, bytes, digest) = payload(&from, 16, 9);
        let next = land(&mut b, 4, room(&to, 16));
        stream(&mut a, 4, list);
        until(&mut [&mut a, &mut b], |sides| sides[1].completion(next).is_some()).await;
        assert!(matches!(b.outcome(landed), Some(Err(OpError::Cancelled))));
        assert_eq!(b.outcome(next).unwrap().unwrap(), digest);
        assert!(b.landed(next) == bytes);
    });
}

#[test]
fn payload_for_a_cancelled_land_is_dropped() {
    run(async {
        let (mut a, mut b) = pair().await;
        let (from, to) = (pool(512), pool(512));
        let (list, ..) = payload(&from, 256 * 16, 0);
        let landed = land(&mut b, 1, room(&to, 256 * 16));
        let sent = stream(&mut a, 1, list);
        until(&mut [&mut a, &mut b], |sides| sides[1].link.stats().landed() > 100_000).await;
        b.link.cancel(landed);
        until(&mut [&mut a, &mut b], |sides| sides[0].completion(sent).is_some()).await;
        a.control(&message(b"after"));
        until(&mut [&mut a, &mut b], |sides| !sides[1].received().is_empty()).await;
        assert!(matches!(b.outcome(landed), Some(Err(OpError::Cancelled))));
        assert!(b.closed().is_none());
    });
}

#[test]
fn close_sends_what_was_accepted() {
    run(async {
        let (mut a, mut b) = pair().await;
        let frames: Vec<_> = (0..200).map(|i| message(&vec![i as u8; 20_000])).collect();
        for frame in &frames {
            a.control(frame);
        }
        let pool = pool(64);
        let (list, ..) = payload(&pool, 1000, 0);
        let sent = stream(&mut a, 0, list);
        a.link.close();
        assert!(a.link.submit(Op::Control(frames[0].clone())).is_err());
        until(&mut [&mut a, &mut b], |sides| sides[1].closed().is_some()).await;
        assert!(b.received() == frames);
        assert!(matches!(b.closed(), Some(CloseReason::PeerGone)));
        until(&mut [&mut a], |sides| sides[0].closed().is_some()).await;
        assert!(matches!(a.closed(), Some(CloseReason::Local)));
        assert!(matches!(a.outcome(sent), Some(Err(OpError::Closed(CloseReason::Local)))));
        assert!(a.link.submit(Op::Control(frames[0].clone())).is_err());
    });
}

#[test]
fn close_ends_although_the_peer_reads_nothing() {
    let mut options = TcpOptions::default();
    options.flush_timeout = Duration::from_millis(100);
    run(async {
        let (mut a, _b) = pair_at(options, "tcp://127.0.0.1:0").await;
        let ops: Vec<_> = (0..8).map(|_| a.control(&message(&vec![1; 8 << 20]))).collect();
        a.link.close();
        until(&mut [&mut a], |sides| sides[0].closed().is_some()).await;
        assert!(ops.iter().all(|op| a.completion(*op).is_some()));
    });
}

#[test]
fn a_dead_peer_completes_every_operation() {
    run(async {
        for cut in [false, true] {
            let (mut socket, mut link) = raw().await;
            let pool = pool(2048);
            let (list, ..) = payload(&pool, 1000 * 16, 0);
            let ops = [
                land(&mut link, 0, room(&pool, 1000)),
                stream(&mut link, 0, list),
                link.control(&message(b"x")),
            ];
            if cut {
                socket.write_all(&payload_frame(0, 0, &[1; 1000])[..500]).unwrap();
            }
            until(&mut [&mut link], |sides| sides[0].link.stats().sent() > 0).await;
            let mut some = [0; 100];
            socket.read_exact(&mut some).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
            assert!(ops.iter().all(|op| link.completion(*op).is_some()));
            match link.closed() {
                Some(CloseReason::Lost(_)) => assert!(cut),
                Some(CloseReason::PeerGone) => assert!(!cut),
                other => panic!("{other:?}"),
            }
            link.events.clear();
            assert_eq!(pool.accounting().free, 2048);
        }
    });
}

/// A receiver in the middle of a large frame sleeps until there is something worth the while, and is
/// woken by every byte again when the frame is out or given up.
#[cfg(target_os = "linux")]
#[test]
fn small_pieces_of_a_large_payload_wake_nobody() {
    for cancelled in [false, true] {
        run(async {
            let (mut socket, mut link) = raw().await;
            let (_, bytes, digest) = payload(&pool(4), 4 * 16, 0);
            let to = pool(4);
            let landed = land(&mut link, 1, room(&to, 4 * 16));
            let frame = payload_frame(1, 0, &bytes);
            socket.write_all(&frame[..1000]).unwrap();
            until(&mut [&mut link], |sides| sides[0].link.stats().landed() > 0).await;
            let count = Arc::new(Count(AtomicUsize::new(0)));
            let waker = Waker::from(Arc::clone(&count));
            let mut cx = Context::from_waker(&waker);
            while link.link.poll_progress(&mut cx, &mut link.events).is_ready() {}
            socket.write_all(&frame[1000..9000]).unwrap();
            // Turns of the reactor: what loopback has delivered, it reports.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            assert_eq!(count.0.load(Relaxed), 0);
            if cancelled {
                link.link.cancel(landed);
                while link.link.poll_progress(&mut cx, &mut link.events).is_ready() {}
            }
            let end = if cancelled { 9100 } else { 9000 + (64 << 10) };
            socket.write_all(&frame[9000..end]).unwrap();
            while count.0.load(Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            socket.write_all(&frame[end..]).unwrap();
            socket.write_all(&message(b"after")).unwrap();
            until(&mut [&mut link], |sides| !sides[0].received().is_empty()).await;
            match link.outcome(landed).unwrap() {
                Ok(value) => assert!(!cancelled && value == digest),
                Err(error) => assert!(cancelled, "{error}"),
            }
        });
    }
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn an_idle_link_is_not_woken() {
    run(async {
        let (mut a, mut b) = pair().await;
        let pool = pool(4);
        land(&mut b, 0, room(&pool, 1));
        a.control(&message(b"x"));
        until(&mut [&mut a, &mut b], |sides| {
            !sides[1].received().is_empty() && !sides[0].events.is_empty()
        })
        .await;
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        for side in [&mut a, &mut b] {
            while side.link.poll_progress(&mut cx, &mut side.events).is_ready() {}
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(count.0.load(Relaxed), 0);
        a.control(&message(b"y"));
        assert!(a.link.poll_progress(&mut cx, &mut a.events).is_ready());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(count.0.load(Relaxed), 1, "one message, one wake-up");
    });
}
