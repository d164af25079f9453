//! T3: how fast does payload go through the `shm` payload ring, against one cold memcpy?
//!
//! Two threads, on cpu 0 and cpu 1, each with a link under a runtime; pools of 256 MiB with private
//! pages, faulted in before, every message from and to other blocks. Both ends digest what passes,
//! as every payload is; the floor does not, and a second line of it does. Eight MiB are on the way
//! at a time; the receiver posts room and tells the sender so by a control frame.
//!
//! `cargo bench -p blockwire-benches --bench shm_ring`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hint::black_box;
use std::task::Poll;

use blockwire::clock;
use blockwire::pool::{
    BlockPool, Digest, Dtype, GatherList, KvSpec, PayloadOrder, PoolOptions, ReservedBlock,
    ScatterList, SealedBlock, TransferStats, copy_payload,
};
use blockwire::transport::{Link, LinkEvent, Op, OpMemory, StreamTag};
use blockwire::wire::{Header, Kind};
use blockwire_benches::host::{core_distance, pin};
use blockwire_benches::{Samples, linked, print_ratio, runs};
use blockwire_shm::ShmTransport;
use bytes::Bytes;
use uuid::Uuid;

/// Bytes of a block.
const BLOCK: usize = 64 * 1024;
/// Bytes of each pool: far more than the caches.
const POOL: usize = 256 << 20;
/// Bytes moved by a round.
const ROUND: usize = 512 << 20;
/// Bytes on the way at a time.
const WINDOW: usize = 8 << 20;
/// Tokens of a block.
const TOKENS: usize = 16;

fn main() {
    let lens = [64 * 1024, 1 << 20];
    let mut distance = Samples::default();
    let mut samples = lens.map(|_| <[Samples; 3]>::default());
    let (from, mut to) = (vec![7; POOL], vec![1; POOL]);
    let pools = [filled_pool(), filled_pool()];
    for _ in 0..runs() {
        distance.push(core_distance());
        for (len, [floor, digested, ring]) in lens.into_iter().zip(&mut samples) {
            floor.push(copies(&from, &mut to, len, false));
            digested.push(copies(&from, &mut to, len, true));
            ring.push(streams(&pools, len));
        }
    }
    println!("payload ring, GB/s; cpus 0 and 1; {} rounds; slot {distance} ns", runs());
    for (len, [floor, digested, ring]) in lens.into_iter().zip(&samples) {
        let kib = len / 1024;
        print_ratio(&format!("{kib} KiB / cold memcpy (>= 1.05, far 0.9)"), floor, ring);
        print_ratio(&format!("{kib} KiB / cold copy with its digest"), digested, ring);
    }
}

/// The floor: one thread copies cold messages.
fn copies(from: &[u8], to: &mut [u8], len: usize, with_digest: bool) -> f64 {
    pin(0);
    let stats = TransferStats::default();
    let start = clock::now();
    for _ in 0..ROUND / POOL {
        for (from, to) in from.chunks(len).zip(to.chunks_mut(len)) {
            if with_digest {
                copy_payload(from, to, &mut Digest::default(), &stats);
            } else {
                to.copy_from_slice(black_box(from));
            }
        }
    }
    ROUND as f64 / start.elapsed().as_nanos() as f64
}

/// A pool whose pages are all there.
fn filled_pool() -> BlockPool {
    let spec = KvSpec::uniform(TOKENS as u32, 1, 8, 128, Dtype::F16);
    assert_eq!(spec.block_bytes(), BLOCK);
    let pool = BlockPool::new(PoolOptions::new(spec, POOL / BLOCK)).expect("memory for the pool");
    pool.try_reserve(POOL / BLOCK).expect("all blocks").iter_mut().for_each(|b| b.fill(7));
    pool
}

/// A round through the ring.
fn streams([from, to]: &[BlockPool; 2], len: usize) -> f64 {
    let (from, to) = (from.clone(), to.clone());
    let sender = async move |link| send(link, &from, len).await;
    linked(ShmTransport::default(), sender, async move |link| receive(link, &to, len).await)
}

/// Streams the next blocks for every message of the peer's, until it is gone.
async fn send(mut link: Box<dyn Link>, pool: &BlockPool, len: usize) {
    let reserved = pool.try_reserve(POOL / BLOCK).expect("all blocks");
    let sealed: Vec<SealedBlock> = reserved.into_iter().map(ReservedBlock::seal).collect();
    let mut messages = sealed.chunks(len / BLOCK).cycle();
    let mut tag = 0;
    let mut events = Vec::new();
    loop {
        poll_fn(|cx| match link.poll_progress(cx, &mut events) {
            Poll::Pending if events.is_empty() => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        for event in events.drain(..) {
            match event {
                LinkEvent::Received(_) => {
                    let blocks = messages.next().expect("a cycle");
                    let tokens = 0..blocks.len() * TOKENS;
                    let payload = GatherList::new(pool, blocks, order(), tokens).expect("whole");
                    tag += 1;
                    let stream = Op::Stream { tag: StreamTag(tag), payload };
                    link.submit(stream).expect("an open link");
                }
                // Streams that the receiver's end cuts off fail.
                LinkEvent::Completed(_) => {}
                LinkEvent::Closed(_) => return,
            }
        }
    }
}

/// Lands a round; gigabytes a second.
async fn receive(mut link: Box<dyn Link>, pool: &BlockPool, len: usize) -> f64 {
    let message = Header::control(Kind::Ping, Uuid::nil(), 0).encode(&[]);
    let message = Bytes::copy_from_slice(&message);
    let mut free = VecDeque::from(pool.try_reserve(POOL / BLOCK).expect("all blocks"));
    let (mut tag, mut landed) = (0, 0);
    let mut events = Vec::new();
    let mut post = |link: &mut dyn Link, free: &mut VecDeque<ReservedBlock>| {
        let blocks: Vec<_> = free.drain(..len / BLOCK).collect();
        let tokens = 0..blocks.len() * TOKENS;
        let room = ScatterList::new(pool, blocks, order(), tokens).expect("whole blocks");
        tag += 1;
        link.submit(Op::Land { tag: StreamTag(tag), room }).expect("an open link");
        link.submit(Op::Control(message.clone())).expect("an open link");
    };
    let start = clock::now();
    (0..WINDOW / len).for_each(|_| post(link.as_mut(), &mut free));
    while landed < ROUND {
        poll_fn(|cx| match link.poll_progress(cx, &mut events) {
            Poll::Pending if events.is_empty() => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        for event in events.drain(..) {
            let LinkEvent::Completed(done) = event else { panic!("{event:?}") };
            done.outcome.expect("an open link");
            if let OpMemory::Room(room) = done.memory {
                landed += len;
                free.extend(room.into_blocks());
                post(link.as_mut(), &mut free);
            }
        }
    }
    landed as f64 / start.elapsed().as_nanos() as f64
}

fn order() -> PayloadOrder {
    PayloadOrder { block_tokens: TOKENS as u32 }
}
