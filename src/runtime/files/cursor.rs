//! A reader over untrusted bytes whose every step checks that the bytes are there.

use std::path::Path;

use super::LoadError;

/// Longest key, name or text that is copied out, in bytes; chat templates reach some 10 KB.
const MAX_TEXT: u64 = 4 << 20;

/// A position in a file's bytes.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Starts reading `bytes` of the file `path` at byte `at`.
    pub(super) fn new(path: &'a Path, bytes: &'a [u8], at: usize) -> Self {
        Self { path, bytes, at }
    }

    /// The file's path, for errors.
    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// The next byte to be read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next `len` bytes, as `what`.
    pub(super) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], LoadError> {
        let needed = (self.at as u64).saturating_add(len);
        let found = self.bytes.len() as u64;
        if needed > found {
            let (path, what) = (self.path.to_owned(), what.to_owned());
            return Err(LoadError::Truncated { path, what, needed, found });
        }
        let taken = &self.bytes[self.at..needed as usize];
        self.at = needed as usize;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LoadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    /// A little-endian u32.
    pub(super) fn u32(&mut self, what: &str) -> Result<u32, LoadError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A little-endian u64.
    pub(super) fn u64(&mut self, what: &str) -> Result<u64, LoadError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A u64 that must not exceed `limit`.
    pub(super) fn bounded(&mut self, what: &'static str, limit: u64) -> Result<u64, LoadError> {
        let found = self.u64(what)?;
        if found > limit {
            let path = self.path.to_owned();
            return Err(LoadError::LimitExceeded { path, what, found, limit });
        }
        Ok(found)
    }

    /// A u64 that counts things of at least one byte each in the rest of the file.
    pub(super) fn count(&mut self, what: &str) -> Result<usize, LoadError> {
        let count = self.u64(what)?;
        let needed = (self.at as u64).saturating_add(count);
        let found = self.bytes.len() as u64;
        if needed > found {
            let (path, what) = (self.path.to_owned(), what.to_owned());
            return Err(LoadError::Truncated { path, what, needed, found });
        }
        Ok(count as usize)
    }

    /// A length-prefixed UTF-8 text.
    pub(super) fn text(&mut self, what: &str) -> Result<String, LoadError> {
        let len = self.bounded("the length of a text", MAX_TEXT)?;
        let bytes = self.take(len, what)?;
        String::from_utf8(bytes.to_vec()).map_err(|e| LoadError::Malformed {
            path: self.path.to_owned(),
            what: what.to_owned(),
            expected: "UTF-8 text",
            found: format!("bytes {:02x?}", &e.as_bytes()[..e.as_bytes().len().min(16)]),
        })
    }
}
