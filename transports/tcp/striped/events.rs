//! What the stripes of a link report, and whom it concerns.

use blockwire::transport::{CloseReason, Completion, LinkEvent, Violation};
use bytes::Bytes;

use super::StripedLink;
use super::frame::Frame;
use super::stripes::Use;
use crate::send::control_done;

/// What ends a link, found among the events of a stripe.
#[derive(Debug)]
pub(super) enum Stop {
    Finished,
    Violated(Violation),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violated(violation)
    }
}

impl StripedLink {
    /// Takes what a stripe reports. All of it: some of it is memory.
    pub(super) fn take(
        &mut self,
        stripe: usize,
        came: Vec<LinkEvent>,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Stop> {
        let mut taken = Ok(());
        for event in came {
            match event {
                LinkEvent::Received(frame) if taken.is_ok() => {
                    taken = self.received(stripe, frame, events);
                }
                LinkEvent::Received(_) => {}
                LinkEvent::Completed(completion) => self.completed(stripe, completion, events),
                LinkEvent::Closed(CloseReason::Violated(violation)) => {
                    taken = taken.and(Err(violation.into()));
                }
                LinkEvent::Closed(reason) => self.losses.push((stripe, reason)),
            }
        }
        taken
    }

    fn received(
        &mut self,
        stripe: usize,
        bytes: Bytes,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Stop> {
        let frame = Frame::read(&bytes, self.stripes.reached())?;
        if frame.as_ref().is_none_or(Frame::is_numbered)
            && !self.inbox.arrive(stripe, bytes.len())?
        {
            return Ok(());
        }
        match frame {
            None => events.push(LinkEvent::Received(bytes)),
            Some(frame) => self.handle(stripe, frame, events)?,
        }
        Ok(())
    }

    fn handle(
        &mut self,
        stripe: usize,
        frame: Frame,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Stop> {
        match frame {
            Frame::Plan { tag, parts } => self.streams.plan(tag, parts, &mut self.stripes)?,
            Frame::Replan { tag, part, to } => {
                self.streams.replan(tag, part, to, &mut self.stripes)?;
            }
            Frame::Over { tag, landed } => {
                self.streams.over(tag, landed, &mut self.stripes, events)?;
            }
            Frame::Unplanned { tag, len, again } => self.lands.unplanned(tag, len, again)?,
            Frame::Lost { stripe } => {
                self.growth.lost(stripe);
                let came = self.stripes.abort(stripe, CloseReason::PeerGone);
                self.take(stripe, came, events)?;
            }
            Frame::Join { stripe, nonce } => {
                if self.is_whole() {
                    return Err(
                        Violation::Stripes("more stripes than the link had at first").into()
                    );
                }
                self.stripes.reach(stripe)?;
                self.growth.join(stripe, nonce)?;
            }
            Frame::Joined { stripe } => {
                if self.growth.joined(stripe)? {
                    self.joined(stripe);
                }
            }
            Frame::Finish => return Err(Stop::Finished),
            Frame::Ack { frames } => {
                let done = self.outbox.acknowledge(frames)?;
                events.extend(done.into_iter().map(|op| control_done(op, Ok(0))));
            }
            Frame::Resume { number } => self.inbox.resume(stripe, number)?,
            Frame::Fence { number } => {
                if let Some(stripe) = self.stripes.get(stripe) {
                    stripe.answer(number);
                }
            }
            Frame::Fenced { number } => {
                let known = self.stripes.get(stripe).is_none_or(|at| at.fenced(number));
                if !known {
                    return Err(Violation::Stripes("an answer to a fence that was not sent").into());
                }
                self.streams.settle_all(&mut self.stripes, events);
            }
        }
        Ok(())
    }

    fn completed(&mut self, stripe: usize, completion: Completion, events: &mut Vec<LinkEvent>) {
        let Some(at) = self.stripes.get(stripe) else { return };
        let Some(to_do) = at.take_use(completion.op) else { return };
        match to_do {
            Use::Numbered(number) if completion.outcome.is_ok() => {
                events.extend(self.outbox.wrote(number).map(|op| control_done(op, Ok(0))));
            }
            Use::Numbered(_) | Use::Other => {}
            Use::Ack => self.acknowledging = false,
            Use::Answer => at.answered(),
            Use::Sent { tag, part, attempt } => {
                let (stripes, outcome) = (&mut self.stripes, completion.outcome);
                self.streams.part_done(tag, part, attempt, outcome, stripes, events);
            }
            Use::Room { tag, part } => {
                if let Some(over) = self.lands.part_done(tag, part, completion, events) {
                    self.say(&over);
                }
            }
        }
    }
}
