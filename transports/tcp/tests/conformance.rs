//! The suite that every transport passes, over loopback, with a cluster key and without.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::any::Any;
use std::io::Write;
use std::marker::PhantomData;
use std::net::TcpStream;

use blockwire::transport::{Address, Transport};
use blockwire_conformance::{Harness, conformance_suite};
use blockwire_tcp::{ClusterKey, SendWay, SocketPath, TcpOptions, TcpTransport};

/// Options of the links under test.
trait Setting: 'static {
    fn set(options: &mut TcpOptions);
}

struct Over<S>(PhantomData<S>);

impl<S: Setting> Harness for Over<S> {
    fn new() -> Self {
        Self(PhantomData)
    }

    fn transport(&self) -> Box<dyn Transport> {
        let mut options = TcpOptions::default();
        S::set(&mut options);
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

/// A suite for each way that bytes go between sockets and blocks.
macro_rules! suites {
    ($($name:ident: $set:expr;)*) => {
        $(mod $name {
            use super::*;

            struct Set;

            impl Setting for Set {
                fn set(options: &mut TcpOptions) {
                    let set: fn(&mut TcpOptions) = $set;
                    set(options);
                }
            }

            conformance_suite!(Over<Set>);
        })*
    };
}

suites! {
    open: |_| {};
    keyed: with_key;
    copies: |options| options.send_way = SendWay::Copies;
    uring: |options| options.path = SocketPath::Uring;
    uring_keyed: |options| {
        options.path = SocketPath::Uring;
        with_key(options);
    };
}

fn with_key(options: &mut TcpOptions) {
    let key = ClusterKey::from_text("a cluster key for tests, 0123456789abcdef").unwrap();
    options.cluster_key = Some(key);
}
