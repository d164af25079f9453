//! Systems without affinity for user programs, and without /proc.

/// Never.
pub fn pin(_cpu: usize) -> bool {
    false
}

/// Nothing to undo.
pub fn unpin() {}

/// Not known here.
pub fn used() -> Option<super::Used> {
    None
}
