//! The frames that the two ends of a striped link say to each other, and to nobody else.
//!
//! They are control frames like a session's, with kinds of their own. All but four kinds are *numbered*: they
//! keep their order among the session's frames, and survive the loss of a stripe.

use blockwire::transport::{StreamTag, Violation};
use blockwire::wire::{BodyError, Header, Kind, body, decode_body, encode_frame, split_frame};
use bytes::Bytes;
use uuid::Uuid;

use crate::greeting::Nonce;

/// Bodies are no longer than the plan of a link with the most stripes.
const BODY_LEN_MAX: u32 = 1024;

/// One frame of a striped link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Receiver: how the payload of a tag is split. Goes before whatever tells the tag.
    Plan { tag: StreamTag, parts: Vec<PlannedPart> },
    /// Receiver: a part goes over another stripe, from its beginning.
    Replan { tag: StreamTag, part: usize, to: Place },
    /// Receiver: the payload needs its sender's memory no more.
    Over { tag: StreamTag, landed: bool },
    /// Sender: a payload that no plan is known for, or no more (`again`).
    Unplanned { tag: StreamTag, len: u64, again: bool },
    /// Both: the sender of this gave a stripe up.
    Lost { stripe: usize },
    /// Dialler: it dialled a stripe in place of a lost one, and greeted with that nonce.
    Join { stripe: usize, nonce: Nonce },
    /// Acceptor: it has that stripe now.
    Joined { stripe: usize },
    /// Both: nothing follows.
    Finish,
    /// Both: so many numbered frames arrived.
    Ack { frames: u64 },
    /// Both: the numbered frames go on over this stripe, with this one.
    Resume { number: u64 },
    /// Sender: what was sent before on this stripe, is it read?
    Fence { number: u64 },
    /// Receiver: it is.
    Fenced { number: u64 },
}

/// A part of a payload, as a plan has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedPart {
    pub(super) len: u64,
    pub(super) to: Place,
}

/// Where a part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) stripe: usize,
    /// Its name there.
    pub(super) tag: StreamTag,
}

impl Frame {
    /// Its bytes.
    pub(super) fn encode(&self) -> Bytes {
        let head = |kind| Header::control(kind, Uuid::nil(), 0);
        let frame = match self {
            Self::Plan { tag, parts } => {
                let part = |part: &PlannedPart| body::PlanPart {
                    len: part.len,
                    stripe: part.to.stripe as u32,
                    stripe_tag: part.to.tag.0,
                };
                let parts = parts.iter().map(part).collect();
                encode_frame(head(Kind::Plan), &body::Plan { tag: tag.0, parts })
            }
            Self::Replan { tag, part, to } => {
                let (part, stripe) = (*part as u32, to.stripe as u32);
                let replan = body::Replan { tag: tag.0, part, stripe, stripe_tag: to.tag.0 };
                encode_frame(head(Kind::Replan), &replan)
            }
            Self::Over { tag, landed } => {
                encode_frame(head(Kind::Over), &body::Over { tag: tag.0, landed: *landed })
            }
            Self::Unplanned { tag, len, again } => {
                let unplanned = body::Unplanned { tag: tag.0, len: *len, again: *again };
                encode_frame(head(Kind::Unplanned), &unplanned)
            }
            Self::Lost { stripe } => {
                encode_frame(head(Kind::Lost), &body::Lost { stripe: *stripe as u32 })
            }
            Self::Join { stripe, nonce } => {
                let (stripe, nonce) = (*stripe as u32, Bytes::copy_from_slice(nonce));
                encode_frame(head(Kind::Join), &body::Join { stripe, nonce })
            }
            Self::Joined { stripe } => {
                encode_frame(head(Kind::Joined), &body::Joined { stripe: *stripe as u32 })
            }
            Self::Finish => encode_frame(head(Kind::Finish), &body::Finish {}),
            Self::Ack { frames } => encode_frame(head(Kind::Ack), &body::Ack { frames: *frames }),
            Self::Resume { number } => {
                encode_frame(head(Kind::Resume), &body::Resume { number: *number })
            }
            Self::Fence { number } => {
                encode_frame(head(Kind::Fence), &body::Fence { number: *number })
            }
            Self::Fenced { number } => {
                encode_frame(head(Kind::Fenced), &body::Fence { number: *number })
            }
        };
        frame.expect("the body is short")
    }

