//! The same seed is the same run, byte for byte of its trace; another seed is another run.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events};
use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::{Address, Capabilities};
use blockwire_sim::{Chance, Conditions, Network, Trace};
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use uuid::Uuid;

const HOSTS: [&str; 3] = ["a", "b", "c"];
const HANDOFFS: u128 = 6;

#[test]
fn a_seed_is_a_run() {
    let runs: Vec<String> = [1, 1, 2].into_iter().map(run).collect();
    assert!(runs[0].contains("Rts") && runs[0].contains("is reset"), "{}", runs[0]);
    assert_eq!(runs[0], runs[1], "two runs of one seed");
    assert_ne!(runs[0], runs[2], "runs of two seeds");
}

/// Three hosts hand sequences to one another over bad paths.
fn run(seed: u64) -> String {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let network = Network::traced(seed, Trace::kept());
        network.set_conditions(Conditions {
            latency: Duration::from_millis(1),
            jitter: Duration::from_millis(5),
            piece_len_max: 100,
            completion_delay: Duration::from_millis(3),
            corrupt_payload: Chance(1000),
            corrupt_control: Chance(20),
            doom: Chance(20),
            ..Conditions::default()
        });
        let (stream, get) = (Some(1), Some(1));
        let pulls = Capabilities { stream, get, adopt: true, same_host: true, lingers: false };
        network.set_capabilities("c", pulls);
        let hosts: Vec<_> = (0..HOSTS.len()).map(|number| host(&network, number)).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut busy = Vec::new();
        for (from, (endpoint, pool)) in hosts.iter().enumerate() {
            for to in HOSTS {
                let address = Address::new("sim", to);
                if let Ok((connection, events)) = endpoint.connect(&address).await {
                    tokio::task::spawn_local(take(connection.clone(), events, pool.clone()));
                    let giving = give(connection, pool.clone(), from as u128);
                    busy.push(tokio::task::spawn_local(giving));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(40)).await;
        network.reset("a", "b");
        for each in busy {
            each.await.unwrap();
        }
        network.trace().text()
    })
}

/// An endpoint that listens under its name and takes what it is offered.
fn host(network: &Network, number: usize) -> (Rc<Endpoint>, BlockPool) {
    let name = HOSTS[number];
    let spec = KvSpec::uniform(4, 1, 1, 8, Dtype::F16);
    let pool = BlockPool::new(PoolOptions::new(spec, 32)).unwrap();
    let instance = Uuid::from_u128(number as u128 + 1);
    let identity = Identity { instance, ..Identity::new(name) };
    let transport = Arc::new(network.transport(name));
    let options = EndpointOptions::new(identity, Some(pool.clone()), vec![transport]);
    let (endpoint, driver) = Endpoint::local(options);
    tokio::task::spawn_local(driver);
    let (endpoint, own) = (Rc::new(endpoint), pool.clone());
    let listens = endpoint.clone();
    tokio::task::spawn_local(async move {
        let mut listening = listens.listen(&Address::new("sim", name)).await.unwrap();
        drop(listens);
        while let Some((connection, events)) = listening.accept().await {
            tokio::task::spawn_local(take(connection, events, own.clone()));
        }
    });
    (endpoint, pool)
}

/// Takes what a peer offers, for as long as the connection is held.
async fn take(_connection: Connection, mut events: Events, pool: BlockPool) {
    while let Some(event) = events.next().await {
        let Event::Handoff(incoming) = event else { continue };
        let pool = pool.clone();
        tokio::task::spawn_local(async move {
            let options = IngestOptions { tokens_max: 64, growth: 0, adopt: true, keys: &[] };
            let sequence = ingest_sequence_handoff(incoming, &pool, options).await;
            tokio::time::sleep(Duration::from_millis(7)).await;
            drop(sequence);
        });
    }
}

async fn give(connection: Connection, pool: BlockPool, from: u128) {
    for number in 0..HANDOFFS {
        let mut sequence = KvSequence::new(&pool);
        sequence.push(pool.reserve(4).await.unwrap()).unwrap();
        sequence.set_len(9 + number as usize);
        let handoff = extract_sequence_handoff(&mut sequence).unwrap();
        let key = HandoffKey { request: Uuid::from_u128(100 * from + number + 1), epoch: 1 };
        // Half of them are given up before they can be over.
        let most = Duration::from_millis(if number % 2 == 0 { 10 } else { 500 });
        let sent = send_handoff_payload(&connection, key, handoff, "".into());
        let _ = tokio::time::timeout(most, sent).await;
    }
}
