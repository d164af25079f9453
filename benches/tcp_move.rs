//! T5, T10: how fast do blocks go over TCP on one host, against bare gathering writes and scattering
//! reads of the same blocks; and what does the digest cost?
//!
//! Two processes, on cpu 0 and cpu 1, that poll while they wait (`blockwire_benches::tcp`). All ways take
//! turns, round after round; each line has GB/s as median [min..max] over the rounds, and the ratio to the
//! floor of the same round. Not criterion: it measures one thing after the other, and machines change
//! between the two.
//!
//! `cargo bench -p blockwire-benches --bench tcp_move`; `BLOCKWIRE_BENCH_RUNS` sets the rounds,
//! `BLOCKWIRE_BENCH_PAGES=usual` takes pages of the usual size on both sides.

use std::process::Command;

use blockwire_benches::blocks::{CASES, ROUND_LEN};
use blockwire_benches::tcp::{Peer, Round, Sender, Waits, Way, receive};
use blockwire_benches::{Samples, host, ratios, runs};
use blockwire_tcp::SendWay;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("receive") {
        host::pin(1);
        return receive("127.0.0.1", Waits::Polling);
    }
    let near = host::core_distance();
    let mut program = Command::new(std::env::current_exe().expect("a path"));
    program.arg("receive");
    let mut peer = Peer::start(program);
    host::pin(0);
    let mut sender = Sender::connect(peer.addresses(), Waits::Polling);
    println!("{} rounds on cpus 0 and 1, {near:.0} ns apart; GB/s as median [min..max]", runs());
    let mut first = 0;
    for (blocks, block_len) in CASES {
        let mut speeds: Vec<Vec<f64>> = vec![Vec::new(); Way::ALL.len()];
        for round in 0..=runs() {
            for (way, speeds) in Way::ALL.iter().copied().zip(&mut speeds) {
                let transfers = (ROUND_LEN / (blocks * block_len)).max(1);
                let one = Round { way, blocks, block_len, transfers, first };
                first += blocks * transfers;
                peer.begin(one);
                let cost = sender.run(one);
                peer.end();
                // The first round warms up.
                if round > 0 {
                    speeds.push((one.len() * transfers) as f64 / cost.time.as_secs_f64() / 1e9);
                }
            }
        }
        println!("\n{blocks} x {} KiB", block_len >> 10);
        print(&speeds);
    }
}

fn print(speeds: &[Vec<f64>]) {
    let of = |way: Way| &speeds[Way::ALL.iter().position(|other| *other == way).expect("a way")];
    for (way, speed) in Way::ALL.iter().copied().zip(speeds) {
        println!(
            "  {way:<28} {}  ratio {}",
            Samples::from(&speed[..]),
            ratios(speed, of(Way::Floor))
        );
    }
    for way in [SendWay::Copies, SendWay::Pages] {
        let cost = ratios(of(Way::Link(way, true)), of(Way::Link(way, false)));
        println!("  T10: {way:?}, digest on / off      {cost}");
    }
}
