//! No wake-up is lost. Every test of the suite would get stuck over one; these look for it.

use std::sync::mpsc::channel;

use blockwire::transport::{Op, StreamTag};

use crate::Harness;
use crate::drive::{steps, until};
use crate::frames::{control, frame};
use crate::moves::Stores;
use crate::node::Node;
use crate::rig::{Rig, accept, listen, skip};
use crate::store::Random;

/// Messages that go there and back.
const ROUNDS: u32 = 10_000;

/// Ten thousand messages, each sent only when the one before came back, with the runtime getting in
/// between at random.
pub fn ten_thousand_messages_go_there_and_back<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let mut pair = rig.pair().await;
        let mut random = Random::new(7);
        for number in 0..ROUNDS {
            let len = random.below(200);
            let there = pair.near.submit(control(number, len));
            if random.below(4) == 0 {
                tokio::task::yield_now().await;
            }
            until(&mut pair, "a message arrives", |p| !p.far.received().is_empty()).await;
            assert!(pair.far.received().pop_front() == Some(frame(number, len)));
            if random.below(4) == 0 {
                tokio::task::yield_now().await;
            }
            let back = pair.far.submit(control(number, len));
            until(&mut pair, "an answer arrives", |p| {
                !p.near.received().is_empty() && p.near.is_done(there) && p.far.is_done(back)
            })
            .await;
            assert!(pair.near.received().pop_front() == Some(frame(number, len)));
            assert!(pair.near.take(there).outcome.is_ok() && pair.far.take(back).outcome.is_ok());
        }
    });
}

/// The same between two threads, each with a runtime of its own, which sleep while they wait.
pub fn messages_wake_another_thread<H: Harness>() {
    if !H::CROSSES_THREADS {
        return skip("both ends are on one thread");
    }
    let rig = Rig::<H>::new(false);
    let (listening, dialling) = (rig.transport(), rig.transport());
    let address = rig.harness().address();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || {
            let runtime = H::runtime();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let mut listener = listen(&*listening, &address).await;
                tell.send(listener.local_address()).unwrap();
                let mut node = Node::new("answering", accept(&mut *listener).await.unwrap());
                for number in 0..ROUNDS {
                    until(&mut node, "a message arrives", |n| !n.received().is_empty()).await;
                    assert!(node.received().pop_front() == Some(frame(number, 8)));
                    node.submit(control(number, 8));
                }
                until(&mut node, "the other end is gone", |n| n.closed().is_some()).await;
            });
        });
        rig.block_on(async {
            let address = told.recv().unwrap();
            let mut node = Node::new("asking", dialling.connect(&address).await.unwrap());
            for number in 0..ROUNDS {
                node.submit(control(number, 8));
                until(&mut node, "an answer arrives", |n| !n.received().is_empty()).await;
                assert!(node.received().pop_front() == Some(frame(number, 8)));
            }
            until(&mut node, "all is sent", |n| n.outstanding() == 0).await;
            node.close();
            until(&mut node, "the end is reported", |n| n.closed().is_some()).await;
        });
        answering.join().unwrap();
    });
}

/// An end that is idle is woken by its peer's frames, however many come at once, by its close and by
/// its death.
pub fn an_idle_end_is_woken_by_whatever_happens<H: Harness>() {
    for kill in [false, true] {
        Rig::<H>::both_ways(async |rig| {
            let mut pair = rig.pair().await;
            for burst in (1..20).chain([1, 1, 100, 1]) {
                steps(&mut pair, 30).await;
                let ops: Vec<_> = (0..burst).map(|n| pair.near.submit(control(n, 0))).collect();
                until(&mut pair, "frames arrive", |p| {
                    p.far.received().len() == burst as usize
                        && ops.iter().all(|op| p.near.is_done(*op))
                })
                .await;
                pair.far.received().clear();
            }
            steps(&mut pair, 30).await;
            if kill {
                pair.near.kill();
            } else {
                pair.near.close();
            }
            until(&mut pair, "the idle end closes", |p| p.far.closed().is_some()).await;
        });
    }
}

/// A receiver that has been idle since it made room is woken when the payload is there.
pub fn an_idle_receiver_is_woken_by_payload<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        if pair.near.capabilities().stream.is_none() {
            return skip("the link has no stream");
        }
        let mut stores = Stores::large(rig, 64);
        for (round, blocks) in (1..).zip([1, 2, 64, 1, 30]) {
            let (tag, table) = (StreamTag(round), (0..blocks).collect::<Vec<_>>());
            let (payload, room) = stores.lists(&table);
            let land = pair.far.submit(Op::Land { tag, room });
            steps(&mut pair, 30).await;
            let sent = pair.near.submit(Op::Stream { tag, payload });
            until(&mut pair, "a payload arrives", |p| p.near.is_done(sent) && p.far.is_done(land))
                .await;
            let digest = stores.arrived(&table);
            assert_eq!(stores.to.take_success(pair.far.take(land)), digest);
            assert_eq!(stores.from.take_success(pair.near.take(sent)), digest);
        }
        stores.check();
    });
}
