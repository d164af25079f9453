//! The suite that every transport passes, over loopback.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::any::Any;
use std::io::Write;
use std::net::TcpStream;

use blockwire::transport::{Address, Transport};
use blockwire_conformance::{Harness, conformance_suite};
use blockwire_tcp::TcpTransport;

struct Tcp;

impl Harness for Tcp {
    fn new() -> Self {
        Self
    }

    fn transport(&self) -> Box<dyn Transport> {
        Box::new(TcpTransport::default())
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

conformance_suite!(Tcp);
