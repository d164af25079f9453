use std::future::Future;
use std::time::Duration;

use blockwire::endpoint::{EndpointOptions, Listening};
use blockwire::session::Identity;
use blockwire::transport::Transport;
use blockwire_mem::MemTransport;
use bytes::Bytes;
use tokio::time::timeout;

use super::*;

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        timeout(Duration::from_secs(60), test).await.expect("the test hangs");
    });
}

/// A node of a role on a transport.
fn node(transport: &MemTransport, role: NodeRole, instance: Uuid) -> Arc<Endpoint> {
    let role = Bytes::from_static(role.as_str().as_bytes());
    let identity = Identity { instance, role, ..Identity::new("node") };
    let transports: Vec<Arc<dyn Transport>> = vec![Arc::new(transport.clone())];
    Arc::new(Endpoint::start(EndpointOptions::new(identity, None, transports)).unwrap())
}

async fn listen(endpoint: &Endpoint, name: &str) -> Listening {
    endpoint.listen(&Address::new("mem", name)).await.unwrap()
}

#[test]
fn a_peer_that_comes_back_as_another_instance_is_connected_again() {
    run(async {
        let transport = MemTransport::default();
        let router = node(&transport, NodeRole::Router, Uuid::new_v4());
        let peers = PeerSet::new(NodeRole::Decode);
        let (sender, mut updates) = updates();
        let address = Address::new("mem", "decode");
        let keeping = tokio::spawn(peers.clone().keep(router, address, sender));
        // Nobody is there at first; then one, and another one in its place.
        tokio::task::yield_now().await;
        for instance in [1, 2].map(Uuid::from_u128) {
            let decode = node(&transport, NodeRole::Decode, instance);
            let mut listening = listen(&decode, "decode").await;
            let (_connection, _events) = listening.accept().await.unwrap();
            let update = updates.recv().await.unwrap();
            assert!(matches!(update.change, Change::Up));
            peers.note(&update);
            assert!(peers.by_instance(instance).is_some() && peers.connected().len() == 1);
            tokio::task::spawn_blocking(move || drop((listening, decode))).await.unwrap();
            let update = updates.recv().await.unwrap();
            assert!(matches!(update.change, Change::Down(_)));
            peers.note(&update);
            assert!(peers.by_instance(instance).is_none() && peers.connected().is_empty());
        }
        keeping.abort();
    });
}

#[test]
fn the_late_end_of_an_old_connection_leaves_the_new_one() {
    run(async {
        let transport = MemTransport::default();
        let (here, there) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let decode = node(&transport, NodeRole::Decode, here);
        let router = node(&transport, NodeRole::Router, there);
        let mut listening = listen(&decode, "decode").await;
        let mut open = Vec::new();
        for _ in 0..2 {
            let dialled = router.connect(&Address::new("mem", "decode")).await.unwrap();
            open.push((dialled, listening.accept().await.unwrap()));
        }
        let connection = |n: usize| open[n].1.0.clone();
        let mut connected = Connected::default();
        let mut note = |n, change| {
            connected.note(&Update { connection: connection(n), change });
            connected.by_instance(there).cloned()
        };
        assert!(note(0, Change::Up).unwrap().is_same(&connection(0)));
        assert!(note(1, Change::Up).unwrap().is_same(&connection(1)));
        assert!(note(0, Change::Down(SessionEnd::Silent)).unwrap().is_same(&connection(1)));
        assert!(note(1, Change::Down(SessionEnd::Silent)).is_none());
        assert_eq!(connected.newest().count(), 0);
    });
}
