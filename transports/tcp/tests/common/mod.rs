//! Two links in one task, and payloads whose every byte is known.
#![allow(dead_code, reason = "every test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod stranger;

use std::future::{Future, poll_fn};
use std::io::Cursor as IoCursor;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::task::Poll;
use std::time::Duration;

use blockwire::pool::{
    BlockPool, Cursor, Digest, Dtype, GatherList, KvSpec, Layout, PayloadOrder, PoolOptions,
    ReservedBlock, ScatterList, SealedBlock,
};
use blockwire::transport::{
    CloseReason, Completion, Link, LinkEvent, Listener, Op, OpError, OpId, OpMemory, StreamTag,
    Transport,
};
use blockwire::wire::{HEADER_LEN, Header, Kind, encode_frame};
use blockwire_tcp::{ClusterKey, TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

pub(crate) use stranger::*;

/// Runs a test; a hang fails instead of lasting.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test hangs");
    });
}

/// A link and what it reported.
pub(crate) struct Side {
    pub(crate) link: Box<dyn Link>,
    pub(crate) events: Vec<LinkEvent>,
}

impl Side {
    pub(crate) fn new(link: Box<dyn Link>) -> Self {
        Self { link, events: Vec::new() }
    }

    pub(crate) fn submit(&mut self, op: Op) -> OpId {
        self.link.submit(op).unwrap()
    }

    pub(crate) fn control(&mut self, frame: &Bytes) -> OpId {
        self.submit(Op::Control(frame.clone()))
    }

    pub(crate) fn received(&self) -> Vec<Bytes> {
        let received = self.events.iter().filter_map(|event| match event {
            LinkEvent::Received(frame) => Some(frame.clone()),
            _ => None,
        });
        received.collect()
    }

    pub(crate) fn completion(&self, op: OpId) -> Option<&Completion> {
        let mut found = self.events.iter().filter_map(|event| match event {
            LinkEvent::Completed(completion) if completion.op == op => Some(completion),
            _ => None,
        });
        let first = found.next();
        assert!(found.next().is_none(), "{op:?} completed twice");
        first
    }

    pub(crate) fn outcome(&self, op: OpId) -> Option<Result<u64, OpError>> {
        self.completion(op).map(|completion| completion.outcome.clone())
    }

