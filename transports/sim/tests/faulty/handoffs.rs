//! Handoffs over disturbed links, in real time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events};
use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity, Timing};
use blockwire::transport::{Address, Transport};
use blockwire_mem::MemTransport;
use blockwire_shm::ShmTransport;
use blockwire_sim::{Chance, Conditions, Faulty};
use blockwire_tcp::TcpTransport;
use tokio::task::LocalSet;
use uuid::Uuid;

/// Longest time that one handoff, or the return of the last block, may take: a watchdog.
const STALL: Duration = Duration::from_secs(60);
const BLOCKS: usize = 24;
const TOKENS: usize = 90;
const HANDOFFS: u32 = 60;

fn bad() -> Conditions {
    Conditions {
        jitter: Duration::from_millis(2),
        completion_delay: Duration::from_millis(2),
        refuse: Chance(500),
        refuse_dial: Chance(1000),
        corrupt_control: Chance(100),
        corrupt_payload: Chance(1500),
        doom: Chance(200),
        ..Conditions::default()
    }
}

#[test]
fn handoffs_over_disturbed_mem_end() {
    let mem = MemTransport::default();
    run(|| mem.clone(), &Address::new("mem", ""));
}

#[test]
fn handoffs_over_disturbed_shm_end() {
    run(ShmTransport::default, &Address::new("shm", ""));
}

#[test]
fn handoffs_over_disturbed_tcp_end() {
    run(TcpTransport::default, &"tcp://127.0.0.1:0".parse().unwrap());
}

fn run<T: Transport + 'static>(transport: impl Fn() -> T, address: &Address) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (from, from_pool) = side("from", Faulty::new(transport(), 100, bad()));
        let (to, to_pool) = side("to", Faulty::new(transport(), 200, bad()));
        let mut listening = to.listen(address).await.unwrap();
        let address = listening.local_address().clone();
        let (pool, read) = (to_pool.clone(), Rc::new(Read::default()));
        let reading = read.clone();
        tokio::task::spawn_local(async move {
            while let Some((connection, events)) = listening.accept().await {
                tokio::task::spawn_local(take(connection, events, pool.clone(), reading.clone()));
            }
        });
        let (mut connection, mut committed) = (None, 0);
        for number in 0..HANDOFFS {
            let handing = hand_over(&from, &address, &mut connection, &from_pool, number);
            let sent = tokio::time::timeout(STALL, handing).await;
            committed += u32::from(sent.unwrap_or_else(|_| panic!("handoff {number} hangs")));
        }
        assert!((1..HANDOFFS).contains(&committed), "{committed} of {HANDOFFS}");
        assert!(read.right.get() >= committed && read.wrong.get() == 0, "{read:?}, {committed}");
        drop(connection);
        for pool in [&from_pool, &to_pool] {
            let back = async {
                while pool.accounting().free < BLOCKS {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let back = tokio::time::timeout(STALL, back).await;
            back.unwrap_or_else(|_| panic!("blocks did not come back: {pool:?}"));
        }
    });
}

fn side(name: &str, transport: impl Transport + 'static) -> (Endpoint, BlockPool) {
    let spec = KvSpec::uniform(16, 2, 2, 8, Dtype::F16);
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, BLOCKS) };
    let pool = BlockPool::new(options).unwrap();
    let options =
        EndpointOptions::new(Identity::new(name), Some(pool.clone()), vec![Arc::new(transport)]);
    let silence_max = Duration::from_secs(2);
    let timing = Timing { silence_max, ping_interval: silence_max / 4, ..Timing::default() };
    let (endpoint, driver) = Endpoint::local(EndpointOptions { timing, ..options });
    tokio::task::spawn_local(driver);
    (endpoint, pool)
}

/// Whether the peer has a good copy.
async fn hand_over(
    from: &Endpoint,
    address: &Address,
    connection: &mut Option<Connection>,
    pool: &BlockPool,
    number: u32,
) -> bool {
    if connection.as_ref().is_none_or(Connection::is_closed) {
        let Ok((new, _)) = from.connect(address).await else { return false };
        *connection = Some(new);
    }
    let Some(connection) = connection else { return false };
    let mut blocks = pool.reserve(pool.spec().blocks_for(TOKENS)).await.unwrap();
    blocks.iter_mut().for_each(|block| block.fill(number as u8));
    let mut sequence = KvSequence::new(pool);
    sequence.push(blocks).unwrap();
    sequence.set_len(TOKENS);
    let handoff = extract_sequence_handoff(&mut sequence).unwrap();
    drop(sequence);
    let key = HandoffKey { request: Uuid::from_u128(u128::from(number) + 1), epoch: 1 };
    send_handoff_payload(connection, key, handoff, vec![number as u8].into()).await.is_ok()
}

/// Takes what a peer offers: what is committed has the right bytes.
async fn take(_connection: Connection, mut events: Events, pool: BlockPool, read: Rc<Read>) {
    while let Some(event) = events.next().await {
        let Event::Handoff(incoming) = event else { continue };
        let byte = incoming.manifest().meta[0];
        let options = IngestOptions { tokens_max: 1024, growth: 0, adopt: false, keys: &[] };
        let Ok(taken) = ingest_sequence_handoff(incoming, &pool, options).await else { continue };
        let mut sequence = taken.sequence;
        let mut is_right = |token: usize| {
            let bytes = sequence.finish()[token / 16].token_bytes((token % 16) as u32);
            bytes.iter().flatten().flat_map(|part| part.iter()).all(|b| *b == byte)
        };
        let count = if (0..TOKENS).all(&mut is_right) { &read.right } else { &read.wrong };
        count.set(count.get() + 1);
    }
}

/// Sequences, by what was in them.
#[derive(Debug, Default)]
struct Read {
    right: Cell<u32>,
    wrong: Cell<u32>,
}
