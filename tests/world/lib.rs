//! Whole systems in virtual time, with faults, against an oracle.
//!
//! A *world* is hosts on a simulated network ([`blockwire_sim`]). What happens in it is data: a
//! [`Scenario`] is a seed and a list of events (what is asked for, what breaks, when), drawn from that
//! seed. [`engine`] runs endpoints that hand blocks to one another, [`serving`] routers, prefill and
//! decode nodes.
//!
//! A run has an oracle ([`oracle`]) that is asked after every event and at the end: every accepted
//! operation completes once; every block is in one state; what is read is what was written for that
//! request; whatever is asked ends once, with a result or an error that somebody is to blame for; at rest
//! every pool is full again.
//!
//! ```text
//! seed ──> Scenario {seed, events} ──run──> Outcome ──failed──> shrink ──> tests/regressions/*.jsonl
//!                                    ^ the same scenario is the same run, byte for byte of its trace
//! ```
//! A failing seed prints one line that replays it with its trace. [`shrink`] cuts its events down to a few
//! that still fail; committed under `tests/regressions`, they are run by every test from then on.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "all of this crate is tests")]

pub mod engine;
pub mod oracle;
pub mod panics;
pub mod regressions;
pub mod runs;
pub mod scenario;
pub mod serving;
pub mod shrink;
pub mod watchdog;
mod weather;

pub use oracle::Oracle;
pub use scenario::{Event, Scenario, What};
