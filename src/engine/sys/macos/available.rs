//! How much memory this process can still get.

use std::ptr;

use rustix::process::{Resource, getrlimit};

use crate::pool::{Available, MemoryLimit};

/// What the tightest limit leaves. The system swaps and compresses, so all of the machine's memory is
/// the bound; how much of it others use is not subtracted.
pub(crate) fn available() -> Option<Available> {
    let machine = machine().map(|bytes| Available { bytes, limit: MemoryLimit::Machine });
    let space = getrlimit(Resource::As).current;
    let space = space.map(|bytes| Available { bytes, limit: MemoryLimit::AddressSpace });
    [machine, space].into_iter().flatten().min_by_key(|available| available.bytes)
}

/// Bytes of memory that the machine has.
fn machine() -> Option<u64> {
    let mut bytes = 0u64;
    let mut len = size_of::<u64>();
    let into = ptr::from_mut(&mut bytes).cast();
    // SAFETY: the name ends in a zero byte; `into` is writable for `len` bytes; nothing is set.
    let result = unsafe {
        libc::sysctlbyname(c"hw.memsize".as_ptr(), into, &raw mut len, ptr::null_mut(), 0)
    };
    (result == 0).then_some(bytes)
}
