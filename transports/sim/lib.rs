//! Many hosts in one process, in virtual time, with faults from one seed.
//!
//! A [`Network`] has hosts, named by the transports that it makes, and paths between them. What a link
//! sends is under way for as long as the path's [`Conditions`] say and arrives piece by piece; paths
//! are cut and healed, links are reset, bits change. All of it is drawn from the network's seed, and all
//! of it happens at instants of [`blockwire::clock`]: on a runtime with a paused clock nothing waits, and
//! a run with the same seed is the same run.
//!
//! ```text
//!  end 0                    wire (one mutex)                         end 1
//!  submit(Control) ─> outbox ─> lane, by time of arrival ─> poll ─> Received
//!  submit(Stream)  ─> pieces ─> lane, by time of arrival ─> poll ─> lands <── submit(Land)
//!                                    registered region  <── poll ── gets  <── submit(Get)
//! ```
//! A link that is whole keeps every rule of [`blockwire::transport`], whatever the conditions: it loses
//! nothing, and nothing comes twice. Only a link that is about to be reset does
//! ([`Conditions::doom`]).
//!
//! Payload is read where it lies in the sender's pool, at the time of its arrival and without holding the
//! blocks, as a network card or a peer's mapping does. Whoever reuses a block too early is found out by the
//! digest, and where nobody compares digests any more, by [`Network::findings`].
//!
//! [`Faulty`] does some of this to the links of other transports, [`Audited`] watches any link.
//!
//! # Same seed, same run
//! What runs on the simulation must not draw lots of its own: no `select!` without `biased`, no order of a
//! hash map, no identity but from outside.
#![forbid(unsafe_code)]

mod audit;
mod conditions;
mod end;
mod faulty;
mod get;
mod lane;
mod link;
mod listener;
mod network;
mod path;
mod payload;
mod record;
mod trace;
mod transport;
mod wire;

pub use audit::Audited;
pub use conditions::{Chance, Conditions};
pub use faulty::Faulty;
pub use link::SimLink;
pub use listener::SimListener;
pub use network::Network;
pub use trace::Trace;
pub use transport::SimTransport;

/// The scheme of this transport's addresses.
const SCHEME: &str = "sim";
