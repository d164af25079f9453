//! T4: what does a control message of 64 bytes over `shm` cost, against what the machine can do?
//!
//! Two threads, on cpu 0 and cpu 1, each with a link of its own; one way is half of there and back.
//! - *spinning*: both ends poll all the time. Floor: 64 bytes through a slot of shared memory.
//! - *asleep*: both ends sleep at once when they have nothing, in a tokio runtime as a driver has
//!   it. Floor: `thread::park` and `unpark`, which are a bare futex on Linux.
//! - *awake*: links with default options under a runtime; both stay hot between messages.
//! - *load*: 64 messages on the way at a time; nanoseconds a message and system calls of both ends.
//!
//! Figure and floor take turns. `cargo bench -p blockwire-benches --bench shm_control`;
//! `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blockwire::clock;
use blockwire::transport::{Link, LinkEvent, Op};
use blockwire::wire::{Header, Kind};
use blockwire_benches::host::{core_distance, pin};
use blockwire_benches::{Samples, linked, print_ratio, runs};
use blockwire_shm::{ShmOptions, ShmTransport, doorbells};
use bytes::Bytes;
use uuid::Uuid;

/// Messages of one sample; the median over the samples forgives a thread that lost its cpu.
const BATCH: u64 = 100;
/// Samples of a round where both ends are awake.
const AWAKE_BATCHES: usize = 300;
/// Samples of a round where both ends sleep.
const ASLEEP_BATCHES: usize = 20;
/// Messages on the way at a time under load.
const WINDOW: u64 = 64;

fn main() {
    let (always, never) = (Duration::from_secs(3600), Duration::ZERO);
    let usual = ShmOptions::default().spin_limit;
    let [mut slot, mut spinning, mut futex, mut asleep] = <[Samples; 4]>::default();
    let [mut hot, mut load, mut rung] = <[Samples; 3]>::default();
    for _ in 0..runs() {
        slot.push(core_distance());
        let talk = |end| ping(end, AWAKE_BATCHES);
        spinning.push(converse(always, Wait::Poll, talk));
        hot.push(converse(usual, Wait::Runtime, talk));
        futex.push(parking());
        asleep.push(converse(never, Wait::Runtime, |end| ping(end, ASLEEP_BATCHES)));
        let before = doorbells();
        load.push(converse(usual, Wait::Runtime, |end| pump(end, AWAKE_BATCHES)));
        let messages = 2 * WINDOW * AWAKE_BATCHES as u64;
        rung.push((doorbells() - before) as f64 * 1000.0 / messages as f64);
    }
    println!("64 B control message, ns one way; cpus 0 and 1; {} rounds", runs());
    print_ratio("spinning / slot of shared memory (<= 2.5)", &slot, &spinning);
    print_ratio("asleep / futex (<= 1.2)", &futex, &asleep);
    print_ratio("hot, under a runtime / slot", &slot, &hot);
    print_ratio("64 on the way, a message / slot", &slot, &load);
    println!("doorbells per thousand messages, 64 on the way: {rung}");
}

/// How an end waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// By polling again at once, whatever the link says.
    Poll,
    /// As a task of a runtime.
    Runtime,
}

/// An end of a conversation, whose messages are headers without a body.
struct End {
    link: Box<dyn Link>,
    wait: Wait,
    message: Bytes,
    events: Vec<LinkEvent>,
}

impl End {
    fn new(link: Box<dyn Link>, wait: Wait) -> Self {
        let message = Header::control(Kind::Ping, Uuid::nil(), 0).encode(&[]);
        Self { link, wait, message: Bytes::copy_from_slice(&message), events: Vec::new() }
    }

    fn send(&mut self) {
        self.link.submit(Op::Control(self.message.clone())).expect("an open link");
    }

    /// Waits for messages; how many came, none at the end.
    async fn receive(&mut self) -> u64 {
        let Self { link, wait, events, .. } = self;
        poll_fn(|cx| {
            loop {
                let poll = match wait {
                    Wait::Poll => {
                        link.poll_progress(&mut Context::from_waker(Waker::noop()), events)
                    }
                    Wait::Runtime => link.poll_progress(cx, events),
                };
                let (mut received, mut closed) = (0, false);
                for event in events.drain(..) {
                    match event {
                        LinkEvent::Received(_) => received += 1,
                        LinkEvent::Closed(_) => closed = true,
                        LinkEvent::Completed(_) => {}
                    }
                }
                if received > 0 || closed {
                    return Poll::Ready(received);
                }
                if poll.is_pending() && *wait == Wait::Runtime {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    async fn receive_all(&mut self, mut count: u64) {
        while count > 0 {
            count -= self.receive().await;
        }
    }
}

/// A message there and back at a time: nanoseconds one way.
async fn ping(mut end: End, batches: usize) -> Samples {
    let mut samples = Samples::default();
    for batch in 0..=batches {
        let start = clock::now();
        for _ in 0..BATCH {
            end.send();
            end.receive_all(1).await;
        }
        // The first one warms up.
        if batch > 0 {
            samples.push(start.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
        }
    }
    samples
}

/// Many messages on the way: nanoseconds a message.
async fn pump(mut end: End, batches: usize) -> Samples {
    let mut samples = Samples::default();
    for _ in 0..batches {
        let start = clock::now();
        (0..WINDOW).for_each(|_| end.send());
        end.receive_all(WINDOW).await;
        samples.push(start.elapsed().as_nanos() as f64 / (2 * WINDOW) as f64);
    }
    samples
}

/// Runs `talk` on cpu 0 with a link whose peer, on cpu 1, echoes every message.
fn converse<F>(spin_limit: Duration, wait: Wait, talk: impl FnOnce(End) -> F + 'static) -> f64
where
    F: Future<Output = Samples> + 'static,
{
    let transport = ShmTransport::new(ShmOptions { spin_limit, ..ShmOptions::default() });
    let echo = async move |link| {
        let mut end = End::new(link, wait);
        loop {
            let received = end.receive().await;
            if received == 0 {
                return;
            }
            (0..received).for_each(|_| end.send());
        }
    };
    linked(transport, echo, async move |link| talk(End::new(link, wait)).await).median()
}

/// The floor of peers that sleep: nanoseconds one way.
fn parking() -> f64 {
    let turn = AtomicU64::new(0);
    let rounds = BATCH * ASLEEP_BATCHES as u64;
    let wait = |mine: u64| {
        while turn.load(Acquire) != mine {
            std::thread::park();
        }
    };
    let asking = std::thread::current();
    std::thread::scope(|scope| {
        pin(0);
        let answering = scope.spawn(|| {
            pin(1);
            for round in 0..rounds {
                wait(2 * round + 1);
                turn.store(2 * round + 2, Release);
                asking.unpark();
            }
        });
        let start = clock::now();
        for round in 0..rounds {
            turn.store(2 * round + 1, Release);
            answering.thread().unpark();
            wait(2 * round + 2);
        }
        start.elapsed().as_nanos() as f64 / (2 * rounds) as f64
    })
}
