//! The conformance suite, over the simulation without faults: at once, and with everything that a path
//! does to what travels on it.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::time::Duration;

use blockwire::transport::{Address, Capabilities, Transport};
use blockwire_conformance::Harness;
use blockwire_sim::{Conditions, Network};
use tokio::runtime::{Builder, Runtime};

const BOTH: Capabilities =
    Capabilities { stream: Some(1), get: Some(1), adopt: true, same_host: true, lingers: false };
const LINGERING: Capabilities =
    Capabilities { stream: Some(1), get: None, adopt: false, same_host: false, lingers: true };

/// Everything is slow, in pieces, and reported late.
fn slow() -> Conditions {
    Conditions {
        latency: Duration::from_micros(300),
        jitter: Duration::from_millis(4),
        bandwidth: Some(20_000_000_000),
        piece_len_max: 40_000,
        completion_delay: Duration::from_millis(3),
        ..Conditions::default()
    }
}

fn virtual_time() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// A name whose links can do this: asked for by tests that bind an address without one.
fn network(capabilities: Capabilities, conditions: Conditions) -> Network {
    let network = Network::new(1);
    network.set_capabilities("", capabilities);
    network.set_conditions(conditions);
    network
}

macro_rules! suite {
    ($module:ident, $capabilities:expr, $conditions:expr, $virtual:expr) => {
        mod $module {
            use super::*;

            struct Sim(Network);

            impl Harness for Sim {
                const CROSSES_THREADS: bool = !$virtual;

                fn new() -> Self {
                    Self(network($capabilities, $conditions))
                }

                fn runtime() -> Runtime {
                    if $virtual { virtual_time() } else { blockwire_conformance::rig::runtime() }
                }

                fn transport(&self) -> Box<dyn Transport> {
                    Box::new(self.0.transport("host"))
                }

                fn address(&self) -> Address {
                    Address::new("sim", "")
                }
            }

            blockwire_conformance::conformance_suite!(Sim);
        }
    };
}

suite!(at_once, BOTH, Conditions::default(), false);
suite!(slowly, BOTH, slow(), true);
suite!(lingering, LINGERING, slow(), true);
