//! A peer that breaks the rules loses its connection, and touches nothing.

use blockwire::transport::{CloseReason, Op, StreamTag, Violation};

use crate::Harness;
use crate::cancel::STEPS;
use crate::drive::{Pair, steps, until};
use crate::moves::Stores;
use crate::rig::{Rig, skip};

/// Payload for a tag that was never posted, above, below or between those that were.
pub fn payload_that_nobody_asked_for_closes_the_link<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for tag in [1, 4, 6, 9, u64::MAX] {
            let mut pair = rig.pair().await;
            if pair.far.capabilities().stream.is_none() {
                return skip("the link has no stream");
            }
            let mut stores = Stores::small(rig, 8);
            let (order, tokens) = (stores.order(), stores.tokens(1));
            for (block, posted) in [3, 5, 8].into_iter().enumerate() {
                let room = stores.to.room(&[block as u32], order, tokens.clone());
                pair.far.submit(Op::Land { tag: StreamTag(posted), room });
            }
            let payload = stores.from.payload(&[0], order, tokens);
            pair.near.submit(Op::Stream { tag: StreamTag(tag), payload });
            let violation = ends_by_violation(&mut pair, &mut stores).await;
            assert!(
                matches!(violation, Violation::UnknownTag(StreamTag(t)) if t == tag),
                "{violation}"
            );
            stores.check();
        }
    });
}

/// Payload that is longer than its room.
pub fn payload_that_does_not_fit_closes_the_link<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        // Shorter and longer than what a transport moves at once.
        for (room_blocks, payload_blocks) in [(1, 2), (1, 100), (40, 41)] {
            let mut pair = rig.pair().await;
            if pair.far.capabilities().stream.is_none() {
                return skip("the link has no stream");
            }
            let mut stores = Stores::large(rig, 100);
            let (order, tag) = (stores.order(), StreamTag(1));
            let table: Vec<_> = (0..room_blocks).collect();
            let tokens = stores.tokens(room_blocks as usize);
            let room = stores.to.room(&table, order, tokens.clone());
            stores.to.expect_anything(&table, order, tokens);
            pair.far.submit(Op::Land { tag, room });
            let table: Vec<_> = (0..payload_blocks).collect();
            let payload = stores.from.payload(&table, order, stores.tokens(table.len()));
            pair.near.submit(Op::Stream { tag, payload });
            let violation = ends_by_violation(&mut pair, &mut stores).await;
            assert!(matches!(violation, Violation::PayloadRange { .. }), "{violation}");
            stores.check();
        }
    });
}

/// A stream that is cancelled on its way and sent again does not go on where the first ended.
pub fn a_payload_cannot_begin_twice<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for step in STEPS {
            let mut pair = rig.pair().await;
            if pair.far.capabilities().stream.is_none() {
                return skip("the link has no stream");
            }
            let mut stores = Stores::large(rig, 128);
            let (order, tag) = (stores.order(), StreamTag(1));
            let table: Vec<_> = (0..128).collect();
            let (payload, room) = stores.lists(&table);
            let land = pair.far.submit(Op::Land { tag, room });
            let first = pair.near.submit(Op::Stream { tag, payload: payload.clone() });
            steps(&mut pair, step).await;
            pair.near.cancel(first);
            until(&mut pair, "the stream is done", |p| p.near.is_done(first)).await;
            if pair.near.take(first).outcome.is_ok() {
                return;
            }
            pair.near.submit(Op::Stream { tag, payload });
            // Right where the first sent nothing; else the second is a violation.
            until(&mut pair, "the land is done", |p| p.far.is_done(land)).await;
            let completion = pair.far.take(land);
            if completion.outcome.is_ok() {
                let expected = stores.arrived(&table);
                assert_eq!(stores.to.take_success(completion), expected, "step {step}");
                until(&mut pair, "the second is done", |p| p.near.outstanding() == 0).await;
                pair.near.take_all();
            } else {
                stores.to.take_back(completion.memory);
                stores.to.expect_anything(&table, order, stores.tokens(table.len()));
                let violation = ends_by_violation(&mut pair, &mut stores).await;
                assert!(matches!(violation, Violation::PayloadRange { .. }), "{violation}");
            }
            stores.check();
        }
    });
}

/// Drives until both ends are closed, the far one because of a violation, and takes all memory back.
async fn ends_by_violation(pair: &mut Pair, stores: &mut Stores) -> Violation {
    until(pair, "both ends close", |p| p.near.closed().is_some() && p.far.closed().is_some()).await;
    pair.near.take_all().into_iter().for_each(|done| stores.from.take_back(done.memory));
    pair.far.take_all().into_iter().for_each(|done| stores.to.take_back(done.memory));
    let near = pair.near.closed().unwrap();
    assert!(matches!(near, CloseReason::PeerGone | CloseReason::Lost(_)), "near: {near}");
    match pair.far.closed().unwrap() {
        CloseReason::Violated(violation) => violation.clone(),
        other => panic!("the far end closed for another reason: {other}"),
    }
}
