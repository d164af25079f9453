//! The suite that every transport passes, over loopback, with a cluster key and without.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::any::Any;
use std::io::Write;
use std::net::TcpStream;

use blockwire::transport::{Address, Transport};
use blockwire_conformance::Harness;
use blockwire_tcp::{ClusterKey, TcpOptions, TcpTransport};

/// With a cluster key, and without.
struct Tcp<const KEYED: bool>;

impl<const KEYED: bool> Harness for Tcp<KEYED> {
    fn new() -> Self {
        Self
    }

    fn transport(&self) -> Box<dyn Transport> {
        let mut options = TcpOptions::default();
        let key = ClusterKey::from_text("a cluster key for tests, 0123456789abcdef").unwrap();
        options.cluster_key = KEYED.then_some(key);
        Box::new(TcpTransport::new(options))
    }

    fn address(&self) -> Address {
        "tcp://127.0.0.1:0".parse().unwrap()
    }

    fn send_garbage(&self, address: &Address, bytes: &[u8]) -> Option<Box<dyn Any>> {
        let mut stream = TcpStream::connect(address.target()).unwrap();
        // The link may end before it has read everything.
        let _ = stream.write_all(bytes);
        Some(Box::new(stream))
    }
}

mod open {
    blockwire_conformance::conformance_suite!(super::Tcp<false>);
}

mod keyed {
    blockwire_conformance::conformance_suite!(super::Tcp<true>);
}
