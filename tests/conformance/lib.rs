//! blockwire-conformance.
