//! Long lives: many handoffs over one connection, in one process that does nothing else, so that what it
//! holds can be counted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod nodes;

use std::time::Duration;

use blockwire::endpoint::{Connection, Events, Listening};
use blockwire::session::{OfferError, Timing};
use blockwire_tcp::TcpOptions;
use tokio::task::JoinSet;

use nodes::{Make, Node, give, run, take, take_all};

/// What hangs, hangs for that long.
const WATCHDOG: Duration = Duration::from_secs(900);
/// Memory that a side may hold beyond its pool: buffers, and what the allocator keeps.
const SLACK: u64 = 8 << 20;
/// Handoffs that are under way at a time.
const AT_ONCE: usize = 8;

struct Pair {
    near: Node,
    far: Node,
    _listening: Listening,
    _back: Connection,
    port: String,
    connection: Connection,
    events: Events,
}

async fn pair(layers: usize, blocks: usize) -> Pair {
    let timing = Timing::default();
    let make = Make { layers, blocks, timing, options: TcpOptions::default() };
    let (near, far) = (make.node(), make.node());
    let mut listening = far.listen("tcp://127.0.0.1:0").await;
    let address = listening.local_address().clone();
    let port = address.target().rsplit_once(':').unwrap().1.to_owned();
    let (connection, _) = near.endpoint.connect(&address).await.unwrap();
    let (_back, events) = listening.accept().await.unwrap();
    Pair { near, far, _listening: listening, _back, port, connection, events }
}

/// Hands all blocks over, so many times; the largest growth of this process after the first time.
async fn growth(pair: &mut Pair, blocks: usize, rounds: usize) -> u64 {
    let (mut base, mut most) = (None, 0);
    for round in 0..=rounds {
        let sent = give(pair.connection.clone(), pair.near.pool.clone(), blocks, round as u8);
        let (sent, taken) = tokio::join!(sent, take(&mut pair.events, &pair.far.pool));
        sent.unwrap();
        taken.unwrap().unwrap();
        let now = resident();
        most = most.max(now.saturating_sub(*base.get_or_insert(now)));
    }
    most
}

/// Bytes of memory that this process has touched.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Sockets of this host that have something to do with a port, also those that only wait for its end.
fn sockets(port: &str) -> usize {
    let port = format!(":{:04X} ", port.parse::<u16>().unwrap());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    table.lines().filter(|line| line.contains(&port)).count()
}

#[test]
fn fault_b42_many_handoffs_need_one_connection_and_no_memory() {
    if !cfg!(target_os = "linux") {
        return println!("SKIPPED: sockets and memory are counted in /proc, which only Linux has");
    }
    run(WATCHDOG, async {
        // 4 GiB in 32 handoffs through pools of 128 MiB.
        let mut pair = pair(32, 128).await;
        let grown = growth(&mut pair, 128, 32).await;
        assert!(grown < SLACK, "{grown} bytes more after 32 handoffs");
    });
    run(WATCHDOG, async {
        let Pair { near, far, _listening, _back, port, connection, events } = pair(1, 64).await;
        // The listener and the two ends of the one connection; and whatever others had on this port.
        let at_start = sockets(&port);
        let taking = tokio::spawn(take_all(events, far.pool.clone()));
        let mut giving = JoinSet::<Result<(), OfferError>>::new();
        let mut base = None;
        for number in 0..50_000 {
            if giving.len() == AT_ONCE {
                giving.join_next().await.unwrap().unwrap().unwrap();
            }
            giving.spawn(give(connection.clone(), near.pool.clone(), 1, number as u8));
            if number == 5_000 {
                base = Some(resident());
            }
        }
        while let Some(given) = giving.join_next().await {
            given.unwrap().unwrap();
        }
        let grown = resident().saturating_sub(base.unwrap());
        assert!(grown < SLACK, "{grown} bytes more after 45,000 handoffs");
        let at_end = sockets(&port);
        assert!(at_end <= at_start, "{at_end} sockets, {at_start} before 50,000 handoffs");
        drop(connection);
        taking.await.unwrap();
        near.settle().await;
        far.settle().await;
    });
}

/// 8 GiB of memory for the two pools: by hand.
#[test]
#[ignore = "needs 9 GiB of memory"]
fn one_handoff_of_four_gigabytes_needs_no_memory() {
    run(WATCHDOG, async {
        let mut pair = pair(64, 2048).await;
        let grown = growth(&mut pair, 2048, 1).await;
        assert!(grown < SLACK, "{grown} bytes more");
    });
}
