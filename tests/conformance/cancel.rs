//! Cancelling at every step: the memory comes back, and what follows is right.

use blockwire::transport::{Completion, Op, OpError, OpId};

use crate::Harness;
use crate::drive::{Pair, steps, until};
use crate::moves::{Lane, Stores, Way, ways};
use crate::node::Node;
use crate::rig::{Rig, skip};
use crate::store::Store;

/// Blocks of 128 KiB of a payload that takes many polls.
const BLOCKS: u32 = 128;
/// Turns before a cancel: none, then ever more.
pub(crate) const STEPS: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40, 60, 90, 140];

/// A cancelled `Land` comes back; the stream for it completes, its bytes are dropped, the next payload
/// is right.
pub fn a_land_is_cancelled_at_every_step<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut stores, mut lane)) = prepare(rig, Way::Push).await else { return };
        let table: Vec<_> = (0..BLOCKS).collect();
        for step in STEPS {
            let (payload, room) = stores.lists(&table);
            let moving = lane.start(&mut pair.near, &mut pair.far, payload, room);
            let sent = moving.sent.expect("a push has two operations");
            steps(&mut pair, step).await;
            pair.far.cancel(moving.landed);
            until(&mut pair, "both are done", |p| moving.is_done(&p.near, &p.far)).await;
            let digest = landed(&mut pair.far, moving.landed, &mut stores, &table);
            let streamed = stores.from.take_success(pair.near.take(sent));
            let bytes = stores.from.bytes(&table, stores.order(), stores.tokens(table.len()));
            assert_eq!(streamed, stores.digest(&bytes), "digest of what was sent");
            assert!(digest.is_none_or(|digest| digest == streamed), "digests");
            stores.transfer(&mut lane, &mut pair, &[5, 3, 9]).await;
        }
        stores.check();
    });
}

/// A cancelled `Stream` comes back; the `Land` for it waits until it is cancelled too; the next payload
/// is right.
pub fn a_stream_is_cancelled_at_every_step<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut stores, mut lane)) = prepare(rig, Way::Push).await else { return };
        let table: Vec<_> = (0..BLOCKS).collect();
        for step in STEPS {
            let (payload, room) = stores.lists(&table);
            let moving = lane.start(&mut pair.near, &mut pair.far, payload, room);
            let sent = moving.sent.expect("a push has two operations");
            steps(&mut pair, step).await;
            pair.near.cancel(sent);
            until(&mut pair, "the stream is done", |p| p.near.is_done(sent)).await;
            let completion = pair.near.take(sent);
            if is_cancelled(&completion) {
                pair.far.cancel(moving.landed);
            }
            stores.from.take_back(completion.memory);
            until(&mut pair, "the land is done", |p| p.far.is_done(moving.landed)).await;
            landed(&mut pair.far, moving.landed, &mut stores, &table);
            stores.transfer(&mut lane, &mut pair, &[5, 3, 9]).await;
        }
        stores.check();
    });
}

/// A cancelled `Get` comes back; the next one is right.
pub fn a_get_is_cancelled_at_every_step<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut stores, mut lane)) = prepare(rig, Way::Pull).await else { return };
        let table: Vec<_> = (0..BLOCKS).collect();
        for step in STEPS {
            let (payload, room) = stores.lists(&table);
            let moving = lane.start(&mut pair.near, &mut pair.far, payload, room);
            steps(&mut pair, step).await;
            pair.far.cancel(moving.landed);
            until(&mut pair, "the get is done", |p| p.far.is_done(moving.landed)).await;
            landed(&mut pair.far, moving.landed, &mut stores, &table);
            drop(moving);
            stores.transfer(&mut lane, &mut pair, &[5, 3, 9]).await;
        }
        stores.check();
    });
}

/// Payload for a `Land` that was cancelled long ago is dropped, and its blocks are somebody else's.
pub fn stale_payload_is_dropped<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let Some((mut pair, mut stores, mut lane)) = prepare(rig, Way::Push).await else { return };
        let table: Vec<_> = (0..40).collect();
        for round in 0..4 {
            let (payload, room) = stores.lists(&table);
            let tag = lane.next_tag();
            let land = pair.far.submit(Op::Land { tag, room });
            steps(&mut pair, round).await;
            pair.far.cancel(land);
            until(&mut pair, "the land is done", |p| p.far.is_done(land)).await;
            let completion = pair.far.take(land);
            assert!(is_cancelled(&completion), "{:?}", completion.outcome);
            stores.to.take_back(completion.memory);
            // The same blocks take the next payload while the stale one is on its way.
            let stale = pair.near.submit(Op::Stream { tag, payload });
            let next: Vec<_> = (10..30).collect();
            stores.transfer(&mut lane, &mut pair, &next).await;
            until(&mut pair, "the stale stream is done", |p| p.near.is_done(stale)).await;
            stores.from.take_success(pair.near.take(stale));
        }
        stores.check();
    });
}

/// Everything is cancelled before anything was polled.
pub fn all_is_cancelled_before_the_first_poll<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        for way in ways(pair.near.capabilities()) {
            let mut stores = Stores::small(rig, 16);
            let mut lane = Lane::open(way, &mut pair, &stores.from).await;
            let mut moving = Vec::new();
            for first in [0, 4, 8, 12] {
                let (payload, room) = stores.lists(&[first, first + 1, first + 2]);
                moving.push(lane.start(&mut pair.near, &mut pair.far, payload, room));
            }
            for each in &moving {
                each.sent.into_iter().for_each(|sent| pair.near.cancel(sent));
                pair.far.cancel(each.landed);
            }
            until(&mut pair, "all are done", |p| {
                moving.iter().all(|moving| moving.is_done(&p.near, &p.far))
            })
            .await;
            take_any(&mut pair.near, &mut stores.from);
            take_any(&mut pair.far, &mut stores.to);
            for first in [0, 4, 8, 12] {
                stores.broken_off(&[first, first + 1, first + 2]);
            }
            drop(moving);
            stores.transfer(&mut lane, &mut pair, &[0, 15, 1]).await;
            stores.check();
        }
    });
}

async fn prepare<H: Harness>(rig: &Rig<H>, way: Way) -> Option<(Pair, Stores, Lane)> {
    let mut pair = rig.pair().await;
    if !ways(pair.near.capabilities()).contains(&way) {
        skip("the link has no such way");
        return None;
    }
    let stores = Stores::large(rig, BLOCKS as usize);
    let lane = Lane::open(way, &mut pair, &stores.from).await;
    Some((pair, stores, lane))
}

fn is_cancelled(completion: &Completion) -> bool {
    matches!(completion.outcome, Err(OpError::Cancelled))
}

/// Takes a cancelled room back: done with the right bytes, and then its digest, or cancelled.
fn landed(node: &mut Node, op: OpId, stores: &mut Stores, table: &[u32]) -> Option<u64> {
    let completion = node.take(op);
    if is_cancelled(&completion) {
        stores.broken_off(table);
        stores.to.take_back(completion.memory);
        return None;
    }
    let expected = stores.arrived(table);
    let digest = stores.to.take_success(completion);
    assert_eq!(digest, expected, "digest of what landed");
    Some(digest)
}

fn take_any(node: &mut Node, store: &mut Store) {
    for completion in node.take_all() {
        let good = completion.outcome.is_ok() || is_cancelled(&completion);
        assert!(good, "{:?}", completion.outcome);
        store.take_back(completion.memory);
    }
}
