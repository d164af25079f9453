//! blockwire-mem.
