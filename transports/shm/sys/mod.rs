//! What differs by operating system: one folder a system, the same file names in each.

#[cfg(target_os = "linux")]
#[path = "linux/descriptors.rs"]
pub(crate) mod descriptors;

#[cfg(target_os = "macos")]
#[path = "macos/descriptors.rs"]
pub(crate) mod descriptors;
