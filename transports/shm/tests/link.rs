//! Two links of one process: frames, pulls, ends.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use blockwire::pool::{Backing, BlockPool, Extent};
use blockwire::transport::{
    CloseReason, Completion, LinkEvent, ListenError, Op, OpError, OpId, OpMemory, RegionKey,
    RegisterError, Transport,
};
use common::{
    SMALL_RING, accept, address, bytes_of, closed, completed, drive, drive_one, fill, frame, pair,
    pool, pool_faulted_in, received, room, run, submit, to_the_end, transport,
};

#[test]
fn frames_arrive_in_order_and_whole_whatever_the_ring() {
    for ring_len in [SMALL_RING, 1 << 20] {
        run(async {
            let mut links = pair(ring_len).await;
            let lens = [0, 1, 63, 4000, 4096, 5000, 0, 300_000, 7, 16 << 20, 0];
            let frames: Vec<_> = (0..).zip(lens).map(|(i, len)| frame(i, len)).collect();
            let mut ops = Vec::new();
            for link in &mut links {
                ops =
                    frames.iter().map(|f| submit(link.as_mut(), Op::Control(f.clone()))).collect();
            }
            let mut events = [Vec::new(), Vec::new()];
            drive(&mut links, &mut events, |e| {
                e.iter()
                    .all(|e| received(e).len() == lens.len() && completed(e).len() == lens.len())
            })
            .await;
            for events in &events {
                assert_eq!(received(events), frames);
                assert_eq!(completed(events), ops);
            }
        });
    }
}

/// A thread per side, so that sleeping and waking races with sending.
#[test]
fn no_wake_up_is_lost_between_two_threads() {
    const ROUNDS: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let place = address(dir.path());
    let (ready, is_ready) = std::sync::mpsc::channel();
    let dialled = place.clone();
    let echo = std::thread::spawn(move || {
        run(async {
            let mut listener = transport(SMALL_RING).listen(&place).await.unwrap();
            ready.send(()).unwrap();
            let mut link = accept(listener.as_mut()).await.unwrap();
            let (mut events, mut echoed) = (Vec::new(), 0);
            while echoed < ROUNDS {
                drive_one(link.as_mut(), &mut events, |e| !received(e).is_empty()).await;
                for frame in received(&events) {
                    submit(link.as_mut(), Op::Control(frame));
                    echoed += 1;
                }
                events.clear();
            }
            link.close();
            to_the_end(link.as_mut()).await.1
        })
    });
    is_ready.recv().unwrap();
    run(async {
        let mut link = transport(SMALL_RING).connect(&dialled).await.unwrap();
        let mut events = Vec::new();
        let (mut sent, mut back) = (0, 0);
        while back < ROUNDS {
            // One in flight, now and then a burst that fills the ring.
            let burst = if sent % 97 == 0 { 40 } else { 1 };
            while sent < ROUNDS && sent - back < burst {
                submit(link.as_mut(), Op::Control(frame(sent, (sent % 300) as usize)));
                sent += 1;
            }
            drive_one(link.as_mut(), &mut events, |e| !received(e).is_empty()).await;
            for got in received(&events) {
                assert_eq!(got, frame(back, (back % 300) as usize));
                back += 1;
            }
            events.clear();
        }
        assert!(matches!(to_the_end(link.as_mut()).await.1, CloseReason::PeerGone));
    });
    assert!(matches!(echo.join().unwrap(), CloseReason::Local));
}

#[test]
fn a_pull_copies_once_and_digests_what_arrived() {
    // Few blocks stay in the caches, many go past them.
    for taken in [3, 300] {
        a_pull_of(taken, &pool(600, Backing::Shared), &pool(600, Backing::Private));
        let [theirs, mine] = [Backing::Shared, Backing::Private].map(|b| pool_faulted_in(600, b));
        a_pull_of(taken, &theirs, &mine);
    }
}

