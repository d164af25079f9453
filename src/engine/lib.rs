//! blockwire.
