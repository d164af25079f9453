//! What is sent as pages, and who keeps the blocks meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use blockwire::endpoint::{Endpoint, EndpointOptions, Event};
use blockwire::pool::{
    Backing, BlockPool, Dtype, KvSpec, PeerMemory, PoolOptions, Region, ReservedBlock, SealedRun,
    TransferStats,
};
use blockwire::session::{HandoffKey, Identity, LandError, OfferPayload};
use blockwire::transport::{
    Address, Capabilities, CloseReason, ConnectError, Link, LinkEvent, ListenError, Listener,
    LocalFuture, Op, OpId, Refused, RegionKey, RegisterError, Transport,
};
use blockwire_tcp::{SendWay, TcpOptions, TcpTransport};
use bytes::Bytes;
use common::*;
use tokio::task::{LocalSet, spawn_local, yield_now};
use uuid::Uuid;

/// One of them counts the pipes of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn options(way: SendWay) -> TcpOptions {
    let mut options = TcpOptions::default();
    options.send_way = way;
    // The system is to take a whole payload before its peer reads.
    options.unsent_len_max = None;
    options
}

/// Overwrites all free blocks of a pool.
fn overwrite(pool: &BlockPool) {
    for mut block in pool.try_reserve(pool.accounting().free).unwrap() {
        block.fill(0xee);
    }
}

/// This is what the session has to guard against, and what pages are for: the bytes of a completed
/// stream are still in their blocks.
#[test]
fn a_peer_reads_pages_where_they_lie_and_copies_as_they_were() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(async {
        for way in [SendWay::Pages, SendWay::Copies] {
            let (mut a, mut b) = pair_at(options(way), "tcp://127.0.0.1:0").await;
            assert_eq!(a.link.capabilities().lingers, way == SendWay::Pages);
            let (from, to) = (pool(64), pool(64));
            let (list, bytes, digest) = payload(&from, 12 * 16, 0);
            let landed = land(&mut b, 1, room(&to, 12 * 16));
            let sent = stream(&mut a, 1, list);
            until(&mut [&mut a], |sides| sides[0].completion(sent).is_some()).await;
            assert_eq!(a.outcome(sent).unwrap().unwrap(), digest);
            a.events.clear();
            overwrite(&from);
            until(&mut [&mut b], |sides| sides[0].completion(landed).is_some()).await;
            let came = b.outcome(landed).unwrap().unwrap();
            let whole = b.landed(landed) == bytes;
            let copied = way == SendWay::Copies;
            assert_eq!((came == digest, whole), (copied, copied), "{way:?}");
        }
    });
}

/// The system tells once that a connection was reset, to whichever call is first.
#[test]
fn a_connection_that_is_reset_amid_payload_is_lost() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(async {
        for way in [SendWay::Pages, SendWay::Copies] {
            for _ in 0..20 {
                let (socket, mut link) = raw_at(options(way)).await;
                let from = pool(1024);
                let (list, ..) = payload(&from, 1024 * 16, 0);
                stream(&mut link, 1, list);
                until(&mut [&mut link], |sides| sides[0].link.stats().sent() > 0).await;
                socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
                drop(socket);
                until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
                let end = link.closed().unwrap();
                assert!(matches!(end, CloseReason::Lost(_)), "{way:?}: {end}");
            }
        }
    });
}

/// A link that carries control and small payloads only has one descriptor; the pipe comes with the first
/// payload that is worth it.
#[test]
fn a_pipe_is_opened_when_it_is_needed() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pipes = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("pipe:")).count()
    };
    run(async {
        let (mut a, mut b) = pair_at(options(SendWay::Pages), "tcp://127.0.0.1:0").await;
        let (from, to) = (pool(64), pool(64));
        for (tag, tokens, opened) in [(1, 16, 0), (2, 4 * 16, 2)] {
            let before = pipes();
            let (list, ..) = payload(&from, tokens, 0);
            let landed = land(&mut b, tag, room(&to, tokens));
            stream(&mut a, tag, list);
            until(&mut [&mut a, &mut b], |sides| sides[1].completion(landed).is_some()).await;
            assert_eq!(pipes() - before, opened, "{tokens} tokens");
        }
    });
}

/// A transport whose links stand still once they have asked for a payload, until the gate is opened.
#[derive(Debug)]
struct Gated {
    inner: TcpTransport,
    open: Arc<AtomicBool>,
}

struct GatedListener(Box<dyn Listener>, Arc<AtomicBool>);

