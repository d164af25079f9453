//! A payload in pieces: what comes in another order, what is not what it should be, and what is let go.

use blockwire::clock;
use blockwire::pool::Digest;
use blockwire::session::{HandoffKey, LandError, Notice, OfferError, SessionEnd, SessionViolation};
use blockwire::transport::{LinkEvent, Op, OpError, OpId, OpMemory};
use blockwire::wire::{Header, Kind, body, encode_frame, split_frame};
use bytes::Bytes;
use uuid::Uuid;

use super::world::{RECEIVER, SENDER, Way, Wire, World};

const KEY: HandoffKey = HandoffKey { request: Uuid::from_u128(77), epoch: 1 };
/// An odd number: it is offered while it is computed, in three pieces.
const STREAMED: u32 = 1;
/// It is cut by layers too.
const LAYERED: u32 = 5;

fn say(world: &mut World, side: usize, key: HandoffKey, kind: Kind, body: &impl prost::Message) {
    let frame = encode_frame(Header::control(kind, key.request, key.epoch), body).unwrap();
    world.sessions[side].handle_event(LinkEvent::Received(frame), clock::now());
}

fn heard(world: &mut World, side: usize) -> Vec<Notice> {
    std::iter::from_fn(|| world.sessions[side].poll_notice()).collect()
}

/// What a side has said since, without payload.
fn said(world: &mut World, side: usize) -> Vec<Kind> {
    let kind = |wire| match wire {
        Wire::Frame(frame) => Some(split_frame(&frame).unwrap().0.kind),
        Wire::Payload(..) => None,
    };
    world.wires[1 - side].drain(..).filter_map(kind).collect()
}

fn rts(tokens: u64, piece_tokens: u32) -> body::Rts {
    body::Rts { tokens, block_tokens: 4, piece_tokens, ..body::Rts::default() }
}

/// The receiver has room for a sequence of three pieces; the operations that fill it.
fn accepted(world: &mut World) -> Vec<OpId> {
    say(world, RECEIVER, KEY, Kind::Rts, &rts(11, 4));
    heard(world, RECEIVER);
    let blocks = world.pools[RECEIVER].try_reserve(3).unwrap();
    world.sessions[RECEIVER].accept(KEY, &world.pools[RECEIVER], blocks, 0);
    world.settle();
    let tags = world.ops[RECEIVER].iter().map(|(_, op, _)| match op {
        Op::Land { tag, room } => (tag.0, room.len()),
        _ => panic!("{op:?}"),
    });
    let tags: Vec<_> = tags.collect();
    let token = world.pools[RECEIVER].spec().token_bytes() as u64;
    assert_eq!(tags, [(1, 4 * token), (2, 4 * token), (3, 3 * token)]);
    assert_eq!(said(world, RECEIVER), [Kind::Rtr]);
    world.ops[RECEIVER].iter().map(|(id, ..)| *id).collect()
}

/// Ends one of the receiver's operations.
fn land(world: &mut World, op: OpId, outcome: Result<u64, OpError>) {
    let index = world.ops[RECEIVER].iter().position(|(id, ..)| *id == op).unwrap();
    let (id, op, _) = world.ops[RECEIVER].remove(index);
    let Op::Land { room, .. } = op else { panic!("{op:?}") };
    world.completed(RECEIVER, id, OpMemory::Room(room), outcome);
}

fn world() -> World {
    let mut world = World::new(Way::Push);
    world.settle();
    world.wires.iter_mut().for_each(|wire| wire.clear());
    world
}

#[test]
fn pieces_land_in_any_order_and_after_the_last_word() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        for word in 0..=3 {
            let mut world = World::new(Way::Push);
            let ops = accepted(&mut world);
            let atp = body::Atp {
                digest: Digest::of_parts(&[10, 11, 12]),
                closing: Bytes::from_static(b"end"),
            };
            for (count, piece) in order.into_iter().enumerate() {
                if count == word {
                    say(&mut world, RECEIVER, KEY, Kind::Atp, &atp);
                }
                assert!(heard(&mut world, RECEIVER).is_empty(), "{count} of 3 pieces are here");
                land(&mut world, ops[piece], Ok(10 + piece as u64));
            }
            if word == 3 {
                assert!(heard(&mut world, RECEIVER).is_empty());
                say(&mut world, RECEIVER, KEY, Kind::Atp, &atp);
            }
            let landed = heard(&mut world, RECEIVER).pop();
            let Some(Notice::Landed(_, landed)) = landed else { panic!("{landed:?}") };
            assert_eq!((landed.blocks.len(), &landed.closing[..]), (3, &b"end"[..]));
        }
    }
}

