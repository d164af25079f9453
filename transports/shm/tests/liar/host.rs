//! The honest side: an endpoint, its pool, and a user who offers, takes, reads and brings home.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{
    Connection, Endpoint, EndpointOptions, Event, Events, IncomingHandoff, Listening,
};
use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions, TransferStats};
use blockwire::session::{DeclineCode, HandoffKey, Identity, Timing};
use blockwire::transport::{Address, Transport};
use blockwire_conformance::script::Script;
use blockwire_shm::{ShmOptions, ShmTransport};
use bytes::Bytes;
use tokio::task::{JoinHandle, JoinSet, spawn_local, yield_now};
use uuid::Uuid;

use super::peer::{Liar, SMALL_RING};
use super::watched::{Watched, polls};
use super::{QUIET_TURNS, SETTLE_TURNS};

/// Blocks of the honest pool.
const BLOCKS: usize = 32;
/// Handoffs that the honest side offers on a connection.
pub const OFFERS: u32 = 12;
/// Connections of one script.
const CONNECTIONS_MAX: usize = 6;
/// Short, as some scripts end in silence.
const TIMING: Timing = Timing {
    hello_timeout: Duration::from_millis(150),
    ping_interval: Duration::from_millis(60),
    silence_max: Duration::from_millis(150),
    recall_max: Duration::from_millis(150),
};

pub fn spec() -> KvSpec {
    KvSpec::uniform(4, 2, 1, 16, Dtype::F16)
}

/// What the honest side offers as its `number`-th.
pub fn offered_key(number: u32) -> HandoffKey {
    HandoffKey { request: Uuid::from_u128(u128::from(number) + 1), epoch: 1 }
}

/// Tokens of that offer.
pub fn offered_tokens(number: u32) -> usize {
    [14, 4, 3, 12][number as usize % 4]
}

/// Everything that one script needs, from the first look at the socket to the last.
pub async fn play(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let dir = tempfile::tempdir().unwrap();
    let how = script.byte();
    // Costs as long as the honest side waits, so few do.
    let stays = how >= 250;
    let backing = if how & 1 == 0 { Backing::Shared } else { Backing::Private };
    let host = Host::start(dir.path(), backing, TIMING).await;
    if how & 14 == 14 {
        let place = dir.path().join("liar.sock");
        let liar = Liar::listen(&place);
        let address = Address::new("shm", place.to_str().unwrap());
        let dialling = spawn_local(dial(host.endpoint.clone(), address, host.pool.clone()));
        lie(liar.accept(&mut script).await, &mut script, stays).await;
        dialling.await.unwrap();
    } else {
        for _ in 0..CONNECTIONS_MAX {
            lie(Liar::dial(&host.socket, &mut script).await, &mut script, stays).await;
            if script.is_over() {
                break;
            }
        }
    }
    all_free(&host.pool).await;
    serve_a_good_peer(&host).await;
    host.shut_down().await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), usize::from(how & 14 == 14));
}

/// Plays a connection to its end.
async fn lie(mut liar: Liar, script: &mut Script<'_>, stays: bool) {
    while !script.is_over() && liar.act(script).await {}
    settle().await;
    if stays {
        liar.wait_for_the_end().await;
    }
}

/// Waits until no link is polled any more: the peer is silent, so whoever is awake sleeps soon.
pub async fn settle() {
    let (mut seen, mut quiet) = (polls(), 0);
    for _ in 0..SETTLE_TURNS {
        yield_now().await;
        let now = polls();
        quiet = if now == seen { quiet + 1 } else { 0 };
        if quiet == QUIET_TURNS {
            return;
        }
        seen = now;
    }
    panic!("a link is polled without end while its peer is silent");
}

async fn all_free(pool: &BlockPool) {
    while pool.accounting().free != pool.accounting().total {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pool.lent_blocks(), 0);
}

/// An honest side.
struct Host {
    endpoint: Rc<Endpoint>,
    pool: BlockPool,
    socket: std::path::PathBuf,
    driver: JoinHandle<()>,
    serving: JoinHandle<()>,
}

