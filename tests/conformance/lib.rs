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
#![allow(clippy::unwrap_used, reason = "all of this crate is tests")]

pub mod adopt;
pub mod cancel;
pub mod connect;
pub mod control;
pub mod drive;
pub mod ending;
pub mod frames;
pub mod get;
pub mod mixture;
pub mod moves;
pub mod mutate;
pub mod node;
pub mod payload;
pub mod refusal;
pub mod resources;
pub mod rig;
pub mod script;
pub mod store;
pub mod violation;
pub mod wakeups;

use std::any::Any;

use blockwire::pool::Backing;
use blockwire::transport::{Address, Transport};
use tokio::runtime::Runtime;

/// What the suite has to know of a transport.
pub trait Harness: 'static {
    /// Whether a control frame overtakes payload that was submitted before it.
    const INTERLEAVES: bool = true;
    /// Whether its ends may be on threads, each with a runtime of its own.
    const CROSSES_THREADS: bool = true;

    /// Surroundings of one test, for example a temporary folder. Runs inside a runtime.
    fn new() -> Self;

    /// A runtime as a driver has it.
    fn runtime() -> Runtime {
        rig::runtime()
    }

    /// A transport; all of one harness reach each other.
    fn transport(&self) -> Box<dyn Transport>;

    /// An address that can be bound: any port, a fresh name.
    fn address(&self) -> Address;

    /// The pages that the transport can register.
    fn backing(&self) -> Backing {
        Backing::Private
    }

    /// The digest that both ends report of a payload.
    fn digest(bytes: &[u8]) -> u64 {
        store::digest(bytes)
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
            refusal::a_land_tag_has_to_rise
            refusal::what_the_capabilities_lack_is_refused
            refusal::an_unknown_operation_cannot_be_cancelled
            refusal::nothing_is_taken_after_the_end
            mixture::payloads_and_control_do_not_mix_up
            mixture::control_overtakes_a_large_payload
            get::a_bad_region_key_is_an_error
            get::bad_extents_are_an_error
            get::regions_are_told_apart
            adopt::a_peers_memory_is_read_in_place
            cancel::a_land_is_cancelled_at_every_step
            cancel::a_stream_is_cancelled_at_every_step
            cancel::a_get_is_cancelled_at_every_step
            cancel::stale_payload_is_dropped
            cancel::all_is_cancelled_before_the_first_poll
            violation::payload_that_nobody_asked_for_closes_the_link
            violation::payload_that_does_not_fit_closes_the_link
            violation::a_payload_cannot_begin_twice
            ending::accepted_control_arrives_after_close
            ending::payload_ends_with_close_at_every_step
            ending::both_ends_may_close_at_once
            ending::death_completes_everything_at_every_step
            ending::a_dropped_link_gives_its_memory_back
            ending::what_arrived_before_death_is_delivered
            wakeups::ten_thousand_messages_go_there_and_back
            wakeups::messages_wake_another_thread
            wakeups::an_idle_end_is_woken_by_whatever_happens
            wakeups::an_idle_receiver_is_woken_by_payload
            connect::a_refused_connection_is_an_error
            connect::a_foreign_address_is_an_error
            connect::an_address_has_one_listener
            connect::links_of_one_listener_are_apart
            connect::a_listener_survives_garbage
            connect::a_dropped_connect_leaves_nothing_behind
        }

        #[test]
        fn nothing_is_left_of_many_connections() {
            let path = concat!(module_path!(), "::nothing_is_left_of_many_connections");
            let (_crate, test) = path.split_once("::").expect("a path has a crate");
            $crate::resources::nothing_is_left_of_many_connections::<$harness>(test);
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
