//! T2, T10: how fast is a pull over `shm`, against glibc's `memcpy` from the same mapping, block by block?
//!
//! Another process (this program again) holds a pool of 256 MiB; this one pulls scattered blocks of it
//! into scattered blocks of a pool of its own, and every transfer takes other blocks. Four figures take
//! turns, round after round:
//! - the floor: `memcpy` of each block, nothing else;
//! - the copy alone, without and with the digest (`copy_payload_from_peer`);
//! - the link: `Op::Get` from submission to completion, which always digests.
//!
//! Each line has GB/s as median [min..max] over the rounds, and ratios to the floor of the same round.
//! Not criterion: it measures one thing after the other, and this machine changes between the two.
//!
//! `cargo bench -p blockwire-benches --bench shm_get`; `BLOCKWIRE_BENCH_RUNS` sets the rounds,
//! `BLOCKWIRE_BENCH_PAGES=usual` takes pages of the usual size on both sides. Linux only: the floor maps
//! the other process's memory through `/proc`.

use std::fs::File;
use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use blockwire::clock;
use blockwire::pool::{
    BlockPool, Cursor, Digest, Extent, PayloadOrder, RegionView, ReservedBlock, ScatterList,
    Stores, TransferStats, copy_payload_from_peer,
};
use blockwire::transport::{Address, Link, LinkEvent, Op, OpError, OpMemory, RegionKey, Transport};
use blockwire_benches::blocks::{CASES, POOL_LEN, ROUND_LEN, TOKENS, pool, written};
use blockwire_benches::{Samples, ratios, runs};
use blockwire_shm::ShmTransport;
use tokio::runtime::{Builder, Runtime};

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("owner") {
        return owner(&arguments.next().expect("an address"));
    }
    let runtime = runtime();
    let mut peer = Peer::start(&runtime);
    println!("{} rounds, GB/s as median [min..max], ratios to the floor of the same round", runs());
    for (blocks, block_len) in CASES {
        let mut case = Case::new(blocks, block_len);
        let mut figures = Figures::default();
        case.round(&runtime, &mut peer, &mut Figures::default());
        for _ in 0..runs() {
            case.round(&runtime, &mut peer, &mut figures);
        }
        println!("\n{blocks} x {} KiB ({})", block_len >> 10, case.pool.region().pages());
        figures.print();
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The other process: lets its pool be read until its link ends.
fn owner(address: &str) {
    let runtime = runtime();
    runtime.block_on(async {
        let pool = pool(1 << 20);
        let _sealed: Vec<_> = written(&pool).into_iter().map(ReservedBlock::seal).collect();
        let address: Address = address.parse().expect("an address");
        let mut listener = ShmTransport::default().listen(&address).await.expect("a free address");
        let file = pool.region().shared_file().expect("shared pages");
        println!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut link = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a peer");
        link.register(pool.region()).expect("shared pages");
        let mut events = Vec::new();
        poll_fn(|cx| {
            while link.poll_progress(cx, &mut events).is_ready() {
                if events.drain(..).any(|event| matches!(event, LinkEvent::Closed(_))) {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    });
}

/// The other process, as seen from here.
struct Peer {
    child: Child,
    view: RegionView,
    link: Box<dyn Link>,
    /// Where its socket lies.
    _folder: tempfile::TempDir,
}

impl Peer {
    fn start(runtime: &Runtime) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("shm:{}", folder.path().join("x.sock").display());
        let program = std::env::current_exe().expect("a path");
        let mut child = Command::new(program)
            .args(["owner", &address])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut path = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut path).expect("a path");
        let file = File::open(path.trim()).expect("the other process's memory");
        let view = RegionView::new(&file, POOL_LEN).expect("a mapping");
        view.fault_in(0..POOL_LEN).expect("pages");
        let address: Address = address.parse().expect("an address");
        let link = runtime.block_on(ShmTransport::default().connect(&address)).expect("a peer");
        Self { child, view, link, _folder: folder }
    }

    /// Pulls as a driver does, and gives the room back.
    fn get(&mut self, runtime: &Runtime, room: ScatterList, extents: Vec<Extent>) -> ScatterList {
        let mut events = Vec::new();
        let mut asked = Some(Op::Get { region: RegionKey(0), extents, room });
        runtime.block_on(poll_fn(|cx| {
            while let Some(op) = asked.take() {
                if let Err(refused) = self.link.submit(op) {
                    // The announcement is on its way.
                    let unknown = matches!(refused.error, OpError::UnknownRegion(_));
                    assert!(unknown, "{}", refused.error);
                    asked = Some(refused.op);
                }
            }
            while self.link.poll_progress(cx, &mut events).is_ready() {
                if let Some(LinkEvent::Completed(done)) = events.pop() {
                    assert!(done.outcome.is_ok(), "{:?}", done.outcome);
                    let OpMemory::Room(room) = done.memory else { panic!("no room came back") };
                    return Poll::Ready(room);
                }
            }
            Poll::Pending
        }))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.link.close();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mover {
    Floor,
    Copy { digest: bool },
    Link,
}

/// One size of transfer, with the pool that it goes to.
struct Case {
    pool: BlockPool,
    /// The pool's blocks; the next transfer takes some from the front.
    blocks: Vec<ReservedBlock>,
    per_transfer: usize,
    /// Transfers so far.
    transfers: usize,
    stats: TransferStats,
}

impl Case {
    fn new(per_transfer: usize, block_len: usize) -> Self {
        let pool = pool(block_len);
        let mut blocks = written(&pool);
        let total = blocks.len();
        blocks.sort_by_key(|block| scattered(block.id() as usize, total));
        Self { pool, blocks, per_transfer, transfers: 0, stats: TransferStats::default() }
    }

    fn round(&mut self, runtime: &Runtime, peer: &mut Peer, figures: &mut Figures) {
        figures.floor.push(self.speed(runtime, peer, Mover::Floor));
        figures.bare.push(self.speed(runtime, peer, Mover::Copy { digest: false }));
        figures.digested.push(self.speed(runtime, peer, Mover::Copy { digest: true }));
        figures.link.push(self.speed(runtime, peer, Mover::Link));
    }

    /// GB/s of as many transfers as make a round.
    fn speed(&mut self, runtime: &Runtime, peer: &mut Peer, mover: Mover) -> f64 {
        let len = self.per_transfer * self.pool.spec().block_bytes();
        let transfers = (ROUND_LEN / len).max(1);
        let times = (0..transfers).map(|_| self.transfer(runtime, peer, mover));
        let time: Duration = times.sum();
        (transfers * len) as f64 / time.as_secs_f64() / 1e9
    }

    fn transfer(&mut self, runtime: &Runtime, peer: &mut Peer, mover: Mover) -> Duration {
        let len = self.pool.spec().block_bytes();
        let total = self.pool.accounting().total;
        let first = self.transfers * self.per_transfer;
        self.transfers += 1;
        // From other places than the target's, in another order.
        let source = |i: usize| scattered((first + i) * 3 + 1, total) * len;
        let extents: Vec<_> =
            (0..self.per_transfer).map(|i| Extent { offset: source(i), len }).collect();
        let blocks: Vec<_> = self.blocks.drain(..self.per_transfer).collect();
        let order = PayloadOrder { block_tokens: TOKENS };
        let tokens = 0..self.per_transfer * TOKENS as usize;
        let mut room = ScatterList::new(&self.pool, blocks, order, tokens).expect("whole blocks");
        assert_eq!(room.extents().len(), extents.len(), "neighbours were joined");

        let start = clock::now();
        match mover {
            Mover::Floor => floor(&peer.view, &extents, &mut room),
            Mover::Copy { digest } => {
                copy(&peer.view, &extents, &mut room, digest, &self.stats);
            }
            Mover::Link => room = peer.get(runtime, room, extents),
        }
        let time = clock::now() - start;
        self.blocks.append(&mut room.into_blocks());
        time
    }
}

/// A place of `total` for each index below it, neighbours far apart.
fn scattered(index: usize, total: usize) -> usize {
    // The golden ratio's step; totals are powers of two, so an odd step meets every place.
    let step = (total as f64 * 0.618) as usize | 1;
    index * step % total
}

fn floor(view: &RegionView, extents: &[Extent], room: &mut ScatterList) {
    for (extent, target) in extents.iter().zip(room.slices(&Cursor::default(), usize::MAX)) {
        assert!(extent.offset + extent.len <= view.len());
        // SAFETY: inside the view; the owner sealed its blocks and never writes again.
        let source = unsafe {
            let from = view.base().as_ptr().add(extent.offset);
            std::slice::from_raw_parts(from, extent.len)
        };
        target.copy_from_slice(source);
    }
}

fn copy(
    view: &RegionView,
    extents: &[Extent],
    room: &mut ScatterList,
    digest: bool,
    stats: &TransferStats,
) {
    let stores = Stores::for_payload(room.len());
    let source = |extent: &Extent| {
        assert!(extent.offset + extent.len <= view.len());
        view.base().as_ptr().cast_const().wrapping_add(extent.offset)
    };
    let start = Cursor::default();
    let targets = room.slices(&start, usize::MAX);
    let pieces = extents.iter().map(source).zip(targets);
    let mut value = Digest::default();
    // SAFETY: every source lies in the view, and both sides have blocks of one length.
    unsafe { copy_payload_from_peer(pieces, stores, digest.then_some(&mut value), stats) };
    std::hint::black_box(value.value());
}

/// What was measured, in the order of the rounds.
#[derive(Default)]
struct Figures {
    floor: Vec<f64>,
    bare: Vec<f64>,
    digested: Vec<f64>,
    link: Vec<f64>,
}

impl Figures {
    fn print(&self) {
        println!("  floor: memcpy     {}", Samples::from(&self.floor[..]));
        for (name, figure) in [
            ("copy, no digest ", &self.bare),
            ("copy and digest ", &self.digested),
            ("link, digest    ", &self.link),
        ] {
            println!(
                "  {name}  {}  ratio {}",
                Samples::from(&figure[..]),
                ratios(figure, &self.floor)
            );
        }
        println!("  T10: digest on / off            {}", ratios(&self.digested, &self.bare));
    }
}
