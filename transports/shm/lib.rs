//! The `shm` transport: links between processes of one host, over memory that both have mapped.
//!
//! Read in this order: `half` (what lies where in the shared memory), `ring` (bytes from one
//! process to the other, and how an end sleeps), `lifeline` (the socket: doorbell, descriptors,
//! death), `control` (frames), `remote` (the peer's regions, to be pulled from or read in place),
//! `stream` and `land` (payload of pools that cannot be shared), `distance` (how the peer's core is
//! reached), `spin` (when to sleep), `link` (one poll of it all), `setup` (the first exchange), `place` (socket files), `listener`, `transport`.
//!
//! ```text
//!   process A                                                             process B
//!   half A  (words, rings A->B) ───────── mapped read-only ─────────────>  copies out
//!   copies out  <──────────────── mapped read-only ───────────  (words, rings B->A) half B
//!   pool    ────────────────────────────── mapped read-only ─────────────>  Get: one copy
//!   socket  <───────────── doorbell, descriptors, end of file ──────────>  socket
//! ```
//! Nothing but the socket file has a name, so nothing but the socket file can outlive a killed
//! process, and the next listener replaces that. A peer can write to no memory of this side, and
//! whatever it writes to its own is checked or copied before it is used: the worst that it can do
//! is to end its own link.
//!
//! What was considered instead:
//! - The crate `shared_memory` opens segments by name and cannot pass a descriptor, so a killed
//!   process leaves segments behind and anyone of the same user may map them writable; sealed,
//!   nameless memory handed over the socket ([`Region`](blockwire::pool::Region), `SCM_RIGHTS`)
//!   replaces it.
//! - A futex would wake a sleeper in less time, but it cannot be awaited together with a socket, and
//!   macOS has none; one byte on the socket, sent only to a peer that sleeps, wakes the reactor that
//!   every driver has anyway.

mod control;
mod distance;
mod half;
mod land;
mod lifeline;
mod link;
mod listener;
mod place;
mod remote;
mod ring;
#[cfg(test)]
mod ring_tests;
mod setup;
mod spin;
mod stream;
mod sys;
mod transport;

pub use lifeline::doorbells;
pub use transport::{ShmOptions, ShmTransport};
