//! Whole handoffs, and `kill -9` of either side at every step of them: the survivor frees every block,
//! descriptor, mapping and thread, what it adopted stays readable, and the next handoff works.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::future::Future;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blockwire::endpoint::{
    Connection, Endpoint, EndpointOptions, Event, Events, IncomingHandoff, Listening,
};
use blockwire::handoff::{SequenceHandoff, extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions, TransferStats};
use blockwire::session::{HandoffKey, Identity, Landed};
use blockwire::transport::{Address, Transport};
use blockwire_shm::ShmTransport;
use bytes::Bytes;
use rustix::process::{Signal, getpid, kill_process};
use uuid::Uuid;

/// Role and step of the child; set in the child only.
const CHILD: &str = "BLOCKWIRE_SHM_HANDOFF_CHILD";
/// Rounds of the test; each kills one process.
const ROUNDS: u32 = 1000;
const BLOCKS: usize = 32;
/// Three whole blocks, which may be adopted, and half a one, which is moved.
const TOKENS: usize = 4 * 3 + 2;

/// Where the child kills itself: at a step, or so many microseconds after its first handoff, wherever
/// it is then.
const STEPS: [&str; 14] = [
    "connected",
    "offering",
    "accepting",
    "landed",
    "committed",
    "holding",
    "done",
    "0",
    "50",
    "120",
    "250",
    "500",
    "900",
    "2000",
];

fn options() -> PoolOptions {
    let spec = KvSpec::uniform(4, 2, 1, 16, Dtype::F16);
    PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, BLOCKS) }
}

/// An endpoint of this process, and its pool.
fn side() -> (Endpoint, BlockPool) {
    let pool = BlockPool::new(options()).unwrap();
    let transport: Arc<dyn Transport> = Arc::new(ShmTransport::default());
    let identity = Identity::new("side");
    let endpoint =
        Endpoint::start(EndpointOptions::new(identity, Some(pool.clone()), vec![transport]));
    (endpoint.unwrap(), pool)
}

/// A sequence whose bytes are all `byte`.
fn written(pool: &BlockPool, byte: u8) -> SequenceHandoff {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(pool.spec().blocks_for(TOKENS)).unwrap();
    blocks.iter_mut().for_each(|block| block.fill(byte));
    sequence.push(blocks).unwrap();
    sequence.set_len(TOKENS);
    extract_sequence_handoff(&mut sequence).unwrap()
}

/// Checks every byte; what was adopted is copied for that.
fn check(mut sequence: KvSequence, byte: u8) {
    let adopted = sequence.adopted().map_or(0, |adopted| adopted.ids().len());
    let home = sequence.pool().try_reserve(adopted).unwrap();
    sequence.bring_home(home, &TransferStats::default()).expect("the lease is in force");
    for (index, block) in sequence.finish().iter().enumerate() {
        for token in 0..4.min(TOKENS - index * 4) {
            let bytes = block.token_bytes(token as u32).into_iter().flatten().flatten();
            assert!(bytes.copied().all(|read| read == byte), "token {token} of block {index}");
        }
    }
}

fn ingest_options(adopt: bool) -> IngestOptions<'static> {
    IngestOptions { tokens_max: 100, growth: 4, adopt, keys: &[] }
}

async fn offer(connection: &Connection, pool: &BlockPool, byte: u8) -> bool {
    let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
    let meta = Bytes::copy_from_slice(&[byte]);
    send_handoff_payload(connection, key, written(pool, byte), meta).await.is_ok()
}

async fn next_offer(events: &mut Events) -> Option<(IncomingHandoff, u8)> {
    match events.next().await? {
        Event::Handoff(incoming) => {
            let byte = incoming.manifest().meta[0];
            Some((incoming, byte))
        }
        Event::Message(_) => None,
    }
}

/// Ends this process as a crash does.
fn die() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// Not a test: what the killed process does. One good handoff, then some that it does not survive.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let mut words = order.split(' ');
    let mut word = || words.next().unwrap();
    let (role, step, adopt) = (word(), word(), word() == "adopt");
    let place: Address = word().parse().unwrap();
    common::run(async {
        let (endpoint, pool) = side();
        let (connection, mut events) = endpoint.connect(&place).await.unwrap();
        if role == "lender" {
            lend(&connection, &pool, step).await;
        } else {
            borrow(&mut events, &pool, step, adopt).await;
        }
    });
}

/// Dies some time from now, if the step is a time.
fn die_later(step: &str) {
    if let Ok(micros) = step.parse() {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(micros));
            die();
        });
    }
}

