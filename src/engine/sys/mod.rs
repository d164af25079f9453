//! What differs by operating system: one folder a system, the same file names in each.

#[cfg(target_os = "linux")]
#[path = "linux/memory.rs"]
pub(crate) mod memory;

#[cfg(target_os = "macos")]
#[path = "macos/memory.rs"]
pub(crate) mod memory;
