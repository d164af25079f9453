//! The suite that every transport passes, over loopback, with a cluster key and without, with TLS, over one
//! connection and over several.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::any::Any;
use std::io::Write;
use std::marker::PhantomData;
use std::net::TcpStream;

use blockwire::pool::Digest;
use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport,
};
use blockwire_conformance::{Harness, conformance_suite};
use blockwire_tcp::{ClusterKey, SendWay, SocketPath, TcpOptions, TcpTransport};

const PLAIN: &str = "tcp://127.0.0.1:0";
#[cfg(feature = "tls")]
const TLS: &str = "tcp://127.0.0.1:0?tls=key";

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

/// Links of so many stripes, whoever dials.
const STRIPES: u64 = 4;
/// Those that carry payload: the first has control only.
const CARRIERS: u64 = STRIPES - 1;

/// Dials several connections for each link.
#[derive(Debug)]
struct Striping(TcpTransport);

impl Transport for Striping {
    fn scheme(&self) -> &'static str {
        self.0.scheme()
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let before = if address.target().contains('?') { '&' } else { '?' };
        let target = format!("{}{before}stripes={STRIPES}", address.target());
        self.0.connect(&Address::new(address.scheme(), &target))
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        self.0.listen(address)
    }
}

struct Striped<S>(Over<S>);

impl<S: Setting> Harness for Striped<S> {
    fn new() -> Self {
        Self(Over::new())
    }

    fn transport(&self) -> Box<dyn Transport> {
        let mut options = TcpOptions::default();
        S::set(&mut options);
        Box::new(Striping(TcpTransport::new(options)))
    }

    fn address(&self) -> Address {
        self.0.address()
    }

    /// As the manual says it: parts of equal length, at multiples of 64 KiB, of at least 1 MiB.
    fn digest(bytes: &[u8]) -> u64 {
        let of = |bytes: &[u8]| {
            let mut digest = Digest::default();
            digest.update(bytes);
            digest.value()
        };
        let len = bytes.len() as u64;
        let parts = (len >> 20).clamp(1, CARRIERS);
        if parts == 1 {
            return of(bytes);
        }
        let share = len.div_ceil(parts).next_multiple_of(64 << 10) as usize;
        of(&bytes.chunks(share).flat_map(|part| of(part).to_le_bytes()).collect::<Vec<_>>())
    }

    fn send_garbage(&self, address: &Address, bytes: &[u8]) -> Option<Box<dyn Any>> {
        self.0.send_garbage(address, bytes)
    }
}

/// A suite for each way that bytes go between sockets and blocks.
macro_rules! suites {
    ($($(#[$attribute:meta])* $name:ident: $harness:ident at $address:expr, $set:expr;)*) => {
        $($(#[$attribute])*
        mod $name {
            use super::*;

            struct Set;

            impl Setting for Set {
                const ADDRESS: &'static str = $address;

                fn set(options: &mut TcpOptions) {
                    let set: fn(&mut TcpOptions) = $set;
                    set(options);
                }
            }

            conformance_suite!($harness<Set>);
        })*
    };
}

suites! {
    open: Over at PLAIN, |_| {};
    keyed: Over at PLAIN, with_key;
    copies: Over at PLAIN, |options| options.send_way = SendWay::Copies;
    uring: Over at PLAIN, |options| options.path = SocketPath::Uring;
    uring_keyed: Over at PLAIN, |options| {
        options.path = SocketPath::Uring;
        with_key(options);
    };
    #[cfg(feature = "tls")]
    tls: Over at TLS, with_key;
    stripes: Striped at PLAIN, |_| {};
    stripes_keyed: Striped at PLAIN, with_key;
    stripes_uring: Striped at PLAIN, |options| options.path = SocketPath::Uring;
    #[cfg(feature = "tls")]
    stripes_tls: Striped at TLS, with_key;
}

fn with_key(options: &mut TcpOptions) {
    let key = ClusterKey::from_text("a cluster key for tests, 0123456789abcdef").unwrap();
    options.cluster_key = Some(key);
}
