//! The conformance suite, over `mem`.

use blockwire::transport::{Address, Transport};
use blockwire_mem::MemTransport;

#[derive(Default)]
struct Mem(MemTransport);

impl blockwire_conformance::Harness for Mem {
    fn new() -> Self {
        Self::default()
    }

    fn transport(&self) -> Box<dyn Transport> {
        Box::new(self.0.clone())
    }

    fn address(&self) -> Address {
        Address::new("mem", "")
    }
}

blockwire_conformance::conformance_suite!(Mem);
