//! T1: does a handoff between two processes' pools on one host grow with the KV, when the receiver
//! adopts?
//!
//! ```text
//! cargo bench -p blockwire-benches --bench adopt
//! ```
//! Time from the offer to the commit, over shared memory, of sequences from 1 MiB to 1 GiB; sizes take
//! turns within a round. Both sides run in one process, each with its pool, its endpoint and its thread,
//! over a real shared-memory link. The blocks of a sequence lie in random order. The target: within twice
//! the smallest sequence's time, plus 10 ns a block; and 1 GiB in less than 100 us.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use blockwire::clock;
use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event};
use blockwire::handoff::{
    SequenceHandoff, SequenceState, extract_sequence_handoff, send_handoff_payload,
};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Transport};
use blockwire_shm::ShmTransport;
use bytes::Bytes;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use uuid::Uuid;

const MIB: usize = 1 << 20;
/// Sequences, in MiB.
const SIZES: [usize; 5] = [1, 8, 64, 256, 1024];
/// Handoffs of each size.
const ROUNDS: usize = 200;
/// Handoffs before any is counted.
const WARM_UP: usize = 50;

/// Shapes whose blocks of 16 tokens differ in size.
fn shapes() -> [(&'static str, KvSpec); 2] {
    [
        ("Llama-3.1-8B", KvSpec::uniform(16, 32, 8, 128, Dtype::F16)),
        ("SmolLM2-135M", KvSpec::uniform(16, 30, 3, 64, Dtype::F16)),
    ]
}

fn side(spec: &KvSpec, blocks: usize) -> (EndpointOptions, BlockPool) {
    let options =
        PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec.clone(), blocks) };
    let pool = BlockPool::new(options).expect("memory for the pool");
    let transport: Arc<dyn Transport> = Arc::new(ShmTransport::default());
    (EndpointOptions::new(Identity::new("bench"), Some(pool.clone()), vec![transport]), pool)
}

/// Runs a side in the calling thread: its driver and its user.
fn run<F: Future<Output = ()>>(options: EndpointOptions, user: impl FnOnce(Endpoint) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (endpoint, driver) = Endpoint::local(options);
    LocalSet::new().block_on(&runtime, async { tokio::join!(driver, user(endpoint)) });
}

/// Adopts whatever it is offered, and lets go of it.
async fn decode(endpoint: Endpoint, pool: BlockPool, bind: Address, ready: std_mpsc::Sender<()>) {
    let mut listening = endpoint.listen(&bind).await.expect("a free address");
    ready.send(()).expect("somebody waits");
    let (_connection, mut events) = listening.accept().await.expect("a peer");
    let options = IngestOptions { tokens_max: 1 << 30, growth: 16, adopt: true };
    while let Some(Event::Handoff(incoming)) = events.next().await {
        let sequence = ingest_sequence_handoff(incoming, &pool, options).await.expect("adopted");
        assert!(sequence.adopted().is_some() && sequence.is_intact());
    }
}

async fn prefill(endpoint: Endpoint, pool: BlockPool, bind: Address) {
    let (connection, _events) = endpoint.connect(&bind).await.expect("a peer");
    let sequences: Vec<SequenceHandoff> =
        SIZES.iter().map(|mib| sequence(&pool, mib * MIB)).collect();
    let mut times = vec![Vec::new(); SIZES.len()];
    for round in 0..WARM_UP + ROUNDS {
        for (sequence, times) in sequences.iter().zip(&mut times) {
            let elapsed = hand_over(&connection, sequence.clone()).await;
            if round >= WARM_UP {
                times.push(elapsed);
            }
        }
    }
    report(&sequences, &mut times);
    let copied = connection.stats().payload_copied;
    assert_eq!(copied, 0, "nothing was copied");
}

/// Whole blocks in random order.
fn sequence(pool: &BlockPool, bytes: usize) -> SequenceHandoff {
    let count = (bytes / pool.spec().block_bytes()).max(1);
    let mut blocks = pool.try_reserve(count).expect("blocks");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for index in (1..count).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        blocks.swap(index, random as usize % (index + 1));
    }
    let mut sequence = KvSequence::new(pool);
    sequence.push(blocks).expect("blocks of this pool");
    sequence.set_len(sequence.capacity());
    extract_sequence_handoff(SequenceState::PoolBacked(&mut sequence)).expect("not empty")
}

async fn hand_over(connection: &Connection, sequence: SequenceHandoff) -> Duration {
    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
    let start = clock::now();
    send_handoff_payload(connection, key, sequence, Bytes::new()).await.expect("committed");
    clock::now() - start
}

fn report(sequences: &[SequenceHandoff], times: &mut [Vec<Duration>]) {
    println!(
        "{:>9} {:>7} {:>10} {:>10} {:>10} {:>9} {:>8}",
        "KV MiB", "blocks", "median us", "min", "max", "allowed", "ns/block"
    );
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut first = None;
    for (sequence, times) in sequences.iter().zip(times) {
        times.sort_unstable();
        let (median, blocks) = (micros(times[times.len() / 2]), sequence.blocks().len());
        let smallest = *first.get_or_insert(median);
        let allowed = 2.0 * smallest + 0.01 * blocks as f64;
        println!(
            "{:>9} {blocks:>7} {median:>10.1} {:>10.1} {:>10.1} {allowed:>9.1} {:>8.1}",
            sequence.payload_len() as usize / MIB,
            micros(times[0]),
            micros(times[times.len() - 1]),
            (median - smallest) * 1e3 / blocks as f64,
        );
    }
}

fn main() {
    for (name, spec) in shapes() {
        let blocks: usize = SIZES.iter().map(|mib| mib * MIB / spec.block_bytes() + 1).sum();
        println!("\n{name}, blocks of {} KiB", spec.block_bytes() / 1024);
        let path =
            std::env::temp_dir().join(format!("blockwire-adopt-{}.sock", std::process::id()));
        let bind: Address = format!("shm:{}", path.display()).parse().expect("an address");
        let (ready, is_ready) = std_mpsc::channel();
        let (options, pool) = side(&spec, 64);
        let there = bind.clone();
        let thread = std::thread::spawn(move || {
            run(options, |endpoint| decode(endpoint, pool, there, ready));
        });
        is_ready.recv().expect("the decode side is up");
        let (options, pool) = side(&spec, blocks);
        run(options, |endpoint| prefill(endpoint, pool, bind));
        thread.join().expect("the decode side ends");
    }
}
