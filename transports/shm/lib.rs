//! blockwire-shm.