    pub(crate) fn closed(&self) -> Option<&CloseReason> {
        let at = self.events.iter().position(|event| matches!(event, LinkEvent::Closed(_)))?;
        assert_eq!(at + 1, self.events.len(), "events after the end");
        match &self.events[at] {
            LinkEvent::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    /// The room of a completed `Land`, as bytes.
    pub(crate) fn landed(&mut self, op: OpId) -> Vec<u8> {
        let at = self.events.iter().position(
            |event| matches!(event, LinkEvent::Completed(completion) if completion.op == op),
        );
        match self.events.remove(at.expect("it completed")) {
            LinkEvent::Completed(Completion { memory: OpMemory::Room(room), .. }) => bytes_of(room),
            other => panic!("{other:?} is no room"),
        }
    }
}

/// Polls the sides until `done`.
pub(crate) async fn until(sides: &mut [&mut Side], mut done: impl FnMut(&[&mut Side]) -> bool) {
    poll_fn(|cx| {
        for _ in 0..16 {
            let mut ready = false;
            for side in &mut *sides {
                ready |= side.link.poll_progress(cx, &mut side.events).is_ready();
            }
            if done(sides) {
                return Poll::Ready(());
            }
            if !ready {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(crate) async fn accept(listener: &mut Box<dyn Listener>) -> Side {
    Side::new(poll_fn(|cx| listener.poll_accept(cx)).await.unwrap())
}

pub(crate) async fn listen(transport: &TcpTransport, at: &str) -> Box<dyn Listener> {
    transport.listen(&at.parse().unwrap()).await.unwrap()
}

/// Dials, while the listener accepts.
pub(crate) async fn meet(
    transport: &TcpTransport,
    listener: &mut Box<dyn Listener>,
) -> (Side, Side) {
    let dialling = transport.connect(&listener.local_address());
    let (dialled, accepted) = tokio::join!(dialling, accept(listener));
    (Side::new(dialled.unwrap()), accepted)
}

pub(crate) async fn pair_at(options: TcpOptions, at: &str) -> (Side, Side) {
    let transport = TcpTransport::new(options);
    let mut listener = listen(&transport, at).await;
    meet(&transport, &mut listener).await
}

pub(crate) async fn pair() -> (Side, Side) {
    pair_at(TcpOptions::default(), "tcp://127.0.0.1:0").await
}

/// A link whose peer is a plain socket, greeted and no more.
pub(crate) async fn raw() -> (TcpStream, Side) {
    raw_at(TcpOptions::default()).await
}

/// Like [`raw`], with options.
pub(crate) async fn raw_at(options: TcpOptions) -> (TcpStream, Side) {
    let mut listener = listen(&TcpTransport::new(options), "tcp://127.0.0.1:0").await;
    let mut stream = TcpStream::connect(listener.local_address().target()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&greeting(false)).unwrap();
    let accepted = accept(&mut listener).await;
    stream.read_exact(&mut [0; GREETING_LEN]).unwrap();
    (stream, accepted)
}

/// A link with a cluster key, whose peer is a stranger that has it too.
pub(crate) async fn known() -> (Stranger, Side) {
    let mut listener = listen(&TcpTransport::new(keyed(KEY)), "tcp://127.0.0.1:0").await;
    let target = listener.local_address().target().to_owned();
    let dialling = tokio::task::spawn_blocking(move || Stranger::dial(&target, KEY).unwrap());
    let accepted = accept(&mut listener).await;
    (dialling.await.unwrap(), accepted)
}

/// Options with a cluster key.
pub(crate) fn keyed(text: &str) -> TcpOptions {
    let mut options = TcpOptions::default();
    options.cluster_key = Some(ClusterKey::from_text(text).unwrap());
    options
}

pub(crate) fn message(body: &[u8]) -> Bytes {
    let header = Header::control(Kind::Message, Uuid::nil(), 0);
    encode_frame(header, &body.to_vec()).unwrap()
}

pub(crate) fn payload_frame(tag: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header::payload(tag, offset, payload.len() as u64).encode(&[]);
    [&header[..], payload].concat()
}

const ORDER: PayloadOrder = PayloadOrder { block_tokens: 16 };

/// The frame by which a peer tells how many payload bytes it has read.
pub(crate) fn credit(read: u64) -> [u8; HEADER_LEN] {
    let header = Header::control(Kind::Credit, Uuid::nil(), 0);
    Header { offset: read, ..header }.encode(&[])
}

/// A pool whose payload falls into many extents.
pub(crate) fn pool(blocks: usize) -> BlockPool {
    let spec = KvSpec::uniform(16, 4, 2, 64, Dtype::F16);
    let options = PoolOptions { layout: Layout::LayerMajor, ..PoolOptions::new(spec, blocks) };
    BlockPool::new(options).unwrap()
}

pub(crate) fn room(pool: &BlockPool, tokens: usize) -> ScatterList {
    let blocks = pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap();
    ScatterList::new(pool, blocks, ORDER, 0..tokens).unwrap()
}

fn write(mut room: ScatterList, bytes: &[u8]) -> Vec<SealedBlock> {
    let mut from = bytes;
    for slice in room.slices(&Cursor::default(), usize::MAX) {
        let (now, later) = from.split_at(slice.len());
        IoCursor::new(slice).write_all(now).unwrap();
        from = later;
    }
    room.into_blocks().into_iter().map(ReservedBlock::seal).collect()
}

/// A payload of `tokens` tokens, its bytes, and their digest.
pub(crate) fn payload(pool: &BlockPool, tokens: usize, seed: u8) -> (GatherList, Vec<u8>, u64) {
    let room = room(pool, tokens);
    let bytes: Vec<u8> =
        (0..room.len()).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
    let blocks = write(room, &bytes);
    let list = GatherList::new(pool, &blocks, ORDER, 0..tokens).unwrap();
    let mut digest = Digest::default();
    digest.update(&bytes);
    (list, bytes, digest.value())
}

fn bytes_of(mut room: ScatterList) -> Vec<u8> {
    let mut bytes = Vec::new();
    room.slices(&Cursor::default(), usize::MAX).for_each(|slice| bytes.extend_from_slice(slice));
    bytes
}

pub(crate) fn land(side: &mut Side, tag: u64, room: ScatterList) -> OpId {
    side.submit(Op::Land { tag: StreamTag(tag), room })
}

pub(crate) fn stream(side: &mut Side, tag: u64, payload: GatherList) -> OpId {
    side.submit(Op::Stream { tag: StreamTag(tag), payload })
}

/// Memory of this process that is in use, in KiB.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}
