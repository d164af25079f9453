//! What comes too early or too late: older tries of a request, a commit of what was not sent, an end of the
//! session before the end of its link.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::task::{Context, Wake};

use blockwire::clock;
use blockwire::pool::Lease;
use blockwire::session::{Action, HandoffKey, LandError, Notice, OfferError, SessionEnd};
use blockwire::transport::{CloseReason, LinkEvent, Op};
use blockwire::wire::{Header, Kind, body, encode_frame, split_frame};
use uuid::Uuid;

use super::world::{RECEIVER, SENDER, Way, World};

const REQUEST: Uuid = Uuid::from_u128(77);

/// Offers a try of the request to the receiver; what its user hears.
fn offer_try(world: &mut World, epoch: u32) -> Vec<Notice> {
    let rts = body::Rts { tokens: 7, block_tokens: 4, ..body::Rts::default() };
    let frame = encode_frame(Header::control(Kind::Rts, REQUEST, epoch), &rts).unwrap();
    let session = &mut world.sessions[RECEIVER];
    session.handle_event(LinkEvent::Received(frame), clock::now());
    std::iter::from_fn(|| session.poll_notice()).collect()
}

#[test]
fn an_older_try_of_a_request_is_declined_and_a_newer_one_replaces_it() {
    let mut world = World::new(Way::Push);
    world.settle();
    let key = |epoch| HandoffKey { request: REQUEST, epoch };
    let heard = offer_try(&mut world, 2);
    assert!(matches!(&heard[..], [Notice::Offered(found, _)] if *found == key(2)), "{heard:?}");

    let heard = offer_try(&mut world, 1);
    assert!(heard.is_empty(), "{heard:?}");
    let action = world.sessions[RECEIVER].poll_action();
    let Some(Action::Submit(Op::Control(frame), _)) = action else { panic!("{action:?}") };
    let (header, _) = split_frame(&frame).unwrap();
    assert_eq!((header.kind, header.epoch), (Kind::Decline, 1));

    let heard = offer_try(&mut world, 3);
    let replaced = matches!(&heard[..],
        [Notice::LandFailed(old, LandError::Withdrawn), Notice::Offered(new, _)]
            if *old == key(2) && *new == key(3));
    assert!(replaced, "{heard:?}");
    assert!(world.sessions[RECEIVER].end().is_none());
}

/// Nothing was sent yet that could have been checked.
#[test]
fn a_commit_before_the_digest_is_a_violation() {
    let mut world = World::new(Way::Push);
    world.offer(0);
    world.settle();
    let key = World::key(0);
    let header = Header::control(Kind::Ats, key.request, key.epoch);
    let frame = encode_frame(header, &body::Ats {}).unwrap();
    let session = &mut world.sessions[SENDER];
    session.handle_event(LinkEvent::Received(frame), clock::now());
    assert!(matches!(session.end(), Some(SessionEnd::Violated(_))), "{:?}", session.end());
    let committed = |notice: Notice| matches!(notice, Notice::OfferEnded(_, Ok(_)));
    assert!(!std::iter::from_fn(|| session.poll_notice()).any(committed));
}

/// The receiver hears of the end later, and reads until then.
#[test]
fn what_is_pulled_stays_until_the_link_is_gone() {
    let mut world = World::new(Way::Pull);
    world.begin(0);
    assert_eq!(world.ops[RECEIVER].len(), 1, "the pull has begun");
    world.sessions[SENDER].close("no longer needed");
    assert_eq!(world.pools[SENDER].accounting().free, 10);
    let gone = LinkEvent::Closed(CloseReason::Local);
    world.sessions[SENDER].handle_event(gone, clock::now());
    assert_eq!(world.pools[SENDER].accounting().free, 12);
}

/// The link completes what it was doing before it says that it has ended: one cause, one error.
#[test]
fn an_operation_that_ends_with_its_link_is_the_end_of_the_connection() {
    for way in [Way::Push, Way::Pull] {
        let mut world = World::new(way);
        world.begin(0);
        world.deliver(SENDER);
        world.settle();
        world.die();
        let [sender, receiver] = &mut world.sessions;
        let heard = sender.poll_notice();
        let gone = matches!(
            heard,
            Some(Notice::OfferEnded(_, Err(OfferError::Ended(SessionEnd::Link(_)))))
        );
        assert!(gone, "{heard:?}");
        let heard = receiver.poll_notice();
        let gone =
            matches!(heard, Some(Notice::LandFailed(_, LandError::Ended(SessionEnd::Link(_)))));
        assert!(gone, "{heard:?}");
    }
}

/// A sequence that the receiver adopted as a whole, while its commit is on its way.
fn committed_on_the_way() -> World {
    let mut world = World::new(Way::Adopt);
    world.begin(0);
    for side in [SENDER, RECEIVER] {
        world.deliver(side);
        world.settle();
    }
    world.commit(0);
    world.settle();
    assert!(world.known[&0].adopted.is_some());
    world
}

#[test]
fn what_was_committed_before_a_withdrawal_arrived_stays_lent() {
    let mut world = committed_on_the_way();
    world.withdraw(0);
    world.settle();
    world.deliver(SENDER);
    world.settle();
    assert_eq!(world.sessions[SENDER].counters().blocks_lent, 2);
    world.finish();
    world.check_end();
}

/// What a reader could tell when the blocks that it reads were free.
struct AtWake {
    lease: Arc<Lease>,
    told: AtomicU8,
}

const IN_FORCE: u8 = 1;
const ENDED: u8 = 2;

impl Wake for AtWake {
    fn wake(self: Arc<Self>) {
        let told = if self.lease.is_in_force() { IN_FORCE } else { ENDED };
        let _first = self.told.compare_exchange(0, told, SeqCst, SeqCst);
    }
}

/// Somebody waits for the blocks, and writes to them as soon as they are free.
#[test]
fn a_lease_ends_before_its_blocks_are_free() {
    let mut world = committed_on_the_way();
    let adopted = world.known[&0].adopted.as_ref().and_then(|sequence| sequence.adopted());
    let lease = adopted.unwrap().lease().clone();
    let at_wake = Arc::new(AtWake { lease, told: AtomicU8::new(0) });
    let pool = world.pools[SENDER].clone();
    let mut waiting = pin!(pool.reserve(12));
    let waker = at_wake.clone().into();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let gone = LinkEvent::Closed(CloseReason::PeerGone);
    world.sessions[SENDER].handle_event(gone, clock::now());
    assert_eq!(at_wake.told.load(SeqCst), ENDED);
}
