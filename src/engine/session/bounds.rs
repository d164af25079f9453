//! What bounds the memory that a peer can make this side hold.

use std::collections::HashSet;

use bytes::Bytes;

use super::error::SessionViolation;
use crate::transport::OpId;

/// Most answers that may wait until the peer reads. Whoever keeps the rules asks for a few; whoever asks
/// without end and reads nothing would fill this side's memory.
const ANSWERS_MAX: usize = 1 << 16;
/// Most bytes that may come with a digest: each open offer may hold as many.
pub(super) const CLOSING_LEN_MAX: usize = 64 << 10;
/// Frames up to this length are kept whole with any part of them.
const SMALL_BODY: usize = 512;
/// Characters that are kept of what a peer says for people.
const SAID_LEN_MAX: usize = 512;

/// Frames that the peer asked for and that have not left yet.
#[derive(Debug, Default)]
pub(super) struct Answers {
    waiting: usize,
    /// Those among them that the link has.
    ops: HashSet<OpId>,
}

impl Answers {
    /// One more is on its way to the link.
    pub(super) fn asked(&mut self) {
        self.waiting += 1;
    }

    /// The link took one.
    pub(super) fn accepted(&mut self, op: OpId) {
        self.ops.insert(op);
    }

    /// Whether a completed operation was one; it waits no more.
    pub(super) fn left(&mut self, op: OpId) -> bool {
        let was = self.ops.remove(&op);
        self.waiting -= usize::from(was);
        was
    }

    /// Whether the peer reads what it asks for.
    pub(super) fn check(&self) -> Result<(), SessionViolation> {
        if self.waiting > ANSWERS_MAX { Err(SessionViolation::Unread) } else { Ok(()) }
    }
}

/// A part of a body that outlives it. The part shares the whole frame's memory, so it is copied where
/// the rest is more than the part: what is counted is what is held, but for a factor of two.
pub(super) fn keep(part: Bytes, body_len: u32) -> Bytes {
    let holds_much_more = body_len as usize > SMALL_BODY + 2 * part.len();
    if holds_much_more { Bytes::copy_from_slice(&part) } else { part }
}

/// What a peer says, for people and their logs: of bounded length, and on one line.
pub(super) fn said(text: &str) -> String {
    let chars = text.chars().take(SAID_LEN_MAX);
    chars.map(|char| if char.is_control() { ' ' } else { char }).collect()
}
