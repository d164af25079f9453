//! End to end: real processes, a real model, a real client.
//!
//! Every test starts `blockwire serve` processes of its own, drives them over HTTP, and at the end
//! checks that nothing is left: blocks, descriptors, threads, socket files, processes
//! ([`cluster::Cluster::finish`]). Nothing here asserts a longest time; a [`watchdog`] ends what hangs.
//! Tests named `fault_bNN_...` replay a fault that users of such systems report.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod accounts;
mod adopted;
mod bad_input;
mod byte_fallback;
mod chaos;
mod client;
mod clients;
mod cluster;
mod computed;
mod doctor;
mod endurance;
mod faults;
mod going_on;
mod halted;
mod hostile;
mod keyed;
mod live;
mod metrics;
#[cfg(feature = "mlx")]
mod mlx;
mod model_owned;
mod models;
mod node;
mod parity;
mod planned;
mod prefix;
mod refusals;
mod start_up;
mod streaming;
mod watchdog;
mod wide;
