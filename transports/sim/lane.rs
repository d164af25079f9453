//! One direction of a wire: what is under way, by the time of its arrival.
//!
//! Control frames arrive in order, and so do the pieces of payload; which of the two is first is a matter
//! of their times. Where the memory of payload lingers, a frame never overtakes payload that left before
//! it: that is what an answer to a later ping proves.

use std::collections::VecDeque;
use std::time::Instant;

use blockwire::transport::StreamTag;
use bytes::Bytes;
use fastrand::Rng;

use super::conditions::Conditions;
use super::payload::Source;

/// Frames under way before more wait at their sender.
const FRAMES_MAX: usize = 1024;
/// Their bytes; one frame of any length always fits an empty lane.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Payload bytes under way before more wait at their sender.
const PIECE_BYTES_MAX: usize = 512 << 10;

/// Some bytes of a payload under way.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) tag: StreamTag,
    pub(crate) source: Source,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) last: bool,
    /// Digest of the payload up to the end of this piece, when it left.
    pub(crate) digest: u64,
    pub(crate) corrupt: bool,
}

/// What arrives.
#[derive(Debug)]
pub(crate) enum Parcel {
    Control(Bytes),
    Piece(Piece),
    /// Nothing follows: the sender has ended.
    End,
}

#[derive(Debug)]
struct Timed<T> {
    due: Instant,
    number: u64,
    what: T,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    control: VecDeque<Timed<Bytes>>,
    control_bytes: usize,
    pieces: VecDeque<Timed<Piece>>,
    piece_bytes: usize,
    end: Option<Instant>,
    /// When the path has carried what was sent so far.
    free_at: Option<Instant>,
    last_control: Option<Instant>,
    last_piece: Option<Instant>,
    sent: u64,
}

impl Lane {
    /// Whether a frame of `len` bytes may leave.
    pub(crate) fn has_room_for_control(&self, len: usize) -> bool {
        let fits = self.control.len() < FRAMES_MAX && self.control_bytes + len <= FRAME_BYTES_MAX;
        fits || self.control.is_empty()
    }

    /// Whether payload may leave.
    pub(crate) fn has_room_for_payload(&self) -> bool {
        self.piece_bytes < PIECE_BYTES_MAX
    }

    /// Sends a frame; behind all payload, where that lingers.
    pub(crate) fn send_control(
        &mut self,
        frame: Bytes,
        now: Instant,
        conditions: &Conditions,
        behind_payload: bool,
        random: &mut Rng,
    ) {
        let due = self.arrival(frame.len(), now, conditions, random);
        let due = self.last_control.map_or(due, |last| due.max(last));
        let payload = self.last_piece.filter(|_| behind_payload);
        let due = payload.map_or(due, |last| due.max(last));
        self.last_control = Some(due);
        self.control_bytes += frame.len();
        let timed = self.number(due, frame);
        self.control.push_back(timed);
    }

    /// Sends a piece.
    pub(crate) fn send_piece(
        &mut self,
        piece: Piece,
        now: Instant,
        conditions: &Conditions,
        random: &mut Rng,
    ) {
        let due = self.arrival(piece.len, now, conditions, random);
        let due = self.last_piece.map_or(due, |last| due.max(last));
        self.last_piece = Some(due);
        self.piece_bytes += piece.len;
        let timed = self.number(due, piece);
        self.pieces.push_back(timed);
    }

    /// Sends the end, behind everything.
    pub(crate) fn send_end(&mut self, now: Instant, conditions: &Conditions, random: &mut Rng) {
        if self.end.is_none() {
            let due = self.arrival(0, now, conditions, random);
            let before = self.last_control.max(self.last_piece);
            self.end = Some(before.map_or(due, |before| due.max(before)));
        }
    }

    /// Loses what has not arrived, from some frame on.
    pub(crate) fn lose_tail(&mut self, random: &mut Rng) {
        self.control.truncate(random.usize(0..=self.control.len()));
        self.control_bytes = self.control.iter().map(|timed| timed.what.len()).sum();
        self.pieces.clear();
        self.piece_bytes = 0;
    }

    /// Loses everything that arrives after `now`.
    pub(crate) fn cut_off(&mut self, now: Instant) {
        self.control.retain(|timed| timed.due <= now);
        self.control_bytes = self.control.iter().map(|timed| timed.what.len()).sum();
        self.pieces.clear();
        self.piece_bytes = 0;
    }

    /// When the next thing arrives.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let control = self.control.front().map(|timed| timed.due);
        let piece = self.pieces.front().map(|timed| timed.due);
        match (control, piece) {
            (None, None) => self.end,
            (control, piece) => control.into_iter().chain(piece).min(),
        }
    }

    /// What has arrived next.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Parcel> {
        let key = |due, number| (due, number);
        let control = self.control.front().map(|timed| key(timed.due, timed.number));
        let piece = self.pieces.front().map(|timed| key(timed.due, timed.number));
        let first = control.into_iter().chain(piece).min();
        match first {
            None => {
                self.end.filter(|due| *due <= now)?;
                self.end = None;
                Some(Parcel::End)
            }
            Some((due, _)) if due > now => None,
            first if first == control => {
                let frame = self.control.pop_front()?.what;
                self.control_bytes -= frame.len();
                Some(Parcel::Control(frame))
            }
            _ => {
                let piece = self.pieces.pop_front()?.what;
                self.piece_bytes -= piece.len;
                Some(Parcel::Piece(piece))
            }
        }
    }

    fn arrival(
        &mut self,
        len: usize,
        now: Instant,
        conditions: &Conditions,
        random: &mut Rng,
    ) -> Instant {
        let departure = self.free_at.map_or(now, |free| free.max(now));
        let left = departure + conditions.occupancy(len);
        self.free_at = Some(left);
        left + conditions.travel(random)
    }

    fn number<T>(&mut self, due: Instant, what: T) -> Timed<T> {
        self.sent += 1;
        Timed { due, number: self.sent, what }
    }
}
