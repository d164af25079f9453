//! blockwire-serving.
