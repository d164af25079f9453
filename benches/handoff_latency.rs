//! T7: what does a handoff of one small block cost, from offer to commit, while both sides are awake?
//!
//! Two threads, on cpu 0 and cpu 1; each drives its endpoint and its user's task on a runtime of its
//! own (`Endpoint::local`), so that no step waits for another thread of the same side. The block has
//! 4 KiB: what is measured is the exchange, not the copy. Floor: as many ways of 64 bytes through a
//! slot of shared memory as a handoff has frames (offer, answer, digest, commit).
//!
//! `cargo bench -p blockwire-benches --bench handoff_latency`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::sync::Arc;
use std::sync::mpsc::channel;

use blockwire::clock;
use blockwire::endpoint::{Endpoint, EndpointOptions, Event};
use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Transport};
use blockwire_benches::host::{core_distance, pin};
use blockwire_benches::{Samples, print_ratio, run_side, runs};
use blockwire_shm::ShmTransport;
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use uuid::Uuid;

/// The block is moved, as where it cannot be adopted.
const COPYING: IngestOptions<'static> =
    IngestOptions { tokens_max: 64, growth: 0, adopt: false, keys: &[] };
/// Handoffs of a round, after as many to warm up.
const HANDOFFS: usize = 1000;
/// Frames that follow each other in a handoff.
const FRAMES: f64 = 4.0;

fn main() {
    let wires: [(Arc<dyn Transport>, &str, &str); 2] = [
        (Arc::new(ShmTransport::default()), "", "shm / four slots (<= 30 us)"),
        (Arc::new(TcpTransport::default()), "tcp://127.0.0.1:0", "tcp / four slots (<= 150 us)"),
    ];
    let mut floor = Samples::default();
    let mut figures = wires.each_ref().map(|_| [Samples::default(), Samples::default()]);
    for _ in 0..runs() {
        floor.push(core_distance() * FRAMES / 1000.0);
        for ((transport, bind, _), [middle, tail]) in wires.iter().zip(&mut figures) {
            let samples = handoffs(transport, bind);
            middle.push(samples.median());
            tail.push(samples.quantile(0.99));
        }
    }
    println!("handoff of one block, us, offer to commit; cpus 0 and 1; {} rounds", runs());
    for ((_, _, what), [middle, tail]) in wires.iter().zip(&figures) {
        print_ratio(what, &floor, middle);
        println!("  p99 {tail}");
    }
}

/// A round of handoffs between two threads, in microseconds each.
fn handoffs(transport: &Arc<dyn Transport>, bind: &str) -> Samples {
    let folder = tempfile::tempdir().expect("a folder");
    let bind = match bind {
        "" => Address::new("shm", &folder.path().join("x.sock").to_string_lossy()),
        bind => bind.parse().expect("an address"),
    };
    let (bound, is_bound) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            on_own_runtime(transport, async move |endpoint, pool| {
                let mut listening = endpoint.listen(&bind).await.expect("a free address");
                bound.send(listening.local_address().clone()).expect("a dialler");
                let (_peer, mut events) = listening.accept().await.expect("a peer");
                while let Some(Event::Handoff(incoming)) = events.next().await {
                    drop(ingest_sequence_handoff(incoming, &pool, COPYING).await);
                }
            });
        });
        scope
            .spawn(move || {
                pin(0);
                let address = is_bound.recv().expect("a listener");
                on_own_runtime(transport, async move |endpoint, pool| {
                    let (connection, _) = endpoint.connect(&address).await.expect("a peer");
                    let mut sequence = KvSequence::new(&pool);
                    sequence.push(pool.try_reserve(1).expect("a block")).expect("of this pool");
                    sequence.set_len(sequence.capacity());
                    let handoff = extract_sequence_handoff(&mut sequence).expect("not empty");
                    let mut samples = Samples::default();
                    for number in 0..2 * HANDOFFS {
                        let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
                        let start = clock::now();
                        let sent =
                            send_handoff_payload(&connection, key, handoff.clone(), Bytes::new());
                        sent.await.expect("committed");
                        if number >= HANDOFFS {
                            samples.push(start.elapsed().as_nanos() as f64 / 1000.0);
                        }
                    }
                    samples
                })
            })
            .join()
            .expect("no panic")
    })
}

/// Runs a side with a pool of its own on this thread.
fn on_own_runtime<T: 'static>(
    transport: &Arc<dyn Transport>,
    user: impl AsyncFnOnce(&Endpoint, BlockPool) -> T + 'static,
) -> T {
    let spec = KvSpec::uniform(16, 1, 2, 32, Dtype::F16);
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, 64) };
    let pool = BlockPool::new(options).expect("memory for the pool");
    let transports = vec![transport.clone()];
    let options = EndpointOptions::new(Identity::new("bench"), Some(pool.clone()), transports);
    run_side(options, async move |endpoint| user(endpoint, pool).await)
}
