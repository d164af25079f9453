//! What do strangers at the door cost a pair of nodes that have work?
//!
//! Two nodes with a cluster key hand 2 GiB over, on cpu 0 and cpu 1: alone; while 10,000 strangers come,
//! from 100 addresses of the loopback, as fast as the door lets them, say nothing or half a greeting, and
//! stay for as long as they are let; and while those that are left only stand there. The crowd has a
//! thread of its own. Bound: half the speed.
//!
//! `cargo bench -p blockwire-benches --bench tcp_crowd`; `BLOCKWIRE_BENCH_RUNS` sets the rounds.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use blockwire::clock;
use blockwire::endpoint::{Connection, Event, Events};
use blockwire::handoff::SequenceHandoff;
use blockwire::pool::BlockPool;
use blockwire::transport::Address;
use blockwire_benches::nodes::{hand_over, pair, take, written};
use blockwire_benches::{Samples, host, ratios, runs};
use blockwire_tcp::{ClusterKey, TcpOptions};
use socket2::{Domain, Socket, Type};

/// Handoffs of a part, of 256 MiB each.
const HANDOFFS: usize = 8;
const STRANGERS: usize = 10_000;
const SOURCES: usize = 100;
/// What a greeting begins with.
const HALF_A_GREETING: &[u8] = b"BWIR-TCP\x01\0\x01\0\0\0\x01\0";

fn main() {
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    let mut came = Samples::default();
    for _ in 0..runs() {
        let (speeds, strangers) = round();
        parts.iter_mut().zip(speeds).for_each(|(part, speed)| part.push(speed));
        came.push(strangers);
    }
    let [alone, storm, siege] = &parts;
    println!("handoffs over tcp with a key, GB/s; cpus 0 and 1; {} rounds", runs());
    println!("alone                         {}", Samples::from(&alone[..]));
    for (what, part) in [("while strangers come", storm), ("while strangers stand there", siege)] {
        let ratio = ratios(part, alone);
        println!("{what:<28}  {}  ratio (>= 0.5) {ratio}", Samples::from(&part[..]));
    }
    println!("strangers a second: {came}");
}

/// Speeds alone, amid those who come, beside those who stay; and how many came a second.
fn round() -> ([f64; 3], f64) {
    let mut options = TcpOptions::default();
    let key = ClusterKey::from_text("a cluster key for benches, 0123456789abcdef");
    options.cluster_key = Some(key.expect("long enough"));
    let near = async |connection: Connection, pool, address: Address| {
        let handoff = written(&pool);
        speed(&connection, &handoff).await;
        let alone = speed(&connection, &handoff).await;
        let crowd = Arc::new(Crowd::default());
        let (its, to) = (Arc::clone(&crowd), address.target().parse().expect("an address"));
        let start = clock::now();
        let comes = std::thread::spawn(move || its.come(to));
        let mut storm = Vec::new();
        while crowd.came.load(Relaxed) < STRANGERS {
            storm.push(speed(&connection, &handoff).await);
        }
        let came = crowd.came.load(Relaxed) as f64 / start.elapsed().as_secs_f64();
        crowd.enough.store(true, Relaxed);
        let siege = speed(&connection, &handoff).await;
        crowd.gone.store(true, Relaxed);
        comes.join().expect("a crowd");
        ([alone, Samples::from(&storm[..]).median(), siege], came)
    };
    let far = async |mut events: Events, pool: BlockPool| {
        while let Some(Event::Handoff(incoming)) = events.next().await {
            take(incoming, &pool).await;
        }
    };
    pair(options, "", near, far).0
}

/// GB/s of some handoffs.
async fn speed(connection: &Connection, handoff: &SequenceHandoff) -> f64 {
    let (start, mut bytes) = (clock::now(), 0);
    for _ in 0..HANDOFFS {
        bytes += hand_over(connection, handoff).await;
    }
    bytes as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Strangers, and what they wait for.
#[derive(Default)]
struct Crowd {
    came: AtomicUsize,
    enough: AtomicBool,
    gone: AtomicBool,
}

impl Crowd {
    /// Comes until it is enough, and stays until it is over.
    fn come(&self, to: SocketAddr) {
        if !host::pin(2) {
            host::unpin();
        }
        let mut held: Vec<TcpStream> = Vec::new();
        while !self.enough.load(Relaxed) {
            let number = self.came.fetch_add(1, Relaxed);
            held.extend(stranger(number, to));
            if number.is_multiple_of(SOURCES) {
                held.retain_mut(is_held);
            }
        }
        while !self.gone.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One stranger; none where the system has no room for it.
fn stranger(number: usize, to: SocketAddr) -> Option<TcpStream> {
    let from = Ipv4Addr::new(127, 0, 1, (number % SOURCES) as u8 + 1);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::from((from, 0)).into()).ok()?;
    socket.connect(&to.into()).ok()?;
    let mut stream = TcpStream::from(socket);
    if number.is_multiple_of(2) {
        stream.write_all(HALF_A_GREETING).ok()?;
    }
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// Whether the listener still has the connection.
fn is_held(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 200]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}
