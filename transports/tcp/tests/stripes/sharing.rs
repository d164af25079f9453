//! What a link of several connections does in one poll, while other links of its thread wait.

use std::future::poll_fn;
use std::task::Poll;

use blockwire_tcp::{TcpOptions, TcpTransport};

use crate::common::*;
use crate::{Moving, dial, pools, run_local};

/// What a stripe moves in one direction and one poll, and bytes of the longest frame.
const SHARE: u64 = 512 << 10;

/// Polls a side once; the payload bytes that this moved.
async fn poll_once(side: &mut Side) -> u64 {
    let moved = |side: &Side| side.link.stats().sent() + side.link.stats().landed();
    let before = moved(side);
    let _ = poll_fn(|cx| Poll::Ready(side.link.poll_progress(cx, &mut side.events))).await;
    tokio::task::yield_now().await;
    moved(side) - before
}

#[test]
fn a_poll_moves_hardly_more_than_one_stripe_does() {
    run_local(async {
        let transport = TcpTransport::new(TcpOptions::default());
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let target = listener.local_address().target().to_owned();
        let (mut a, mut b) = dial(&transport, &target, 8, &mut listener).await;
        let [at_a, at_b] = pools();
        let moving = Moving::start((&mut a, &at_a), (&mut b, &at_b), 1, 700 * 16);
        let mut most = 0;
        while !moving.is_done(&a, &b) {
            // Every stripe has as much as it may have before the receiver looks.
            loop {
                let moved = poll_once(&mut a).await;
                most = most.max(moved);
                if moved == 0 {
                    break;
                }
            }
            most = most.max(poll_once(&mut b).await);
        }
        // Less than a share, then what one stripe does: less than another, and one more frame.
        assert!((SHARE / 2..3 * SHARE).contains(&most), "{most} bytes in one poll");
        moving.finish(&a, &mut b);
    });
}
