//! What does a handoff that moves its payload cost from offer to commit, over each transport, against
//! one memcpy of as many bytes between two pools in one thread?
//!
//! `cargo bench -p blockwire-benches --bench handoff`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Listening};
use blockwire::handoff::{SequenceHandoff, extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Transport};
use blockwire_mem::MemTransport;
use blockwire_shm::ShmTransport;
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// Blocks of SmolLM2's shape: 368,640 bytes each.
const BLOCKS: [usize; 3] = [1, 16, 128];

fn spec() -> KvSpec {
    KvSpec::uniform(16, 30, 3, 64, Dtype::F16)
}

struct Side {
    endpoint: Endpoint,
    pool: BlockPool,
}

fn side(transport: &Arc<dyn Transport>) -> Side {
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec(), 256) };
    let pool = BlockPool::new(options).expect("memory for the pool");
    let transports = vec![transport.clone()];
    let options = EndpointOptions::new(Identity::new("bench"), Some(pool.clone()), transports);
    Side { endpoint: Endpoint::start(options).expect("a thread"), pool }
}

/// Two endpoints; the second takes whatever it is offered, and frees it.
struct Pair {
    prefill: Side,
    _decode: Endpoint,
    connection: Connection,
    _listening: Listening,
}

async fn pair(transport: Arc<dyn Transport>, bind: &str) -> Pair {
    let (prefill, decode) = (side(&transport), side(&transport));
    let bind: Address = bind.parse().expect("an address");
    let mut listening = decode.endpoint.listen(&bind).await.expect("a free address");
    let address = listening.local_address().clone();
    let (connection, _) = prefill.endpoint.connect(&address).await.expect("a peer");
    let (arrived, mut events) = listening.accept().await.expect("a peer");
    let pool = decode.pool;
    let copying = IngestOptions { tokens_max: 1 << 20, growth: 0, adopt: false, keys: &[] };
    tokio::spawn(async move {
        let _arrived = arrived;
        while let Some(Event::Handoff(incoming)) = events.next().await {
            drop(ingest_sequence_handoff(incoming, &pool, copying).await);
        }
    });
    Pair { prefill, _decode: decode.endpoint, connection, _listening: listening }
}

fn sequence(pool: &BlockPool, blocks: usize) -> SequenceHandoff {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(blocks).expect("blocks");
    blocks.iter_mut().for_each(|block| block.fill(7));
    sequence.push(blocks).expect("blocks of this pool");
    sequence.set_len(sequence.capacity());
    extract_sequence_handoff(&mut sequence).expect("not empty")
}

fn handoffs(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = std::env::temp_dir().join(format!("blockwire-bench-{}.sock", std::process::id()));
    let shm = format!("shm:{}", folder.display());
    let wires: [(Arc<dyn Transport>, &str); 3] = [
        (Arc::new(MemTransport::default()), "mem:bench"),
        (Arc::new(ShmTransport::default()), &shm),
        (Arc::new(TcpTransport::default()), "tcp://127.0.0.1:0"),
    ];
    let mut group = criterion.benchmark_group("handoff");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    for blocks in BLOCKS {
        let bytes = spec().block_bytes() * blocks;
        group.throughput(Throughput::Bytes(bytes as u64));
        let (from, mut to) = (vec![7u8; bytes], vec![0u8; bytes]);
        group.bench_function(BenchmarkId::new("floor: memcpy", blocks), |bencher| {
            bencher.iter(|| to.copy_from_slice(black_box(&from)));
        });
        for (transport, bind) in &wires {
            let pair = runtime.block_on(pair(transport.clone(), bind));
            let handoff = sequence(&pair.prefill.pool, blocks);
            group.bench_function(BenchmarkId::new(transport.scheme(), blocks), |bencher| {
                bencher.to_async(&runtime).iter(|| {
                    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
                    let handoff = handoff.clone();
                    let connection = &pair.connection;
                    async move {
                        let sent = send_handoff_payload(connection, key, handoff, Bytes::new());
                        sent.await.expect("committed")
                    }
                });
            });
        }
    }
}

criterion_group!(benches, handoffs);
criterion_main!(benches);
