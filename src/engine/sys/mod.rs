//! What differs by operating system: one folder a system, the same file names in each.

#[cfg(target_os = "linux")]
#[path = "linux"]
mod system {
    pub(crate) mod available;
    pub(crate) mod mapping;
    pub(crate) mod memory;
}

#[cfg(target_os = "macos")]
#[path = "macos"]
mod system {
    pub(crate) mod available;
    pub(crate) mod mapping;
    pub(crate) mod memory;
}

pub(crate) use system::{available, mapping, memory};