fn endpoint(backing: Backing, timing: Timing) -> (Endpoint, BlockPool, JoinHandle<()>) {
    let options = PoolOptions { backing, ..PoolOptions::new(spec(), BLOCKS) };
    let pool = BlockPool::new(options).unwrap();
    let options = ShmOptions {
        ring_len: SMALL_RING,
        payload_ring_len: SMALL_RING,
        setup_limit: Duration::from_millis(150),
        spin_limit: Duration::ZERO,
    };
    let transport: Arc<dyn Transport> = Arc::new(Watched(ShmTransport::new(options)));
    let options =
        EndpointOptions::new(Identity::new("honest"), Some(pool.clone()), vec![transport]);
    let (endpoint, driver) = Endpoint::local(EndpointOptions { timing, ..options });
    (endpoint, pool, spawn_local(driver))
}

impl Host {
    async fn start(dir: &Path, backing: Backing, timing: Timing) -> Self {
        let (endpoint, pool, driver) = endpoint(backing, timing);
        let socket = dir.join("host.sock");
        let address = Address::new("shm", socket.to_str().unwrap());
        let listening = endpoint.listen(&address).await.unwrap();
        let serving = spawn_local(serve_all(listening, pool.clone()));
        Self { endpoint: Rc::new(endpoint), pool, socket, driver, serving }
    }

    async fn shut_down(self) {
        drop(self.endpoint);
        self.driver.await.unwrap();
        self.serving.await.unwrap();
        assert_eq!(self.pool.accounting().free, BLOCKS);
    }
}

async fn serve_all(mut listening: Listening, pool: BlockPool) {
    let mut connections = JoinSet::new();
    while let Some((connection, events)) = listening.accept().await {
        connections.spawn_local(serve(connection, events, pool.clone()));
    }
    while let Some(ended) = connections.join_next().await {
        ended.unwrap();
    }
}

async fn dial(endpoint: Rc<Endpoint>, address: Address, pool: BlockPool) {
    if let Ok((connection, events)) = endpoint.connect(&address).await {
        serve(connection, events, pool).await;
    }
}

async fn serve(connection: Connection, events: Events, pool: BlockPool) {
    let mut offers = JoinSet::new();
    for first in 0..3 {
        offers.spawn_local(offer_some(connection.clone(), pool.clone(), first));
    }
    take_all(events, pool).await;
    while let Some(ended) = offers.join_next().await {
        ended.unwrap();
    }
    connection.closed().await;
}

/// Offers every third handoff, one after the other; some are taken back.
async fn offer_some(connection: Connection, pool: BlockPool, first: u32) {
    for number in (first..OFFERS).step_by(3) {
        let tokens = offered_tokens(number);
        let Ok(mut blocks) = pool.try_reserve(spec().blocks_for(tokens)) else { continue };
        blocks.iter_mut().for_each(|block| block.fill(number as u8));
        let mut sequence = KvSequence::new(&pool);
        sequence.push(blocks).unwrap();
        sequence.set_len(tokens);
        let handoff = extract_sequence_handoff(&mut sequence).unwrap();
        drop(sequence);
        let key = offered_key(number);
        let sending = send_handoff_payload(&connection, key, handoff, Bytes::new());
        if number % 5 == 3 {
            let _ = tokio::time::timeout(Duration::from_millis(1), sending).await;
        } else {
            let _ = sending.await;
        }
        if number % 5 == 4 {
            connection.recall_all();
        }
    }
}

/// Takes what is offered, and keeps some of it for a while.
async fn take_all(mut events: Events, pool: BlockPool) {
    let mut landing = JoinSet::new();
    let mut kept: Vec<KvSequence> = vec![];
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Event::Handoff(incoming)) => {
                    landing.spawn_local(take(incoming, pool.clone()));
                }
                Some(Event::Message(_)) => {}
                None => break,
            },
            Some(taken) = landing.join_next() => kept.extend(taken.unwrap()),
        }
        kept.iter_mut().for_each(use_sequence);
        kept.retain(KvSequence::is_intact);
        kept.drain(..kept.len().saturating_sub(4));
    }
    kept.iter_mut().for_each(use_sequence);
    kept.clear();
    while let Some(taken) = landing.join_next().await {
        drop(taken.unwrap());
    }
}

