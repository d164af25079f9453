//! Two processes, and the ways that blocks go from the pool of one to the pool of the other over TCP.
//!
//! A [`Sender`] and a [`receive`] are in two processes, each with a pool of 256 MiB; a transfer takes
//! scattered blocks of one to scattered blocks of the other, every one other blocks. It begins when the
//! receiver is ready, and ends when the sender has read that all has arrived. The floor moves the same
//! blocks by bare gathering writes and scattering reads.

mod bare;
mod link;

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use blockwire::pool::{
    BlockPool, GatherList, PayloadOrder, ReservedBlock, ScatterList, SealedBlock,
};
use blockwire_tcp::{ClusterKey, SendWay, SocketPath, TcpOptions};

use crate::blocks::{POOL_LEN, TOKENS, pool, written};
use crate::host;

/// Blocks of the pools; longer ones are several of them, side by side.
const BLOCK_LEN: usize = 16 << 10;
const ORDER: PayloadOrder = PayloadOrder { block_tokens: TOKENS };

/// How blocks are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Bare `writev` and `readv`.
    Floor,
    /// Bare `sendmsg` with `MSG_ZEROCOPY`, and `readv`.
    Zerocopy,
    /// A link that sends like this, with digests or without.
    Link(SendWay, bool),
    /// A link whose transfers the kernel makes, with digests.
    Uring,
    /// A link that is encrypted, with digests.
    Tls,
}

impl Way {
    /// All that this system has, the floor first.
    pub const ALL: &[Self] = &[
        Self::Floor,
        #[cfg(target_os = "linux")]
        Self::Zerocopy,
        Self::Link(SendWay::Copies, false),
        Self::Link(SendWay::Pages, false),
        Self::Link(SendWay::Copies, true),
        Self::Link(SendWay::Pages, true),
        Self::Link(SendWay::Measured, true),
        Self::Uring,
        Self::Tls,
    ];

    fn options(self) -> TcpOptions {
        let mut options = TcpOptions::default();
        match self {
            Self::Floor | Self::Zerocopy => {}
            Self::Tls => {
                let key = ClusterKey::from_text("a key for a measurement, no secret at all");
                options.cluster_key = Some(key.expect("it is long enough"));
            }
            Self::Link(way, digest) => (options.send_way, options.digest) = (way, digest),
            Self::Uring => options.path = SocketPath::Uring,
        }
        options
    }

    /// What stands behind the address.
    fn query(self) -> &'static str {
        if self == Self::Tls { "?tls=key" } else { "" }
    }

    fn index(self) -> usize {
        Self::ALL.iter().position(|way| *way == self).expect("a way that this system has")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floor => f.pad("floor: writev, readv"),
            Self::Zerocopy => f.pad("bare, MSG_ZEROCOPY"),
            Self::Uring => f.pad("link, io_uring, digest"),
            Self::Tls => f.pad("link, TLS, digest"),
            Self::Link(way, true) => f.pad(&format!("link, {way:?}, digest")),
            Self::Link(way, false) => f.pad(&format!("link, {way:?}, no digest")),
        }
    }
}

/// What one end does while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It asks again and again.
    Polling,
    /// It sleeps.
    Asleep,
}

/// Transfers of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// How.
    pub way: Way,
    /// Blocks of a transfer.
    pub blocks: usize,
    /// Bytes of a block, a multiple of 16 KiB.
    pub block_len: usize,
    /// How often.
    pub transfers: usize,
    /// The first block of the first transfer.
    pub first: usize,
}

impl Round {
    /// Bytes of a transfer.
    pub fn len(&self) -> usize {
        self.blocks * self.block_len
    }

    /// Whether nothing is moved.
    pub fn is_empty(&self) -> bool {
        self.len() * self.transfers == 0
    }

    /// The pool's blocks of a transfer, in order.
    fn ids(&self, transfer: usize, salt: usize) -> impl Iterator<Item = usize> {
        let (parts, total) = (self.block_len / BLOCK_LEN, POOL_LEN / self.block_len);
        let first = self.first + transfer * self.blocks;
        (0..self.blocks).flat_map(move |i| {
            let start = scattered((first + i) * 3 + salt, total) * parts;
            start..start + parts
        })
    }
}

/// A place of `total` for each index below it, neighbours far apart.
fn scattered(index: usize, total: usize) -> usize {
    // The golden ratio's step; totals are powers of two, so an odd step meets every place.
    let step = (total as f64 * 0.618) as usize | 1;
    index * step % total
}

/// A pool, and its blocks by number.
fn in_order() -> (BlockPool, Vec<ReservedBlock>) {
    let pool = pool(BLOCK_LEN);
    let mut blocks = written(&pool);
    blocks.sort_by_key(ReservedBlock::id);
    (pool, blocks)
}

/// What a round took at one end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// From the first byte to the answer, all transfers together; zero at the receiver.
    pub time: Duration,
    /// On cpus, user and system.
    pub cpu_seconds: f64,
}

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    pool: BlockPool,
    blocks: Vec<SealedBlock>,
    /// One for each way.
    ends: Vec<Sending>,
}

#[derive(Debug)]
enum Sending {
    Bare(bare::Sender),
    Link(link::Sender),
}

