//! The transport under test, with its polls counted: a link that polls without end shows.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll};

use blockwire::pool::{PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Address, Capabilities, ConnectError, Link, LinkEvent, ListenError, Listener, LocalFuture, Op,
    OpId, Refused, RegionKey, RegisterError, Transport,
};
use blockwire_shm::ShmTransport;

thread_local! {
    static POLLS: Cell<u64> = const { Cell::new(0) };
}

/// Polls of links on this thread so far.
pub fn polls() -> u64 {
    POLLS.get()
}

#[derive(Debug)]
pub struct Watched(pub ShmTransport);

struct WatchedListener(Box<dyn Listener>);
struct WatchedLink(Box<dyn Link>);

impl Transport for Watched {
    fn scheme(&self) -> &'static str {
        self.0.scheme()
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let connecting = self.0.connect(address);
        Box::pin(async move { connecting.await.map(watch) })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let listening = self.0.listen(address);
        Box::pin(async move {
            listening.await.map(|inner| Box::new(WatchedListener(inner)) as Box<dyn Listener>)
        })
    }
}

fn watch(link: Box<dyn Link>) -> Box<dyn Link> {
    Box::new(WatchedLink(link))
}

impl Listener for WatchedListener {
    fn local_address(&self) -> Address {
        self.0.local_address()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        self.0.poll_accept(cx).map(|accepted| accepted.map(watch))
    }
}

impl Link for WatchedLink {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn stats(&self) -> &Arc<TransferStats> {
        self.0.stats()
    }

    fn peer(&self) -> String {
        self.0.peer()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        self.0.register(region)
    }

    fn peer_memory(&mut self, key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        self.0.peer_memory(key)
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        self.0.submit(op)
    }

    fn cancel(&mut self, op: OpId) {
        self.0.cancel(op);
    }

    fn close(&mut self) {
        self.0.close();
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        POLLS.set(POLLS.get() + 1);
        self.0.poll_progress(cx, events)
    }
}