#[test]
fn one_piece_that_differs_takes_all_of_them() {
    let mut world = World::new(Way::Push);
    let ops = accepted(&mut world);
    let digest = Digest::of_parts(&[10, 11, 12]);
    say(&mut world, RECEIVER, KEY, Kind::Atp, &body::Atp { digest, closing: Bytes::new() });
    for (op, digest) in ops.into_iter().zip([10, 99, 12]) {
        land(&mut world, op, Ok(digest));
    }
    let failed = heard(&mut world, RECEIVER).pop();
    assert!(matches!(failed, Some(Notice::LandFailed(_, LandError::Digest { .. }))), "{failed:?}");
    world.settle();
    assert_eq!(said(&mut world, RECEIVER), [Kind::Decline]);
    assert_eq!(world.pools[RECEIVER].accounting().free, 12);
    assert!(world.sessions[RECEIVER].is_idle());
}

/// The others are still with the link, which may write to them: their blocks wait, and the sender is told at once.
#[test]
fn one_piece_that_fails_takes_all_of_them() {
    let mut world = World::new(Way::Push);
    let ops = accepted(&mut world);
    land(&mut world, ops[0], Ok(10));
    land(&mut world, ops[2], Err(OpError::Unsupported("today")));
    let failed = heard(&mut world, RECEIVER).pop();
    assert!(matches!(failed, Some(Notice::LandFailed(_, LandError::Transport(_)))), "{failed:?}");
    world.settle();
    assert_eq!(said(&mut world, RECEIVER), [Kind::Decline]);
    assert_eq!(world.pools[RECEIVER].accounting().quarantined, 3);
    let left: Vec<_> =
        world.ops[RECEIVER].iter().map(|(id, _, cancelled)| (*id, *cancelled)).collect();
    assert_eq!(left, [(ops[1], true)]);
    land(&mut world, ops[1], Err(OpError::Cancelled));
    assert!(heard(&mut world, RECEIVER).is_empty(), "it has failed already");
    assert_eq!(world.pools[RECEIVER].accounting().free, 12);
    assert!(world.sessions[RECEIVER].is_idle());
}

#[test]
fn pieces_that_are_none_are_declined() {
    let named = body::Rts { blocks: Bytes::from_static(&[0; 12]), ..rts(11, 4) };
    let layered =
        |tokens, layered_from| body::Rts { piece_layers: 1, layered_from, ..rts(tokens, 4) };
    for (way, offer) in [
        (Way::Push, rts(1 << 31, 4)),
        (Way::Push, rts(4 * 1024 + 1, 4)),
        (Way::Push, rts(11, 6)),
        (Way::Push, rts(11, 1)),
        (Way::Push, layered(11, 2)),
        (Way::Push, layered(4 * 512 + 1, 0)),
        (Way::Push, layered(1 << 31, u64::MAX)),
        (Way::Pull, named),
    ] {
        let mut world = World::new(way);
        heard(&mut world, RECEIVER);
        say(&mut world, RECEIVER, KEY, Kind::Rts, &offer);
        assert!(heard(&mut world, RECEIVER).is_empty(), "{offer:?} is an offer");
        world.settle();
        assert_eq!(said(&mut world, RECEIVER), [Kind::Decline]);
        assert!(world.sessions[RECEIVER].end().is_none());
    }
}

#[test]
fn a_last_word_is_short_and_comes_once() {
    let long = body::Atp { digest: 1, closing: vec![0; (64 << 10) + 1].into() };
    let short = body::Atp { digest: 1, closing: vec![0; 64 << 10].into() };
    for (words, violation) in [
        (vec![&long], SessionViolation::ClosingLen((64 << 10) + 1)),
        (vec![&short, &short], SessionViolation::OutOfPlace(Kind::Atp)),
    ] {
        let mut world = World::new(Way::Push);
        accepted(&mut world);
        words.into_iter().for_each(|word| say(&mut world, RECEIVER, KEY, Kind::Atp, word));
        let ended = world.sessions[RECEIVER].end();
        assert!(
            matches!(ended, Some(SessionEnd::Violated(found)) if *found == violation),
            "{ended:?}"
        );
    }
}

#[test]
fn what_is_asked_for_is_on_a_block_has_tags_and_is_asked_for_once() {
    let rtr = |tag, needed_from| body::Rtr { tag, needed_from, adopts: false };
    let last = u64::MAX;
    for (asked, violated) in [
        (vec![rtr(5, 0), rtr(8, 0)], SessionViolation::OutOfPlace(Kind::Rtr)),
        (vec![rtr(0, 0)], SessionViolation::OutOfPlace(Kind::Rtr)),
        (vec![rtr(last - 2, 0)], SessionViolation::BadRange),
        (vec![rtr(5, 2)], SessionViolation::BadRange),
        (vec![rtr(5, 12)], SessionViolation::BadRange),
        (vec![body::Rtr { adopts: true, ..rtr(0, 4) }], SessionViolation::BadRange),
    ] {
        let mut world = world();
        world.offer(STREAMED);
        for rtr in &asked {
            assert!(world.sessions[SENDER].end().is_none());
            say(&mut world, SENDER, World::key(STREAMED), Kind::Rtr, rtr);
        }
        let ended = world.sessions[SENDER].end();
        assert!(
            matches!(ended, Some(SessionEnd::Violated(found)) if *found == violated),
            "{asked:?}: {ended:?}"
        );
    }
}