/// Takes every second block of `theirs`, backwards.
fn a_pull_of(taken: usize, theirs: &BlockPool, mine: &BlockPool) {
    run(async {
        let [mut owner, mut puller] = pair(SMALL_RING).await;
        let sealed: Vec<_> =
            fill(room(theirs, 600), 3).into_iter().map(|block| block.seal()).collect();
        let key = owner.register(theirs.region()).unwrap();
        assert_eq!(owner.register(theirs.region()).unwrap(), key);

        let stride = theirs.spec().block_bytes();
        let mut extents: Vec<_> =
            (0..taken).rev().map(|i| Extent { offset: i * 2 * stride, len: stride }).collect();
        extents.insert(2, Extent { offset: 0, len: 0 });
        let op = Op::Get { region: key, extents: extents.clone(), room: room(mine, taken) };
        let op = submit(puller.as_mut(), op);
        let mut events = Vec::new();
        drive_one(puller.as_mut(), &mut events, |events| !events.is_empty()).await;
        let Some(LinkEvent::Completed(Completion { op: done, memory, outcome })) = events.pop()
        else {
            panic!("{events:?}")
        };
        let OpMemory::Room(mut room) = memory else { panic!("no room came back") };
        assert_eq!(done, op);

        let mut expected = Vec::new();
        for extent in extents {
            // SAFETY: sealed blocks, which nobody writes to.
            expected.extend_from_slice(unsafe {
                std::slice::from_raw_parts(theirs.base().as_ptr().add(extent.offset), extent.len)
            });
        }
        assert_eq!(bytes_of(&mut room), expected);
        let mut digest = blockwire::pool::Digest::default();
        digest.update(&expected);
        assert_eq!(outcome.unwrap(), digest.value());
        assert_eq!(puller.stats().copied(), expected.len() as u64);
        assert_eq!(puller.stats().landed(), expected.len() as u64);
        assert_eq!(owner.stats().copied(), 0);
        drop((sealed, room));
        assert_eq!((theirs.accounting().free, mine.accounting().free), (600, 600));
    });
}

#[test]
fn pulls_that_do_not_fit_are_refused_whole() {
    run(async {
        let [mut owner, mut puller] = pair(SMALL_RING).await;
        let (theirs, mine) = (pool(4, Backing::Shared), pool(4, Backing::Private));
        let key = owner.register(theirs.region()).unwrap();
        let len = theirs.region().len();
        let block = theirs.spec().block_bytes();
        let unknown = RegionKey(key.0 + 1);
        for (region, extents) in [
            (unknown, vec![Extent { offset: 0, len: block }]),
            (key, vec![Extent { offset: 0, len: block - 1 }]),
            (key, vec![Extent { offset: 0, len: block + 1 }]),
            (key, vec![Extent { offset: len - block + 1, len: block }]),
            (key, vec![Extent { offset: usize::MAX, len: block }]),
            (
                key,
                vec![Extent { offset: 0, len: usize::MAX }, Extent { offset: 0, len: block + 1 }],
            ),
            (key, vec![]),
        ] {
            let asked = Op::Get { region, extents: extents.clone(), room: room(&mine, 1) };
            let refused = puller.submit(asked).unwrap_err();
            match refused.error {
                OpError::UnknownRegion(key) => assert_eq!(key, unknown),
                OpError::BadExtents => assert_eq!(region, key),
                other => panic!("{other}"),
            }
            assert!(matches!(refused.op, Op::Get { extents: back, .. } if back == extents));
        }
        assert_eq!(mine.accounting().free, 4);
        assert!(matches!(owner.register(mine.region()), Err(RegisterError::PrivatePages)));
    });
}

