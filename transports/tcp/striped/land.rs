//! Payloads on their way in: splits each room, and decides which stripe fills which part.
//!
//! A part whose stripe is lost is posted again on another, from its beginning; what came of it before
//! counts for nothing. The whole ends when no stripe has a part of it any more.

use std::collections::BTreeMap;

use blockwire::pool::{Digest, ScatterList};
use blockwire::transport::{
    Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, TagSet, Violation,
};

use super::frame::{Frame, Place, PlannedPart};
use super::split;
use super::stripes::{Stripes, Use};

/// Everything that is awaited.
#[derive(Debug, Default)]
pub(super) struct Lands {
    open: BTreeMap<StreamTag, Land>,
    posted: TagSet,
    /// Ended without all of their bytes.
    cancelled: TagSet,
}

#[derive(Debug)]
struct Land {
    op: OpId,
    len: u64,
    parts: Vec<Part>,
    ended: Option<OpError>,
}

/// A part of a room.
#[derive(Debug)]
enum Part {
    /// A stripe has it.
    Posted(usize, OpId),
    /// No stripe has it, and it is not filled.
    Back(ScatterList),
    /// It is filled, and its bytes have this digest.
    Landed(ScatterList, u64),
}

impl Lands {
    /// Whether a tag may be posted.
    pub(super) fn rises(&self, tag: StreamTag) -> bool {
        self.posted.last().is_none_or(|last| tag > last)
    }

    /// Posts room for a tag; what the sender has to know before the tag.
    pub(super) fn post(
        &mut self,
        op: OpId,
        tag: StreamTag,
        room: ScatterList,
        stripes: &mut Stripes,
    ) -> Frame {
        self.posted.insert(tag);
        let len = room.len();
        let (mut plan, mut parts, mut rest) = (Vec::new(), Vec::new(), room);
        for len in split::shares(len, stripes.carriers()) {
            let (room, after) = rest.split(len);
            rest = after;
            let number = parts.len();
            let (to, part) = post_part(tag, number, room, stripes);
            plan.push(PlannedPart { len, to });
            parts.push(part);
        }
        self.open.insert(tag, Land { op, len, parts, ended: None });
        Frame::Plan { tag, parts: plan }
    }

    /// Ends a payload early.
    pub(super) fn cancel(&mut self, op: OpId, stripes: &mut Stripes) {
        if let Some(land) = self.open.values_mut().find(|land| land.op == op) {
            land.end(&OpError::Cancelled, stripes);
        }
    }

    /// Ends every payload early.
    pub(super) fn end_all(&mut self, error: &OpError, stripes: &mut Stripes) {
        self.open.values_mut().for_each(|land| land.end(error, stripes));
    }

    /// A stripe is done with a part; what the sender has to know when the payload is over by that.
    pub(super) fn part_done(
        &mut self,
        tag: StreamTag,
        part: usize,
        completion: Completion,
        events: &mut Vec<LinkEvent>,
    ) -> Option<Frame> {
        let OpMemory::Room(room) = completion.memory else { return None };
        let land = self.open.get_mut(&tag)?;
        land.parts[part] = match completion.outcome {
            Ok(digest) => Part::Landed(room, digest),
            Err(_) => Part::Back(room),
        };
        self.settle(tag, events)
    }

    /// Posts again what a lost stripe gave back; what the senders have to know.
    pub(super) fn repost(&mut self, stripes: &mut Stripes) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (tag, land) in self.open.iter_mut().filter(|(_, land)| land.ended.is_none()) {
            let parts = std::mem::take(&mut land.parts).into_iter().enumerate();
            let post = |(number, part)| match part {
                Part::Back(room) => {
                    let (to, posted) = post_part(*tag, number, room, stripes);
                    frames.push(Frame::Replan { tag: *tag, part: number, to });
                    posted
                }
                other => other,
            };
            land.parts = parts.map(post).collect();
        }
        frames
    }

    /// The sender has a payload without a plan. Right where the plan is on its way.
    ///
    /// # Errors
    /// What a plain link says of such a payload.
    pub(super) fn unplanned(&self, tag: StreamTag, len: u64, again: bool) -> Result<(), Violation> {
        if !self.posted.contains(tag) {
            return Err(Violation::UnknownTag(tag));
        }
        let room_len = match self.open.get(&tag) {
            Some(land) if !again && len == land.len => return Ok(()),
            Some(land) => land.len,
            // Its parts overtook the question, or the sender reads of the end later than it asks.
            None if !again || self.cancelled.contains(tag) => return Ok(()),
            None => 0,
        };
        let expected = if again { room_len } else { 0 };
        Err(Violation::PayloadRange { tag, offset: 0, end: len, expected, len: room_len })
    }

    /// Completes everything: no stripe has a part any more.
    pub(super) fn abort(&mut self, error: &OpError, events: &mut Vec<LinkEvent>) {
        for (_, land) in std::mem::take(&mut self.open) {
            let outcome = land.outcome(Some(error));
            events.push(land.complete(outcome));
        }
    }

    /// Completes a payload that no stripe has a part of, if it is whole or should end.
    fn settle(&mut self, tag: StreamTag, events: &mut Vec<LinkEvent>) -> Option<Frame> {
        let land = self.open.get(&tag)?;
        if land.parts.iter().any(|part| matches!(part, Part::Posted(..))) {
            return None;
        }
        let whole = land.parts.iter().all(|part| matches!(part, Part::Landed(..)));
        if !whole && land.ended.is_none() {
            return None;
        }
        let land = self.open.remove(&tag)?;
        let outcome = land.outcome(None);
        let landed = outcome.is_ok();
        events.push(land.complete(outcome));
        if !landed {
            self.cancelled.insert(tag);
        }
        Some(Frame::Over { tag, landed })
    }
}

impl Land {
    fn end(&mut self, error: &OpError, stripes: &mut Stripes) {
        if self.ended.is_none() {
            self.ended = Some(error.clone());
            for part in &self.parts {
                if let Part::Posted(stripe, op) = part {
                    stripes.cancel(*stripe, *op);
                }
            }
        }
    }

    /// The digest where every part landed, whatever was wished for meanwhile.
    fn outcome(&self, end: Option<&OpError>) -> Result<u64, OpError> {
        let digest =
            |part: &Part| if let Part::Landed(_, digest) = part { Some(*digest) } else { None };
        let digests: Option<Vec<u64>> = self.parts.iter().map(digest).collect();
        let error = || self.ended.as_ref().or(end).cloned().unwrap_or(OpError::Cancelled);
        digests.map(|digests| Digest::of_parts(&digests)).ok_or_else(error)
    }

    fn complete(self, outcome: Result<u64, OpError>) -> LinkEvent {
        let rooms = self.parts.into_iter().filter_map(|part| match part {
            Part::Back(room) | Part::Landed(room, _) => Some(room),
            Part::Posted(..) => None,
        });
        let joined = rooms.reduce(|room, next| room.join(next).expect("parts of one room"));
        let memory = joined.map_or(OpMemory::None, OpMemory::Room);
        LinkEvent::Completed(Completion { op: self.op, memory, outcome })
    }
}

/// Posts a part. Where no stripe takes it, the link is about to end.
fn post_part(
    tag: StreamTag,
    part: usize,
    room: ScatterList,
    stripes: &mut Stripes,
) -> (Place, Part) {
    match stripes.land(room, Use::Room { tag, part }) {
        Ok((to, op)) => (to, Part::Posted(to.stripe, op)),
        Err(room) => (Place { stripe: 0, tag: StreamTag(0) }, Part::Back(room)),
    }
}
