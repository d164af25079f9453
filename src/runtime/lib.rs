//! blockwire-runtime.
