//! Connections that nobody uses for long, and hosts that sleep: the next handoff is as good as the first.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events};
use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity, OfferError};
use blockwire::transport::Address;
use blockwire_sim::Network;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;
use uuid::Uuid;

const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

fn endpoint(network: &Network, name: &str) -> (Endpoint, BlockPool) {
    let spec = KvSpec::uniform(4, 1, 1, 8, Dtype::F16);
    let pool = BlockPool::new(PoolOptions::new(spec, 8)).unwrap();
    let transport = Arc::new(network.transport(name));
    let options = EndpointOptions::new(Identity::new(name), Some(pool.clone()), vec![transport]);
    let (endpoint, driver) = Endpoint::local(options);
    spawn_local(driver);
    (endpoint, pool)
}

/// Takes what a peer offers, for as long as the connection lives.
async fn take(_connection: Connection, mut events: Events, pool: BlockPool) {
    while let Some(event) = events.next().await {
        let Event::Handoff(incoming) = event else { continue };
        let options = IngestOptions { tokens_max: 64, growth: 0, adopt: true, keys: &[] };
        drop(ingest_sequence_handoff(incoming, &pool, options).await);
    }
}

async fn give(connection: &Connection, pool: &BlockPool, number: u128) -> Result<(), OfferError> {
    let mut sequence = KvSequence::new(pool);
    sequence.push(pool.reserve(4).await.unwrap()).unwrap();
    sequence.set_len(13);
    let handoff = extract_sequence_handoff(&mut sequence).unwrap();
    let key = HandoffKey { request: Uuid::from_u128(number), epoch: 1 };
    send_handoff_payload(connection, key, handoff, "".into()).await.map(drop)
}

#[test]
fn fault_b53_half_an_hour_of_silence_and_of_sleep_cost_no_handoff() {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let network = Network::new(1);
        let (prefill, pool) = endpoint(&network, "prefill");
        let (decode, own) = endpoint(&network, "decode");
        let taken = own.clone();
        let address = Address::new("sim", "decode");
        let mut listening = decode.listen(&address).await.unwrap();
        spawn_local(async move {
            while let Some((connection, events)) = listening.accept().await {
                spawn_local(take(connection, events, own.clone()));
            }
        });
        let (connection, _events) = prefill.connect(&address).await.unwrap();
        give(&connection, &pool, 1).await.unwrap();
        sleep(HALF_AN_HOUR).await;
        give(&connection, &pool, 2).await.expect("an idle connection is kept alive");

        // A host that sleeps answers nothing, and resets nothing.
        network.partition("prefill", "decode");
        sleep(HALF_AN_HOUR).await;
        let ended = give(&connection, &pool, 3).await.unwrap_err();
        assert!(matches!(ended, OfferError::Ended(_)), "{ended:?}");
        network.heal("prefill", "decode");
        let (connection, _events) = prefill.connect(&address).await.unwrap();
        give(&connection, &pool, 4).await.unwrap();
        for pool in [&pool, &taken] {
            pool.reserve(8).await.expect("every block is back");
        }
    });
}