    /// Reads a frame of a link that had so many stripes so far; none where it is the session's, which
    /// checks it itself.
    ///
    /// # Errors
    /// [`Violation`]: it is damaged, or names a stripe that the link does not have.
    pub(super) fn read(frame: &Bytes, stripes: usize) -> Result<Option<Self>, Violation> {
        let header = frame.first_chunk().and_then(|head| Header::parse(head).ok());
        let Some(header) = header.filter(|header| is_own(header.kind)) else { return Ok(None) };
        if header.body_len > BODY_LEN_MAX {
            return Err(Violation::Stripes("a body that is too long"));
        }
        let (header, body) = split_frame(frame)?;
        let read = Self::decode(&header, body);
        let read = read.map_err(|Unreadable| Violation::Stripes("a body that does not decode"))?;
        if read.stripes().any(|stripe| stripe >= stripes) {
            return Err(Violation::Stripes("a stripe that the link does not have"));
        }
        Ok(Some(read))
    }

    fn decode(header: &Header, bytes: Bytes) -> Result<Self, Unreadable> {
        Ok(match header.kind {
            Kind::Plan => {
                let body::Plan { tag, parts } = decode_body(header, bytes)?;
                let part = |part: body::PlanPart| PlannedPart {
                    len: part.len,
                    to: Place { stripe: part.stripe as usize, tag: StreamTag(part.stripe_tag) },
                };
                Self::Plan { tag: StreamTag(tag), parts: parts.into_iter().map(part).collect() }
            }
            Kind::Replan => {
                let body::Replan { tag, part, stripe, stripe_tag } = decode_body(header, bytes)?;
                let to = Place { stripe: stripe as usize, tag: StreamTag(stripe_tag) };
                Self::Replan { tag: StreamTag(tag), part: part as usize, to }
            }
            Kind::Over => {
                let body::Over { tag, landed } = decode_body(header, bytes)?;
                Self::Over { tag: StreamTag(tag), landed }
            }
            Kind::Unplanned => {
                let body::Unplanned { tag, len, again } = decode_body(header, bytes)?;
                Self::Unplanned { tag: StreamTag(tag), len, again }
            }
            Kind::Lost => {
                let body::Lost { stripe } = decode_body(header, bytes)?;
                Self::Lost { stripe: stripe as usize }
            }
            Kind::Join => {
                let body::Join { stripe, nonce } = decode_body(header, bytes)?;
                let nonce = Nonce::try_from(&nonce[..]).map_err(|_| Unreadable)?;
                Self::Join { stripe: stripe as usize, nonce }
            }
            Kind::Joined => {
                Self::Joined { stripe: decode_body::<body::Joined>(header, bytes)?.stripe as usize }
            }
            Kind::Ack => Self::Ack { frames: decode_body::<body::Ack>(header, bytes)?.frames },
            Kind::Resume => {
                Self::Resume { number: decode_body::<body::Resume>(header, bytes)?.number }
            }
            Kind::Fence => {
                Self::Fence { number: decode_body::<body::Fence>(header, bytes)?.number }
            }
            Kind::Fenced => {
                Self::Fenced { number: decode_body::<body::Fence>(header, bytes)?.number }
            }
            _ => {
                decode_body::<body::Finish>(header, bytes)?;
                Self::Finish
            }
        })
    }

    /// The stripes that it names, and that there have to be.
    fn stripes(&self) -> impl Iterator<Item = usize> {
        let (parts, one) = match self {
            Self::Plan { parts, .. } => (&parts[..], None),
            Self::Replan { to, .. } => (&[][..], Some(to.stripe)),
            Self::Lost { stripe } | Self::Joined { stripe } => (&[][..], Some(*stripe)),
            _ => (&[][..], None),
        };
        parts.iter().map(|part| part.to.stripe).chain(one)
    }

    /// Whether it keeps its place among the session's frames.
    pub(super) fn is_numbered(&self) -> bool {
        !matches!(
            self,
            Self::Ack { .. } | Self::Resume { .. } | Self::Fence { .. } | Self::Fenced { .. }
        )
    }
}

