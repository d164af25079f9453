//! How long does a small message wait while gigabytes go the same way?
//!
//! Two nodes over the loopback, on cpu 0 and cpu 1, each with its user's tasks on its driver's thread. A
//! message of 64 bytes leaves every millisecond: at first alone, then in the middle of 4 GiB of handoffs
//! whose payload is always under way. Bound: twice the idle p99, and one frame of payload (1 MiB) at the
//! speed of the same run. Rounds over several connections, the first of which has nothing but control, are
//! interleaved, and rounds where the system may hold back as much as it likes.
//!
//! `cargo bench -p blockwire-benches --bench tcp_fair`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use blockwire::clock;
use blockwire::endpoint::{Connection, Event, Events};
use blockwire::handoff::SequenceHandoff;
use blockwire::pool::BlockPool;
use blockwire::wire::PAYLOAD_LEN_MAX;
use blockwire_benches::nodes::{hand_over, pair, take, written};
use blockwire_benches::{Samples, runs};
use blockwire_tcp::TcpOptions;
use bytes::Bytes;
use tokio::task::spawn_local;
use tokio::time::sleep;
use uuid::Uuid;

/// Handoffs of a round: 4 GiB.
const HANDOFFS: usize = 16;
/// Messages of the idle part.
const IDLE: usize = 1000;
/// Bytes of a message.
const MESSAGE_LEN: usize = 64;
/// Kinds of messages.
const ALONE: u32 = 1;
const AMID: u32 = 2;
const LAST: u32 = 3;

/// What one round came to, in microseconds.
struct Round {
    alone: Samples,
    amid: Samples,
    frame: f64,
}

/// What is compared: how it is called, what stands behind the address, and how much the system may hold back.
const WAYS: [(&str, &str, Option<u32>); 4] = [
    ("one connection, as much unsent as the system likes", "", None),
    ("one connection", "", UNSENT),
    ("three connections", "?stripes=3", UNSENT),
    ("four connections", "?stripes=4", UNSENT),
];
/// As set by default.
const UNSENT: Option<u32> = Some(256 << 10);

fn main() {
    let mut table = WAYS.map(|way| (way, Default::default()));
    for _ in 0..runs() {
        for ((_, query, unsent), columns) in &mut table {
            let mut options = TcpOptions::default();
            options.unsent_len_max = *unsent;
            let [alone, amid, frame, ratio, speed]: &mut [Samples; 5] = columns;
            let round = round(options, query);
            let (idle, busy) = (round.alone.quantile(0.99), round.amid.quantile(0.99));
            alone.push(idle);
            amid.push(busy);
            frame.push(round.frame);
            ratio.push(busy / (2.0 * idle + round.frame));
            speed.push(PAYLOAD_LEN_MAX as f64 / round.frame / 1000.0);
        }
    }
    println!("64 bytes amid 4 GiB of handoffs, p99 in us; cpus 0 and 1; {} rounds", runs());
    for ((what, ..), [alone, amid, frame, ratio, speed]) in &table {
        println!("{what}:");
        println!("  alone {alone}, amid {amid}, a frame {frame}, at {speed} GB/s");
        println!("  amid / (2 x alone + frame), < 1: {:.2}", ratio.median());
    }
}

fn round(options: TcpOptions, query: &'static str) -> Round {
    let base = clock::now();
    let near = async move |connection: Connection, pool, _| {
        for _ in 0..IDLE {
            post(&connection, base, ALONE).await;
        }
        let handoff = written(&pool);
        let frame = Rc::new(Cell::new(None));
        spawn_local(hand_all_over(connection.clone(), handoff, frame.clone()));
        let frame = loop {
            post(&connection, base, AMID).await;
            if let Some(frame) = frame.get() {
                break frame;
            }
        };
        let last = connection.send(Uuid::nil(), 0, LAST, Bytes::new());
        last.await.expect("an open connection");
        connection.closed().await;
        frame
    };
    let far = async move |mut events: Events, pool: BlockPool| {
        let mut waits = [Vec::new(), Vec::new()];
        loop {
            match events.next().await.expect("the last message comes first") {
                Event::Handoff(incoming) => {
                    let pool = pool.clone();
                    spawn_local(async move { take(incoming, &pool).await });
                }
                Event::Message(message) if message.kind == LAST => return waits,
                Event::Message(message) => {
                    let now = base.elapsed().as_nanos() as u64;
                    let sent = message.body.first_chunk().expect("a time in it");
                    let wait = now - u64::from_le_bytes(*sent);
                    waits[message.kind as usize - 1].push(wait as f64 / 1000.0);
                }
            }
        }
    };
    let (frame, waits) = pair(options, query, near, far);
    let [alone, amid] = waits.map(Samples::from_iter);
    Round { alone, amid, frame }
}

/// Sends a message that carries its time, and rests.
async fn post(connection: &Connection, base: Instant, kind: u32) {
    let mut body = [0; MESSAGE_LEN];
    let now = base.elapsed().as_nanos() as u64;
    body[..8].copy_from_slice(&now.to_le_bytes());
    connection.post(Uuid::nil(), 0, kind, Bytes::copy_from_slice(&body));
    sleep(Duration::from_millis(1)).await;
}

/// Hands everything over, again and again; tells what a frame took, in microseconds.
async fn hand_all_over(
    connection: Connection,
    handoff: SequenceHandoff,
    frame: Rc<Cell<Option<f64>>>,
) {
    let (start, mut bytes) = (clock::now(), 0);
    for _ in 0..HANDOFFS {
        bytes += hand_over(&connection, &handoff).await;
    }
    let frames = bytes as f64 / PAYLOAD_LEN_MAX as f64;
    frame.set(Some(start.elapsed().as_secs_f64() * 1e6 / frames));
}
