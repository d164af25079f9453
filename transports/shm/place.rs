//! Where a listener's socket lies, and whose it is.
//!
//! `shm:/path/to.sock` is that file. `shm:name` is `name.sock` in the runtime directory of this
//! user, `shm:` is `default.sock` there. The directory belongs to the user alone: it is made with mode
//! 0700, and one that is a link, is another user's, or lets others in, is refused.
//!
//! A listener holds a lock on `SOCKET.lock` for as long as it lives. The kernel drops the lock with
//! the process, so a socket file whose lock is free is a dead listener's, and is replaced.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

/// Longest path that fits a socket address on every system (macOS: 104 bytes with the zero).
const PATH_LEN_MAX: usize = 103;
/// How often a lock file may vanish between opening and locking it before that counts as an error.
const LOCK_TRIES: usize = 16;

/// Why an address names no place.
#[derive(Debug)]
pub(crate) enum PlaceError {
    /// It cannot be used.
    Refused(&'static str),
    /// The system said no.
    System(io::Error),
}

impl From<io::Error> for PlaceError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The socket file of an address's target.
pub(crate) fn socket_path(target: &str) -> Result<PathBuf, PlaceError> {
    let path = if target.starts_with('/') {
        PathBuf::from(target)
    } else {
        let name = if target.is_empty() { "default" } else { target };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.starts_with('.') || !name.bytes().all(plain) {
            return Err(PlaceError::Refused(
                "write a name of letters, digits, `-`, `_`, `.`, or an absolute path",
            ));
        }
        runtime_dir()?.join(format!("{name}.sock"))
    };
    if path.as_os_str().len() > PATH_LEN_MAX {
        return Err(PlaceError::Refused("the path is too long for a socket (103 bytes)"));
    }
    Ok(path)
}

fn runtime_dir() -> Result<PathBuf, PlaceError> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = match session.filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join("blockwire"),
        None => PathBuf::from(format!("/tmp/blockwire-{}", rustix::process::geteuid().as_raw())),
    };
    own_dir(&dir)?;
    Ok(dir)
}

/// Makes the directory, or checks the one that is there.
fn own_dir(dir: &Path) -> Result<(), PlaceError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() {
        return Err(PlaceError::Refused("the runtime directory is no directory"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(PlaceError::Refused("the runtime directory belongs to another user"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(PlaceError::Refused("the runtime directory is open to others (chmod 700)"));
    }
    Ok(())
}

/// The right to bind a path. Dropping it removes the lock file, and the socket file if it was bound.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    lock_path: PathBuf,
    lock: File,
    bound: bool,
}

impl Claim {
    /// Takes the lock; none where a living process holds it.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut lock_path = OsString::from(path);
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        for _ in 0..LOCK_TRIES {
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&lock_path)?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                other => other?,
            }
            // The last owner may have removed the file between the two calls.
            if same_file(&lock, &lock_path)? {
                return Ok(Some(Self { path: path.to_owned(), lock_path, lock, bound: false }));
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// From now on the socket file is the claim's.
    pub(crate) fn set_bound(&mut self) {
        self.bound = true;
    }

    /// Removes what a dead listener left. The caller has made sure that nobody answers there.
    pub(crate) fn remove_stale(&self) -> Result<(), PlaceError> {
        match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
            Ok(found) if found.file_type().is_socket() => Ok(fs::remove_file(&self.path)?),
            Ok(_) => Err(PlaceError::Refused("the path names a file that is no socket")),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.bound {
            let _ = fs::remove_file(&self.path);
        }
        // While the lock is held, so that nobody else can hold a lock on a removed file.
        let _ = fs::remove_file(&self.lock_path);
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

fn same_file(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn targets_are_names_or_absolute_paths() {
        assert_eq!(socket_path("/run/x.sock").unwrap(), Path::new("/run/x.sock"));
        let long = format!("/{}", "x".repeat(PATH_LEN_MAX));
        for target in ["a/b", "../x", ".hidden", "a b", "\u{e4}", long.as_str()] {
            assert!(matches!(socket_path(target), Err(PlaceError::Refused(_))), "{target}");
        }
    }

    #[test]
    fn a_runtime_directory_is_private_or_refused() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("blockwire");
        own_dir(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        own_dir(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o750)).unwrap();
        assert!(matches!(own_dir(&dir), Err(PlaceError::Refused(_))));
        let link = parent.path().join("link");
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        symlink(&dir, &link).unwrap();
        assert!(matches!(own_dir(&link), Err(PlaceError::Refused(_))));
    }

    #[test]
    fn one_claim_at_a_time_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let claim = Claim::take(&path).unwrap().unwrap();
        assert!(Claim::take(&path).unwrap().is_none());
        drop(claim);
        assert!(Claim::take(&path).unwrap().is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_sockets_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        fs::write(&path, "precious").unwrap();
        let claim = Claim::take(&path).unwrap().unwrap();
        assert!(matches!(claim.remove_stale(), Err(PlaceError::Refused(_))));
        drop(claim);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
