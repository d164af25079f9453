//! T6: what do blocks cost the processors of both ends across a network, against bare gathering writes
//! and scattering reads of the same blocks?
//!
//! Two processes in two network namespaces with a veth pair between them, which this program makes and
//! removes; they sleep while they wait. The figure is user and system time of both, by GiB. All ways
//! take turns, round after round.
//!
//! `cargo bench -p blockwire-benches --bench tcp_cpu`, as root; `BLOCKWIRE_BENCH_RUNS` sets the rounds,
//! `BLOCKWIRE_BENCH_MTU` the length of packets (1500, 9000, 65535), 9000 without. Says SKIPPED where the
//! system does not let it make namespaces.

use std::io::{BufRead, Write};
use std::process::Command;

use blockwire_benches::tcp::{Peer, Round, Sender, Waits, Way, receive};
use blockwire_benches::{Samples, host, runs};

/// Blocks of a transfer and bytes of a block.
const CASES: [(usize, usize); 3] = [(1024, 16 << 10), (1024, 64 << 10), (64, 1 << 20)];
/// Bytes that each way moves in a round, at least.
const ROUND_LEN: usize = 256 << 20;
/// The two ends: documentation addresses, seen nowhere else.
const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("receive") => {
            host::pin(1);
            receive(ENDS[1], Waits::Asleep);
        }
        Some("send") => send(),
        _ => match Network::new() {
            Ok(network) => network.measure(),
            Err(reason) => println!("SKIPPED: {reason}"),
        },
    }
}

/// The sending process: reads the receiver's addresses, then rounds; answers as the receiver does.
fn send() {
    host::pin(0);
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    // Where a receiver has addresses, a sender has none.
    println!();
    let addresses = lines.next().expect("addresses");
    let mut sender = Sender::connect(&addresses, Waits::Asleep);
    for line in lines {
        println!("{}", sender.run(Round::parse(&line)).cpu_seconds);
        std::io::stdout().flush().expect("an output");
    }
}

/// Two namespaces and the pair between them, for as long as this lives.
struct Network {
    names: [String; 2],
}

impl Network {
    fn new() -> Result<Self, String> {
        let names = ["a", "b"].map(|end| format!("blockwire-{}-{end}", std::process::id()));
        let mtu = std::env::var("BLOCKWIRE_BENCH_MTU").unwrap_or_else(|_| "9000".to_owned());
        let network = Self { names };
        let [a, b] = &network.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&[
            "-n", a, "link", "add", "bw0", "mtu", &mtu, "type", "veth", "peer", "bw0", "netns", b,
        ])?;
        for (name, address) in network.names.iter().zip(ENDS) {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "bw0"])?;
            ip(&["-n", name, "link", "set", "bw0", "mtu", &mtu, "up"])?;
        }
        println!("packets of {mtu} bytes");
        Ok(network)
    }

    fn start(&self, end: usize, role: &str) -> Peer {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &self.names[end]]);
        program.arg(std::env::current_exe().expect("a path")).arg(role);
        Peer::start(program)
    }

    fn measure(&self) {
        let near = host::core_distance();
        println!("{} rounds on cpus 0 and 1, {near:.0} ns apart; s/GiB, both ends", runs());
        let mut receiver = self.start(1, "receive");
        let mut sender = self.start(0, "send");
        sender.tell(receiver.addresses());
        let mut first = 0;
        for (blocks, block_len) in CASES {
            let mut costs: Vec<Vec<f64>> = vec![Vec::new(); Way::ALL.len()];
            for round in 0..=runs() {
                for (way, costs) in Way::ALL.iter().copied().zip(&mut costs) {
                    let transfers = (ROUND_LEN / (blocks * block_len)).max(1);
                    let one = Round { way, blocks, block_len, transfers, first };
                    first += blocks * transfers;
                    receiver.begin(one);
                    sender.begin(one);
                    let seconds = sender.end().cpu_seconds + receiver.end().cpu_seconds;
                    // The first round warms up.
                    if round > 0 {
                        let gib = (one.len() * transfers) as f64 / f64::from(1 << 30);
                        costs.push(seconds / gib);
                    }
                }
            }
            println!("\n{blocks} x {} KiB", block_len >> 10);
            for (way, cost) in Way::ALL.iter().copied().zip(&costs) {
                let ratios = cost.iter().zip(&costs[0]).map(|(cost, floor)| cost / floor);
                let (cost, ratio) = (Samples::from(&cost[..]), ratios.collect::<Samples>());
                println!("  {way:<28} {:.3}  ratio {:.2}", cost.median(), ratio.median());
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), said.trim()))
}
