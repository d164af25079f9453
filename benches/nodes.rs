//! Two nodes that hand over whole pools: what benchmarks put something beside.

use std::sync::Arc;
use std::sync::mpsc::channel;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Events, IncomingHandoff};
use blockwire::handoff::{SequenceHandoff, extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Transport};
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

use crate::host::pin;
use crate::run_side;

/// Blocks of a pool, all of a handoff, of 2 MiB each.
const BLOCKS: usize = 128;

/// A listening and a dialling node over the loopback, each with its user's task on its driver's thread, on
/// cpu 1 and cpu 0. The dialler puts `query` behind the address. Gives what the two users come to, that of
/// the dialler first.
///
/// # Panics
/// When there is no connection, or a user panics.
pub fn pair<N: Send + 'static, F: Send + 'static>(
    options: TcpOptions,
    query: &'static str,
    near: impl AsyncFnOnce(Connection, BlockPool, Address) -> N + Send + 'static,
    far: impl AsyncFnOnce(Events, BlockPool) -> F + Send + 'static,
) -> (N, F) {
    let (bound, is_bound) = channel();
    let for_far = options.clone();
    let far = std::thread::spawn(move || {
        pin(1);
        side(for_far, async move |endpoint, pool| {
            let bind = "tcp://127.0.0.1:0".parse().expect("an address");
            let mut listening = endpoint.listen(&bind).await.expect("a free address");
            bound.send(listening.local_address().clone()).expect("a dialler");
            let (_peer, events) = listening.accept().await.expect("a peer");
            far(events, pool).await
        })
    });
    let near = std::thread::spawn(move || {
        pin(0);
        let address = is_bound.recv().expect("a listener");
        side(options, async move |endpoint, pool| {
            let to = format!("{address}{query}").parse().expect("an address");
            let (connection, _events) = endpoint.connect(&to).await.expect("a peer");
            near(connection, pool, address).await
        })
    });
    (near.join().expect("no panic"), far.join().expect("no panic"))
}

/// All blocks of a pool, written.
///
/// # Panics
/// When some are taken.
pub fn written(pool: &BlockPool) -> SequenceHandoff {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(BLOCKS).expect("a fresh pool");
    blocks.iter_mut().for_each(|block| block.fill(1));
    sequence.push(blocks).expect("of this pool");
    sequence.set_len(sequence.capacity());
    extract_sequence_handoff(&mut sequence).expect("not empty")
}

/// Hands everything over once; how many bytes that were.
///
/// # Panics
/// When the peer does not take it.
pub async fn hand_over(connection: &Connection, handoff: &SequenceHandoff) -> u64 {
    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
    let sent = send_handoff_payload(connection, key, handoff.clone(), Bytes::new());
    sent.await.expect("committed").payload_len
}

/// Takes a handoff into blocks of its own, and forgets it.
pub async fn take(incoming: IncomingHandoff, pool: &BlockPool) {
    let options = IngestOptions { tokens_max: usize::MAX, growth: 0, adopt: false, keys: &[] };
    drop(ingest_sequence_handoff(incoming, pool, options).await);
}

/// Runs a side with a pool of its own on this thread.
fn side<T: 'static>(
    mut tcp: TcpOptions,
    user: impl AsyncFnOnce(&Endpoint, BlockPool) -> T + 'static,
) -> T {
    let spec = KvSpec::uniform(16, 32, 8, 128, Dtype::F16);
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, BLOCKS) };
    let pool = BlockPool::new(options).expect("memory for the pool");
    let identity = Identity::new("bench");
    tcp.instance = identity.instance;
    let transports: Vec<Arc<dyn Transport>> = vec![Arc::new(TcpTransport::new(tcp))];
    let options = EndpointOptions::new(identity, Some(pool.clone()), transports);
    run_side(options, async move |endpoint| user(endpoint, pool).await)
}
