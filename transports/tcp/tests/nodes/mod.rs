//! Whole nodes over TCP: an endpoint, a pool, and handoffs whose every byte is known.
#![allow(dead_code, reason = "every test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events, Listening};
use blockwire::handoff::{HandoffSender, extract_sequence_handoff};
use blockwire::ingest::{IngestError, IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity, OfferError, PieceCut, Timing};
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: usize = 16;

/// Runs a test; a hang fails instead of lasting.
pub(crate) fn run<T>(watchdog: Duration, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(watchdog, test).await.expect("the test hangs") })
}

/// One end of connections.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) pool: BlockPool,
}

/// What a node is made of.
#[derive(Clone)]
pub(crate) struct Make {
    /// The layers and heads behind a block: 32 KiB for each layer.
    pub(crate) layers: usize,
    pub(crate) blocks: usize,
    pub(crate) timing: Timing,
    pub(crate) options: TcpOptions,
}

impl Make {
    /// Starts a node, whose threads inherit what the calling thread is confined to.
    pub(crate) fn node(&self) -> Node {
        let spec = KvSpec::uniform(BLOCK_TOKENS as u32, self.layers, 4, 128, Dtype::F16);
        let options =
            PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, self.blocks) };
        let pool = BlockPool::new(options).unwrap();
        let identity = Identity::new("node");
        let mut tcp = self.options.clone();
        tcp.instance = identity.instance;
        let transport = Arc::new(TcpTransport::new(tcp));
        let mut options = EndpointOptions::new(identity, Some(pool.clone()), vec![transport]);
        options.timing = self.timing;
        Node { endpoint: Endpoint::start(options).unwrap(), pool }
    }
}

impl Node {
    pub(crate) async fn listen(&self, at: &str) -> Listening {
        self.endpoint.listen(&at.parse().unwrap()).await.unwrap()
    }

    /// Whether every block is free.
    pub(crate) fn is_whole(&self) -> bool {
        let accounting = self.pool.accounting();
        accounting.free == accounting.total
    }

    /// Waits until every block is free.
    pub(crate) async fn settle(&self) {
        while !self.is_whole() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Offers `blocks` blocks whose bytes are all `byte`; where it is odd, in pieces, of which some leave before the
/// sequence is finished.
pub(crate) async fn give(
    connection: Connection,
    pool: BlockPool,
    blocks: usize,
    byte: u8,
) -> Result<(), OfferError> {
    let handoff = {
        let mut reserved = pool.reserve(blocks).await.unwrap();
        let mut sequence = KvSequence::new(&pool);
        reserved.iter_mut().for_each(|block| block.fill(byte));
        sequence.push(reserved).unwrap();
        sequence.set_len(blocks * BLOCK_TOKENS);
        extract_sequence_handoff(&mut sequence).unwrap()
    };
    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
    let meta = Bytes::copy_from_slice(&[byte]);
    let mut sender = HandoffSender::new(connection, key, &pool, blocks * BLOCK_TOKENS, meta)
        .in_pieces(PieceCut {
            tokens: (blocks.div_ceil(4) * BLOCK_TOKENS) as u32,
            layered_from: 0,
            layers: 1,
        });
    if !byte.is_multiple_of(2) {
        let ahead: Vec<_> = handoff.run().blocks().take(blocks / 2).cloned().collect();
        sender.push(0, &ahead);
        tokio::task::yield_now().await;
    }
    sender.finish(handoff, Bytes::new()).await.map(drop)
}

/// Takes the next handoff and checks its bytes; none when the connection is over.
pub(crate) async fn take(events: &mut Events, pool: &BlockPool) -> Option<Result<(), IngestError>> {
    let incoming = loop {
        match events.next().await? {
            Event::Handoff(incoming) => break incoming,
            Event::Message(_) => {}
        }
    };
    let byte = incoming.manifest().meta[0];
    let options = IngestOptions { tokens_max: usize::MAX, growth: 0, adopt: false, keys: &[] };
    let mut sequence = match ingest_sequence_handoff(incoming, pool, options).await {
        Ok(taken) => taken.sequence,
        Err(error) => return Some(Err(error)),
    };
    for block in sequence.finish().iter() {
        for token in [0, BLOCK_TOKENS as u32 - 1] {
            let bytes = block.token_bytes(token).into_iter().flatten().flatten();
            assert!(bytes.copied().all(|read| read == byte), "other bytes arrived");
        }
    }
    Some(Ok(()))
}

/// Takes handoffs until the connection is over.
pub(crate) async fn take_all(mut events: Events, pool: BlockPool) {
    while take(&mut events, &pool).await.is_some() {}
}
