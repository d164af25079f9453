//! A model file in memory, read only and never copied.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use super::LoadError;

/// One mapped file and the path it came from.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(|source| io_error(path, source))?;
        // SAFETY: the mapping is read only and lives as long as every borrow of it, which are all
        // tied to `&self`. Rust cannot rule out that somebody else writes to the file meanwhile:
        // we read it only as plain bytes, so a writer changes numbers, and one who shortens the
        // file ends the process with SIGBUS. `ModelFiles` documents that model files must be left
        // alone while open; we rely on that, as every reader that maps its weights does.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| io_error(path, source))?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// Reads a small companion file whole; `None` when there is none.
pub(crate) fn read_companion(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, LoadError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(path, source)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|source| io_error(path, source))?;
    let found = bytes.len() as u64;
    if found > limit {
        let path = path.to_owned();
        return Err(LoadError::LimitExceeded { path, what: "the file's length", found, limit });
    }
    Ok(Some(bytes))
}

/// Wraps the system's refusal.
pub(crate) fn io_error(path: &Path, source: io::Error) -> LoadError {
    let path = path.to_owned();
    if source.kind() == io::ErrorKind::NotFound {
        return LoadError::NotFound { path };
    }
    LoadError::Io { path, source }
}