/// Takes an offer, or not, as its `meta` says.
async fn take(incoming: IncomingHandoff, pool: BlockPool) -> Option<KvSequence> {
    let how = incoming.manifest().meta.first().copied().unwrap_or(0) % 8;
    let stay = incoming.manifest().adoptable / 4;
    let needed = spec().blocks_for(incoming.manifest().tokens.min(64)) - stay.min(16);
    match how {
        0..=4 => {
            let options = IngestOptions { tokens_max: 64, growth: 4, adopt: how < 3, keys: &[] };
            ingest_sequence_handoff(incoming, &pool, options).await.ok().map(|taken| taken.sequence)
        }
        5 => {
            incoming.decline(DeclineCode::DeclineNoRoom, "not today");
            None
        }
        // Landed, and given up then.
        6 => {
            let blocks = pool.try_reserve(needed).ok()?;
            drop(incoming.adopt(&pool, blocks).await.ok()?);
            None
        }
        // Given up while its commit is on the way.
        _ => {
            let blocks = pool.try_reserve(needed).ok()?;
            let landed = incoming.adopt(&pool, blocks).await.ok()?;
            let mut commit = Box::pin(landed.commit());
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = commit.as_mut().poll(&mut cx);
            None
        }
    }
}

/// Reads what was adopted where it lies, and brings home what the peer asks for.
fn use_sequence(sequence: &mut KvSequence) {
    if let Some(adopted) = sequence.adopted() {
        let (base, shape) = (adopted.peer().base(), adopted.peer().shape());
        let block_len = spec().block_bytes();
        for id in adopted.ids() {
            let offset = *id as usize * block_len;
            assert!(offset + block_len <= shape.region_len(), "block {id}");
            for at in offset..offset + block_len {
                // SAFETY: the byte lies in the peer's mapped pool; whatever it is, it is not used.
                let _ = unsafe { base.as_ptr().add(at).read_volatile() };
            }
        }
    }
    let recalled = sequence.recalled_blocks();
    if recalled > 0
        && let Ok(blocks) = sequence.pool().try_reserve(recalled)
    {
        let _ = sequence.bring_home(blocks, &TransferStats::default());
    }
}

/// Handoffs in both directions with a peer that keeps the rules. A machine that is busy may hold them up
/// for longer than the short limits, so they are tried a few times.
async fn serve_a_good_peer(host: &Host) {
    for _ in 0..20 {
        if is_served(&host.socket).await {
            all_free(&host.pool).await;
            return;
        }
    }
    panic!("a good peer is not served any more");
}

async fn is_served(socket: &Path) -> bool {
    let (endpoint, pool, driver) = endpoint(Backing::Shared, TIMING);
    let address = Address::new("shm", socket.to_str().unwrap());
    let served = match endpoint.connect(&address).await {
        Ok((connection, events)) => both_ways(&connection, events, &pool).await,
        Err(_) => false,
    };
    drop(endpoint);
    driver.await.unwrap();
    all_free(&pool).await;
    served
}

async fn both_ways(connection: &Connection, mut events: Events, pool: &BlockPool) -> bool {
    let mut sequence = KvSequence::new(pool);
    sequence.push(pool.try_reserve(4).unwrap()).unwrap();
    sequence.set_len(14);
    let handoff = extract_sequence_handoff(&mut sequence).unwrap();
    drop(sequence);
    let key = HandoffKey { request: Uuid::from_u128(77), epoch: 1 };
    let send = send_handoff_payload(connection, key, handoff, Bytes::from_static(&[0]));
    let receive = async {
        let Some(Event::Handoff(incoming)) = events.next().await else { return false };
        let options = IngestOptions { tokens_max: 64, growth: 0, adopt: true, keys: &[] };
        ingest_sequence_handoff(incoming, pool, options).await.is_ok()
    };
    let (sent, received) = tokio::join!(send, receive);
    sent.is_ok() && received
}
