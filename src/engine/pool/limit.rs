//! Whether there is memory for a pool, asked before any is taken.
//!
//! Systems promise more than they have: what is missing later is a SIGBUS, or a process that the
//! system kills to help itself. So a pool that cannot fit is refused while it is only a number.

use std::fmt;

use crate::sys::available::available;

/// Pools smaller than this are made without a look at how much memory there is.
const UNCHECKED_MAX: usize = 1 << 20;

/// What bounds the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// What the machine has.
    Machine,
    /// A control group (of a container, or of a service).
    ControlGroup,
    /// The process's address space (`ulimit -v`).
    AddressSpace,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "the machine",
            Self::ControlGroup => "the control group",
            Self::AddressSpace => "the limit of the address space",
        })
    }
}

/// Memory that this process can still get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    pub(crate) bytes: u64,
    /// What leaves no more than that.
    pub(crate) limit: MemoryLimit,
}

/// Says what there is where `needed` bytes are more. Two pools that are made at the same time may
/// both pass.
pub(super) fn check(needed: usize) -> Result<(), Available> {
    if needed < UNCHECKED_MAX {
        return Ok(());
    }
    match available() {
        Some(available) if needed as u64 > available.bytes => Err(available),
        _ => Ok(()),
    }
}
