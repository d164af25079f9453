//! blockwire-tcp.