async fn lend(connection: &Connection, pool: &BlockPool, step: &str) {
    assert!(offer(connection, pool, 1).await);
    die_later(step);
    // The first polls hand the offers to the driver's thread, which goes on by itself.
    let names = ["connected", "offering", "accepting", "landed", "committed"];
    let mut offers = vec![];
    for name in names {
        if name == step {
            die();
        }
        let mut offer = Box::pin(offer(connection, pool, 2));
        if offer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            offers.push(offer);
        }
    }
    for offer in offers {
        offer.await;
        if step == "holding" {
            die();
        }
    }
    // On a busy machine the first polls may have found every offer answered already, and left none to hold.
    if step == "holding" || step == "done" {
        die();
    }
    loop {
        offer(connection, pool, 3).await;
    }
}

async fn borrow(events: &mut Events, pool: &BlockPool, step: &str, adopt: bool) {
    let (first, byte) = next_offer(events).await.unwrap();
    let first = ingest_sequence_handoff(first, pool, ingest_options(adopt)).await.unwrap();
    check(first.sequence, byte);
    // Its commit leaves with the driver's next turn.
    tokio::time::sleep(Duration::from_millis(2)).await;
    die_later(step);
    loop {
        let at = |name: &str| {
            if name == step {
                die();
            }
        };
        at("connected");
        let (incoming, byte) = next_offer(events).await.unwrap();
        at("offering");
        let stay = if adopt { incoming.manifest().adoptable / 4 } else { 0 };
        let blocks = pool.try_reserve(4 - stay).unwrap();
        let landing = async {
            match adopt {
                true => incoming.adopt(pool, blocks).await,
                false => incoming.accept(pool, blocks, 0).await,
            }
        };
        let mut landing = Box::pin(landing);
        let first_poll = landing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        at("accepting");
        let landed = match first_poll {
            Poll::Ready(landed) => landed.unwrap(),
            Poll::Pending => landing.await.unwrap(),
        };
        at("landed");
        let Landed { adopted, blocks, .. } = landed.commit().await.unwrap();
        at("committed");
        let sequence = match adopted {
            Some(adopted) => KvSequence::from_adopted(pool, adopted, blocks, TOKENS),
            None => KvSequence::from_blocks(pool, vec![], blocks, TOKENS),
        };
        at("holding");
        check(sequence.unwrap(), byte);
        at("done");
    }
}

/// What this process holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    free: usize,
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

impl Held {
    fn now(pool: &BlockPool) -> Self {
        let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mappings = maps.lines().filter(|line| line.contains("/memfd:")).count();
        let free = pool.accounting().free;
        Self { free, descriptors: count("fd"), threads: count("task"), mappings }
    }
}

fn start_child(role: &str, step: &str, adopt: bool, place: &Address) -> Child {
    let how = if adopt { "adopt" } else { "copy" };
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, format!("{role} {step} {how} {place}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// One child's life, from the survivor's side.
async fn round(
    listening: &mut Listening,
    pool: &BlockPool,
    (role, step, adopt): (&str, &str, bool),
) {
    let mut child = start_child(role, step, adopt, listening.local_address());
    let (connection, mut events) = listening.accept().await.unwrap();
    if role == "lender" {
        let mut kept = vec![];
        while let Some((incoming, byte)) = next_offer(&mut events).await {
            let taken = ingest_sequence_handoff(incoming, pool, ingest_options(adopt)).await;
            kept.extend(taken.ok().map(|taken| (taken.sequence, byte)));
            // Some are held over the lender's death; not all, or the pools would stand still.
            kept.truncate(3);
        }
        assert!(!kept.is_empty(), "the first handoff works");
        kept.into_iter().for_each(|(sequence, byte)| check(sequence, byte));
    } else {
        assert!(offer(&connection, pool, 1).await, "the first handoff works");
        while offer(&connection, pool, 2).await {}
    }
    connection.closed().await;
    child.wait().unwrap();
}

#[test]
fn a_killed_side_costs_the_other_nothing_at_any_step() {
    let dir = tempfile::tempdir().unwrap();
    let place = common::address(Path::new(dir.path()));
    common::run_for(Duration::from_secs(600), async {
        let (endpoint, pool) = side();
        let mut listening = endpoint.listen(&place).await.unwrap();
        // The first round opens what the runtimes of this process keep for all later ones.
        round(&mut listening, &pool, ("lender", "done", true)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let start = Held::now(&pool);
        assert_eq!((start.free, start.mappings), (BLOCKS, 1), "the pool's own");
        for number in 0..ROUNDS {
            let role = if number % 2 == 0 { "lender" } else { "borrower" };
            let step = STEPS[(number / 2) as usize % STEPS.len()];
            let adopt = (number / (2 * STEPS.len() as u32)).is_multiple_of(2);
            round(&mut listening, &pool, (role, step, adopt)).await;
            for _ in 0..2000 {
                if Held::now(&pool) == start {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let now = Held::now(&pool);
            assert_eq!(now, start, "round {number}: {role} killed at {step}, adopt {adopt}");
        }
        drop(listening);
        drop(endpoint);
    });
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a name is left");
}
