//! The suite that every transport passes, over loopback, with a cluster key and without, with TLS.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::any::Any;
use std::io::Write;
use std::marker::PhantomData;
use std::net::TcpStream;

use blockwire::transport::{Address, Transport};
use blockwire_conformance::{Harness, conformance_suite};
use blockwire_tcp::{ClusterKey, SendWay, SocketPath, TcpOptions, TcpTransport};

const PLAIN: &str = "tcp://127.0.0.1:0";

/// Options of the links under test.
trait Setting: 'static {
    const ADDRESS: &'static str;

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
        S::ADDRESS.parse().unwrap()
    }

    fn send_garbage(&self, address: &Address, bytes: &[u8]) -> Option<Box<dyn Any>> {
        let at = address.target().split('?').next().unwrap();
        let mut stream = TcpStream::connect(at).unwrap();
        // The link may end before it has read everything.
        let _ = stream.write_all(bytes);
        Some(Box::new(stream))
    }
}

/// A suite for each way that bytes go between sockets and blocks.
macro_rules! suites {
    ($($name:ident at $address:expr, $set:expr;)*) => {
        $(mod $name {
            use super::*;

            struct Set;

            impl Setting for Set {
                const ADDRESS: &'static str = $address;

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
    open at PLAIN, |_| {};
    keyed at PLAIN, with_key;
    copies at PLAIN, |options| options.send_way = SendWay::Copies;
    uring at PLAIN, |options| options.path = SocketPath::Uring;
    uring_keyed at PLAIN, |options| {
        options.path = SocketPath::Uring;
        with_key(options);
    };
    tls at "tcp://127.0.0.1:0?tls=key", with_key;
}

fn with_key(options: &mut TcpOptions) {
    let key = ClusterKey::from_text("a cluster key for tests, 0123456789abcdef").unwrap();
    options.cluster_key = Some(key);
}
