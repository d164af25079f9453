//! The conformance suite, over `shm`.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::any::Any;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use blockwire::pool::Backing;
use blockwire::transport::{Address, Transport};
use blockwire_shm::{ShmOptions, ShmTransport};
use tempfile::TempDir;

/// Links that stay awake for so many microseconds.
struct Shm<const SPIN: u64> {
    folder: TempDir,
    next: AtomicU64,
}

impl<const SPIN: u64> blockwire_conformance::Harness for Shm<SPIN> {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), next: AtomicU64::new(0) }
    }

    fn transport(&self) -> Box<dyn Transport> {
        let spin_limit = Duration::from_micros(SPIN);
        Box::new(ShmTransport::new(ShmOptions { spin_limit, ..ShmOptions::default() }))
    }

    fn address(&self) -> Address {
        let name = format!("{}.sock", self.next.fetch_add(1, Relaxed));
        Address::new("shm", &self.folder.path().join(name).to_string_lossy())
    }

    fn backing(&self) -> Backing {
        Backing::Shared
    }

    fn send_garbage(&self, address: &Address, bytes: &[u8]) -> Option<Box<dyn Any>> {
        let mut stream = UnixStream::connect(address.target()).unwrap();
        // The other side may hang up before it has read everything.
        let _ = stream.write_all(bytes);
        Some(Box::new(stream))
    }
}

mod spinning {
    blockwire_conformance::conformance_suite!(super::Shm<25>);
}

mod sleeping {
    blockwire_conformance::conformance_suite!(super::Shm<0>);
}
