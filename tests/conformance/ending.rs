//! The end of a link: asked for, or by death, at every step.

use blockwire::pool::BlockPool;
use blockwire::transport::{CloseReason, OpId};

use crate::Harness;
use crate::cancel::STEPS;
use crate::drive::{Pair, steps, until};
use crate::frames::{control, expect_frames};
use crate::moves::{Lane, Move, Stores, ways};
use crate::node::{Node, is_closed};
use crate::rig::Rig;
use crate::store::Store;

/// Blocks of 128 KiB of a payload that takes many polls.
const BLOCKS: u32 = 64;

/// Control that was accepted before `close` arrives, in order, and succeeds; then the peer sees the end.
pub fn accepted_control_arrives_after_close<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for (count, len) in [(0, 0), (1, 0), (5000, 30), (40, 1 << 20)] {
            let mut pair = rig.pair().await;
            let lens = vec![len; count];
            let ops: Vec<_> =
                (0..count).map(|n| pair.near.submit(control(n as u32, len))).collect();
            pair.near.close();
            until(&mut pair, "both ends close", both_closed).await;
            expect_frames(&mut pair.far, lens);
            for op in ops {
                let outcome = pair.near.take(op).outcome;
                assert!(outcome.is_ok(), "accepted control failed: {outcome:?}");
            }
            assert!(matches!(pair.near.closed(), Some(CloseReason::Local)), "{pair:?}");
            assert!(matches!(pair.far.closed(), Some(CloseReason::PeerGone)), "{pair:?}");
        }
    });
}

/// `close` ends payload on both sides, at every step; all memory comes back.
pub fn payload_ends_with_close_at_every_step<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for step in STEPS {
            let mut pair = rig.pair().await;
            let mut traffic = Traffic::start(rig, &mut pair).await;
            steps(&mut pair, step).await;
            pair.near.close();
            until(&mut pair, "both ends close", both_closed).await;
            assert!(matches!(pair.near.closed(), Some(CloseReason::Local)), "{pair:?}");
            for op in &traffic.control {
                let outcome = pair.near.take(*op).outcome;
                assert!(outcome.is_ok(), "step {step}: accepted control failed: {outcome:?}");
            }
            traffic.take_ends(&mut pair.near, true);
            traffic.take_ends(&mut pair.far, false);
            traffic.check();
        }
    });
}

/// Both ends close at once: both see an end, all memory comes back.
pub fn both_ends_may_close_at_once<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for step in [0, 1, 3, 10] {
            let mut pair = rig.pair().await;
            let mut traffic = Traffic::start(rig, &mut pair).await;
            steps(&mut pair, step).await;
            pair.near.close();
            pair.far.close();
            until(&mut pair, "both ends close", both_closed).await;
            traffic.take_ends(&mut pair.near, true);
            traffic.take_ends(&mut pair.far, false);
            traffic.check();
        }
    });
}

/// A peer that dies, at every step: every operation completes, then `Closed`; the memory of both comes
/// back to the pools.
pub fn death_completes_everything_at_every_step<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for step in STEPS {
            let mut pair = rig.pair().await;
            let mut traffic = Traffic::start(rig, &mut pair).await;
            steps(&mut pair, step).await;
            pair.far.kill();
            // What the dead had completed goes with it; its pools are whole again without it.
            drop(pair.far.take_all());
            let pools = traffic.drop_far();
            until(&mut pair, "the survivor closes", |p| p.near.closed().is_some()).await;
            let reason = pair.near.closed().unwrap();
            assert!(matches!(reason, CloseReason::PeerGone | CloseReason::Lost(_)), "{reason}");
            traffic.take_ends(&mut pair.near, true);
            traffic.check();
            until(&mut pair, "the dead end's blocks are free", |_| pools.iter().all(is_free)).await;
        }
    });
}

