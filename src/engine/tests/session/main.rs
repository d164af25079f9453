//! Two sessions over a link that this test plays: random steps, and what must always hold.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod order;
mod pieces;
mod world;

use std::time::Duration;

use blockwire::clock;
use blockwire::session::{Session, SessionEnd};
use blockwire::transport::LinkEvent;
use blockwire::wire::{Header, Kind, body, encode_frame};
use proptest::prelude::*;
use uuid::Uuid;

use world::{RECEIVER, SENDER, Way, World, step, timing};

/// A peer that does not give recalled blocks back loses them, and can tell.
#[test]
fn recalled_blocks_that_do_not_come_back_are_taken() {
    let mut world = World::new(Way::Adopt);
    world.offer(0);
    for _ in 0..20 {
        for side in [SENDER, RECEIVER] {
            world.settle();
            world.deliver(side);
            world.complete(side, 0, true);
        }
        world.accept(0);
        world.commit(0);
    }
    // Long after the peer was heard last: the time that it has counts from the recall.
    let now = clock::now() + Duration::from_millis(700);
    assert!(world.sessions[SENDER].recall_oldest(now));
    let due = now + timing().recall_max;
    let sender = &mut world.sessions[SENDER];
    sender.handle_time(due - Duration::from_millis(1));
    assert_eq!((sender.counters().blocks_lent, sender.counters().leases_revoked), (2, 0));
    assert!(sender.next_deadline().unwrap() <= due);
    sender.handle_time(due);
    assert_eq!((sender.counters().blocks_lent, sender.counters().leases_revoked), (0, 1));
    assert!(!world.known[&0].adopted.as_ref().unwrap().is_intact());
    // Its release comes too late, and changes nothing.
    world.release(0);
    world.finish();
    assert_eq!(world.sessions[SENDER].counters().late_frames, 1);
    world.check_end();
}

/// Words about leases that are over are counted, and nothing else.
#[test]
fn late_words_about_leases_are_counted_and_ignored() {
    let mut world = World::new(Way::Adopt);
    for kind in [Kind::Release, Kind::Release, Kind::Recall] {
        let key = World::key(7);
        let header = Header::control(kind, key.request, key.epoch);
        let frame = encode_frame(header, &body::Release {}).unwrap();
        world.sessions[SENDER].handle_event(LinkEvent::Received(frame), clock::now());
    }
    assert!(world.sessions[SENDER].end().is_none());
    assert_eq!(world.sessions[SENDER].counters().late_frames, 3);
    world.check_end();
}

#[test]
fn payload_that_moves_is_a_sign_of_life() {
    let mut world = World::new(Way::Push);
    let (session, now, silence) = (&mut world.sessions[SENDER], clock::now(), timing().silence_max);
    session.handle_traffic(now + silence);
    session.handle_time(now + silence + silence / 2);
    assert!(session.end().is_none());
    session.handle_time(now + silence * 2);
    assert!(matches!(session.end(), Some(SessionEnd::Silent)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_offer_ends_once_and_every_block_comes_back(
        way in prop_oneof![
            Just(Way::Push),
            Just(Way::Lingering),
            Just(Way::Pull),
            Just(Way::Adopt),
        ],
        steps in proptest::collection::vec((0u8..17, any::<u32>(), any::<usize>()), 0..120),
    ) {
        let mut world = World::new(way);
        for (kind, number, index) in steps {
            step(&mut world, kind, number, index);
        }
        world.finish();
        world.check_end();
    }
}

/// Blocks that linger are kept for a peer that answers, not for one that talks of other things.
#[test]
fn blocks_linger_until_the_ping_is_answered_or_the_peer_is_cut_off() {
    for answers in [true, false] {
        let mut world = World::new(Way::Lingering);
        world.begin(0);
        world.deliver(SENDER);
        world.settle();
        world.complete(SENDER, 0, false);
        world.settle();
        world.withdraw(0);
        world.settle();
        assert_eq!(world.pools[SENDER].accounting().free, 10);
        assert_eq!(world.sessions[SENDER].counters().offers_in_quarantine, 1);
        if answers {
            world.finish();
            world.check_end();
            continue;
        }
        let header = Header::control(Kind::Pong, Uuid::nil(), 0);
        let other = encode_frame(header, &body::Ping { nonce: 7 }).unwrap();
        let (mut now, sender) = (clock::now(), &mut world.sessions[SENDER]);
        for _ in 0..3 {
            assert!(sender.end().is_none());
            sender.handle_event(LinkEvent::Received(other.clone()), now);
            now += timing().silence_max * 3 / 4;
            assert!(sender.next_deadline().is_some());
            sender.handle_time(now);
        }
        assert!(matches!(sender.end(), Some(SessionEnd::Silent)), "{:?}", sender.end());
    }
}

/// Random steps rarely come so far before the link dies.
#[test]
fn what_is_lent_ends_with_the_link() {
    let mut world = World::new(Way::Adopt);
    world.offer(0);
    for round in 0..20 {
        for side in [SENDER, RECEIVER] {
            world.deliver(side);
            world.settle();
            world.complete(side, round, true);
            world.settle();
        }
        world.accept(0);
        world.settle();
        world.commit(0);
        world.settle();
    }
    assert_eq!(world.sessions[SENDER].counters().blocks_lent, 2);
    world.die();
    // Looks whether the reader knows.
    world.settle();
    assert_eq!(world.pools[SENDER].accounting().free, 12);
    assert!(world.sessions.iter().all(Session::is_idle));
}
