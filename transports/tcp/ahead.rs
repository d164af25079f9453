//! Bytes that were read before it is known what they are: headers, and control frames.

/// Bytes of the buffer. Small control frames come in by the hundred in one read.
pub(crate) const AHEAD_LEN: usize = 64 * 1024;

/// A flat buffer: what was read and not yet used lies in `start..end`.
#[derive(Debug)]
pub(crate) struct Ahead {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { bytes: vec![0; AHEAD_LEN].into_boxed_slice(), start: 0, end: 0 }
    }
}

impl Ahead {
    /// What was read and not yet used.
    pub(crate) fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Marks bytes as used.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(len <= self.end - self.start, "only what was read can be used");
        self.start += len;
    }

    /// Room for the next bytes, at most `len_max`. Moves what is unused to the front: less than a
    /// header, since everything larger is used as it comes.
    pub(crate) fn room(&mut self, len_max: usize) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let end = self.bytes.len().min(self.end + len_max);
        &mut self.bytes[self.end..end]
    }

    /// Marks room as read.
    pub(crate) fn fill(&mut self, len: usize) {
        assert!(len <= self.bytes.len() - self.end, "no more than the room was read");
        self.end += len;
    }
}
