//! How fast one link is over loopback, open, with a cluster key, and with TLS, next to plain gathering writes
//! and scattering reads of the same memory in the same run. Prints one line a measurement.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be taken ends the program")]

use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use blockwire::clock;
use blockwire::pool::{
    BlockPool, Cursor, Dtype, GatherList, KvSpec, Layout, PayloadOrder, PoolOptions, ReservedBlock,
    ScatterList,
};
use blockwire::transport::{Address, Link, LinkEvent, Op, OpMemory, StreamTag, Transport};
use blockwire::wire::{Header, Kind, encode_frame};
use blockwire_tcp::{ClusterKey, TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

const TOKENS: usize = 4096;
const ROUNDS: u64 = 24;
const PINGS: usize = 5_000;
const ORDER: PayloadOrder = PayloadOrder { block_tokens: 16 };
const KEY: &str = "a key for a measurement, no secret at all";
/// What is done with the bytes of a link, whether it has a key, and where it listens.
const WAYS: [(&str, bool, &str); 3] = [
    ("digests", false, "tcp://127.0.0.1:0"),
    ("digests and tags", true, "tcp://127.0.0.1:0"),
    ("digests and TLS", true, "tcp://127.0.0.1:0?tls=key"),
];

fn pool(layout: Layout) -> BlockPool {
    let spec = KvSpec::uniform(16, 8, 4, 128, Dtype::F16);
    let blocks = spec.blocks_for(TOKENS);
    BlockPool::new(PoolOptions { layout, ..PoolOptions::new(spec, blocks) }).unwrap()
}

fn room(pool: &BlockPool) -> ScatterList {
    let blocks = pool.try_reserve(pool.spec().blocks_for(TOKENS)).unwrap();
    let mut room = ScatterList::new(pool, blocks, ORDER, 0..TOKENS).unwrap();
    room.slices(&Cursor::default(), usize::MAX).for_each(|slice| slice.fill(3));
    room
}

fn payload(pool: &BlockPool) -> GatherList {
    let blocks: Vec<_> = room(pool).into_blocks().into_iter().map(ReservedBlock::seal).collect();
    GatherList::new(pool, &blocks, ORDER, 0..TOKENS).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The next event of a link.
async fn next(link: &mut Box<dyn Link>, events: &mut Vec<LinkEvent>) -> LinkEvent {
    while events.is_empty() {
        poll_fn(|cx| link.poll_progress(cx, events)).await;
        events.reverse();
    }
    events.pop().unwrap()
}

fn message(len: usize) -> Bytes {
    encode_frame(Header::control(Kind::Message, Uuid::nil(), 0), &vec![1; len]).unwrap()
}

/// Lands every round, asks for the next, and answers pings.
async fn receive(mut link: Box<dyn Link>, layout: Layout) {
    let pool = pool(layout);
    let (mut room, mut tag) = (Some(room(&pool)), 0);
    let mut events = Vec::new();
    loop {
        if let Some(room) = room.take() {
            let landing = link.submit(Op::Land { tag: StreamTag(tag), room });
            if landing.is_err() || link.submit(Op::Control(message(8))).is_err() {
                return;
            }
            tag += 1;
        }
        match next(&mut link, &mut events).await {
            LinkEvent::Received(frame) => {
                if link.submit(Op::Control(frame)).is_err() {
                    return;
                }
            }
            LinkEvent::Completed(completion) => {
                if let OpMemory::Room(landed) = completion.memory {
                    room = Some(landed);
                }
            }
            LinkEvent::Closed(_) => return,
        }
    }
}

async fn link_speed(transport: &TcpTransport, address: &Address, layout: Layout) -> f64 {
    let mut link = transport.connect(address).await.unwrap();
    let pool = pool(layout);
    let mut list = Some(payload(&pool));
    let bytes = list.as_ref().unwrap().len();
    let (mut events, mut tag, mut started) = (Vec::new(), 0, clock::now());
    let mut ready = false;
    while tag < ROUNDS || list.is_none() || !ready {
        if tag == 4 && ready && list.is_some() {
            started = clock::now();
        }
        if ready && let Some(payload) = list.take() {
            link.submit(Op::Stream { tag: StreamTag(tag), payload }).unwrap();
            (ready, tag) = (false, tag + 1);
        }
        match next(&mut link, &mut events).await {
            LinkEvent::Received(_) => ready = true,
            LinkEvent::Completed(completion) => {
                if let OpMemory::Payload(back) = completion.memory {
                    list = Some(back);
                }
            }
            LinkEvent::Closed(reason) => panic!("{reason}"),
        }
    }
    ((ROUNDS - 4) * bytes) as f64 / started.elapsed().as_secs_f64() / 1e9
}

async fn ping_time(transport: &TcpTransport, address: &Address) -> f64 {
    let mut link = transport.connect(address).await.unwrap();
    let mut events = Vec::new();
    while !matches!(next(&mut link, &mut events).await, LinkEvent::Received(_)) {}
    let started = clock::now();
    for _ in 0..PINGS {
        link.submit(Op::Control(message(64))).unwrap();
        while !matches!(next(&mut link, &mut events).await, LinkEvent::Received(_)) {}
    }
    started.elapsed().as_secs_f64() / PINGS as f64 * 1e6
}

fn measure_link(layout: Layout, has_key: bool, at: &'static str) -> (f64, f64) {
    let mut options = TcpOptions::default();
    options.cluster_key = has_key.then(|| ClusterKey::from_text(KEY).unwrap());
    let near = TcpTransport::new(options);
    let transport = near.clone();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        block_on(async {
            let mut listener = transport.listen(&at.parse().unwrap()).await.unwrap();
            tell.send(listener.local_address()).unwrap();
            loop {
                let link = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
                receive(link, layout).await;
            }
        });
    });
    let address = told.recv().unwrap();
    block_on(async {
        (link_speed(&near, &address, layout).await, ping_time(&near, &address).await)
    })
}

