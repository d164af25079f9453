//! What the tests of this crate share: pairs of links, frames, pools, and a way to drive them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::future::{Future, poll_fn};
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use blockwire::pool::{
    Backing, BlockPool, Cursor, Dtype, KvSpec, PayloadOrder, PoolOptions, ReservedBlock,
    ScatterList,
};
use blockwire::transport::{
    Address, CloseReason, ConnectError, Link, LinkEvent, Listener, Op, OpId, Transport,
};
use blockwire::wire::{Header, Kind};
use blockwire_shm::{ShmOptions, ShmTransport};
use bytes::Bytes;
use uuid::Uuid;

/// Whatever hangs, hangs no longer than this.
const WATCHDOG: Duration = Duration::from_secs(60);

/// The smallest ring, so that everything wraps and waits.
pub const SMALL_RING: usize = 4096;

pub fn run<T>(test: impl Future<Output = T>) -> T {
    run_for(WATCHDOG, test)
}

/// The same for a test that has much to do.
pub fn run_for<T>(longest: Duration, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(longest, test).await.expect("the test hangs") })
}

pub fn address(dir: &Path) -> Address {
    Address::new("shm", dir.join("x.sock").to_str().unwrap())
}

pub fn transport(ring_len: usize) -> ShmTransport {
    ShmTransport::new(ShmOptions { ring_len, payload_ring_len: ring_len, ..ShmOptions::default() })
}

pub async fn accept(listener: &mut dyn Listener) -> Result<Box<dyn Link>, ConnectError> {
    poll_fn(|cx| listener.poll_accept(cx)).await
}

/// A dialled link and its accepted other end.
pub async fn pair(ring_len: usize) -> [Box<dyn Link>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let transport = transport(ring_len);
    let mut listener = transport.listen(&address(dir.path())).await.unwrap();
    let dialled = transport.connect(&listener.local_address());
    let (dialled, accepted) = tokio::join!(dialled, accept(listener.as_mut()));
    [dialled.unwrap(), accepted.unwrap()]
}

/// A frame whose body is `len` bytes that depend on `seed`.
pub fn frame(seed: u64, len: usize) -> Bytes {
    let body: Vec<u8> = (0..len as u64).map(|i| ((i * 31 + seed) % 251) as u8).collect();
    let header = Header::control(Kind::Message, Uuid::nil(), seed as u32);
    let header = Header { body_len: len as u32, ..header }.encode(&body);
    [&header[..], &body[..]].concat().into()
}

/// Polls both links until `until` says so of their events.
pub async fn drive(
    links: &mut [Box<dyn Link>; 2],
    events: &mut [Vec<LinkEvent>; 2],
    mut until: impl FnMut(&[Vec<LinkEvent>; 2]) -> bool,
) {
    poll_fn(|cx| {
        loop {
            if until(events) {
                return Poll::Ready(());
            }
            let moved = (0..2).filter(|i| links[*i].poll_progress(cx, &mut events[*i]).is_ready());
            if moved.count() == 0 {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Polls one link until `until` says so of its events.
pub async fn drive_one(
    link: &mut dyn Link,
    events: &mut Vec<LinkEvent>,
    mut until: impl FnMut(&[LinkEvent]) -> bool,
) {
    poll_fn(|cx| {
        loop {
            if until(events) {
                return Poll::Ready(());
            }
            if link.poll_progress(cx, events).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Polls a link to its end and returns all events and the reason.
pub async fn to_the_end(link: &mut dyn Link) -> (Vec<LinkEvent>, CloseReason) {
    let mut events = Vec::new();
    drive_one(link, &mut events, |events| closed(events).is_some()).await;
    let reason = closed(&events).unwrap().clone();
    (events, reason)
}

pub fn closed(events: &[LinkEvent]) -> Option<&CloseReason> {
    events.iter().find_map(|event| match event {
        LinkEvent::Closed(reason) => Some(reason),
        _ => None,
    })
}

pub fn received(events: &[LinkEvent]) -> Vec<Bytes> {
    let frames = events.iter().filter_map(|event| match event {
        LinkEvent::Received(frame) => Some(frame.clone()),
        _ => None,
    });
    frames.collect()
}

pub fn completed(events: &[LinkEvent]) -> Vec<OpId> {
    let ops = events.iter().filter_map(|event| match event {
        LinkEvent::Completed(done) => Some(done.op),
        _ => None,
    });
    ops.collect()
}

pub fn submit(link: &mut dyn Link, op: Op) -> OpId {
    link.submit(op).unwrap()
}

/// A pool of blocks of 16 KiB.
pub fn pool(blocks: usize, backing: Backing) -> BlockPool {
    BlockPool::new(pool_options(blocks, backing)).unwrap()
}

/// The same in the largest pages that this machine gives, all of them there.
pub fn pool_faulted_in(blocks: usize, backing: Backing) -> BlockPool {
    BlockPool::faulted_in(pool_options(blocks, backing), &mut |_, _| {}).unwrap()
}

fn pool_options(blocks: usize, backing: Backing) -> PoolOptions {
    let spec = KvSpec::uniform(16, 4, 2, 32, Dtype::F16);
    PoolOptions { backing, ..PoolOptions::new(spec, blocks) }
}

/// Room for `blocks` whole blocks.
pub fn room(pool: &BlockPool, blocks: usize) -> ScatterList {
    let order = PayloadOrder { block_tokens: 16 };
    let reserved = pool.try_reserve(blocks).unwrap();
    ScatterList::new(pool, reserved, order, 0..blocks * 16).unwrap()
}

/// Fills room with bytes that depend on `seed`.
pub fn fill(mut room: ScatterList, seed: u8) -> Vec<ReservedBlock> {
    let mut next = seed;
    for slice in room.slices(&Cursor::default(), usize::MAX) {
        for byte in slice {
            *byte = next;
            next = next.wrapping_mul(5).wrapping_add(13);
        }
    }
    room.into_blocks()
}

/// All bytes of a room.
pub fn bytes_of(room: &mut ScatterList) -> Vec<u8> {
    room.slices(&Cursor::default(), usize::MAX).fold(Vec::new(), |mut all, slice| {
        all.extend_from_slice(slice);
        all
    })
}
