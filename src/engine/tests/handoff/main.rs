//! Handoffs between two endpoints, through every handle that a user holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adopted;
mod moved;
mod pair;
mod prefix;
mod streamed;