fn cubic(stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"cubic");
}

/// Blocking calls of up to half a megabyte from and into the same lists, without digests.
fn floor(layout: Layout) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut inward, _) = listener.accept().unwrap();
    cubic(&out);
    let reader = thread::spawn(move || {
        let pool = pool(layout);
        let mut room = room(&pool);
        for _ in 0..ROUNDS {
            let mut cursor = Cursor::default();
            while cursor.position() < room.len() {
                let slices = room.slices(&cursor, 512 << 10).map(IoSliceMut::new);
                let len = inward.read_vectored(&mut slices.collect::<Vec<_>>()).unwrap();
                cursor.advance(room.extents(), len);
            }
            inward.write_all(&[1]).unwrap();
        }
    });
    let pool = pool(layout);
    let list = payload(&pool);
    let mut started = clock::now();
    for round in 0..ROUNDS {
        if round == 4 {
            started = clock::now();
        }
        let mut cursor = Cursor::default();
        while cursor.position() < list.len() {
            let slices: Vec<_> = list.slices(&cursor, 512 << 10).map(IoSlice::new).collect();
            let len = out.write_vectored(&slices).unwrap();
            cursor.advance(list.extents(), len);
        }
        out.read_exact(&mut [0]).unwrap();
    }
    reader.join().unwrap();
    ((ROUNDS - 4) * list.len()) as f64 / started.elapsed().as_secs_f64() / 1e9
}

fn main() {
    for layout in [Layout::BlockMajor, Layout::LayerMajor] {
        for _ in 0..3 {
            let floor = floor(layout);
            for (how, has_key, at) in WAYS {
                let (link, ping) = measure_link(layout, has_key, at);
                println!(
                    "{layout:?}: link {link:.2} GB/s with {how}, floor {floor:.2} GB/s without, ratio \
                     {:.2}; control round trip {ping:.1} us",
                    link / floor
                );
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}
