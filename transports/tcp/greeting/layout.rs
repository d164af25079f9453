//! The bytes of a greeting. They are the same for both sides.
//!
//! ```text
//!  0         8        10       12       14       16          32        48        80
//!  magic     version  flags    stripe   stripes  instance    link      nonce
//!  8 bytes   u16      u16      u16      u16      16 bytes    16 bytes  32 bytes  little-endian
//! ```
//! A stripe's number is below `stripes`, except where it is dialled in place of a lost one.
//! Magic and version stay where they are in every later version.

use blockwire::transport::Violation;
use uuid::Uuid;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a greeting.
pub(crate) const GREETING_LEN: usize = 80;
/// What it begins with.
pub(crate) const MAGIC: [u8; 8] = *b"BWIR-TCP";

/// Most connections of one link.
pub(crate) const STRIPES_MAX: u16 = 16;

const VERSION: u16 = 1;
/// The side has a cluster key: proofs follow the greetings, and tags the frames.
const KEYED: u16 = 1;

/// Which connection of which link one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The dialler chooses it, the acceptor repeats it.
    pub(crate) link: Uuid,
    /// Number of the connection.
    pub(crate) stripe: u16,
    /// Connections of the link at first.
    pub(crate) stripes: u16,
}

/// What a greeting has that none has again.
pub(crate) type Nonce = [u8; NONCE_LEN];
/// Bytes of it.
pub(crate) const NONCE_LEN: usize = 32;

impl Place {
    /// The only connection of a link.
    pub(crate) fn alone(link: Uuid) -> Self {
        Self { link, stripe: 0, stripes: 1 }
    }

    /// Whether it is in place of a lost stripe.
    pub(crate) fn is_late(self) -> bool {
        self.stripe >= self.stripes
    }
}

/// What a side says before any frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Whether the side has a cluster key.
    pub(crate) keyed: bool,
    /// The process: what `Identity::instance` says of it.
    pub(crate) instance: Uuid,
    /// The dialler says it, the acceptor repeats it.
    pub(crate) place: Place,
    /// New in every greeting, so that no proof is good for a second connection.
    pub(crate) nonce: Nonce,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawGreeting {
    magic: [u8; 8],
    version: U16,
    flags: U16,
    stripe: U16,
    stripes: U16,
    instance: [u8; 16],
    link: [u8; 16],
    nonce: Nonce,
}

impl Greeting {
    /// The greeting's bytes.
    pub(crate) fn encode(&self) -> [u8; GREETING_LEN] {
        zerocopy::transmute!(RawGreeting {
            magic: MAGIC,
            version: U16::new(VERSION),
            flags: U16::new(if self.keyed { KEYED } else { 0 }),
            stripe: U16::new(self.place.stripe),
            stripes: U16::new(self.place.stripes),
            instance: self.instance.into_bytes(),
            link: self.place.link.into_bytes(),
            nonce: self.nonce,
        })
    }

    /// Reads a greeting.
    ///
    /// # Errors
    /// [`Violation::Greeting`] for every byte that this version does not know.
    pub(crate) fn parse(bytes: &[u8; GREETING_LEN]) -> Result<Self, Violation> {
        let raw = RawGreeting::read_from_bytes(bytes).expect("80 bytes are a raw greeting");
        if raw.magic != MAGIC {
            return Err(Violation::Greeting("not a Blockwire peer"));
        }
        if raw.version.get() != VERSION {
            return Err(Violation::Greeting("another version of the tcp transport"));
        }
        if raw.flags.get() & !KEYED != 0 {
            return Err(Violation::Greeting("unknown flags"));
        }
        let (stripe, stripes) = (raw.stripe.get(), raw.stripes.get());
        let place = Place { link: Uuid::from_bytes(raw.link), stripe, stripes };
        if !(1..=STRIPES_MAX).contains(&stripes) || (stripes == 1 && place.is_late()) {
            return Err(Violation::Greeting("a stripe that no link has"));
        }
        Ok(Self {
            keyed: raw.flags.get() == KEYED,
            instance: Uuid::from_bytes(raw.instance),
            place,
            nonce: raw.nonce,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(keyed: bool) -> Greeting {
        let place = Place { link: Uuid::from_u128(2), stripe: 3, stripes: STRIPES_MAX };
        Greeting { keyed, instance: Uuid::from_u128(1), place, nonce: [7; 32] }
    }

    #[test]
    fn a_greeting_reads_back_as_it_was_written() {
        for keyed in [false, true] {
            let greeting = greeting(keyed);
            assert_eq!(Greeting::parse(&greeting.encode()), Ok(greeting));
        }
    }

    #[test]
    fn every_byte_that_means_something_is_checked() {
        for (at, wanted) in [(0, "peer"), (7, "peer"), (8, "version"), (9, "version")] {
            let mut bytes = greeting(false).encode();
            bytes[at] ^= 0x80;
            let found = Greeting::parse(&bytes).unwrap_err().to_string();
            assert!(found.contains(wanted), "{found}");
        }
        for at in [10, 11, 14, 15] {
            let mut bytes = greeting(true).encode();
            bytes[at] ^= 0x80;
            assert!(Greeting::parse(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_stripe_may_be_late_where_there_are_several() {
        let of = |stripe, stripes| {
            let place = Place { link: Uuid::nil(), stripe, stripes };
            Greeting::parse(&Greeting { place, ..greeting(true) }.encode())
        };
        for (stripe, late) in [(1, false), (2, true), (u16::MAX, true)] {
            assert_eq!(of(stripe, 2).unwrap().place.is_late(), late);
        }
        for (stripe, stripes) in [(0, 0), (1, 1), (0, STRIPES_MAX + 1)] {
            assert!(of(stripe, stripes).is_err(), "stripe {stripe} of {stripes}");
        }
    }
}
