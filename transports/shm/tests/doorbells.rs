//! What sleeping costs: system calls are counted for the whole process, so this file has one test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use blockwire::transport::{Link, LinkEvent, Op, Transport};
use blockwire_shm::{ShmOptions, ShmTransport, doorbells};
use common::{accept, address, drive_one, frame, received, run, submit};

const ROUNDS: u64 = 5_000;

#[test]
fn awake_peers_make_no_system_calls_and_idle_ones_sleep() {
    let (rung, asleep) = (rung_for(Duration::from_secs(600)), rung_for(Duration::ZERO));
    // Each end slept before its first message at most, and rings at its close.
    assert!(rung <= 4, "{rung} doorbells for {ROUNDS} messages there and back");
    assert!(asleep > rung, "{asleep} doorbells between peers that sleep at once");
    an_idle_link_is_not_polled();
}

/// Doorbells of a conversation between two threads.
fn rung_for(spin_limit: Duration) -> u64 {
    let before = doorbells();
    let dir = tempfile::tempdir().unwrap();
    let (place, transport) = (address(dir.path()), transport(spin_limit));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (tell, is_over) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let bound = place.clone();
        scope.spawn(move || {
            run(async {
                let mut listener = transport.listen(&bound).await.unwrap();
                ready.send(()).unwrap();
                let mut link = accept(listener.as_mut()).await.unwrap();
                for round in 0..ROUNDS {
                    expect(link.as_mut(), round).await;
                    submit(link.as_mut(), Op::Control(frame(round, 8)));
                }
                // The last answer leaves with the last polls.
                let mut events = Vec::new();
                let sent = |events: &[LinkEvent]| !events.is_empty();
                drive_one(link.as_mut(), &mut events, sent).await;
                is_over.recv().unwrap();
            });
        });
        run(async {
            is_ready.recv().unwrap();
            let mut link = transport.connect(&place).await.unwrap();
            for round in 0..ROUNDS {
                submit(link.as_mut(), Op::Control(frame(round, 8)));
                expect(link.as_mut(), round).await;
            }
        });
        tell.send(()).unwrap();
    });
    doorbells() - before
}

async fn expect(link: &mut dyn Link, round: u64) {
    let mut events = Vec::new();
    drive_one(link, &mut events, |events| !received(events).is_empty()).await;
    assert_eq!(received(&events), [frame(round, 8)]);
}

/// Once nothing passes, a link stops waking its task by itself.
fn an_idle_link_is_not_polled() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let transport = transport(Duration::from_millis(1));
        let mut listener = transport.listen(&address(dir.path())).await.unwrap();
        let dialled = transport.connect(&listener.local_address());
        let (dialled, accepted) = tokio::join!(dialled, accept(listener.as_mut()));
        let [mut idle, mut peer] = [dialled.unwrap(), accepted.unwrap()];
        submit(peer.as_mut(), Op::Control(frame(0, 8)));
        drive_one(peer.as_mut(), &mut Vec::new(), |events| !events.is_empty()).await;
        expect(idle.as_mut(), 0).await;

        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut events = Vec::new();
        let mut polls = 0;
        loop {
            let before = wakes.0.load(Relaxed);
            let poll = idle.poll_progress(&mut Context::from_waker(&waker), &mut events);
            polls += 1;
            if poll.is_pending() && wakes.0.load(Relaxed) == before {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert!(polls > 1, "it did not spin");
        let before = wakes.0.load(Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(wakes.0.load(Relaxed), before, "an idle link was woken");
    });
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn transport(spin_limit: Duration) -> ShmTransport {
    ShmTransport::new(ShmOptions { spin_limit, ..ShmOptions::default() })
}
