//! blockwire-e2e.
