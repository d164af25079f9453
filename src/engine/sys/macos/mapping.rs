//! Mappings of the usual pages: Apple silicon gives no others to a process.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions, MmapRaw};

/// Memory of this process's address space.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    /// Zeroed pages of this process.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Ok(Self(MmapMut::map_anon(len)?.into()))
    }

    /// A file from its beginning, for reads and writes.
    pub(crate) fn shared(file: &File, len: usize) -> io::Result<Self> {
        Ok(Self(MmapOptions::new().len(len).map_raw(file)?))
    }

    /// A file from its beginning, for reads.
    pub(crate) fn read_only(file: &File, len: usize) -> io::Result<Self> {
        Ok(Self(MmapOptions::new().len(len).map_raw_read_only(file)?))
    }

    /// First byte, with the provenance of the whole mapping.
    pub(crate) fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr()).expect("a mapping is never at address zero")
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
