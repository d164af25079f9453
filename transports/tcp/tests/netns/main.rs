//! Handoffs between two hosts whose network fails: every operation ends in a typed error within the
//! deadline, every block comes back on both sides, and the next handoff is fine.
//!
//! Needs root, network namespaces and `ip`; says SKIPPED where it has not got them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod net;
#[path = "../nodes/mod.rs"]
mod nodes;

use std::time::Duration;

use blockwire::endpoint::{Connection, ConnectionError, Events, Listening};
use blockwire::ingest::IngestError;
use blockwire::session::{LandError, OfferError, SessionEnd, Timing};
use blockwire::transport::{CloseReason, ConnectError};
use blockwire_tcp::{ClusterKey, TcpOptions};

use net::{Host, Net};
use nodes::{Make, Node, give, run, take, take_all};

/// What hangs, hangs for that long.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Blocks of a handoff that is still under way when its link fails: 16 MiB.
const LONG: usize = 64;
/// What a link is slowed down to, so that it is: 10 MB/s, and so 1.6 s.
const SLOW: &str = "tbf rate 80mbit burst 64kbit latency 200ms";

/// Both hosts, one connection.
struct Pair {
    net: Net,
    near: Node,
    far: Node,
    listening: Listening,
}

fn make() -> Make {
    let timing = Timing {
        ping_interval: Duration::from_millis(300),
        silence_max: Duration::from_millis(1500),
        ..Timing::default()
    };
    let mut options = TcpOptions::default();
    options.connect_timeout = Duration::from_millis(700);
    Make { layers: 8, blocks: 2 * LONG, timing, options }
}

impl Pair {
    /// Two hosts with a node each; none where there are no namespaces.
    async fn new(test: &str, mtu: u32) -> Option<Self> {
        Self::of(test, mtu, make()).await
    }

    async fn of(test: &str, mtu: u32, make: Make) -> Option<Self> {
        let net = match Net::new(test, mtu) {
            Ok(net) => net,
            Err(why) => {
                println!("SKIPPED {test}: no two hosts here: {why}");
                return None;
            }
        };
        let near = net.on(Host::Near, || make.node());
        let far = net.on(Host::Far, || make.node());
        let listening = far.listen("tcp://0.0.0.0:7700").await;
        Some(Self { net, near, far, listening })
    }

    async fn connect(&mut self) -> (Connection, Events, Connection, Events) {
        let address = "tcp://10.77.0.2:7700";
        let (there, near) = self.near.endpoint.connect(&address.parse().unwrap()).await.unwrap();
        let (back, far) = self.listening.accept().await.unwrap();
        (there, near, back, far)
    }

    /// Connects anew and hands something over, both ways.
    async fn next_handoff_is_fine(&mut self) {
        let (there, mut near, back, mut far) = self.connect().await;
        let sent = give(there.clone(), self.near.pool.clone(), 4, 3);
        let (sent, taken) = tokio::join!(sent, take(&mut far, &self.far.pool));
        sent.unwrap();
        taken.unwrap().unwrap();
        let sent = give(back.clone(), self.far.pool.clone(), 4, 4);
        let (sent, taken) = tokio::join!(sent, take(&mut near, &self.near.pool));
        sent.unwrap();
        taken.unwrap().unwrap();
        self.settle().await;
    }

    /// Waits until a striped link has both of its stripes, and hands over what takes both.
    async fn uses_both(&self, there: &Connection, back: &Connection) {
        while there.stats().stripes < 2 || back.stats().stripes < 2 {
            assert!(!there.is_closed(), "the link is lost");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sent = || ["a0", "a1"].map(|interface| self.net.sent(Host::Near, interface));
        let before = sent();
        give(there.clone(), self.near.pool.clone(), LONG, 9).await.unwrap();
        for (after, before) in sent().into_iter().zip(before) {
            assert!(after - before > 4 << 20, "only {} bytes of 16 MiB", after - before);
        }
    }

    async fn settle(&self) {
        self.near.settle().await;
        self.far.settle().await;
    }
}

/// How a network fails.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Packets vanish.
    BlackHole,
    /// The near host's interface goes down.
    NearDown,
    /// The far host's.
    FarDown,
}

