//! Control frames in one order over changing stripes. Knows no stripe but by its number.
//!
//! All numbered frames of a direction go over one stripe. Their numbers are not on the wire: both ends
//! count. The [`Outbox`] keeps what the peer has not acknowledged. When its stripe is lost, it names the
//! first number that it still has (RESUME) on the lowest stripe that lives, and sends everything from
//! there again; the [`Inbox`] skips what it had. Stripes never come back, so whoever changes goes up:
//! what still arrives on a lower stripe than the one in use is late, and ignored.
//!
//! The window bounds what is kept for a peer that acknowledges nothing: it gets no more.

use std::collections::VecDeque;

use blockwire::transport::{OpId, Violation};
use bytes::Bytes;

/// Most frames under way without acknowledgement.
const WINDOW_FRAMES: usize = 1024;
/// Bytes of them, after which nothing more is sent.
const WINDOW_LEN: usize = 8 << 20;
/// Frames after which one acknowledges: well before the peer has to wait for it.
const ACK_FRAMES: u64 = WINDOW_FRAMES as u64 / 8;
/// Bytes likewise.
const ACK_LEN: usize = WINDOW_LEN / 8;

/// Numbered frames on their way out.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Not acknowledged, or not sent yet.
    kept: VecDeque<Kept>,
    /// Number of the first of them.
    first: u64,
    /// How many of them the stripe has, and their bytes.
    handed: usize,
    handed_len: usize,
    /// Number behind the last that any stripe ever had.
    reached: u64,
    /// Number behind the last that the stripe wrote.
    written: u64,
}

#[derive(Debug)]
struct Kept {
    frame: Bytes,
    /// The operation, until it is completed.
    op: Option<OpId>,
}

impl Outbox {
    /// Queues a frame.
    pub(super) fn push(&mut self, op: Option<OpId>, frame: Bytes) {
        self.kept.push_back(Kept { frame, op });
    }

    /// The next frame for the stripe, and its number; none while the window is full.
    pub(super) fn hand(&mut self) -> Option<(u64, Bytes)> {
        let number = self.first + self.handed as u64;
        let open = self.handed < WINDOW_FRAMES && self.handed_len < WINDOW_LEN;
        // What went out once was inside the window then. All of it goes again, since the peer may
        // acknowledge any of it.
        let kept = self.kept.get(self.handed).filter(|_| open || number < self.reached)?;
        self.handed += 1;
        self.handed_len += kept.frame.len();
        self.reached = self.reached.max(number + 1);
        Some((number, kept.frame.clone()))
    }

    /// The stripe wrote a frame; the operation that is done by that.
    pub(super) fn wrote(&mut self, number: u64) -> Option<OpId> {
        self.written = self.written.max(number + 1);
        let index = number.checked_sub(self.first)?;
        self.kept.get_mut(index as usize)?.op.take()
    }

    /// The peer has every frame below a number; the operations that are done by that.
    ///
    /// # Errors
    /// It cannot have so many.
    pub(super) fn acknowledge(&mut self, frames: u64) -> Result<Vec<OpId>, Violation> {
        if frames > self.reached {
            return Err(Violation::Stripes("an acknowledgement of frames that were never sent"));
        }
        let count = frames.saturating_sub(self.first) as usize;
        debug_assert!(count <= self.handed, "after a change of stripes all of it was handed again");
        let acknowledged = self.kept.drain(..count.min(self.handed));
        let mut done = Vec::new();
        for kept in acknowledged {
            self.first += 1;
            self.handed -= 1;
            self.handed_len -= kept.frame.len();
            done.extend(kept.op);
        }
        self.written = self.written.max(self.first);
        Ok(done)
    }

    /// Begins again on another stripe; the number of the first frame there.
    pub(super) fn resume(&mut self) -> u64 {
        (self.handed, self.handed_len, self.written) = (0, 0, self.first);
        self.first
    }

    /// Takes back the frame of an operation that no stripe has yet; whether it could.
    pub(super) fn cancel(&mut self, op: OpId) -> bool {
        let sent = (self.reached - self.first) as usize;
        let found = self.kept.iter().skip(sent).position(|kept| kept.op == Some(op));
        found.is_some_and(|index| self.kept.remove(sent + index).is_some())
    }

    /// Whether the stripe wrote everything.
    pub(super) fn is_written(&self) -> bool {
        self.written == self.first + self.kept.len() as u64
    }

    /// Gives everything up; the operations that did not complete.
    pub(super) fn abort(&mut self) -> Vec<OpId> {
        self.kept.drain(..).filter_map(|kept| kept.op).collect()
    }
}

/// Numbered frames on their way in.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The stripe in use.
    stripe: usize,
    arrived: u64,
    /// Frames to come that are here already.
    skip: u64,
    acknowledged: u64,
    /// Bytes that arrived since.
    unacknowledged_len: usize,
}

