//! T12: what does a node cost that is connected and has nothing to do?
//!
//! Two endpoints of this process with threads of their own, one connection over each transport, held
//! for some seconds after a message each way. Prints the share of one core and the context switches of
//! both sides together. Linux only: the costs come from /proc.
//!
//! `cargo bench -p blockwire-benches --bench idle_node`; `BLOCKWIRE_BENCH_RUNS` sets the seconds.

use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{Endpoint, EndpointOptions};
use blockwire::session::Identity;
use blockwire::transport::{Address, Transport};
use blockwire_benches::{host, runs};
use blockwire_shm::ShmTransport;
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use tokio::runtime::Builder;
use uuid::Uuid;

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let shm = Address::new("shm", &folder.path().join("x.sock").to_string_lossy());
    let tcp: Address = "tcp://127.0.0.1:0".parse().expect("an address");
    hold(Arc::new(ShmTransport::default()), &shm);
    hold(Arc::new(TcpTransport::default()), &tcp);
}

fn hold(transport: Arc<dyn Transport>, bind: &Address) {
    let scheme = transport.scheme();
    let node = || {
        let options = EndpointOptions::new(Identity::new("idle"), None, vec![transport.clone()]);
        Endpoint::start(options).expect("a thread")
    };
    let (near, far) = (node(), node());
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut listening = far.listen(bind).await.expect("a free address");
        let (there, _) = near.connect(listening.local_address()).await.expect("a peer");
        let (back, _events) = listening.accept().await.expect("a peer");
        there.send(Uuid::nil(), 0, 1, Bytes::new()).await.expect("an open connection");
        back.send(Uuid::nil(), 0, 1, Bytes::new()).await.expect("an open connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Some(before) = host::used() else { return println!("{scheme}: not measured here") };
        let seconds = runs() as f64;
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let Some(after) = host::used() else { return };
        let share = (after.cpu_seconds - before.cpu_seconds) / seconds * 100.0;
        let switches = (after.switches - before.switches) as f64 / seconds;
        println!(
            "idle connection over {scheme}, both sides, {seconds} s: {share:.3} % of a core \
             (< 0.5 a node), {switches:.1} context switches a second"
        );
    });
}
