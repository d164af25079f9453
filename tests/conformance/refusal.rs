//! What a link does not take comes back whole, and changes nothing.

use blockwire::transport::{Op, OpError, OpId, OpMemory, RegionKey, RegisterError, StreamTag};

use crate::Harness;
use crate::drive::{steps, until};
use crate::frames::control;
use crate::moves::{Lane, Stores, Way, ways};
use crate::node::Node;
use crate::rig::{Rig, skip};
use crate::store::Store;

/// A tag that does not rise is refused, also when its payload is done or cancelled.
pub fn a_land_tag_has_to_rise<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        if pair.far.capabilities().stream.is_none() {
            return skip("the link has no stream");
        }
        let mut stores = Stores::small(rig, 4);
        let (order, tokens) = (stores.order(), stores.tokens(1));
        let posted =
            Op::Land { tag: StreamTag(7), room: stores.to.room(&[0], order, tokens.clone()) };
        let posted = pair.far.submit(posted);
        for (round, tag) in [7, 6, 0, 7].into_iter().enumerate() {
            let tag = StreamTag(tag);
            let room = stores.to.room(&[1], order, tokens.clone());
            let refused = pair.far.try_submit(Op::Land { tag, room }).unwrap_err();
            assert!(
                matches!(refused.error, OpError::TagReused(t) if t == tag),
                "{}",
                refused.error
            );
            take_op(&mut stores.to, refused.op);
            if round == 1 {
                pair.far.cancel(posted);
                until(&mut pair, "a land is cancelled", |p| p.far.is_done(posted)).await;
                stores.to.take_back(pair.far.take(posted).memory);
            }
        }
        let mut lane = Lane::open(Way::Push, &mut pair, &stores.from).await;
        lane.skip_tags(8);
        stores.transfer(&mut lane, &mut pair, &[0, 1, 2]).await;
        stores.check();
    });
}

/// Operations that the capabilities lack are refused as such; the link goes on.
pub fn what_the_capabilities_lack_is_refused<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let capabilities = pair.near.capabilities();
        let mut stores = Stores::small(rig, 4);
        let (order, tokens) = (stores.order(), stores.tokens(1));
        if capabilities.get.is_none() {
            let registered = pair.near.link().register(stores.from.pool().region());
            assert!(matches!(registered, Err(RegisterError::Unsupported)), "{registered:?}");
            let extents = stores.from.payload(&[0], order, tokens.clone()).extents().to_vec();
            let room = stores.to.room(&[1], order, tokens.clone());
            let get = Op::Get { region: RegionKey(0), extents, room };
            refuse_unsupported(&mut pair.near, &mut stores.to, get);
        }
        if capabilities.stream.is_none() {
            let payload = stores.from.payload(&[0], order, tokens.clone());
            let stream = Op::Stream { tag: StreamTag(1), payload };
            refuse_unsupported(&mut pair.near, &mut stores.from, stream);
            let room = stores.to.room(&[1], order, tokens);
            let land = Op::Land { tag: StreamTag(1), room };
            refuse_unsupported(&mut pair.near, &mut stores.to, land);
        }
        for way in ways(capabilities) {
            let mut lane = Lane::open(way, &mut pair, &stores.from).await;
            stores.transfer(&mut lane, &mut pair, &[2, 3]).await;
        }
        stores.check();
    });
}

/// To cancel what is done, or what never was, changes nothing.
pub fn an_unknown_operation_cannot_be_cancelled<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let op = pair.near.submit(control(0, 10));
        pair.near.cancel(OpId(u64::MAX));
        pair.far.cancel(OpId(u64::MAX));
        pair.far.cancel(op);
        until(&mut pair, "a frame arrives", |p| p.near.is_done(op) && p.far.received().len() == 1)
            .await;
        assert!(pair.near.take(op).outcome.is_ok());
        pair.near.cancel(op);
        let next = pair.near.submit(control(1, 10));
        assert_ne!(op, next);
        until(&mut pair, "the next arrives", |p| {
            p.near.is_done(next) && p.far.received().len() == 2
        })
        .await;
    });
}

/// After `close` everything is refused at once; at the peer, after it saw the end.
pub fn nothing_is_taken_after_the_end<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let capabilities = pair.near.capabilities();
        let mut stores = Stores::small(rig, 4);
        pair.near.close();
        refuse_all(&mut pair.near, &mut stores, capabilities.stream.is_some());
        until(&mut pair, "both ends close", |p| {
            p.near.closed().is_some() && p.far.closed().is_some()
        })
        .await;
        refuse_all(&mut pair.near, &mut stores, capabilities.stream.is_some());
        refuse_all(&mut pair.far, &mut stores, capabilities.stream.is_some());
        // Harmless, and no event follows.
        pair.near.close();
        pair.far.cancel(OpId(0));
        steps(&mut pair, 20).await;
        stores.check();
    });
}

fn refuse_all(node: &mut Node, stores: &mut Stores, stream: bool) {
    let (order, tokens) = (stores.order(), stores.tokens(1));
    let mut ops = vec![control(0, 100)];
    if stream {
        let payload = stores.from.payload(&[0], order, tokens.clone());
        ops.push(Op::Stream { tag: StreamTag(1), payload });
        let room = stores.to.room(&[0], order, tokens);
        ops.push(Op::Land { tag: StreamTag(1), room });
    } else {
        let extents = stores.from.payload(&[0], order, tokens.clone()).extents().to_vec();
        let room = stores.to.room(&[0], order, tokens);
        ops.push(Op::Get { region: RegionKey(0), extents, room });
    }
    for op in ops {
        let refused = node.try_submit(op).unwrap_err();
        assert!(matches!(refused.error, OpError::Closed(_)), "{}", refused.error);
        take_op(&mut stores.to, refused.op);
    }
}

fn refuse_unsupported(node: &mut Node, store: &mut Store, op: Op) {
    let refused = node.try_submit(op).unwrap_err();
    assert!(matches!(refused.error, OpError::Unsupported(_)), "{}", refused.error);
    take_op(store, refused.op);
}

/// Takes the room of a refused operation back.
pub(crate) fn take_op(store: &mut Store, op: Op) {
    if let Op::Land { room, .. } | Op::Get { room, .. } = op {
        store.take_back(OpMemory::Room(room));
    }
}
