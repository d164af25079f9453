//! A lock-free byte ring from one process to another, and the words by which its two ends sleep.
//!
//! The [`Producer`] owns the ring and its `tail`; the [`Consumer`] owns the `head`, in its own half.
//! Positions count bytes for ever and wrap with the integer, not with the ring.
//!
//! ```text
//!            head            tail
//!  ───────────┴───────────────┴──────────────>   bytes ever passed
//!   taken       in the ring      free, up to head + ring_len
//! ```
//! Each end keeps a copy of the other's index and reads the shared word only when the copy says
//! "empty" or "full", so that in a busy stream a cache line moves once a batch. What the peer wrote
//! is checked each time: an index that goes back, or that leaves the ring, is a violation.
//!
//! Pairs, named at the code:
//! - SYNC-1: the producer's release of `tail` with the consumer's acquire: the bytes are there.
//! - SYNC-2: the consumer's release of `head` with the producer's acquire: the bytes were read.
//! - SYNC-3: a sleeper raises its flag, fences, and looks at the index or mark again; the other side moves
//!   it, fences, and looks at the flag. Both fences are sequentially consistent, so at least
//!   one of the two sees the other (Dekker): no wake-up is lost.
//! - SYNC-4: the producer's release of a mark with the consumer's acquire: the frame is there.
//!
//! # Marks
//! A message that is awaited should move one cache line, not the tail's and then its own. So frames of
//! the control ring begin on lines, and their first word, which is never zero, is their *mark*: written
//! last, so that a consumer which looks at the place of the next frame sees all of it or nothing. The
//! mark of the place behind is cleared before, and a line of the ring stays free for it. A mark shows
//! [`WHOLE_MAX`] bytes of its frame; the tail tells of the rest, and of how many frames there are.
//!
//! A flag is a counter, odd while its owner sleeps. Whoever rings remembers the value that it rang
//! for, so that one sleep costs one system call however many messages follow.
//!
//! Everything shared is reached through `half`; `tests/loom.rs` puts another one there, and tries every
//! order of the accesses.

use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use blockwire::transport::Violation;
use bytes::BytesMut;

use crate::half::{LINE, Lane, MARK_LEN, OwnHalf, PeerHalf, Word, fence};

pub(crate) const TAIL: Violation =
    Violation::SharedMemory("tail of a ring goes back or runs ahead");
pub(crate) const HEAD: Violation =
    Violation::SharedMemory("head of a ring goes back or runs past its tail");

/// Bytes of a frame that are shown at once: all of a short one. The smallest ring holds several.
pub(crate) const WHOLE_MAX: usize = 1024;

/// A flag of this side.
#[derive(Debug)]
struct Flag {
    lane: Lane,
    word: Word,
    value: u64,
}

impl Flag {
    fn raise(&mut self, own: &OwnHalf) {
        self.value |= 1;
        own.store(self.lane, self.word, self.value, Relaxed);
        fence(SeqCst); // SYNC-3, sleeper
    }

    fn lower(&mut self, own: &OwnHalf) {
        if self.value & 1 == 1 {
            self.value += 1;
            own.store(self.lane, self.word, self.value, Relaxed);
        }
    }
}

/// A flag of the peer.
#[derive(Debug)]
struct Watch {
    lane: Lane,
    word: Word,
    rung: u64,
}

impl Watch {
    /// Whether the peer sleeps and was not rung for it yet. Called after an index moved.
    fn must_ring(&mut self, peer: &PeerHalf) -> bool {
        fence(SeqCst); // SYNC-3, waker
        let value = peer.load(self.lane, self.word);
        let due = value & 1 == 1 && value != self.rung;
        if due {
            self.rung = value;
        }
        due
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Producer {
    lane: Lane,
    own: Rc<OwnHalf>,
    peer: Rc<PeerHalf>,
    tail: u64,
    published: u64,
    /// The mark of the frame that begins at `published`, if one does.
    mark: Option<[u8; MARK_LEN]>,
    head_seen: u64,
    wants_space: Flag,
    peer_sleeping: Watch,
}

impl Producer {
    pub(crate) fn new(lane: Lane, own: Rc<OwnHalf>, peer: Rc<PeerHalf>) -> Self {
        Self {
            lane,
            own,
            peer,
            tail: 0,
            published: 0,
            mark: None,
            head_seen: 0,
            wants_space: Flag { lane, word: Word::WantsSpace, value: 0 },
            peer_sleeping: Watch { lane, word: Word::Sleeping, rung: 0 },
        }
    }

    /// Puts as many of `bytes` into the ring as there is space for; [`publish`](Self::publish) shows
    /// them to the peer.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        if self.space() < bytes.len() {
            self.look_at_head()?;
        }
        let len = bytes.len().min(self.space());
        self.own.write(self.lane, self.tail, &bytes[..len]);
        self.tail = self.tail.wrapping_add(len as u64);
        Ok(len)
    }

