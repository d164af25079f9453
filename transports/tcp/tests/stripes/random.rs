//! Handoffs both ways, cancels and losses, in an order that a seed decides.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use blockwire::pool::BlockPool;
use blockwire::transport::{OpError, OpId};
use blockwire_conformance::drive::STALL;
use blockwire_conformance::store::Random;
use blockwire_tcp::TcpOptions;

use crate::common::*;
use crate::proxy::{Fate, Proxy};
use crate::{Moving, pools, run_local, through_proxy};

/// Things that happen on a link.
const STEPS: usize = 60;
/// Seeds that are tried where none is named.
const SEEDS: u64 = 25;

struct Payload {
    moving: Moving,
    there: bool,
    cancelled: bool,
}

struct World {
    random: Random,
    proxy: Proxy,
    /// Stripes of the first ones that nothing happened to yet. One of them is never lost.
    living: Vec<u16>,
    stripes: u16,
    sides: [Side; 2],
    pools: [BlockPool; 2],
    payloads: Vec<Payload>,
    control: [Vec<bytes::Bytes>; 2],
    tags: u64,
}

impl World {
    async fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut options = if random.below(3) == 0 { keyed(KEY) } else { TcpOptions::default() };
        if random.below(3) == 0 {
            options.payload_len_max = 50_000;
        }
        // Some worlds get their stripes back at once.
        if random.below(3) > 0 {
            options.redial_pause = Duration::from_millis(1);
        }
        let stripes = 2 + random.below(4) as u16;
        let (proxy, a, b) = through_proxy(options, stripes).await;
        Self {
            random,
            proxy,
            living: (0..stripes).collect(),
            stripes,
            sides: [a, b],
            pools: pools(),
            payloads: Vec::new(),
            control: [Vec::new(), Vec::new()],
            tags: 0,
        }
    }

    async fn step(&mut self) {
        match self.random.below(10) {
            0..=2 => self.start(),
            3..=4 => {
                let from = self.random.below(2);
                let frame = message(&vec![self.tags as u8; self.random.below(3000)]);
                self.sides[from].control(&frame);
                self.control[from].push(frame);
            }
            5 => self.cancel(),
            6 => self.lose(),
            7 => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => {
                let turns = self.random.below(30);
                self.turns(turns).await;
            }
        }
    }

    async fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            for side in &mut self.sides {
                let (link, events) = (&mut side.link, &mut side.events);
                let _ = poll_fn(|cx| Poll::Ready(link.poll_progress(cx, events))).await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn start(&mut self) {
        self.tags += 1;
        let (there, large) = (self.random.below(2) == 0, self.random.below(2) == 0);
        let tokens = 1 + self.random.below(if large { 3000 } else { 100 });
        let [a, b] = &mut self.sides;
        let [at_a, at_b] = &self.pools;
        let room = |pool: &BlockPool| pool.accounting().free > tokens / 16 + 1;
        if !room(at_a) || !room(at_b) {
            return;
        }
        let (from, to) = ((a, at_a), (b, at_b));
        let moving = if there {
            Moving::start(from, to, self.tags, tokens)
        } else {
            Moving::start(to, from, self.tags, tokens)
        };
        self.payloads.push(Payload { moving, there, cancelled: false });
    }

    fn cancel(&mut self) {
        if self.payloads.is_empty() {
            return;
        }
        let at = self.random.below(self.payloads.len());
        let first = self.random.below(2);
        let payload = &mut self.payloads[at];
        payload.cancelled = true;
        let (from, to) = if payload.there { (0, 1) } else { (1, 0) };
        let ops = [(from, payload.moving.sent), (to, payload.moving.landed)];
        for (side, op) in [ops[first], ops[1 - first]] {
            self.sides[side].link.cancel(op);
        }
    }

    /// Cuts a stripe, now or later.
    fn lose(&mut self) {
        let late = self.proxy.stripes().into_iter().filter(|stripe| *stripe >= self.stripes);
        let mut mortal: Vec<_> = late.collect();
        if self.living.len() > 1 {
            mortal.extend(&self.living);
        }
        if mortal.is_empty() {
            return;
        }
        let stripe = mortal[self.random.below(mortal.len())];
        self.living.retain(|living| *living != stripe);
        let after = self.random.below(2_000_000) as u64;
        self.proxy.set_after(stripe, after, Fate::Cut);
    }

    /// Everything ends as it should.
    async fn finish(mut self) {
        let [mut a, mut b] = self.sides;
        let (payloads, control) = (&self.payloads, &self.control);
        let done = |sides: &[&mut Side]| {
            assert!(sides.iter().all(|side| side.closed().is_none()));
            payloads.iter().all(|payload| {
                let (from, to) = if payload.there { (0, 1) } else { (1, 0) };
                payload.moving.is_done(sides[from], sides[to])
            }) && sides[0].received().len() >= control[1].len()
                && sides[1].received().len() >= control[0].len()
        };
        let ended = tokio::time::timeout(STALL, until(&mut [&mut a, &mut b], done)).await;
        assert!(ended.is_ok(), "stuck: {:#?} {:#?}", a.link.stats(), b.link.stats());
        assert!(a.received() == self.control[1] && b.received() == self.control[0], "control");
        for Payload { moving, there, cancelled } in self.payloads.drain(..) {
            let (from, to) = if there { (&mut a, &mut b) } else { (&mut b, &mut a) };
            if cancelled {
                check_cancelled(from, moving.sent);
                check_cancelled(to, moving.landed);
                if to.outcome(moving.landed).unwrap().is_ok() {
                    assert!(to.landed(moving.landed) == moving.bytes);
                }
            } else {
                moving.finish(from, to);
            }
        }
        drop((a, b));
        assert!(self.pools.iter().all(|pool| pool.accounting().free == 700), "{:?}", self.pools);
    }
}

fn check_cancelled(side: &Side, op: OpId) {
    let outcome = side.outcome(op).unwrap();
    assert!(matches!(outcome, Ok(_) | Err(OpError::Cancelled)), "{outcome:?}");
}

/// Says which seed fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay this with BLOCKWIRE_FUZZ_SEED={}", self.0);
        }
    }
}

#[test]
fn whatever_happens_in_whatever_order() {
    let named = std::env::var("BLOCKWIRE_FUZZ_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in named.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let playing = Seed(seed);
        run_local(async {
            let mut world = World::new(seed).await;
            for _ in 0..STEPS {
                world.step().await;
            }
            world.finish().await;
        });
        drop(playing);
    }
}