struct GatedLink {
    inner: Box<dyn Link>,
    open: Arc<AtomicBool>,
    posted: bool,
    asked: bool,
}

impl Transport for Gated {
    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        self.inner.connect(address)
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (listening, open) = (self.inner.listen(address), Arc::clone(&self.open));
        Box::pin(
            async move { Ok(Box::new(GatedListener(listening.await?, open)) as Box<dyn Listener>) },
        )
    }
}

impl Listener for GatedListener {
    fn local_address(&self) -> Address {
        self.0.local_address()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        self.0.poll_accept(cx).map_ok(|inner| {
            let open = Arc::clone(&self.1);
            Box::new(GatedLink { inner, open, posted: false, asked: false }) as Box<dyn Link>
        })
    }
}

impl Link for GatedLink {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn stats(&self) -> &Arc<TransferStats> {
        self.inner.stats()
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        self.inner.register(region)
    }

    fn peer_memory(&mut self, key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        self.inner.peer_memory(key)
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        self.posted |= matches!(op, Op::Land { .. });
        self.inner.submit(op)
    }

    fn cancel(&mut self, op: OpId) {
        self.inner.cancel(op);
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        if self.asked && !self.open.load(Relaxed) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let progress = self.inner.poll_progress(cx, events);
        // The only control frame after the room is the one that asks for the payload.
        self.asked |= self.posted && !events.is_empty();
        progress
    }
}

fn endpoint(pool: &BlockPool, transport: impl Transport + 'static) -> Endpoint {
    let transports: Vec<Arc<dyn Transport>> = vec![Arc::new(transport)];
    let options = EndpointOptions::new(Identity::new("side"), Some(pool.clone()), transports);
    let (endpoint, driver) = Endpoint::local(options);
    spawn_local(driver);
    endpoint
}

fn offer(pool: &BlockPool, count: usize) -> OfferPayload {
    let mut blocks = pool.try_reserve(count).unwrap();
    blocks.iter_mut().for_each(|block| block.fill(7));
    let blocks = blocks.into_iter().map(ReservedBlock::seal).collect();
    let run = SealedRun::new(pool, blocks, count * 16).unwrap();
    OfferPayload { run, meta: Bytes::new(), closing: Bytes::new() }
}

/// A handoff is given up when all of it is sent and nothing is read: the blocks stay with it. The
/// receiver reads on: they are free.
#[test]
fn blocks_of_a_withdrawn_handoff_stay_until_the_peer_has_read() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const BLOCKS: usize = 4;
    for backing in [Backing::Shared, Backing::Private] {
        let options = PoolOptions::new(KvSpec::uniform(16, 4, 2, 64, Dtype::F16), 64);
        let from = BlockPool::new(PoolOptions { backing, ..options.clone() }).unwrap();
        let to = BlockPool::new(options).unwrap();
        run(LocalSet::new().run_until(async move {
            let inner = TcpTransport::new(self::options(SendWay::Pages));
            let open = Arc::new(AtomicBool::new(false));
            let sender = endpoint(&from, inner.clone());
            let receiver = endpoint(&to, Gated { inner, open: Arc::clone(&open) });
            let mut listening =
                receiver.listen(&"tcp://127.0.0.1:0".parse().unwrap()).await.unwrap();
            let (connection, _events) = sender.connect(listening.local_address()).await.unwrap();
            let (_peer, mut events) = listening.accept().await.unwrap();

            let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
            let offered = connection.offer(key, offer(&from, BLOCKS));
            let Some(Event::Handoff(incoming)) = events.next().await else { panic!("no offer") };
            let room = to.try_reserve(BLOCKS).unwrap();
            let pool = to.clone();
            let landing = spawn_local(async move { incoming.accept(&pool, room, 0).await.err() });
            let len = (BLOCKS * from.spec().block_bytes()) as u64;
            while connection.stats().payload_sent < len {
                yield_now().await;
            }
            drop(offered);
            while connection.stats().offers_in_quarantine == 0 {
                yield_now().await;
            }
            for _ in 0..1000 {
                yield_now().await;
                assert_eq!(from.accounting().free, 64 - BLOCKS, "the peer may still read them");
            }
            open.store(true, Relaxed);
            while from.accounting().free < 64 {
                yield_now().await;
            }
            // It may have landed before it was withdrawn, never with other bytes.
            let ended = landing.await.unwrap();
            assert!(matches!(ended, None | Some(LandError::Withdrawn)), "{ended:?}");
        }));
    }
}