    /// Like [`write`](Self::write), at the beginning of a frame: its first word becomes a mark, and all
    /// of a frame of at most [`WHOLE_MAX`] bytes fits, as the caller knows.
    pub(crate) fn begin(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mark = bytes.first_chunk().expect("a frame is longer than a mark");
        // Later frames of what is shown at once are out of the peer's sight: it gets there by this one.
        if self.tail == self.published {
            self.mark = Some(*mark);
            self.tail = self.tail.wrapping_add(MARK_LEN as u64);
            return Ok(MARK_LEN + self.write(&bytes[MARK_LEN..])?);
        }
        self.write(bytes)
    }

    /// The frame is whole: the next one begins on a line, whose mark says that there is none yet.
    pub(crate) fn finish(&mut self) {
        self.tail = next_line(self.tail);
        self.own.set_mark(self.lane, self.tail, [0; MARK_LEN], Relaxed);
    }

    /// Shows everything written. True when the peer sleeps and must be rung.
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        if let Some(mark) = self.mark.take() {
            self.own.set_mark(self.lane, self.published, mark, Release); // SYNC-4
        }
        self.published = self.tail;
        self.own.store(self.lane, Word::Tail, self.tail, Release); // SYNC-1
        let must_ring = self.peer_sleeping.must_ring(&self.peer);
        self.fetch_next_line();
        must_ring
    }

    /// Puts all of `bytes` into the ring; the caller knows that there is space.
    pub(crate) fn fill_from(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        self.fill(bytes.len(), |to| {
            let (now, later) = rest.split_at(to.len());
            to.copy_from_slice(now);
            rest = later;
        });
    }

    /// Hands out the next `len` bytes of the ring, to be written, in one or two runs. The caller knows
    /// that there is space; [`publish`](Self::publish) shows them to the peer.
    pub(crate) fn fill(&mut self, len: usize, write: impl FnMut(&mut [u8])) {
        assert!(len <= self.space(), "{len} bytes where {} are free", self.space());
        // SAFETY: they are free, as the peer's head says, which never goes back; the ring has one
        // producer, which is borrowed exclusively.
        unsafe { self.own.fill(self.lane, self.tail, len, write) };
        self.tail = self.tail.wrapping_add(len as u64);
    }

    /// Bytes of the whole ring.
    pub(crate) fn ring_len(&self) -> usize {
        self.own.ring_len(self.lane)
    }

    /// Whether `len` bytes are free.
    pub(crate) fn has_space(&mut self, len: usize) -> Result<bool, Violation> {
        if self.space() < len {
            self.look_at_head()?;
        }
        Ok(self.space() >= len)
    }

    /// Asks to be rung for space. True when there are `len` bytes already.
    pub(crate) fn sleep(&mut self, len: usize) -> Result<bool, Violation> {
        self.wants_space.raise(&self.own);
        self.look_at_head()?;
        Ok(self.space() >= len)
    }

    /// No longer asks.
    pub(crate) fn wake(&mut self) {
        self.wants_space.lower(&self.own);
    }

    /// Takes the line behind the next frame's first one into this core's cache: the peer's has it from
    /// the last round, and to wait for it then costs a tenth of a message.
    fn fetch_next_line(&self) {
        let next = next_line(self.tail);
        if self.space() >= 2 * LINE {
            self.own.write(self.lane, next.wrapping_add(LINE as u64), &[0]);
        }
    }

    /// Bytes that are free as far as this side has looked; a line stays free for the next mark.
    pub(crate) fn space(&self) -> usize {
        let line = self.head_seen & !(LINE as u64 - 1);
        (self.own.ring_len(self.lane) - LINE).saturating_sub(self.tail.wrapping_sub(line) as usize)
    }

    fn look_at_head(&mut self) -> Result<(), Violation> {
        let head = self.peer.load(self.lane, Word::Head);
        fence(Acquire); // SYNC-2
        // Between what it was and the tail: it never goes back, and never past what was written.
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.head_seen) {
            return Err(HEAD);
        }
        self.head_seen = head;
        Ok(())
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Consumer {
    lane: Lane,
    own: Rc<OwnHalf>,
    peer: Rc<PeerHalf>,
    head: u64,
    published: u64,
    /// The tail as the peer's word said it last.
    tail_read: u64,
    /// Where the bytes end that are known to be there.
    tail_seen: u64,
    sleeping: Flag,
    peer_wants_space: Watch,
}

impl Consumer {
    pub(crate) fn new(lane: Lane, own: Rc<OwnHalf>, peer: Rc<PeerHalf>) -> Self {
        Self {
            lane,
            own,
            peer,
            head: 0,
            published: 0,
            tail_read: 0,
            tail_seen: 0,
            sleeping: Flag { lane, word: Word::Sleeping, value: 0 },
            peer_wants_space: Watch { lane, word: Word::WantsSpace, rung: 0 },
        }
    }

