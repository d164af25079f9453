//! Disturbed links of real transports: the suite holds where frames and completions are only late; where
//! worse happens, handoffs end, and every block comes back.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::time::Duration;

use blockwire::transport::{Address, Transport};
use blockwire_conformance::Harness;
use blockwire_mem::MemTransport;
use blockwire_sim::{Conditions, Faulty};
use tokio::runtime::{Builder, Runtime};

#[path = "faulty/handoffs.rs"]
mod handoffs;

/// Everything is late, and nothing else.
fn late() -> Conditions {
    Conditions {
        latency: Duration::from_micros(300),
        jitter: Duration::from_millis(3),
        completion_delay: Duration::from_millis(4),
        ..Conditions::default()
    }
}

mod late_mem {
    use super::*;

    struct Late(MemTransport);

    impl Harness for Late {
        // Frames are late, payload is not.
        const INTERLEAVES: bool = false;
        const CROSSES_THREADS: bool = false;

        fn new() -> Self {
            Self(MemTransport::default())
        }

        fn runtime() -> Runtime {
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
        }

        fn transport(&self) -> Box<dyn Transport> {
            Box::new(Faulty::new(self.0.clone(), 7, late()))
        }

        fn address(&self) -> Address {
            Address::new("mem", "")
        }
    }

    blockwire_conformance::conformance_suite!(Late);
}
