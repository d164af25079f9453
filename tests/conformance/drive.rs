//! Polls links by turns until something is true, or says what is stuck.

use std::fmt::Debug;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use blockwire::clock;

use crate::node::Node;

/// Without any progress for so long, a test is stuck. A watchdog, not a promise of speed.
pub const STALL: Duration = Duration::from_secs(20);
/// Turns between two looks at the rest of the runtime.
const TURNS_A_YIELD: u64 = 8;

/// Two connected links.
#[derive(Debug)]
pub struct Pair {
    /// The one that most tests send from.
    pub near: Node,
    /// Its peer.
    pub far: Node,
    turns: u64,
}

impl Pair {
    /// Two nodes that are each other's peer.
    pub fn new(near: Node, far: Node) -> Self {
        Self { near, far, turns: 0 }
    }
}

/// Links that are polled together.
pub trait Drive: Debug {
    /// Polls one link that has a right to it; whether there was one.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool;

    /// Grows with everything that happens.
    fn progress(&self) -> u64;
}

impl Drive for Node {
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        Self::turn(self, cx)
    }

    fn progress(&self) -> u64 {
        Self::progress(self)
    }
}

impl Drive for Pair {
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.turns += 1;
        let (first, second) = match self.turns % 2 {
            1 => (&mut self.near, &mut self.far),
            _ => (&mut self.far, &mut self.near),
        };
        first.turn(cx) || second.turn(cx)
    }

    fn progress(&self) -> u64 {
        self.near.progress() + self.far.progress()
    }
}

/// Drives until `done`.
///
/// # Panics
/// When nothing moves for [`STALL`]: the message has `what` and the state of the links.
pub async fn until<D: Drive>(links: &mut D, what: &str, mut done: impl FnMut(&mut D) -> bool) {
    let (mut progress, mut since) = (links.progress(), clock::now());
    let mut turns = 0;
    while !done(links) {
        turns += 1;
        if turns % TURNS_A_YIELD == 0 {
            tokio::task::yield_now().await;
        }
        // Woken now and then, so that `done` may look at things that no link reports.
        let turn = poll_fn(|cx| if links.turn(cx) { Poll::Ready(()) } else { Poll::Pending });
        let _ = tokio::time::timeout(Duration::from_millis(50), turn).await;
        if links.progress() != progress {
            (progress, since) = (links.progress(), clock::now());
        }
        assert!(since.elapsed() < STALL, "stuck, waiting until {what}: {links:#?}");
    }
}

/// Gives `count` turns; where no link may be polled, the runtime has one.
pub async fn steps<D: Drive>(links: &mut D, count: usize) {
    for _ in 0..count {
        let turned = poll_fn(|cx| Poll::Ready(links.turn(cx))).await;
        if !turned {
            tokio::task::yield_now().await;
        }
    }
}
