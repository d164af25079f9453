//! How long does a small message wait while gigabytes go the same way?
//!
//! Two nodes over the loopback, on cpu 0 and cpu 1, each with its user's tasks on its driver's thread. A
//! message of 64 bytes leaves every millisecond: at first alone, then in the middle of 4 GiB of handoffs
//! whose payload is always under way. Bound: twice the idle p99, and one frame of payload (1 MiB) at the
//! speed of the same run. Rounds with other limits of what the kernel may hold back are interleaved.
//!
//! `cargo bench -p blockwire-benches --bench tcp_fair`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use blockwire::clock;
use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event};
use blockwire::handoff::{
    SequenceHandoff, SequenceState, extract_sequence_handoff, send_handoff_payload,
};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::Transport;
use blockwire::wire::PAYLOAD_LEN_MAX;
use blockwire_benches::host::pin;
use blockwire_benches::{Samples, run_side, runs};
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use tokio::task::spawn_local;
use tokio::time::sleep;
use uuid::Uuid;

/// Blocks of a pool, all of a handoff, of 2 MiB each.
const BLOCKS: usize = 128;
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

fn main() {
    let limits = [None, Some(1 << 20), Some(256 << 10), Some(64 << 10)];
    let mut table = limits.map(|limit| (limit, Default::default()));
    for _ in 0..runs() {
        for (limit, columns) in &mut table {
            let mut options = TcpOptions::default();
            options.unsent_len_max = *limit;
            let [alone, amid, frame, ratio, speed]: &mut [Samples; 5] = columns;
            let round = round(options);
            let (idle, busy) = (round.alone.quantile(0.99), round.amid.quantile(0.99));
            alone.push(idle);
            amid.push(busy);
            frame.push(round.frame);
            ratio.push(busy / (2.0 * idle + round.frame));
            speed.push(PAYLOAD_LEN_MAX as f64 / round.frame / 1000.0);
        }
    }
    println!(
        "64 bytes amid 4 GiB of handoffs over tcp, p99 in us; cpus 0 and 1; {} rounds",
        runs()
    );
    for (limit, [alone, amid, frame, ratio, speed]) in &table {
        let limit = limit.map_or("the kernel's".to_owned(), |len| format!("{} KiB", len >> 10));
        println!("unsent at most {limit}:");
        println!("  alone {alone}, amid {amid}, a frame {frame}, at {speed} GB/s");
        println!("  amid / (2 x alone + frame), < 1: {:.2}", ratio.median());
    }
}

fn round(options: TcpOptions) -> Round {
    let transport: Arc<dyn Transport> = Arc::new(TcpTransport::new(options));
    let (bound, is_bound) = channel();
    let base = clock::now();
    std::thread::scope(|scope| {
        let for_far = transport.clone();
        let far = scope.spawn(move || {
            pin(1);
            side(for_far, async move |endpoint, pool| {
                let bind = "tcp://127.0.0.1:0".parse().expect("an address");
                let mut listening = endpoint.listen(&bind).await.expect("a free address");
                bound.send(listening.local_address().clone()).expect("a dialler");
                let (_peer, mut events) = listening.accept().await.expect("a peer");
                let mut waits = [Vec::new(), Vec::new()];
                loop {
                    match events.next().await.expect("the last message comes first") {
                        Event::Handoff(incoming) => {
                            let pool = pool.clone();
                            let options =
                                IngestOptions { tokens_max: usize::MAX, growth: 0, adopt: false };
                            spawn_local(async move {
                                drop(ingest_sequence_handoff(incoming, &pool, options).await);
                            });
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
            })
        });
        let near = scope.spawn(move || {
            pin(0);
            let address = is_bound.recv().expect("a listener");
            side(transport, async move |endpoint, pool| {
                let (connection, _events) = endpoint.connect(&address).await.expect("a peer");
                for _ in 0..IDLE {
                    post(&connection, base, ALONE).await;
                }
                let handoff = written(&pool);
                let frame = Rc::new(Cell::new(None));
                spawn_local(hand_over(connection.clone(), handoff, frame.clone()));
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
            })
        });
        let frame = near.join().expect("no panic");
        let [alone, amid] = far.join().expect("no panic").map(Samples::from_iter);
        Round { alone, amid, frame }
    })
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
async fn hand_over(connection: Connection, handoff: SequenceHandoff, frame: Rc<Cell<Option<f64>>>) {
    let (start, mut bytes) = (clock::now(), 0);
    for _ in 0..HANDOFFS {
        let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
        let sent = send_handoff_payload(&connection, key, handoff.clone(), Bytes::new());
        bytes += sent.await.expect("committed").payload_len;
    }
    let frames = bytes as f64 / PAYLOAD_LEN_MAX as f64;
    frame.set(Some(start.elapsed().as_secs_f64() * 1e6 / frames));
}

fn written(pool: &BlockPool) -> SequenceHandoff {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(BLOCKS).expect("a fresh pool");
    blocks.iter_mut().for_each(|block| block.fill(1));
    sequence.push(blocks).expect("of this pool");
    sequence.set_len(sequence.capacity());
    extract_sequence_handoff(SequenceState::PoolBacked(&mut sequence)).expect("not empty")
}

/// Runs a side with a pool of its own on this thread.
fn side<T: 'static>(
    transport: Arc<dyn Transport>,
    user: impl AsyncFnOnce(&Endpoint, BlockPool) -> T + 'static,
) -> T {
    let spec = KvSpec::uniform(16, 32, 8, 128, Dtype::F16);
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, BLOCKS) };
    let pool = BlockPool::new(options).expect("memory for the pool");
    let options = EndpointOptions::new(Identity::new("bench"), Some(pool.clone()), vec![transport]);
    run_side(options, async move |endpoint| user(endpoint, pool).await)
}
