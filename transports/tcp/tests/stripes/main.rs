//! Links of several connections, some of which are lost: every handoff goes on over those that live.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod gathering;
mod handoffs;
mod hostile;
mod lingering;
mod losses;
#[path = "../nodes/mod.rs"]
mod nodes;
mod proxy;
mod random;
mod returning;
mod sharing;

use std::future::Future;
use std::time::Duration;

use blockwire::pool::BlockPool;
use blockwire::transport::{Listener, OpError, OpId, Transport};
use blockwire_tcp::{TcpOptions, TcpTransport};
use tokio::task::LocalSet;

use crate::common::*;
use crate::proxy::Proxy;

/// Stripes of most links here.
const STRIPES: u16 = 4;

/// Runs a test whose proxies share its thread; a hang fails instead of lasting.
fn run_local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(120), test).await.expect("the test hangs");
    });
}

/// A link through a proxy: who dialled, and who accepted.
async fn through_proxy(options: TcpOptions, stripes: u16) -> (Proxy, Side, Side) {
    let transport = TcpTransport::new(options);
    let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
    let mut proxy = Proxy::start(listener.local_address().target());
    let (dialled, accepted) = dial(&transport, &proxy.target, stripes, &mut listener).await;
    proxy.keep(listener);
    (proxy, dialled, accepted)
}

async fn dial(
    transport: &TcpTransport,
    target: &str,
    stripes: u16,
    listener: &mut Box<dyn Listener>,
) -> (Side, Side) {
    let address = format!("tcp://{target}?stripes={stripes}").parse().unwrap();
    let (dialled, accepted) = tokio::join!(transport.connect(&address), accept(listener));
    (Side::new(dialled.unwrap()), accepted)
}

/// A payload under way, and what should arrive.
struct Moving {
    sent: OpId,
    landed: OpId,
    bytes: Vec<u8>,
}

impl Moving {
    /// Posts room at one side and sends a payload of the other.
    fn start(
        (from, from_pool): (&mut Side, &BlockPool),
        (to, to_pool): (&mut Side, &BlockPool),
        tag: u64,
        tokens: usize,
    ) -> Self {
        let (list, bytes, _) = payload(from_pool, tokens, tag as u8);
        let landed = land(to, tag, room(to_pool, tokens));
        let sent = stream(from, tag, list);
        Self { sent, landed, bytes }
    }

    fn is_done(&self, from: &Side, to: &Side) -> bool {
        from.completion(self.sent).is_some() && to.completion(self.landed).is_some()
    }

    /// Checks what arrived.
    fn finish(self, from: &Side, to: &mut Side) {
        let sent = from.outcome(self.sent).unwrap().unwrap();
        assert_eq!(to.outcome(self.landed).unwrap().unwrap(), sent, "digests");
        assert!(to.landed(self.landed) == self.bytes, "other bytes arrived");
    }
}

/// Payloads and control both ways at once: all arrives, once and in order.
async fn exchange(a: &mut Side, b: &mut Side, pools: &[BlockPool; 2], first_tag: u64) {
    let frames: Vec<_> = (0..50).map(|i| message(&vec![i as u8; 1 + i * 20])).collect();
    let [at_a, at_b] = pools;
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for (tag, tokens) in (first_tag..).zip([TOKENS, 16, 700]) {
        there.push(Moving::start((a, at_a), (b, at_b), tag, tokens));
        back.push(Moving::start((b, at_b), (a, at_a), tag, tokens));
    }
    for frame in &frames {
        a.control(frame);
        b.control(frame);
    }
    until(&mut [a, b], |sides| {
        let (a, b) = (&sides[0], &sides[1]);
        assert!(a.closed().is_none() && b.closed().is_none(), "{:?} {:?}", a.closed(), b.closed());
        let moved = there.iter().all(|moving| moving.is_done(a, b));
        let returned = back.iter().all(|moving| moving.is_done(b, a));
        let told = |side: &Side| side.received().len() >= frames.len();
        moved && returned && told(a) && told(b)
    })
    .await;
    assert!(a.received() == frames && b.received() == frames, "control in order, and once");
    there.into_iter().for_each(|moving| moving.finish(a, b));
    back.into_iter().for_each(|moving| moving.finish(b, a));
    a.events.clear();
    b.events.clear();
}

/// Tokens of a payload of 4 MiB: one for each of four stripes.
const TOKENS: usize = 128 * 16;

fn pools() -> [BlockPool; 2] {
    [pool(700), pool(700)]
}

/// Whether an operation ended in a way that its link's end gives.
fn is_closed(outcome: &Result<u64, OpError>) -> bool {
    matches!(outcome, Err(OpError::Closed(_)))
}
