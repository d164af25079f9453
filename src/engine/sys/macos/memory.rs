//! Memory that another process can map, without a lasting name: `shm_open` and an immediate unlink.

use std::fs::File;
use std::io;

use rustix::fs::Mode;
use rustix::shm::OFlags;

/// Creates `len` bytes of shared memory whose name is gone before this returns.
///
/// A name may have 31 bytes at most (`PSHMNAMLEN`), and `ftruncate` works once on such a file.
pub(crate) fn create_shared(len: usize) -> io::Result<File> {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let name = format!("/bw-{}", &unique[..16]);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    let fd = rustix::shm::open(&name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::shm::unlink(&name)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(File::from(fd))
}

/// There are no seals here: the descriptor itself is what a peer is trusted with (same uid).
#[expect(clippy::unnecessary_wraps, reason = "the twin on Linux can fail")]
pub(crate) fn seal_for_readers(_file: &File) -> io::Result<()> {
    Ok(())
}