#[test]
fn cancelled_operations_complete_once_and_give_their_memory_back() {
    run(async {
        let [mut owner, mut puller] = pair(SMALL_RING).await;
        let (theirs, mine) = (pool(600, Backing::Shared), pool(600, Backing::Private));
        let key = owner.register(theirs.region()).unwrap();
        let extents = vec![Extent { offset: 0, len: 600 * theirs.spec().block_bytes() }];
        let get = submit(puller.as_mut(), Op::Get { region: key, extents, room: room(&mine, 600) });
        // More than one poll may move, so the first leaves it in the middle.
        let mut events = Vec::new();
        drive_one(puller.as_mut(), &mut events, {
            let mut polls = 0;
            move |_| {
                polls += 1;
                polls == 2
            }
        })
        .await;
        assert!(events.is_empty());
        assert!((1..theirs.region().len() as u64).contains(&puller.stats().landed()));
        puller.cancel(get);
        puller.cancel(get);
        puller.cancel(OpId(999));
        // The ring holds the first frame only in part; the second has not begun.
        let first = submit(puller.as_mut(), Op::Control(frame(1, 9000)));
        let second = submit(puller.as_mut(), Op::Control(frame(2, 9000)));
        drive_one(puller.as_mut(), &mut events, |events| !events.is_empty()).await;
        puller.cancel(first);
        puller.cancel(second);
        let mut links = [puller, owner];
        let mut both = [events, Vec::new()];
        drive(&mut links, &mut both, |e| completed(&e[0]).len() == 3 && e[1].len() == 1).await;
        let mut outcomes = std::collections::HashMap::new();
        for event in &both[0] {
            let LinkEvent::Completed(done) = event else { panic!("{event:?}") };
            assert!(outcomes.insert(done.op, done.outcome.is_ok()).is_none());
        }
        assert_eq!([get, first, second].map(|op| outcomes[&op]), [false, true, false]);
        drop(both);
        assert_eq!(mine.accounting().free, 600);
    });
}

#[test]
fn close_sends_what_was_accepted_and_the_peer_reads_it_after_the_end() {
    run(async {
        let [mut closer, mut other] = pair(1 << 20).await;
        let frames: Vec<_> = (0..100).map(|i| frame(i, 100)).collect();
        for frame in &frames {
            submit(closer.as_mut(), Op::Control(frame.clone()));
        }
        closer.close();
        let refused = closer.submit(Op::Control(frame(0, 0))).unwrap_err();
        assert!(matches!(refused.error, OpError::Closed(CloseReason::Local)));
        let (events, reason) = to_the_end(closer.as_mut()).await;
        assert!(matches!(reason, CloseReason::Local));
        assert_eq!(completed(&events).len(), 100);
        drop(closer);
        let (events, reason) = to_the_end(other.as_mut()).await;
        assert!(matches!(reason, CloseReason::PeerGone));
        assert_eq!(received(&events), frames);
        assert!(matches!(events.last(), Some(LinkEvent::Closed(_))));
        let refused = other.submit(Op::Control(frame(0, 0))).unwrap_err();
        assert!(matches!(refused.error, OpError::Closed(CloseReason::PeerGone)));
    });
}

#[test]
fn a_dropped_link_ends_every_operation_of_its_peer() {
    run(async {
        let [mut owner, mut puller] = pair(SMALL_RING).await;
        let (theirs, mine) = (pool(600, Backing::Shared), pool(600, Backing::Private));
        let key = owner.register(theirs.region()).unwrap();
        let extents = vec![Extent { offset: 0, len: 600 * theirs.spec().block_bytes() }];
        submit(puller.as_mut(), Op::Get { region: key, extents, room: room(&mine, 600) });
        submit(puller.as_mut(), Op::Control(frame(0, 100_000)));
        // Unread bytes of the puller make the end a reset; both count as gone.
        drop(owner);
        let (events, reason) = to_the_end(puller.as_mut()).await;
        assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
        assert_eq!(completed(&events).len(), 2);
        assert!(closed(&events[..2]).is_none());
        drop(events);
        assert_eq!(mine.accounting().free, 600);
    });
}

#[test]
fn an_address_is_bound_once_and_left_clean() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let place = address(dir.path());
        let listener = transport(SMALL_RING).listen(&place).await.unwrap();
        let again = transport(SMALL_RING).listen(&place).await;
        assert!(matches!(again, Err(ListenError::InUse { .. })));
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(place.target()).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

        // A socket of another program that holds no lock.
        let foreign = std::os::unix::net::UnixListener::bind(place.target()).unwrap();
        let taken = transport(SMALL_RING).listen(&place).await;
        assert!(matches!(taken, Err(ListenError::InUse { .. })));
        drop(foreign);
        transport(SMALL_RING).listen(&place).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(transport(SMALL_RING).connect(&place).await.is_err());
    });
}
