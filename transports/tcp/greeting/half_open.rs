//! Connections that did not finish their greeting: strangers, of whom there may be any number.
//!
//! They greet side by side, so a slow one delays nobody. There is room for [`TOTAL_MAX`] of them, and for
//! [`SOURCE_MAX`] of one source; a new one takes the place of the oldest of its own source, or, when the
//! room is full, of the oldest of the source that has most. Dropping the oldest instead of refusing the
//! newest is what keeps the door open: a peer that has the key is through after two round trips, three with
//! TLS, long before so many others came after it, while whoever wants to fill the room has to come again and
//! again.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;

use blockwire::transport::LocalFuture;

/// Most half-open connections of one listener.
pub(crate) const TOTAL_MAX: usize = 256;
/// Most of one source.
pub(crate) const SOURCE_MAX: usize = 64;

/// Whom an address belongs to: of IPv6 the first 64 bits, since anyone has all of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & (u128::from(u64::MAX) << 64);
                Ipv6Addr::from_bits(network).into()
            }
            v4 => v4,
        })
    }
}

/// Greetings under way; each ends in a `T`.
#[derive(Debug)]
pub(crate) struct HalfOpen<T> {
    running: FuturesUnordered<Abortable<LocalFuture<(u64, T)>>>,
    /// The oldest first.
    entries: VecDeque<Entry>,
    next: u64,
    dropped: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    source: Source,
    abort: AbortHandle,
}

impl<T: 'static> HalfOpen<T> {
    /// Nobody came yet.
    pub(crate) fn new() -> Self {
        let (running, entries) = (FuturesUnordered::new(), VecDeque::new());
        Self { running, entries, next: 0, dropped: 0 }
    }

    /// Takes one more, and drops another where there is no room. Poll afterwards.
    pub(crate) fn admit(&mut self, source: Source, greeting: impl Future<Output = T> + 'static) {
        if let Some(at) = self.victim(source) {
            self.drop_entry(at);
        }
        let number = self.next;
        self.next += 1;
        let (abort, registration) = AbortHandle::new_pair();
        let numbered: LocalFuture<_> = Box::pin(async move { (number, greeting.await) });
        self.running.push(Abortable::new(numbered, registration));
        self.entries.push_back(Entry { number, source, abort });
    }

    /// The next greeting that ended.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        while let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(cx) {
            if let Ok((number, outcome)) = ended {
                self.entries.retain(|entry| entry.number != number);
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    }

    fn victim(&self, source: Source) -> Option<usize> {
        let mut counts = HashMap::new();
        for entry in &self.entries {
            *counts.entry(entry.source).or_insert(0_usize) += 1;
        }
        let largest = if counts.get(&source).is_some_and(|count| *count >= SOURCE_MAX) {
            Some(source)
        } else if self.entries.len() >= TOTAL_MAX {
            counts.into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source)
        } else {
            None
        };
        self.entries.iter().position(|entry| Some(entry.source) == largest)
    }

    fn drop_entry(&mut self, at: usize) {
        if let Some(entry) = self.entries.remove(at) {
            entry.abort.abort();
            self.dropped += 1;
            // A line for each would be another way to fill a disk.
            if self.dropped.is_power_of_two() {
                let (source, total) = (entry.source.0, self.dropped);
                tracing::warn!(%source, total, "too many unfinished greetings, the oldest is dropped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::rc::Rc;

    use super::*;

    /// Counts itself for as long as it lives.
    struct Held(Rc<Cell<usize>>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    struct Room {
        half_open: HalfOpen<u32>,
        live: Rc<Cell<usize>>,
    }

    impl Room {
        fn new() -> Self {
            Self { half_open: HalfOpen::new(), live: Rc::default() }
        }

        fn stranger(&mut self, from: [u8; 4]) {
            self.live.set(self.live.get() + 1);
            let held = Held(Rc::clone(&self.live));
            self.half_open.admit(IpAddr::from(from).into(), async move {
                let _held = held;
                pending().await
            });
            assert!(self.poll().is_pending());
        }

        fn poll(&mut self) -> Poll<u32> {
            self.half_open.poll_ended(&mut Context::from_waker(std::task::Waker::noop()))
        }

        fn of(&self, from: [u8; 4]) -> usize {
            let source = IpAddr::from(from).into();
            self.half_open.entries.iter().filter(|entry| entry.source == source).count()
        }
    }

    #[test]
    fn one_source_drops_its_own_oldest() {
        let mut room = Room::new();
        room.stranger([10, 0, 0, 1]);
        for _ in 0..10_000 {
            room.stranger([10, 0, 0, 2]);
        }
        assert_eq!((room.of([10, 0, 0, 1]), room.of([10, 0, 0, 2])), (1, SOURCE_MAX));
        assert_eq!(
            (room.live.get(), room.half_open.running.len()),
            (SOURCE_MAX + 1, SOURCE_MAX + 1)
        );
        assert_eq!(room.half_open.entries[1].number, 10_000 - SOURCE_MAX as u64 + 1);
    }

    #[test]
    fn many_sources_make_room_where_there_are_most() {
        let mut room = Room::new();
        for source in 0..4 {
            for _ in 0..SOURCE_MAX {
                room.stranger([10, 0, 1, source]);
            }
        }
        for source in 0..200 {
            room.stranger([10, 0, 2, source]);
        }
        assert_eq!(room.live.get(), TOTAL_MAX);
        assert!((0..200).all(|source| room.of([10, 0, 2, source]) == 1));
    }

    #[test]
    fn whoever_is_done_leaves() {
        let mut room = Room::new();
        room.stranger([10, 0, 0, 1]);
        for number in 0..1000 {
            room.half_open.admit(IpAddr::from([10, 0, 0, 2]).into(), async move { number });
            assert_eq!(room.poll(), Poll::Ready(number));
        }
        assert_eq!((room.half_open.entries.len(), room.half_open.running.len()), (1, 1));
        assert_eq!(room.half_open.dropped, 0);
    }

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.2"), source("10.0.0.1"));
    }
}
