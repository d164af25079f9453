//! How long does one wait for a cache that leaves while its prompt is computed?
//!
//! A prompt of 2,048 tokens in eight chunks, 256 MiB of cache, over loopback TCP, with its ends on cpu 0 and cpu 1:
//! handed over as a whole once all is computed; and chunk by chunk, while a pretended model computes the next one for half
//! as long again as a chunk takes on the wire. The time counts from the computed prompt to the commit. The floor is
//! the last chunk's share of the whole, which nothing can hide; the target is 1.1 times that, or 2 ms.
//!
//! `cargo bench -p blockwire-benches --bench streamed_handoff`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::time::Duration;

use blockwire::clock;
use blockwire::endpoint::{Connection, Event, Events};
use blockwire::handoff::{HandoffSender, SendReport, SequenceHandoff};
use blockwire::pool::{BlockPool, SealedBlock};
use blockwire::session::HandoffKey;
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
    exposed: Vec<f64>,
    ahead: Samples,
}

fn main() {
    let near = async |connection: Connection, pool: BlockPool, _: Address| {
        let handoff = written(&pool);
        hand_over(&connection, &handoff).await;
        let mut rounds = Rounds::default();
        for _ in 0..runs() {
            let start = clock::now();
            hand_over(&connection, &handoff).await;
            let whole = clock::now() - start;
            let report = stream(&connection, &handoff, whole * 3 / 2 / CHUNKS as u32).await;
            rounds.whole.push(whole.as_secs_f64() * 1e3);
            rounds.exposed.push(report.exposed.as_secs_f64() * 1e3);
            rounds.ahead.push(report.ahead_len as f64 / report.payload_len as f64);
        }
        rounds
    };
    let far = async |mut events: Events, pool: BlockPool| {
        while let Some(Event::Handoff(incoming)) = events.next().await {
            take(incoming, &pool).await;
        }
    };
    let (Rounds { whole, exposed, ahead }, ()) = pair(TcpOptions::default(), "", near, far);
    let shares: Vec<f64> = whole.iter().map(|whole| whole / CHUNKS as f64).collect();
    println!("256 MiB of cache over loopback tcp; cpus 0 and 1; {} rounds", runs());
    println!("waited for, as a whole, ms          {}", Samples::from(&whole[..]));
    println!("waited for, in {CHUNKS} chunks, ms        {}", Samples::from(&exposed[..]));
    println!("as a ratio to the last one's share  {}", ratios(&exposed, &shares));
    println!("of the bytes, left ahead            {ahead}");
}

/// Computes for `chunk` at a time, and hands over meanwhile.
async fn stream(connection: &Connection, handoff: &SequenceHandoff, chunk: Duration) -> SendReport {
    let (run, key) = (handoff.run(), HandoffKey { request: Uuid::new_v4(), epoch: 1 });
    let blocks: Vec<SealedBlock> = run.blocks().cloned().collect();
    let len = blocks.len() / CHUNKS;
    let piece_tokens = (run.tokens() / CHUNKS) as u32;
    let sender =
        HandoffSender::new(connection.clone(), key, run.pool(), run.tokens(), Bytes::new());
    let mut sender = sender.in_pieces_of(piece_tokens);
    for computed in 0..CHUNKS - 1 {
        tokio::time::sleep(chunk).await;
        sender.push(computed * len, &blocks[computed * len..(computed + 1) * len]);
    }
    tokio::time::sleep(chunk).await;
    drop(blocks);
    sender.finish(handoff.clone(), Bytes::new()).await.expect("committed")
}