impl Inbox {
    /// A numbered frame came; whether it counts.
    ///
    /// # Errors
    /// It came on a stripe that is not in use yet.
    pub(super) fn arrive(&mut self, stripe: usize, len: usize) -> Result<bool, Violation> {
        if stripe > self.stripe {
            return Err(Violation::Stripes("control on a stripe that it did not change to"));
        }
        if stripe < self.stripe {
            return Ok(false);
        }
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(false);
        }
        self.arrived += 1;
        self.unacknowledged_len += len;
        Ok(true)
    }

    /// The frames go on over another stripe, from a number on.
    ///
    /// # Errors
    /// There would be a gap, or the stripe is in use already.
    pub(super) fn resume(&mut self, stripe: usize, number: u64) -> Result<(), Violation> {
        if stripe < self.stripe {
            return Ok(());
        }
        if stripe == self.stripe {
            return Err(Violation::Stripes("control changes to the stripe that it is on"));
        }
        let skip = self.arrived.checked_sub(number);
        self.skip = skip.ok_or(Violation::Stripes("control frames are left out"))?;
        self.stripe = stripe;
        Ok(())
    }

    /// What to acknowledge, once it is worth a frame.
    pub(super) fn due(&self) -> Option<u64> {
        let worth =
            self.arrived - self.acknowledged >= ACK_FRAMES || self.unacknowledged_len >= ACK_LEN;
        worth.then_some(self.arrived)
    }

    /// An acknowledgement is on its way.
    pub(super) fn acknowledged(&mut self, frames: u64) {
        (self.acknowledged, self.unacknowledged_len) = (frames, 0);
    }

    /// The last acknowledgement may be lost.
    pub(super) fn forget_acknowledgement(&mut self) {
        self.acknowledged = self.acknowledged.saturating_sub(ACK_FRAMES);
        self.unacknowledged_len = ACK_LEN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_le_bytes())
    }

    /// An outbox with operations `0..count`.
    fn outbox(count: u64) -> Outbox {
        let mut outbox = Outbox::default();
        (0..count).for_each(|number| outbox.push(Some(OpId(number)), frame(number)));
        outbox
    }

    fn hand_all(outbox: &mut Outbox) -> Vec<u64> {
        std::iter::from_fn(|| outbox.hand()).map(|(number, _)| number).collect()
    }

    #[test]
    fn an_outbox_sends_again_what_nobody_acknowledged() {
        let mut outbox = outbox(5);
        assert_eq!(hand_all(&mut outbox), [0, 1, 2, 3, 4]);
        assert_eq!(outbox.wrote(0), Some(OpId(0)));
        assert_eq!(outbox.wrote(1), Some(OpId(1)));
        assert_eq!(outbox.acknowledge(1), Ok(vec![]));
        assert_eq!(outbox.resume(), 1);
        assert!(!outbox.is_written());
        assert_eq!(hand_all(&mut outbox), [1, 2, 3, 4]);
        assert_eq!(outbox.wrote(1), None, "it completed once");
        // What arrived over the old stripe is acknowledged while it is sent again.
        assert_eq!(outbox.acknowledge(4), Ok(vec![OpId(2), OpId(3)]));
        assert_eq!(outbox.acknowledge(2), Ok(vec![]), "late");
        assert_eq!(outbox.wrote(3), None);
        assert_eq!(outbox.wrote(4), Some(OpId(4)));
        assert!(outbox.is_written());
        assert!(outbox.acknowledge(6).is_err());
    }

    #[test]
    fn a_window_bounds_what_is_kept_for_a_silent_peer() {
        let mut outbox = outbox(3 * WINDOW_FRAMES as u64);
        assert_eq!(hand_all(&mut outbox).len(), WINDOW_FRAMES);
        outbox.acknowledge(10).unwrap();
        assert_eq!(hand_all(&mut outbox).len(), 10);
        let long = Bytes::from(vec![0; WINDOW_LEN / 2]);
        let mut outbox = Outbox::default();
        (0..5).for_each(|_| outbox.push(None, long.clone()));
        assert_eq!(hand_all(&mut outbox), [0, 1]);
        // All of it goes again at once, so that any of it can be acknowledged.
        outbox.resume();
        assert_eq!(hand_all(&mut outbox), [0, 1]);
        outbox.acknowledge(2).unwrap();
        assert_eq!(hand_all(&mut outbox), [2, 3]);
    }

    #[test]
    fn only_what_no_stripe_had_is_cancelled() {
        let mut outbox = outbox(2);
        outbox.hand();
        assert!(!outbox.cancel(OpId(0)) && outbox.cancel(OpId(1)) && !outbox.cancel(OpId(1)));
        outbox.push(Some(OpId(2)), frame(2));
        outbox.resume();
        assert!(!outbox.cancel(OpId(0)), "it may have arrived");
        assert_eq!(hand_all(&mut outbox), [0, 1]);
        assert_eq!(outbox.abort(), [OpId(0), OpId(2)]);
    }

    #[test]
    fn an_inbox_takes_every_frame_once() {
        let mut inbox = Inbox::default();
        assert_eq!(inbox.arrive(0, 8), Ok(true));
        assert_eq!(inbox.arrive(0, 8), Ok(true));
        assert!(inbox.arrive(1, 8).is_err(), "no resume came");
        inbox.resume(2, 1).unwrap();
        assert_eq!(inbox.arrive(0, 8), Ok(false), "late");
        assert_eq!(inbox.arrive(2, 8), Ok(false), "it is here already");
        assert_eq!(inbox.arrive(2, 8), Ok(true));
        // A change that was overtaken by the next.
        assert_eq!(inbox.resume(1, 0), Ok(()));
        assert!(inbox.resume(2, 3).is_err());
        assert!(inbox.resume(3, 4).is_err(), "frame 3 never came");
        inbox.resume(3, 3).unwrap();
        assert_eq!(inbox.arrive(3, 8), Ok(true));
    }

    #[test]
    fn acknowledgements_come_before_the_window_is_full() {
        let mut inbox = Inbox::default();
        for _ in 0..ACK_FRAMES {
            assert_eq!(inbox.due(), None);
            inbox.arrive(0, 1).unwrap();
        }
        assert_eq!(inbox.due(), Some(ACK_FRAMES));
        inbox.acknowledged(ACK_FRAMES);
        assert_eq!(inbox.due(), None);
        inbox.forget_acknowledgement();
        assert_eq!(inbox.due(), Some(ACK_FRAMES));
        inbox.acknowledged(ACK_FRAMES);
        inbox.arrive(0, ACK_LEN).unwrap();
        assert_eq!(inbox.due(), Some(ACK_FRAMES + 1));
    }
}
