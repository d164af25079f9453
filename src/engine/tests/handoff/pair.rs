//! Two connected endpoints, and sequences whose every byte is known.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events, Listening};
use blockwire::handoff::{SequenceHandoff, extract_sequence_handoff};
use blockwire::ingest::IngestOptions;
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, Layout, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Transport};
use blockwire_mem::MemTransport;
use blockwire_shm::ShmTransport;
use blockwire_tcp::TcpTransport;
use uuid::Uuid;

/// Miri has no shared mappings.
pub(crate) const SHARED: Backing = if cfg!(miri) { Backing::Private } else { Backing::Shared };
/// Whatever hangs, hangs no longer than this.
const WATCHDOG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 30 });

/// One side: an endpoint and its pool.
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    pub(crate) pool: BlockPool,
}

pub(crate) fn side(transport: &Arc<dyn Transport>, options: PoolOptions) -> Side {
    let pool = BlockPool::new(options).unwrap();
    let identity = Identity { model: "tiny".into(), ..Identity::new("side") };
    let options = EndpointOptions::new(identity, Some(pool.clone()), vec![transport.clone()]);
    Side { endpoint: Endpoint::start(options).unwrap(), pool }
}

pub(crate) fn options(layout: Layout, block_tokens: u32) -> PoolOptions {
    let spec = KvSpec::uniform(block_tokens, 3, 2, 8, Dtype::F16);
    PoolOptions { layout, backing: SHARED, ..PoolOptions::new(spec, 64) }
}

/// A pool that no peer can map.
pub(crate) fn private(layout: Layout, block_tokens: u32) -> PoolOptions {
    PoolOptions { backing: Backing::Private, ..options(layout, block_tokens) }
}

/// A connected pair: the prefill side dials, the decode side listens.
pub(crate) struct Pair {
    pub(crate) prefill: Side,
    pub(crate) decode: Side,
    pub(crate) to_decode: Connection,
    pub(crate) from_decode: Events,
    pub(crate) to_prefill: Connection,
    pub(crate) from_prefill: Events,
    pub(crate) _listening: Listening,
}

/// A transport, and an address to listen on.
pub(crate) type Wire = (Arc<dyn Transport>, Address);

/// Every transport; the folder holds what they name in the file system. Under Miri the first alone.
pub(crate) fn wires(folder: &tempfile::TempDir) -> Vec<Wire> {
    let socket = format!("shm:{}/decode.sock", folder.path().display());
    let all: [(Arc<dyn Transport>, &str); 3] = [
        (Arc::new(MemTransport::default()), "mem:decode"),
        (Arc::new(ShmTransport::default()), &socket),
        (Arc::new(TcpTransport::default()), "tcp://127.0.0.1:0"),
    ];
    let all = all.into_iter().take(if cfg!(miri) { 1 } else { 3 });
    all.map(|(wire, address)| (wire, address.parse().unwrap())).collect()
}

pub(crate) async fn pair(
    (transport, bind): &Wire,
    prefill: PoolOptions,
    decode: PoolOptions,
) -> Pair {
    let (prefill, decode) = (side(transport, prefill), side(transport, decode));
    let mut listening = decode.endpoint.listen(bind).await.unwrap();
    let address = listening.local_address().clone();
    let (to_decode, from_decode) = prefill.endpoint.connect(&address).await.unwrap();
    let (to_prefill, from_prefill) = listening.accept().await.unwrap();
    Pair {
        prefill,
        decode,
        to_decode,
        from_decode,
        to_prefill,
        from_prefill,
        _listening: listening,
    }
}

pub(crate) fn key() -> HandoffKey {
    HandoffKey { request: Uuid::new_v4(), epoch: 1 }
}

/// A sequence whose every token has bytes of its own.
pub(crate) fn written(pool: &BlockPool, tokens: usize) -> SequenceHandoff {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap();
    let block_tokens = pool.spec().block_tokens as usize;
    for (index, block) in blocks.iter_mut().enumerate() {
        for token in 0..block_tokens as u32 {
            block.fill_token(token, (index * block_tokens + token as usize) as u8 ^ 0x5a);
        }
    }
    sequence.push(blocks).unwrap();
    sequence.set_len(tokens);
    extract_sequence_handoff(&mut sequence).unwrap()
}

/// Checks every byte of every token of a sequence that is here.
pub(crate) fn assert_written(mut sequence: KvSequence, tokens: usize) {
    assert_eq!(sequence.len(), tokens);
    assert!(sequence.adopted().is_none());
    let block_tokens = sequence.pool().spec().block_tokens as usize;
    let blocks = sequence.finish().to_vec();
    for token in 0..tokens {
        let bytes = blocks[token / block_tokens].token_bytes((token % block_tokens) as u32);
        let wrong = bytes.iter().flatten().flat_map(|b| b.iter()).any(|b| *b != token as u8 ^ 0x5a);
        assert!(!wrong, "token {token} is not what was sent");
    }
}

/// Runs a test over every transport.
pub(crate) fn run<F: Future<Output = ()>>(test: impl Fn(Wire) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for wire in wires(&folder) {
        let scheme = wire.1.scheme().to_owned();
        runtime.block_on(async {
            let watchdog = tokio::time::timeout(WATCHDOG, test(wire));
            assert!(watchdog.await.is_ok(), "the test hangs over {scheme}");
        });
    }
}

pub(crate) async fn next_handoff(events: &mut Events) -> blockwire::endpoint::IncomingHandoff {
    match events.next().await {
        Some(Event::Handoff(handoff)) => handoff,
        other => panic!("expected an offer, got {other:?}"),
    }
}

/// Waits until every block of a pool is free: frees may come a moment after the answer.
pub(crate) async fn all_free(pool: &BlockPool) {
    while pool.accounting().free != pool.accounting().total {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Every payload is moved.
pub(crate) fn copying(tokens_max: usize, growth: usize) -> IngestOptions<'static> {
    IngestOptions { tokens_max, growth, adopt: false, keys: &[] }
}

impl Pair {
    /// Payload bytes copied by both sides.
    pub(crate) fn payload_copied(&self) -> u64 {
        self.to_decode.stats().payload_copied + self.to_prefill.stats().payload_copied
    }
}
