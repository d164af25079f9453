//! T1: does a handoff between two processes' pools on one host grow with the KV, when the receiver
//! adopts?
//!
//! ```text
//! cargo bench -p blockwire-benches --bench adopt
//! ```
//! Time from the offer to the commit, over shared memory, of sequences from 1 MiB to 1 GiB, whose blocks
//! lie in random order; sizes take turns. Two threads, on cpu 0 and cpu 1, each with its pool and its
//! endpoint over a real shared-memory link. A round's figure is the median of its handoffs; a line shows
//! the median of the rounds and their range. The target: within twice the smallest sequence's time, plus
//! 10 ns a block; and 1 GiB in less than 100 us.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use blockwire::clock;
use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event};
use blockwire::handoff::{SequenceHandoff, extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Transport};
use blockwire_benches::host::pin;
use blockwire_benches::{Samples, run_side, runs};
use blockwire_shm::ShmTransport;
use bytes::Bytes;
use uuid::Uuid;

const MIB: usize = 1 << 20;
/// Sequences, in MiB.
const SIZES: [usize; 5] = [1, 8, 64, 256, 1024];
/// Handoffs of each size in a round.
const HANDOFFS: usize = 200;
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

/// Adopts whatever it is offered, and lets go of it.
async fn decode(endpoint: &Endpoint, pool: BlockPool, bind: Address, ready: std_mpsc::Sender<()>) {
    let mut listening = endpoint.listen(&bind).await.expect("a free address");
    ready.send(()).expect("somebody waits");
    let (_connection, mut events) = listening.accept().await.expect("a peer");
    let options = IngestOptions { tokens_max: 1 << 30, growth: 16, adopt: true, keys: &[] };
    while let Some(Event::Handoff(incoming)) = events.next().await {
        let taken = ingest_sequence_handoff(incoming, &pool, options).await.expect("adopted");
        let sequence = taken.sequence;
        assert!(sequence.adopted().is_some() && sequence.is_intact());
    }
}

async fn prefill(endpoint: &Endpoint, pool: BlockPool, bind: Address) {
    let (connection, _events) = endpoint.connect(&bind).await.expect("a peer");
    let sequences: Vec<SequenceHandoff> =
        SIZES.iter().map(|mib| sequence(&pool, mib * MIB)).collect();
    let mut rounds = vec![Samples::default(); SIZES.len()];
    for _ in 0..runs() {
        let mut times = vec![Samples::default(); SIZES.len()];
        for number in 0..WARM_UP + HANDOFFS {
            for (sequence, times) in sequences.iter().zip(&mut times) {
                let elapsed = hand_over(&connection, sequence.clone()).await;
                if number >= WARM_UP {
                    times.push(elapsed.as_secs_f64() * 1e6);
                }
            }
        }
        rounds.iter_mut().zip(times).for_each(|(round, times)| round.push(times.median()));
    }
    report(&sequences, &rounds);
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
    extract_sequence_handoff(&mut sequence).expect("not empty")
}

async fn hand_over(connection: &Connection, sequence: SequenceHandoff) -> Duration {
    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
    let start = clock::now();
    send_handoff_payload(connection, key, sequence, Bytes::new()).await.expect("committed");
    clock::now() - start
}

fn report(sequences: &[SequenceHandoff], rounds: &[Samples]) {
    println!("{:>7} {:>7}  {:<24} {:>8} {:>9}", "MiB", "blocks", "us", "allowed", "ns/block");
    let smallest = rounds[0].median();
    for (sequence, times) in sequences.iter().zip(rounds) {
        let (mib, blocks) =
            (sequence.run().payload_len() as f64 / MIB as f64, sequence.run().blocks().len());
        let allowed = 2.0 * smallest + 0.01 * blocks as f64;
        let per_block = (times.median() - smallest) * 1e3 / blocks as f64;
        let times = times.to_string();
        println!("{mib:>7.1} {blocks:>7}  {times:<24} {allowed:>8.1} {per_block:>9.1}");
    }
}

fn main() {
    for (name, spec) in shapes() {
        let blocks: usize = SIZES.iter().map(|mib| mib * MIB / spec.block_bytes() + 1).sum();
        println!("\n{name}, blocks of {} KiB; {} rounds", spec.block_bytes() / 1024, runs());
        let path =
            std::env::temp_dir().join(format!("blockwire-adopt-{}.sock", std::process::id()));
        let bind: Address = format!("shm:{}", path.display()).parse().expect("an address");
        let (ready, is_ready) = std_mpsc::channel();
        let (options, pool) = side(&spec, 64);
        let there = bind.clone();
        let thread = std::thread::spawn(move || {
            pin(1);
            run_side(options, async move |endpoint| decode(endpoint, pool, there, ready).await);
        });
        is_ready.recv().expect("the decode side is up");
        let (options, pool) = side(&spec, blocks);
        pin(0);
        run_side(options, async move |endpoint| prefill(endpoint, pool, bind).await);
        thread.join().expect("the decode side ends");
    }
}
