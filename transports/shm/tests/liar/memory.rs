//! Memory as a peer should make it, and as it should not.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

/// A memfd and this process's view of it. The view was made before the seals, so it stays writable.
pub struct Memory {
    pub file: File,
    map: MmapMut,
}

impl Memory {
    /// Sealed and whole.
    pub fn good(len: usize) -> Self {
        Self::new(len, true, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)
    }

    /// One of the ways to be wrong, or good.
    pub fn odd(len: usize, how: u8) -> Self {
        match how % 8 {
            0 => Self::new(len, true, SealFlags::empty()),
            1 => Self::new(len, true, SealFlags::FUTURE_WRITE),
            2 => Self::new(len, true, SealFlags::SHRINK),
            3 => Self::new(len, false, SealFlags::SHRINK | SealFlags::FUTURE_WRITE),
            4 => Self::good(4096.min(len)),
            _ => Self::good(len),
        }
    }

    fn new(len: usize, backed: bool, seals: SealFlags) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("liar", flags).unwrap());
        file.set_len(len as u64).unwrap();
        if backed {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64).unwrap();
        }
        // SAFETY: the other side only reads, by raw pointers and atomics; nobody shrinks the file while
        // it is mapped here, as `disturb` leaves the length of unsealed files alone.
        let map = unsafe { MmapMut::map_mut(&file).unwrap() };
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        Self { file, map }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Writes, cut where the memory ends.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let at = at.min(self.len());
        let end = self.len().min(at + bytes.len());
        self.map[at..end].copy_from_slice(&bytes[..end - at]);
    }

    pub fn fill(&mut self, byte: u8) {
        self.map.fill(byte);
    }

    /// Tries to pull the memory away under whoever has it mapped. The seals must forbid it.
    pub fn disturb(&self) {
        let seals = rustix::fs::fcntl_get_seals(&self.file).unwrap();
        if seals.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE) {
            assert!(self.file.set_len(0).is_err(), "sealed memory was cut");
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&self.file, punch, 0, 4096);
            assert!(punched.is_err(), "a hole was made in sealed memory");
            assert!(self.file.write_at(&[1], 0).is_err(), "sealed memory was written");
        }
    }
}
