//! How long does one wait for a cache that leaves while its prompt is computed?
//!
//! A prompt of 2,048 tokens in eight chunks, 256 MiB of cache in 32 layers, over loopback TCP, with its ends on cpu 0 and
//! cpu 1: handed over as a whole once all is computed; and chunk by chunk, and layer by layer, while a pretended model
//! computes for half as long again as a chunk takes on the wire. The time counts from the computed prompt to the
//! commit. The floors are the last chunk's share of the whole and the last layer's share of that, which nothing can
//! hide; the target is the last layer's transfer, or 2 ms.
//!
//! `cargo bench -p blockwire-benches --bench streamed_handoff`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::time::Duration;

use blockwire::clock;
use blockwire::endpoint::{Connection, Event, Events};
use blockwire::handoff::{HandoffSender, SendReport, extract_sequence_handoff};
use blockwire::pool::{BlockPool, KvSequence};
use blockwire::session::{HandoffKey, PieceCut};
use blockwire::transport::Address;
use blockwire_benches::nodes::{hand_over, pair, take, written};
use blockwire_benches::{Samples, ratios, runs};
use blockwire_tcp::TcpOptions;
use bytes::Bytes;
use uuid::Uuid;

/// Chunks of the prompt.
const CHUNKS: usize = 8;

/// Milliseconds of every round, and the part of the bytes that left ahead.
#[derive(Debug, Default)]
struct Rounds {
    whole: Vec<f64>,
    by_chunks: Vec<f64>,
    by_layers: Vec<f64>,
    chunks_ahead: Samples,
    layers_ahead: Samples,
    layers: usize,
}

fn main() {
    let near = async |connection: Connection, pool: BlockPool, _: Address| {
        hand_over(&connection, &written(&pool)).await;
        let mut rounds = Rounds { layers: pool.spec().layers.len(), ..Rounds::default() };
        for _ in 0..runs() {
            let handoff = written(&pool);
            let start = clock::now();
            hand_over(&connection, &handoff).await;
            let whole = clock::now() - start;
            let tokens = handoff.run().tokens();
            drop(handoff);
            let (step, chunk) = (tokens / CHUNKS, whole * 3 / 2 / CHUNKS as u32);
            rounds.whole.push(whole.as_secs_f64() * 1e3);
            let cut = PieceCut::by_tokens(step as u32);
            let report = stream(&connection, &pool, cut, chunk).await;
            rounds.by_chunks.push(report.exposed.as_secs_f64() * 1e3);
            rounds.chunks_ahead.push(report.ahead_len as f64 / report.payload_len as f64);
            let cut = PieceCut::suiting(pool.spec(), tokens, step);
            let report = stream(&connection, &pool, cut, chunk).await;
            rounds.by_layers.push(report.exposed.as_secs_f64() * 1e3);
            rounds.layers_ahead.push(report.ahead_len as f64 / report.payload_len as f64);
        }
        rounds
    };
    let far = async |mut events: Events, pool: BlockPool| {
        while let Some(Event::Handoff(incoming)) = events.next().await {
            take(incoming, &pool).await;
        }
    };
    let (rounds, ()) = pair(TcpOptions::default(), "", near, far);
    let Rounds { whole, by_chunks, by_layers, chunks_ahead, layers_ahead, layers } = rounds;
    let share = |parts: usize| -> Vec<f64> { whole.iter().map(|all| all / parts as f64).collect() };
    let target: Vec<f64> = share(CHUNKS * layers).iter().map(|share| share.max(2.0)).collect();
    println!("256 MiB of cache over loopback tcp; cpus 0 and 1; {} rounds", runs());
    println!("waited for, as a whole, ms               {}", Samples::from(&whole[..]));
    println!("waited for, in {CHUNKS} chunks, ms             {}", Samples::from(&by_chunks[..]));
    println!("as a ratio to the last one's share       {}", ratios(&by_chunks, &share(CHUNKS)));
    println!(
        "waited for, in {CHUNKS} x {layers} layers, ms        {}",
        Samples::from(&by_layers[..])
    );
    println!("as a ratio to 2 ms, or a layer's share   {}", ratios(&by_layers, &target));
    println!(
        "a layer's share of a chunk, ms           {}",
        Samples::from(&share(CHUNKS * layers)[..])
    );
    println!("of the bytes, left ahead, by chunks      {chunks_ahead}");
    println!("                          by layers      {layers_ahead}");
}

/// Computes for `chunk` at a time, and hands over meanwhile.
async fn stream(
    connection: &Connection,
    pool: &BlockPool,
    cut: PieceCut,
    chunk: Duration,
) -> SendReport {
    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
    let mut sequence = KvSequence::new(pool);
    let blocks = pool.reserve(pool.options().blocks).await.expect("so many");
    sequence.push(blocks).expect("of this pool");
    let (tokens, layers) = (sequence.capacity(), pool.spec().layers.len());
    let sender = HandoffSender::new(connection.clone(), key, pool, tokens, Bytes::new());
    let mut sender = sender.in_pieces(cut);
    for computed in 1..=CHUNKS {
        let (first, end) = (sequence.sealed().len(), tokens / CHUNKS * computed);
        let mut filling = sequence.share_layers(end);
        let start = clock::now();
        for layer in 0..layers {
            let due = start + chunk * (layer as u32 + 1) / layers as u32;
            // A timer would be too coarse; the link's work is done in between.
            while clock::now() < due {
                tokio::task::yield_now().await;
            }
            sequence.layer_written(layer);
            sender.push(first, &std::mem::take(&mut filling));
        }
        sequence.set_len(end);
        sequence.seal_full();
    }
    let handoff = extract_sequence_handoff(&mut sequence).expect("not empty");
    drop(sequence);
    sender.finish(handoff, Bytes::new()).await.expect("committed")
}
