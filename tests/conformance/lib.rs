//! What every transport has to do, as tests that are generic over the transport.
//!
//! A transport instantiates all of it in its `tests/conformance.rs`:
//!
//! ```ignore
//! struct Mem(MemTransport);
//! impl blockwire_conformance::Harness for Mem { /* ... */ }
//! blockwire_conformance::conformance_suite!(Mem);
//! ```
//! Each property runs on one thread, on a runtime as a driver has it, with owners that poll a link
//! only when the contract obliges them to ([`node`]). None asserts a maximum time; where nothing moves
//! for [`drive::STALL`], the test fails and prints what it waits for and the state of both links.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "all of this crate is tests")]

pub mod control;
pub mod drive;
pub mod frames;
pub mod moves;
pub mod node;
pub mod payload;
pub mod rig;
pub mod store;

use std::any::Any;

use blockwire::pool::Backing;
use blockwire::transport::{Address, Capabilities, Transport};

use moves::Way;

/// What the suite has to know of a transport.
pub trait Harness: 'static {
    /// Whether a control frame overtakes payload that was submitted before it.
    const INTERLEAVES: bool = true;

    /// Surroundings of one test, for example a temporary folder. Runs inside a runtime.
    fn new() -> Self;

    /// A transport; all of one harness reach each other.
    fn transport(&self) -> Box<dyn Transport>;

    /// An address that can be bound: any port, a fresh name.
    fn address(&self) -> Address;

    /// The pages that the transport can register.
    fn backing(&self) -> Backing {
        Backing::Private
    }

    /// Copies that a payload byte makes this way; what the capabilities say unless a link has two
    /// ways that differ.
    fn copies(&self, _way: Way, capabilities: Capabilities) -> u8 {
        capabilities.copies_per_byte
    }

    /// Dials `address` without being a peer and sends `bytes`: a connection to hold, none where there
    /// is no such thing.
    fn send_garbage(&self, _address: &Address, _bytes: &[u8]) -> Option<Box<dyn Any>> {
        None
    }
}

/// Makes one `#[test]` of every property.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:ty) => {
        $crate::conformance_suite! { @tests $harness;
            control::control_is_ordered_and_whole
            control::thousands_of_small_frames_arrive
            control::the_longest_frame_arrives
            control::control_is_held_back_while_the_peer_does_not_read
            control::a_cancelled_frame_arrives_whole_or_not_at_all
            payload::payload_arrives_in_any_shape
            payload::copies_are_as_many_as_declared
            payload::blocks_are_reused_for_the_next_payload
        }
    };
    (@tests $harness:ty; $($module:ident :: $property:ident)*) => {
        $(
            #[test]
            fn $property() {
                $crate::$module::$property::<$harness>();
            }
        )*
    };
}