/// What has left is with the link and nobody else: the pool has it back before the rest is computed.
#[test]
fn a_piece_is_free_once_it_is_sent() {
    let mut world = World::new(Way::Push);
    world.begin(0);
    world.finish();
    world.begin(STREAMED);
    world.deliver(SENDER);
    world.settle();
    assert_eq!(world.pools[SENDER].accounting().free, 9);
    for sent in 1..=2 {
        world.push(STREAMED);
        world.settle();
        assert_eq!(world.ops[SENDER].len(), 1, "it leaves before the next one is there");
        world.complete(SENDER, 0, false);
        world.settle();
        assert_eq!(world.pools[SENDER].accounting().free, 9 + sent);
    }
    assert!(!world.known[&STREAMED].committed);
    world.finish();
    world.check_end();
    assert!(world.known[&STREAMED].committed);
}

/// Of the tokens that are cut by layers, each layer by itself; of those before, all layers at once.
#[test]
fn a_layer_leaves_when_it_is_written_while_others_are_not() {
    let mut world = World::new(Way::Push);
    (0..LAYERED).for_each(|number| {
        world.begin(number);
        world.finish();
    });
    world.begin(LAYERED);
    world.deliver(SENDER);
    world.settle();
    let token = world.pools[SENDER].spec().token_bytes() as u64;
    // A block, its first layer, two blocks, their last layer.
    let sent = [vec![], vec![], vec![(1, 2 * token)], vec![(3, 3 * token / 2)]];
    let last = vec![(0, 4 * token), (2, 2 * token), (4, 3 * token / 2)];
    let mut first = None;
    for expected in sent.into_iter().chain([last]) {
        world.push(LAYERED);
        world.settle();
        let sent = world.ops[SENDER].iter().map(|(_, op, _)| match op {
            Op::Stream { tag, payload } => (tag.0, payload.len()),
            _ => panic!("{op:?}"),
        });
        let sent: Vec<_> = sent.collect();
        if let (None, Some((tag, _))) = (first, sent.first()) {
            first = Some(tag - 1);
        }
        let place = |(at, len)| (first.unwrap() + at, len);
        assert_eq!(sent, expected.into_iter().map(place).collect::<Vec<_>>());
        while !world.ops[SENDER].is_empty() {
            world.complete(SENDER, 0, false);
            world.settle();
        }
    }
    world.finish();
    world.check_end();
    assert!(world.known[&LAYERED].committed);
}

/// The user may have failed to compute it, or be gone.
#[test]
fn a_stream_that_is_not_finished_can_only_be_withdrawn() {
    for pushed in 0..=3 {
        let mut world = World::new(Way::Lingering);
        world.begin(0);
        world.finish();
        world.begin(STREAMED);
        world.deliver(SENDER);
        world.settle();
        for _ in 0..pushed {
            world.push(STREAMED);
            world.settle();
            world.complete(SENDER, 0, false);
            world.settle();
            world.deliver(RECEIVER);
            world.settle();
        }
        assert!(world.known[&STREAMED].landed.is_none());
        world.withdraw(STREAMED);
        world.finish();
        world.check_end();
        assert!(!world.known[&STREAMED].committed);
    }
}

/// A mistake of this side's costs the offer that it is made with.
#[test]
fn blocks_that_do_not_fit_end_the_offer() {
    let seal = |pool: &blockwire::pool::BlockPool, count| {
        let blocks = pool.try_reserve(count).unwrap();
        blocks.into_iter().map(blockwire::pool::ReservedBlock::seal).collect::<Vec<_>>()
    };
    for mistake in 0..4 {
        let mut world = World::new(Way::Push);
        world.begin(0);
        world.finish();
        world.begin(STREAMED);
        heard(&mut world, SENDER);
        let key = World::key(STREAMED);
        let blocks = match mistake {
            0 => seal(&world.pools[RECEIVER], 1),
            1 => seal(&world.pools[SENDER], 4),
            2 => seal(&world.pools[SENDER], 2),
            _ => seal(&world.pools[SENDER], 3),
        };
        let sender = &mut world.sessions[SENDER];
        sender.finish_offer(key, blocks, vec![0; if mistake == 3 { 1 << 20 } else { 0 }].into());
        let notices = heard(&mut world, SENDER);
        let [Notice::OfferEnded(found, Err(error))] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!(*found, key);
        match mistake {
            3 => assert!(matches!(error, OfferError::TooLarge(_)), "{error}"),
            _ => assert!(matches!(error, OfferError::Blocks(_)), "{error}"),
        }
        // The receiver's user hears of it too.
        world.known.get_mut(&STREAMED).unwrap().sender_ended += 1;
        world.known.get_mut(&STREAMED).unwrap().unsent.clear();
        world.finish();
        world.check_end();
    }
}