    /// Appends what is there, at most `len_max` bytes; [`publish`](Self::publish) gives the space back.
    pub(crate) fn read(&mut self, len_max: usize, into: &mut BytesMut) -> Result<usize, Violation> {
        if self.ready() == 0 {
            self.look_at_tail()?;
        }
        let len = len_max.min(self.ready());
        self.peer.append(self.lane, self.head, len, into);
        self.head = self.head.wrapping_add(len as u64);
        Ok(len)
    }

    /// Whether a frame begins at the head, which is where the last one ended.
    pub(crate) fn has_frame(&mut self) -> bool {
        if self.ready() > 0 {
            return true;
        }
        let mark = self.peer.mark(self.lane, self.head);
        fence(Acquire); // SYNC-4
        mark != 0
    }

    /// Knows of `len` bytes from the head on, because a mark showed them.
    pub(crate) fn know(&mut self, len: usize) {
        if self.ready() < len {
            self.tail_seen = self.head.wrapping_add(len as u64);
        }
    }

    /// The frame is whole: passes over the bytes up to where the next one begins, and says how many.
    pub(crate) fn finish(&mut self) -> usize {
        let next = next_line(self.head);
        let passed = next.wrapping_sub(self.head) as usize;
        self.know(passed);
        self.head = next;
        passed
    }

    /// Fills `into`, or reads nothing when there is less.
    pub(crate) fn read_whole(&mut self, into: &mut [u8]) -> Result<bool, Violation> {
        if self.ready() < into.len() {
            self.look_at_tail()?;
        }
        if self.ready() < into.len() {
            return Ok(false);
        }
        self.peer.read(self.lane, self.head, into);
        self.head = self.head.wrapping_add(into.len() as u64);
        Ok(true)
    }

    /// Bytes that may be taken now.
    pub(crate) fn available(&mut self) -> Result<usize, Violation> {
        if self.ready() == 0 {
            self.look_at_tail()?;
        }
        Ok(self.ready())
    }

    /// Shows where the next `len` bytes lie, in one or two runs which the peer may change at any time,
    /// and takes them. They are available, as the caller knows.
    pub(crate) fn take(&mut self, len: usize, read: impl FnMut(*const u8, usize)) {
        assert!(len <= self.ready(), "{len} bytes where {} are ready", self.ready());
        self.peer.runs(self.lane, self.head, len, read);
        self.head = self.head.wrapping_add(len as u64);
    }

    /// Whether so much was read that the peer should have its space back.
    pub(crate) fn owes_space(&self) -> bool {
        self.head.wrapping_sub(self.published) as usize >= self.peer.ring_len(self.lane) / 4
    }

    /// Gives the space of everything read back. True when the peer waits for it and must be rung.
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        self.own.store(self.lane, Word::Head, self.head, Release); // SYNC-2
        self.peer_wants_space.must_ring(&self.peer)
    }

    /// Asks to be rung for bytes. True when there are `len` already.
    pub(crate) fn sleep(&mut self, len: usize) -> Result<bool, Violation> {
        self.sleeping.raise(&self.own);
        self.look_at_tail()?;
        Ok(self.ready() >= len)
    }

    /// Asks to be rung for a frame. True when there is one already.
    pub(crate) fn sleep_for_frame(&mut self) -> bool {
        self.sleeping.raise(&self.own);
        self.has_frame()
    }

    /// Whether there are bytes now. Asks nobody.
    pub(crate) fn look(&mut self) -> Result<bool, Violation> {
        self.look_at_tail()?;
        Ok(self.ready() > 0)
    }

    /// No longer asks.
    pub(crate) fn wake(&mut self) {
        self.sleeping.lower(&self.own);
    }

    /// Bytes in the ring now; later ones, if any, are none of the caller's business.
    pub(crate) fn remaining(&mut self) -> Result<usize, Violation> {
        self.look_at_tail()?;
        Ok(self.ready())
    }

    /// Bytes that are known to be there.
    pub(crate) fn ready(&self) -> usize {
        self.tail_seen.wrapping_sub(self.head) as usize
    }

    fn look_at_tail(&mut self) -> Result<(), Violation> {
        let tail = self.peer.load(self.lane, Word::Tail);
        fence(Acquire); // SYNC-1
        // Between what it was and the end of the ring: it may be behind the marks, never behind itself.
        let end = self.head.wrapping_add(self.peer.ring_len(self.lane) as u64);
        if tail.wrapping_sub(self.tail_read) > end.wrapping_sub(self.tail_read) {
            return Err(TAIL);
        }
        self.tail_read = tail;
        if end.wrapping_sub(tail) < end.wrapping_sub(self.tail_seen) {
            self.tail_seen = tail;
        }
        Ok(())
    }
}

/// The first position on a line from `at` on.
pub(crate) fn next_line(at: u64) -> u64 {
    at.wrapping_add(LINE as u64 - 1) & !(LINE as u64 - 1)
}