/// A body says nothing.
struct Unreadable;

impl From<BodyError> for Unreadable {
    fn from(_: BodyError) -> Self {
        Self
    }
}

fn is_own(kind: Kind) -> bool {
    use Kind::{Ack, Fence, Fenced, Finish, Lost, Over, Plan, Replan, Resume, Unplanned};
    use Kind::{Join, Joined};
    matches!(kind, Plan | Replan | Over | Unplanned | Lost | Finish | Ack | Resume | Fence | Fenced)
        || matches!(kind, Join | Joined)
}

/// Frames that the manual writes down.
#[cfg(test)]
pub(super) fn examples() -> [(&'static str, Frame); 5] {
    let tag = StreamTag(3);
    let part = |stripe| PlannedPart { len: 1 << 20, to: Place { stripe, tag: StreamTag(7) } };
    let to = Place { stripe: 2, tag: StreamTag(8) };
    [
        ("plan of tag 3 in two parts", Frame::Plan { tag, parts: vec![part(0), part(1)] }),
        ("replan of its second part", Frame::Replan { tag, part: 1, to }),
        ("over", Frame::Over { tag, landed: true }),
        ("join of stripe 4", Frame::Join { stripe: 4, nonce: [7; crate::greeting::NONCE_LEN] }),
        ("joined", Frame::Joined { stripe: 4 }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::greeting::{NONCE_LEN, STRIPES_MAX};

    fn place(stripe: usize) -> Place {
        Place { stripe, tag: StreamTag(u64::MAX) }
    }

    fn all() -> Vec<Frame> {
        let tag = StreamTag(u64::MAX);
        let part = |stripe| PlannedPart { len: u64::MAX, to: place(stripe) };
        vec![
            Frame::Plan { tag, parts: (0..STRIPES_MAX.into()).map(part).collect() },
            Frame::Replan { tag, part: 15, to: place(15) },
            Frame::Over { tag, landed: true },
            Frame::Over { tag, landed: false },
            Frame::Unplanned { tag, len: 7, again: true },
            Frame::Lost { stripe: 15 },
            Frame::Join { stripe: 70_000, nonce: [7; NONCE_LEN] },
            Frame::Joined { stripe: 15 },
            Frame::Finish,
            Frame::Ack { frames: 1 },
            Frame::Resume { number: 2 },
            Frame::Fence { number: 3 },
            Frame::Fenced { number: 4 },
        ]
    }

    #[test]
    fn frames_read_back_as_they_were_written() {
        for frame in all() {
            let bytes = frame.encode();
            assert_eq!(Frame::read(&bytes, STRIPES_MAX.into()), Ok(Some(frame)));
        }
        let session = Header::control(Kind::Ats, Uuid::nil(), 0).encode(&[]);
        assert_eq!(Frame::read(&Bytes::copy_from_slice(&session), 4), Ok(None));
    }

    #[test]
    fn damage_and_stripes_that_are_not_there_are_violations() {
        for frame in all() {
            let mut bytes = frame.encode().to_vec();
            if frame.stripes().next().is_some() {
                let refused = Frame::read(&bytes.clone().into(), 15).unwrap_err();
                assert!(matches!(refused, Violation::Stripes(_)), "{refused}");
            }
            bytes[20] ^= 1;
            assert!(Frame::read(&bytes.clone().into(), 16).is_err(), "{frame:?}");
        }
        let join = body::Join { stripe: 16, nonce: vec![7; NONCE_LEN + 1].into() };
        let join = encode_frame(Header::control(Kind::Join, Uuid::nil(), 0), &join).unwrap();
        assert!(matches!(Frame::read(&join, 16), Err(Violation::Stripes(_))));
        let body = vec![0; BODY_LEN_MAX as usize + 1];
        let head =
            Header { body_len: body.len() as u32, ..Header::control(Kind::Plan, Uuid::nil(), 0) };
        let long = [&head.encode(&body)[..], &body].concat();
        assert!(matches!(Frame::read(&long.into(), 16), Err(Violation::Stripes(_))));
    }
}