/// A link that is dropped with operations in it gives their memory back, whatever the peer does.
pub fn a_dropped_link_gives_its_memory_back<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for step in [0, 1, 2, 7, 30] {
            let mut pair = rig.pair().await;
            let traffic = Traffic::start(rig, &mut pair).await;
            steps(&mut pair, step).await;
            pair.near.kill();
            pair.far.kill();
            drop((pair.near.take_all(), pair.far.take_all()));
            let pools = traffic.pools();
            drop(traffic);
            until(&mut pair, "all blocks are free", |_| pools.iter().all(is_free)).await;
        }
    });
}

/// Control that a peer had received when its peer died is still delivered, then the end.
pub fn what_arrived_before_death_is_delivered<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let ops: Vec<_> = (0..10).map(|number| pair.near.submit(control(number, 50))).collect();
        until(&mut pair, "a frame arrives", |p| !p.far.received().is_empty()).await;
        until(&mut pair, "all are sent", |p| ops.iter().all(|op| p.near.is_done(*op))).await;
        pair.near.kill();
        until(&mut pair, "the survivor closes", |p| p.far.closed().is_some()).await;
        // A transport may lose the last frames of the dead, never one in the middle.
        let arrived = pair.far.received().len();
        expect_frames(&mut pair.far, vec![50; arrived]);
    });
}

fn both_closed(pair: &mut Pair) -> bool {
    pair.near.closed().is_some() && pair.far.closed().is_some()
}

fn is_free(pool: &BlockPool) -> bool {
    let accounting = pool.accounting();
    accounting.free == accounting.total
}

/// Control and payload both ways, by every way that the link has.
struct Traffic {
    near: Vec<Store>,
    far: Vec<Store>,
    control: Vec<OpId>,
    moving: Vec<Move>,
}

impl Traffic {
    async fn start<H: Harness>(rig: &Rig<H>, pair: &mut Pair) -> Self {
        let mut traffic =
            Self { near: Vec::new(), far: Vec::new(), control: Vec::new(), moving: Vec::new() };
        let table: Vec<_> = (0..BLOCKS).collect();
        let mut lanes = Vec::new();
        for way in ways(pair.near.capabilities()) {
            let (there, back) =
                (Stores::large(rig, BLOCKS as usize), Stores::large(rig, BLOCKS as usize));
            let lane = Lane::open(way, pair, &there.from).await;
            let lane_back = Lane::open_back(way, pair, &back.from).await;
            lanes.push((lane, lane_back, there, back));
        }
        for (mut lane, mut lane_back, mut there, mut back) in lanes {
            let (near, far) = (&mut pair.near, &mut pair.far);
            let (payload, room) = there.lists(&table);
            traffic.moving.push(lane.start(near, far, payload, room));
            let (payload, room) = back.lists(&table);
            traffic.moving.push(lane_back.start(far, near, payload, room));
            there.broken_off(&table);
            back.broken_off(&table);
            traffic.near.extend([there.from, back.to]);
            traffic.far.extend([there.to, back.from]);
        }
        for number in 0..40 {
            traffic.control.push(pair.near.submit(control(number, 10_000)));
            pair.far.submit(control(number, 10_000));
        }
        traffic
    }

    /// Takes the memory of every completion back; each is a success or says that the link ended.
    fn take_ends(&mut self, node: &mut Node, near: bool) {
        let stores = if near { &mut self.near } else { &mut self.far };
        for completion in node.take_all() {
            let outcome = &completion.outcome;
            assert!(outcome.is_ok() || is_closed(outcome), "an end gives {outcome:?}");
            if let blockwire::transport::OpMemory::Room(room) = &completion.memory {
                let store = stores.iter_mut().find(|store| store.pool().same_pool(room.pool()));
                store.expect("a store of this test").take_back(completion.memory);
            }
        }
    }

    fn pools(&self) -> Vec<BlockPool> {
        self.near.iter().chain(&self.far).map(|store| store.pool().clone()).collect()
    }

    fn drop_far(&mut self) -> Vec<BlockPool> {
        let pools = self.far.iter().map(|store| store.pool().clone()).collect();
        self.far.clear();
        // Pulled from the dead: held by the dead's side only.
        self.moving.clear();
        pools
    }

    fn check(self) {
        drop(self.moving);
        self.near.into_iter().chain(self.far).for_each(Store::check);
    }
}