impl Sender {
    /// Connects to the addresses that [`receive`] printed.
    ///
    /// # Panics
    /// When it cannot.
    pub fn connect(addresses: &str, waits: Waits) -> Self {
        let (pool, blocks) = in_order();
        let blocks = blocks.into_iter().map(ReservedBlock::seal).collect();
        let end = |(address, way): (&str, &Way)| match way {
            Way::Floor | Way::Zerocopy => {
                Sending::Bare(bare::Sender::connect(address, waits, *way == Way::Zerocopy))
            }
            _ => Sending::Link(link::Sender::connect(address, way.options(), waits)),
        };
        let ends = addresses.split_whitespace().zip(Way::ALL).map(end).collect();
        Self { pool, blocks, ends }
    }

    /// Sends the transfers of a round, which the receiver has been told of.
    ///
    /// # Panics
    /// When the receiver is gone.
    pub fn run(&mut self, round: Round) -> Cost {
        let before = host::used().unwrap_or_default();
        let mut time = Duration::ZERO;
        for transfer in 0..round.transfers {
            let blocks: Vec<_> = round.ids(transfer, 1).map(|id| self.blocks[id].clone()).collect();
            let tokens = blocks.len() * TOKENS as usize;
            let list =
                GatherList::new(&self.pool, &blocks, ORDER, 0..tokens).expect("whole blocks");
            time += match &mut self.ends[round.way.index()] {
                Sending::Bare(bare) => bare.send(&list),
                Sending::Link(link) => link.send(list),
            };
        }
        let cpu_seconds = host::used().unwrap_or_default().cpu_seconds - before.cpu_seconds;
        Cost { time, cpu_seconds }
    }
}

/// The receiving process: prints its addresses on `host`, then for each line of its input (the round)
/// a line with its processor seconds; ends with its input.
///
/// # Panics
/// When the sender is gone too early.
pub fn receive(host: &str, waits: Waits) {
    let (pool, blocks) = in_order();
    let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
    let mut ends: Vec<_> =
        Way::ALL.iter().map(|way| Receiving::listen(*way, host, waits)).collect();
    let addresses: Vec<_> = ends.iter().map(Receiving::address).collect();
    println!("{}", addresses.join(" "));
    ends.iter_mut().for_each(Receiving::accept);
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let round = Round::parse(&line);
        let before = host::used().unwrap_or_default();
        for transfer in 0..round.transfers {
            let ids: Vec<_> = round.ids(transfer, 2).collect();
            let taken = ids.iter().map(|id| blocks[*id].take().expect("a block that is here"));
            let room =
                ScatterList::new(&pool, taken.collect(), ORDER, 0..ids.len() * TOKENS as usize);
            let room = room.expect("whole blocks");
            let room = match &mut ends[round.way.index()] {
                Receiving::Bare(bare) => bare.receive(room),
                Receiving::Link(link) => link.receive(room),
            };
            for (id, block) in ids.iter().zip(room.into_blocks()) {
                blocks[*id] = Some(block);
            }
        }
        let cpu = host::used().unwrap_or_default().cpu_seconds - before.cpu_seconds;
        println!("{cpu}");
        std::io::stdout().flush().expect("an output");
    }
}

/// What a way needs at the receiver.
enum Receiving {
    Bare(bare::Receiver),
    Link(Box<link::Receiver>),
}

impl Receiving {
    fn listen(way: Way, host: &str, waits: Waits) -> Self {
        match way {
            Way::Floor | Way::Zerocopy => Self::Bare(bare::Receiver::listen(host, waits)),
            _ => {
                let at = format!("tcp://{host}:0{}", way.query());
                Self::Link(Box::new(link::Receiver::listen(&at, way.options(), waits)))
            }
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Bare(bare) => bare.address(),
            Self::Link(link) => link.address(),
        }
    }

    fn accept(&mut self) {
        match self {
            Self::Bare(bare) => bare.accept(),
            Self::Link(link) => link.accept(),
        }
    }
}

impl Round {
    /// As [`receive`] reads it.
    pub fn line(&self) -> String {
        let way = self.way.index();
        let Self { blocks, block_len, transfers, first, .. } = self;
        format!("{way} {blocks} {block_len} {transfers} {first}")
    }

    /// What [`line`](Self::line) said.
    ///
    /// # Panics
    /// When it is no such line.
    pub fn parse(line: &str) -> Self {
        let numbers: Vec<usize> =
            line.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [way, blocks, block_len, transfers, first] = numbers[..] else {
            panic!("five numbers")
        };
        Self { way: Way::ALL[way], blocks, block_len, transfers, first }
    }
}

/// The receiving process, as the sending one sees it.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    addresses: String,
}

impl Peer {
    /// Starts a program that calls [`receive`].
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(mut program: Command) -> Self {
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().expect("a process");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let addresses = line(&mut output);
        Self { child, input, output, addresses }
    }

    /// Where it listens.
    pub fn addresses(&self) -> &str {
        &self.addresses
    }

    /// Gives it a line.
    ///
    /// # Panics
    /// When it is gone.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{}", line.trim_end()).expect("the peer lives");
    }

    /// Tells it of the next round.
    ///
    /// # Panics
    /// When it is gone.
    pub fn begin(&mut self, round: Round) {
        self.tell(&round.line());
    }

    /// What a round took there.
    ///
    /// # Panics
    /// When it is gone.
    pub fn end(&mut self) -> Cost {
        let cpu_seconds = line(&mut self.output).trim().parse().expect("seconds");
        Cost { cpu_seconds, time: Duration::ZERO }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("an output");
    line
}
