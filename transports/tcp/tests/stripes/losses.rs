//! Stripes that are lost.

use std::time::Duration;

use blockwire::transport::CloseReason;
use blockwire_tcp::{SendWay, SocketPath, TcpOptions};

use crate::common::*;
use crate::proxy::Fate;
use crate::{Moving, STRIPES, TOKENS, exchange, is_closed, pools, run_local, through_proxy};

/// Bytes after which a stripe is cut: at the borders of frames, within headers, early and late.
const CUTS: [u64; 6] = [0, 1, 64, 5000, 300_000, 1_200_000];

async fn exchange_with_cuts(options: TcpOptions, cuts: &[(u16, u64)]) {
    let (proxy, mut a, mut b) = through_proxy(options, STRIPES).await;
    let pools = pools();
    for (stripe, after) in cuts {
        proxy.set_after(*stripe, *after, Fate::Cut);
    }
    exchange(&mut a, &mut b, &pools, 1).await;
    // The link goes on, whatever it lost; what did not happen yet happens now.
    for (stripe, _) in cuts {
        proxy.set(*stripe, Fate::Cut);
    }
    exchange(&mut a, &mut b, &pools, 10).await;
    drop((a, b));
    assert!(pools.iter().all(|pool| pool.accounting().free == 700), "{pools:?}");
}

#[test]
fn any_stripe_may_be_lost_at_any_byte() {
    for stripe in 0..STRIPES {
        for after in CUTS {
            run_local(exchange_with_cuts(TcpOptions::default(), &[(stripe, after)]));
        }
    }
}

#[test]
fn with_a_cluster_key_too() {
    for (stripe, after) in [(0, 0), (0, 70_000), (3, 900_000)] {
        run_local(exchange_with_cuts(keyed(KEY), &[(stripe, after)]));
    }
}

#[test]
fn whatever_way_the_bytes_go() {
    for (stripe, after) in [(0, 70_000), (1, 500_000), (2, 1_200_000)] {
        let mut options = TcpOptions::default();
        options.send_way = SendWay::Pages;
        run_local(exchange_with_cuts(options.clone(), &[(stripe, after)]));
        options.path = SocketPath::Uring;
        run_local(exchange_with_cuts(options, &[(stripe, after)]));
    }
}

#[test]
fn all_stripes_but_one_may_be_lost() {
    for cuts in [
        // At once, and one after the other; control changes twice.
        &[(0, 0), (1, 0), (2, 0)][..],
        &[(0, 100_000), (1, 200_000)],
        &[(0, 50_000), (1, 700_000), (2, 1_100_000)],
        &[(1, 0), (3, 1_200_000)],
        &[(3, 64), (2, 65), (1, 1_000_000)],
    ] {
        run_local(exchange_with_cuts(TcpOptions::default(), cuts));
    }
}

#[test]
fn the_loss_of_all_stripes_is_the_loss_of_the_link() {
    run_local(async {
        let (proxy, mut a, mut b) = through_proxy(TcpOptions::default(), STRIPES).await;
        let [at_a, at_b] = pools();
        let there = Moving::start((&mut a, &at_a), (&mut b, &at_b), 1, TOKENS);
        let back = Moving::start((&mut b, &at_b), (&mut a, &at_a), 1, TOKENS);
        let waiting = a.control(&message(&vec![1; 8 << 20]));
        for stripe in 0..STRIPES {
            proxy.set_after(stripe, 200_000 + u64::from(stripe) * 100_000, Fate::Cut);
        }
        until(&mut [&mut a, &mut b], |sides| sides.iter().all(|side| side.closed().is_some()))
            .await;
        for side in [&a, &b] {
            let reason = side.closed().unwrap();
            assert!(matches!(reason, CloseReason::PeerGone | CloseReason::Lost(_)), "{reason}");
        }
        assert!(a.completion(waiting).is_some());
        for (side, op) in [(&a, there.sent), (&b, there.landed), (&b, back.sent), (&a, back.landed)]
        {
            assert!(is_closed(&side.outcome(op).unwrap()));
        }
        assert!(a.link.submit(blockwire::transport::Op::Control(message(b"x"))).is_err());
        a.events.clear();
        b.events.clear();
        assert_eq!((at_a.accounting().free, at_b.accounting().free), (700, 700));
    });
}

#[test]
fn a_stripe_that_falls_silent_is_given_up() {
    // Not the first: it carries control only, which the proxy's own buffers hold, so that nothing stays
    // unacknowledged.
    for stripe in [1, 2] {
        run_local(async move {
            let mut options = TcpOptions::default();
            // A quarter of it for a stripe.
            options.unacknowledged_max = Duration::from_secs(2);
            options.send_buffer_len = Some(64 << 10);
            let (proxy, mut a, mut b) = through_proxy(options, STRIPES).await;
            let pools = pools();
            proxy.set_after(stripe, 300_000, Fate::Hole);
            exchange(&mut a, &mut b, &pools, 1).await;
            let at = proxy.carried(stripe);
            exchange(&mut a, &mut b, &pools, 10).await;
            assert_eq!(proxy.carried(stripe), at, "the hole let something through");
        });
    }
}

#[test]
fn who_waits_on_a_silent_stripe_is_told_by_its_peer() {
    run_local(async {
        let mut options = TcpOptions::default();
        options.unacknowledged_max = Duration::from_secs(2);
        options.send_buffer_len = Some(64 << 10);
        // Only who sends can notice: nothing of the receiver's is unacknowledged.
        options.keepalive_idle = Duration::from_secs(1000);
        let (proxy, mut a, mut b) = through_proxy(options, STRIPES).await;
        let [at_a, at_b] = pools();
        proxy.set_after(2, 100_000, Fate::Hole);
        let moving = Moving::start((&mut a, &at_a), (&mut b, &at_b), 1, TOKENS);
        until(&mut [&mut a, &mut b], |sides| moving.is_done(sides[0], sides[1])).await;
        moving.finish(&a, &mut b);
    });
}

#[test]
fn a_link_that_lost_stripes_closes_in_order() {
    run_local(async {
        let (proxy, mut a, mut b) = through_proxy(TcpOptions::default(), STRIPES).await;
        let frames: Vec<_> = (0..200).map(|i| message(&vec![i as u8; 20_000])).collect();
        let ops: Vec<_> = frames.iter().map(|frame| a.control(frame)).collect();
        a.link.close();
        proxy.set_after(0, 500_000, Fate::Cut);
        proxy.set_after(1, 700_000, Fate::Cut);
        until(&mut [&mut a, &mut b], |sides| sides.iter().all(|side| side.closed().is_some()))
            .await;
        assert!(b.received() == frames);
        assert!(ops.iter().all(|op| a.outcome(*op).unwrap().is_ok()));
        assert!(matches!(b.closed(), Some(CloseReason::PeerGone)), "{:?}", b.closed());
        assert!(matches!(a.closed(), Some(CloseReason::Local)), "{:?}", a.closed());
    });
}

#[test]
fn an_idle_link_notices_what_it_lost() {
    run_local(async {
        let (proxy, mut a, mut b) = through_proxy(TcpOptions::default(), STRIPES).await;
        proxy.set(0, Fate::Cut);
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            until(&mut [&mut a, &mut b], |_| true).await;
        }
        proxy.set(1, Fate::Cut);
        exchange(&mut a, &mut b, &pools(), 1).await;
    });
}
