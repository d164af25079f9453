//! How far a sender is ahead of its peer's process: a control frame waits behind all of that.
//!
//! TCP stops a sender when the peer's receive buffer is full, and the system lets that grow to tens of
//! megabytes, which take milliseconds to read and fall out of every cache meanwhile. So a receiver tells how
//! many payload bytes its process has read (CREDIT), and a sender begins no frame while the peer's system
//! holds more than [`UNREAD_MAX`] of them unread:
//! ```text
//! unread = sent - read by the peer's process - not acknowledged by the peer's system
//! ```
//! What is on its way does not count, and news of both kinds take equally long: however long and fast the
//! way is, it is full. On one host nothing is on its way. What is not acknowledged lies in the peer's system
//! there, behind a socket that is just being read, so it counts.
//!
//! A peer that tells at least every [`STEP`] bytes always comes to tell enough, since `STEP` is less than
//! `UNREAD_MAX`: the sender never waits for ever.

use blockwire::transport::Violation;

/// Payload bytes that a peer's system may hold unread when a frame begins.
const UNREAD_MAX: u64 = 512 << 10;

/// Payload bytes after which a receiver tells that it read them.
const STEP: u64 = 256 << 10;

/// The sender's side.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    sent: u64,
    read: u64,
    /// Bytes that are not acknowledged count.
    same_host: bool,
}

impl Unread {
    /// Nothing is sent. Whether the peer is on this host.
    pub(crate) fn new(same_host: bool) -> Self {
        Self { same_host, ..Self::default() }
    }

    /// Payload bytes were sent.
    pub(crate) fn sent(&mut self, len: u64) {
        self.sent += len;
    }

    /// The peer tells how many payload bytes it has read, of all. `lent` are bytes that may be sent, which
    /// is not known yet.
    ///
    /// # Errors
    /// [`Violation`]: that cannot be.
    pub(crate) fn credited(&mut self, read: u64, lent: u64) -> Result<(), Violation> {
        let sent = self.sent + lent;
        if read > sent {
            return Err(Violation::Credit { read, sent });
        }
        self.read = self.read.max(read);
        Ok(())
    }

    /// Whether the sender has to wait. `unacknowledged` are bytes that the peer's system does not have.
    pub(crate) fn is_much(&self, unacknowledged: impl FnOnce() -> u64) -> bool {
        let unread = self.sent.saturating_sub(self.read);
        let on_its_way = || if self.same_host { 0 } else { unacknowledged() };
        unread > UNREAD_MAX && unread.saturating_sub(on_its_way()) > UNREAD_MAX
    }
}

/// The receiver's side.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    read: u64,
    told: u64,
}

impl Taken {
    /// Payload bytes were read.
    pub(crate) fn read(&mut self, len: u64) {
        self.read += len;
    }

    /// What to tell the peer now, if anything.
    pub(crate) fn news(&mut self) -> Option<u64> {
        let due = self.read - self.told >= STEP;
        due.then(|| {
            self.told = self.read;
            self.read
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_does_not_count() {
        let mut unread = Unread::default();
        unread.sent(10 << 20);
        assert!(!unread.is_much(|| (10 << 20) - UNREAD_MAX));
        assert!(unread.is_much(|| (10 << 20) - UNREAD_MAX - 1));
        unread.credited((10 << 20) - UNREAD_MAX, 0).unwrap();
        assert!(!unread.is_much(|| 0));
    }

    #[test]
    fn on_one_host_everything_counts() {
        let mut unread = Unread::new(true);
        unread.sent(UNREAD_MAX);
        assert!(!unread.is_much(|| UNREAD_MAX));
        unread.sent(1);
        assert!(unread.is_much(|| UNREAD_MAX + 1));
        unread.credited(1, 0).unwrap();
        assert!(!unread.is_much(|| UNREAD_MAX));
    }

    #[test]
    fn a_receiver_that_reads_everything_lets_its_peer_go_on() {
        let (mut unread, mut taken, mut total) = (Unread::default(), Taken::default(), 0);
        for len in (1..2000).map(|n| n * 977 % 300_000) {
            assert!(!unread.is_much(|| 0), "all is read");
            unread.sent(len);
            taken.read(len);
            total += len;
            if let Some(read) = taken.news() {
                unread.credited(read, 0).unwrap();
            }
        }
        assert_eq!(taken.news(), None);
        taken.read(STEP);
        assert_eq!(taken.news(), Some(total + STEP), "every byte is told");
    }

    #[test]
    fn what_cannot_be_is_a_violation() {
        let mut unread = Unread::default();
        unread.sent(1000);
        let refused = unread.credited(1001, 0);
        assert_eq!(refused, Err(Violation::Credit { read: 1001, sent: 1000 }));
        unread.credited(1500, 500).unwrap();
        assert!(!unread.is_much(|| 0), "more is read than is known to be sent");
    }
}