impl Fault {
    fn set(self, net: &Net, on: bool) {
        match self {
            Self::BlackHole => net.set_black_hole(0, on),
            Self::NearDown => net.set_down(Host::Near, 0, on),
            Self::FarDown => net.set_down(Host::Far, 0, on),
        }
    }
}

/// A payload is under way, in both directions, and fills the sockets; then the network fails.
async fn fails_amid_payload(pair: &mut Pair, fault: Fault) {
    let (there, mut near, back, mut far) = pair.connect().await;
    for host in [Host::Near, Host::Far] {
        pair.net.shape(host, 0, Some(SLOW)).unwrap();
    }
    let out = tokio::spawn(give(there.clone(), pair.near.pool.clone(), LONG, 1));
    let home = tokio::spawn(give(back.clone(), pair.far.pool.clone(), LONG, 2));
    let (near_pool, far_pool) = (pair.near.pool.clone(), pair.far.pool.clone());
    let into_near = tokio::spawn(async move { take(&mut near, &near_pool).await });
    let into_far = tokio::spawn(async move { take(&mut far, &far_pool).await });
    let under_way = |side: &Connection| {
        let stats = side.stats();
        stats.payload_sent > 1 << 20 && stats.payload_landed > 1 << 20
    };
    while !(under_way(&there) && under_way(&back)) {
        assert!(!out.is_finished() && !home.is_finished(), "it was over before it could fail");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fault.set(&pair.net, true);
    for given in [out, home] {
        let error = given.await.unwrap().expect_err("nothing gets through");
        assert!(matches!(error, OfferError::Ended(_)), "{fault:?}: {error}");
    }
    for taken in [into_near, into_far] {
        let error = taken.await.unwrap().expect("it was offered").expect_err("it did not arrive");
        assert!(matches!(error, IngestError::Land(LandError::Ended(_))), "{fault:?}: {error}");
    }
    for side in [&there, &back] {
        let end = side.closed().await;
        let lost = matches!(end, SessionEnd::Silent | SessionEnd::Link(CloseReason::Lost(_)));
        assert!(lost, "{fault:?}: {end}");
    }
    pair.settle().await;
    fault.set(&pair.net, false);
    for host in [Host::Near, Host::Far] {
        pair.net.shape(host, 0, None).unwrap();
    }
}

#[test]
fn a_network_that_fails_amid_payload() {
    run(WATCHDOG, async {
        let Some(mut pair) = Pair::new("amid", 1500).await else { return };
        for fault in [Fault::BlackHole, Fault::NearDown, Fault::FarDown] {
            fails_amid_payload(&mut pair, fault).await;
            pair.next_handoff_is_fine().await;
        }
    });
}

#[test]
fn a_network_that_fails_while_nothing_moves() {
    run(WATCHDOG, async {
        let Some(mut pair) = Pair::new("idle", 1500).await else { return };
        for fault in [Fault::BlackHole, Fault::NearDown] {
            let (there, _near, back, _far) = pair.connect().await;
            fault.set(&pair.net, true);
            for side in [there, back] {
                let end = side.closed().await;
                let lost =
                    matches!(end, SessionEnd::Silent | SessionEnd::Link(CloseReason::Lost(_)));
                assert!(lost, "{fault:?}: {end}");
            }
            // Nobody is reached now, and that is known in time.
            let dialled =
                pair.near.endpoint.connect(&"tcp://10.77.0.2:7700".parse().unwrap()).await;
            let error = dialled.expect_err("nobody can be reached");
            assert!(
                matches!(error, ConnectionError::Link(ConnectError::System { .. })),
                "{fault:?}: {error}"
            );
            fault.set(&pair.net, false);
            pair.next_handoff_is_fine().await;
        }
    });
}

#[test]
fn a_short_gap_is_nothing() {
    run(WATCHDOG, async {
        let Some(mut pair) = Pair::new("gap", 1500).await else { return };
        let (there, _near, _back, far) = pair.connect().await;
        pair.net.shape(Host::Far, 0, Some(SLOW)).unwrap();
        let taking = tokio::spawn(take_all(far, pair.far.pool.clone()));
        let out = tokio::spawn(give(there.clone(), pair.near.pool.clone(), LONG, 1));
        while there.stats().payload_sent < 1 << 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        pair.net.set_black_hole(0, true);
        tokio::time::sleep(Duration::from_millis(200)).await;
        pair.net.set_black_hole(0, false);
        out.await.unwrap().unwrap();
        assert!(!there.is_closed());
        taking.abort();
    });
}

#[test]
fn a_peer_that_restarts_without_a_word() {
    run(WATCHDOG, async {
        let Some(mut pair) = Pair::new("restart", 1500).await else { return };
        let (there, mut near, back, mut far) = pair.connect().await;
        pair.net.shape(Host::Far, 0, Some(SLOW)).unwrap();
        let out = tokio::spawn(give(there.clone(), pair.near.pool.clone(), LONG, 1));
        let taken = take(&mut far, &pair.far.pool);
        let cut = async {
            while there.stats().payload_sent < 1 << 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // The machine is off before its sockets can say goodbye.
            pair.net.set_black_hole(0, true);
        };
        tokio::select! {
            () = cut => {}
            taken = taken => panic!("it was over before it could fail: {taken:?}"),
        }
        let first = there.peer().instance;
        let Pair { net, near: node, far: dead, listening } = pair;
        drop((back, far, listening));
        tokio::task::spawn_blocking(move || drop(dead)).await.unwrap();
        net.crash_far();
        net.boot_far().unwrap();
        net.set_black_hole(0, false);
        // The new machine knows nothing of the old connection, and says so.
        let error = out.await.unwrap().expect_err("nobody took it");
        assert!(matches!(error, OfferError::Ended(_)), "{error}");
        let end = there.closed().await;
        let lost = matches!(end, SessionEnd::Silent | SessionEnd::Link(CloseReason::Lost(_)));
        assert!(lost, "{end}");
        assert!(near.next().await.is_none());
        node.settle().await;
        // On the same port, but somebody else.
        let far = net.on(Host::Far, || make().node());
        let listening = far.listen("tcp://0.0.0.0:7700").await;
        let mut pair = Pair { net, near: node, far, listening };
        let (again, _near, _back, _far) = pair.connect().await;
        assert_ne!(again.peer().instance, first);
        pair.next_handoff_is_fine().await;
    });
}

#[test]
fn segments_of_every_size() {
    run(WATCHDOG, async {
        for mtu in [1500, 9000] {
            let Some(mut pair) = Pair::new(&format!("mtu{mtu}"), mtu).await else { return };
            let (there, _near, _back, mut far) = pair.connect().await;
            let sent = give(there.clone(), pair.near.pool.clone(), LONG, 1);
            let (sent, taken) = tokio::join!(sent, take(&mut far, &pair.far.pool));
            sent.unwrap();
            taken.unwrap().unwrap();
            assert!(!there.capabilities().same_host);
            pair.settle().await;
            pair.next_handoff_is_fine().await;
        }
    });
}

#[test]
fn a_slow_link_is_slow_and_not_silent() {
    run(WATCHDOG, async {
        let Some(mut pair) = Pair::new("slow", 1500).await else { return };
        let (there, mut near, back, mut far) = pair.connect().await;
        // 1 MB/s, with a queue of 50 ms: longer than the longest silence for the whole payload.
        for host in [Host::Near, Host::Far] {
            pair.net.shape(host, 0, Some("tbf rate 8mbit burst 32kbit latency 50ms")).unwrap();
        }
        let out = give(there, pair.near.pool.clone(), 16, 1);
        let home = give(back, pair.far.pool.clone(), 16, 2);
        let into_far = take(&mut far, &pair.far.pool);
        let into_near = take(&mut near, &pair.near.pool);
        let (out, home, into_far, into_near) = tokio::join!(out, home, into_far, into_near);
        out.unwrap();
        home.unwrap();
        into_far.unwrap().unwrap();
        into_near.unwrap().unwrap();
        pair.settle().await;
    });
}

#[test]
fn lost_and_late_packets_cost_time_only() {
    run(WATCHDOG, async {
        // A queue that is too short for its bursts loses packets, a long one delays them.
        let shapes = [
            "netem delay 20ms loss 1%",
            "tbf rate 200mbit burst 16kbit limit 6000",
            "tbf rate 50mbit burst 16kbit latency 300ms",
        ];
        let Some(mut pair) = Pair::new("loss", 1500).await else { return };
        for shape in shapes {
            if let Err(why) = pair.net.shape(Host::Far, 0, Some(shape)) {
                println!("SKIPPED {shape}: {why}");
                continue;
            }
            let (there, _near, _back, mut far) = pair.connect().await;
            let sent = give(there, pair.near.pool.clone(), LONG / 4, 1);
            let (sent, taken) = tokio::join!(sent, take(&mut far, &pair.far.pool));
            sent.unwrap();
            taken.unwrap().unwrap();
            pair.net.shape(Host::Far, 0, None).unwrap();
        }
        pair.next_handoff_is_fine().await;
    });
}

#[test]
fn of_two_links_the_one_that_was_asked_for_is_taken() {
    run(WATCHDOG, async {
        let Some(mut pair) = Pair::new("links", 1500).await else { return };
        pair.net.on(Host::Near, loosen);
        let mut open = Vec::new();
        for (dialled, interface) in [
            ("tcp://10.77.0.2:7700?bind=a0", "a0"),
            ("tcp://10.77.1.2:7700?bind=a1", "a1"),
            ("tcp://10.77.1.2:7700?bind=10.77.1.1", "a1"),
            // Against the routing table: that names the other link.
            ("tcp://10.77.0.2:7700?bind=a1", "a1"),
        ] {
            let before = pair.net.sent(Host::Near, interface);
            let (there, _near) =
                pair.near.endpoint.connect(&dialled.parse().unwrap()).await.unwrap();
            let (_back, mut far) = pair.listening.accept().await.unwrap();
            let sent = give(there.clone(), pair.near.pool.clone(), 16, 1);
            let (sent, taken) = tokio::join!(sent, take(&mut far, &pair.far.pool));
            sent.unwrap();
            taken.unwrap().unwrap();
            let sent = pair.net.sent(Host::Near, interface) - before;
            assert!(sent > 4 << 20, "{dialled}: only {sent} bytes went through {interface}");
            open.push((there, _near, _back, far));
        }
        // One link fails, the other does not notice.
        pair.net.set_black_hole(1, true);
        for (there, ..) in &open[1..] {
            assert!(matches!(
                there.closed().await,
                SessionEnd::Silent | SessionEnd::Link(CloseReason::Lost(_))
            ));
        }
        let (there, _, _, far) = &mut open[0];
        let sent = give(there.clone(), pair.near.pool.clone(), 16, 5);
        let (sent, taken) = tokio::join!(sent, take(far, &pair.far.pool));
        sent.unwrap();
        taken.unwrap().unwrap();
        drop(open);
        pair.settle().await;
        pair.next_handoff_is_fine().await;
    });
}

/// Lets packets in that the routing table would have come over another link.
fn loosen() {
    for interface in ["all", "a1"] {
        let setting = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        std::fs::write(setting, "0").unwrap();
    }
}

/// A handoff goes over both links, one of them falls silent, and the handoff arrives.
#[test]
fn fault_b35_of_two_links_in_one_either_may_fail() {
    run(WATCHDOG, async {
        let mut make = make();
        make.timing = Timing { silence_max: Duration::from_secs(8), ..make.timing };
        // A quarter of it for each connection.
        make.options.unacknowledged_max = Duration::from_secs(4);
        let Some(mut pair) = Pair::of("stripes", 1500, make).await else { return };
        pair.net.on(Host::Near, loosen);
        for link in 0..2 {
            let address = "tcp://10.77.0.2:7700?stripes=2&bind=a0&bind=a1".parse().unwrap();
            let (there, near) = pair.near.endpoint.connect(&address).await.unwrap();
            let (back, far) = pair.listening.accept().await.unwrap();
            for (link, host) in [(0, Host::Near), (0, Host::Far), (1, Host::Near), (1, Host::Far)] {
                pair.net.shape(host, link, Some(SLOW)).unwrap();
            }
            let before = ["a0", "a1"].map(|interface| pair.net.sent(Host::Near, interface));
            let (near_pool, far_pool) = (pair.near.pool.clone(), pair.far.pool.clone());
            let taking = [
                tokio::spawn(take_all(near, near_pool.clone())),
                tokio::spawn(take_all(far, far_pool.clone())),
            ];
            let out = tokio::spawn(give(there.clone(), near_pool.clone(), LONG, 1));
            let home = tokio::spawn(give(back.clone(), far_pool, LONG, 2));
            let sent =
                |index: usize, interface| pair.net.sent(Host::Near, interface) - before[index];
            while sent(0, "a0").min(sent(1, "a1")) < 1 << 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(!out.is_finished() && !home.is_finished(), "it was over before it could fail");
            pair.net.set_black_hole(link, true);
            out.await.unwrap().unwrap();
            home.await.unwrap().unwrap();
            // The connection goes on over the link that is left.
            give(there.clone(), near_pool, 4, 3).await.unwrap();
            assert_eq!((there.stats().stripes, back.stats().stripes), (1, 1));
            pair.net.set_black_hole(link, false);
            for (link, host) in [(0, Host::Near), (0, Host::Far), (1, Host::Near), (1, Host::Far)] {
                pair.net.shape(host, link, None).unwrap();
            }
            // Once packets pass again, the other comes back, and the next handoff uses it.
            pair.uses_both(&there, &back).await;
            there.close("done");
            for taking in taking {
                taking.await.unwrap();
            }
            pair.settle().await;
        }
    });
}

/// An interface goes down and comes up again; whoever comes back proves the key again, through TLS.
#[test]
fn of_two_links_in_one_each_comes_back() {
    run(WATCHDOG, async {
        let mut make = make();
        make.timing = Timing { silence_max: Duration::from_secs(8), ..make.timing };
        make.options.unacknowledged_max = Duration::from_secs(2);
        let key = ClusterKey::from_text("a cluster key for tests, 0123456789abcdef").unwrap();
        make.options.cluster_key = Some(key);
        let Some(mut pair) = Pair::of("back", 1500, make).await else { return };
        pair.net.on(Host::Near, loosen);
        pair.listening = pair.far.listen("tcp://0.0.0.0:7702?tls=key").await;
        let address = "tcp://10.77.0.2:7702?tls=key&stripes=2&bind=a0&bind=a1";
        let (there, _near) = pair.near.endpoint.connect(&address.parse().unwrap()).await.unwrap();
        let (back, far) = pair.listening.accept().await.unwrap();
        let taking = tokio::spawn(take_all(far, pair.far.pool.clone()));
        for link in [1, 0, 1] {
            pair.net.set_down(Host::Near, link, true);
            // Nothing is noticed before something should pass.
            while there.stats().stripes > 1 || back.stats().stripes > 1 {
                give(there.clone(), pair.near.pool.clone(), 8, 1).await.unwrap();
            }
            pair.net.set_down(Host::Near, link, false);
            pair.uses_both(&there, &back).await;
        }
        there.close("done");
        taking.await.unwrap();
        pair.settle().await;
    });
}

#[test]
fn six_works_as_four_does_also_where_an_address_needs_its_interface() {
    run(WATCHDOG, async {
        let Some(pair) = Pair::new("six", 1500).await else { return };
        let mut listening = pair.far.listen("tcp://[::]:7701").await;
        assert!(!listening.local_address().target().starts_with("[::]"));
        for dialled in
            ["tcp://[fd77:0::2]:7701", "tcp://[fe80::2%a0]:7701?bind=a0", "tcp://[fe80::2%a0]:7701"]
        {
            let connected = pair.near.endpoint.connect(&dialled.parse().unwrap()).await;
            let (there, _near) = connected.unwrap();
            let (_back, mut far) = listening.accept().await.unwrap();
            let sent = give(there, pair.near.pool.clone(), 4, 1);
            let (sent, taken) = tokio::join!(sent, take(&mut far, &pair.far.pool));
            sent.unwrap();
            taken.unwrap().unwrap();
        }
        pair.settle().await;
    });
}
