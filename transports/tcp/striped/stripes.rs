//! The connections of a striped link: plain links, and what each of their operations is for.

use std::collections::HashMap;

use blockwire::pool::{GatherList, ScatterList};
use blockwire::transport::{CloseReason, Link, LinkEvent, Op, OpId, StreamTag, Violation};
use bytes::Bytes;

use super::frame::{Frame, Place};
use crate::link::TcpLink;

/// What an operation of a stripe is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    /// The numbered frame.
    Numbered(u64),
    /// An acknowledgement.
    Ack,
    /// An answer to a fence.
    Answer,
    /// A frame that nobody waits for.
    Other,
    /// A part of a payload on its way out, and which try it is.
    Sent { tag: StreamTag, part: usize, attempt: u32 },
    /// A part of a payload on its way in.
    Room { tag: StreamTag, part: usize },
}

/// One connection that lives.
#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) number: usize,
    pub(super) link: TcpLink,
    uses: HashMap<OpId, Use>,
    last_tag: u64,
    /// Whether the peer is known to have it: only then something new is told to it.
    is_joined: bool,
    /// Whether pages of payload may be read after an operation completed.
    lingers: bool,
    /// Fences that this side sent, and that the peer answered.
    fences: u64,
    fenced: u64,
    /// The peer's last fence, and the last that was answered.
    asked: u64,
    answered: u64,
    answering: bool,
}

impl Stripe {
    fn new(number: usize, link: TcpLink, is_joined: bool) -> Self {
        let lingers = link.capabilities().lingers;
        Self {
            number,
            link,
            uses: HashMap::new(),
            last_tag: 0,
            is_joined,
            lingers,
            fences: 0,
            fenced: 0,
            asked: 0,
            answered: 0,
            answering: false,
        }
    }

    fn submit(&mut self, op: Op, to_do: Use) -> Result<OpId, Op> {
        let id = self.link.submit(op).map_err(|refused| refused.op)?;
        self.uses.insert(id, to_do);
        Ok(id)
    }

    /// What a completed operation was for.
    pub(super) fn take_use(&mut self, op: OpId) -> Option<Use> {
        self.uses.remove(&op)
    }

    /// The peer asks to be told when all that came before is read, which is now. One answer stands for
    /// all fences before it, so that however many come, one is under way.
    pub(super) fn answer(&mut self, fence: u64) {
        self.asked = self.asked.max(fence);
        if !self.answering && self.answered < self.asked {
            self.answered = self.asked;
            let frame = Frame::Fenced { number: self.asked }.encode();
            self.answering = self.submit(Op::Control(frame), Use::Answer).is_ok();
        }
    }

    /// An answer is out.
    pub(super) fn answered(&mut self) {
        self.answering = false;
        self.answer(self.asked);
    }

    /// The peer answers a fence; false when there was none.
    pub(super) fn fenced(&mut self, fence: u64) -> bool {
        self.fenced = self.fenced.max(fence);
        fence <= self.fences
    }
}

/// A fence on a stripe.
#[derive(Clone, Copy, Debug)]
pub(super) struct FenceOn {
    stripe: usize,
    number: u64,
}

/// The connections of a link.
#[derive(Debug)]
pub(super) struct Stripes {
    /// Those that live, in the order of their numbers.
    all: Vec<Stripe>,
    /// How many there were at first, and are at most.
    width: usize,
    /// How many numbers are used up.
    reached: usize,
    /// From which number on one takes the next part.
    turn: usize,
    /// Something was submitted: it has to be polled.
    touched: bool,
}

impl Stripes {
    /// Takes the connections of a link, in the order of their numbers.
    pub(super) fn new(links: Vec<TcpLink>) -> Self {
        let width = links.len();
        let stripe = |(number, link)| Stripe::new(number, link, true);
        let all = links.into_iter().enumerate().map(stripe).collect();
        Self { all, width, reached: width, turn: 0, touched: false }
    }

    /// A link that has lost all of them.
    #[cfg(test)]
    pub(super) fn lost(count: usize) -> Self {
        Self { all: Vec::new(), width: count, reached: count, turn: 0, touched: false }
    }

    /// How many the link has when it has lost none.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// How many it had so far: their numbers are below.
    pub(super) fn reached(&self) -> usize {
        self.reached
    }

    /// The peer names a new one: those that follow have larger numbers.
    ///
    /// # Errors
    /// The number was there already, or no greeting has it.
    pub(super) fn reach(&mut self, number: usize) -> Result<(), Violation> {
        if !(self.reached..=u16::MAX.into()).contains(&number) {
            return Err(Violation::Stripes("a stripe joins under a number that cannot be"));
        }
        self.reached = number + 1;
        Ok(())
    }

    /// Has one more, with a number above all others. Until it has joined nothing begins there on this side.
    pub(super) fn add(&mut self, number: usize, link: TcpLink) {
        debug_assert!(self.all.iter().all(|stripe| stripe.number < number), "numbers rise");
        self.touched = true;
        self.reached = self.reached.max(number + 1);
        self.all.push(Stripe::new(number, link, false));
    }

    /// The peer has a stripe that was added; nothing where it is lost.
    pub(super) fn join(&mut self, number: usize) {
        if let Some(stripe) = self.get(number) {
            stripe.is_joined = true;
        }
    }

    /// How many both sides have.
    pub(super) fn living(&self) -> usize {
        self.joined().count()
    }

    /// The lowest that lives: the one for control.
    pub(super) fn lowest(&self) -> Option<usize> {
        self.joined().next()
    }

    /// The numbers of all, joined or not.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.all.iter().map(|stripe| stripe.number)
    }

    /// The places in their order of all, those from a number on first. Good until one comes or goes.
    pub(super) fn places_from(&self, number: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.all.partition_point(|at| at.number < number), self.all.len());
        (0..count).map(move |step| (first + step) % count)
    }

    /// The stripe at a place.
    pub(super) fn at(&mut self, place: usize) -> &mut Stripe {
        &mut self.all[place]
    }

    fn joined(&self) -> impl Iterator<Item = usize> {
        self.all.iter().filter(|stripe| stripe.is_joined).map(|stripe| stripe.number)
    }

    fn place_of(&self, number: usize) -> Option<usize> {
        self.all.binary_search_by_key(&number, |stripe| stripe.number).ok()
    }

    /// How many carry payload: not the one for control, where two others live.
    pub(super) fn carriers(&self) -> usize {
        self.living() - usize::from(self.apart().is_some())
    }

    /// The stripe that carries control and nothing else.
    fn apart(&self) -> Option<usize> {
        self.lowest().filter(|_| self.living() > 2)
    }

    /// A stripe that lives.
    pub(super) fn get(&mut self, stripe: usize) -> Option<&mut Stripe> {
        self.place_of(stripe).map(|place| &mut self.all[place])
    }

    /// Whether a stripe lives.
    pub(super) fn lives(&self, stripe: usize) -> bool {
        self.place_of(stripe).is_some()
    }

    /// Forgets a stripe; whether it lived. Its operations have to be over.
    pub(super) fn remove(&mut self, stripe: usize) -> bool {
        self.place_of(stripe).map(|place| self.all.remove(place)).is_some()
    }

    /// Whether something was submitted since the last call.
    pub(super) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    /// Ends a stripe at once; what its operations came to.
    pub(super) fn abort(&mut self, stripe: usize, reason: CloseReason) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        if let Some(stripe) = self.get(stripe) {
            stripe.link.abort(reason, &mut events);
        }
        events
    }

    /// Sends a control frame; false where the stripe is lost.
    pub(super) fn send(&mut self, stripe: usize, frame: Bytes, to_do: Use) -> bool {
        self.touched = true;
        self.get(stripe).is_some_and(|stripe| stripe.submit(Op::Control(frame), to_do).is_ok())
    }

    /// Sends a part of a payload to where the receiver awaits it; none where the stripe is lost.
    pub(super) fn stream(&mut self, to: Place, payload: GatherList, to_do: Use) -> Option<OpId> {
        self.touched = true;
        let op = Op::Stream { tag: to.tag, payload };
        self.get(to.stripe)?.submit(op, to_do).ok()
    }

    /// Posts room on the stripe whose turn it is, on the one for control only if no other takes it; the room
    /// when there is none.
    pub(super) fn land(
        &mut self,
        room: ScatterList,
        to_do: Use,
    ) -> Result<(Place, OpId), ScatterList> {
        self.touched = true;
        let apart = self.apart().and_then(|stripe| self.place_of(stripe));
        let turns = self.places_from(self.turn).filter(|place| Some(*place) != apart);
        let mut room = room;
        for place in turns.chain(apart) {
            let at = &mut self.all[place];
            if !at.is_joined {
                continue;
            }
            let stripe = at.number;
            at.last_tag += 1;
            let tag = StreamTag(at.last_tag);
            match at.submit(Op::Land { tag, room }, to_do) {
                Ok(op) => {
                    self.turn = stripe + 1;
                    return Ok((Place { stripe, tag }, op));
                }
                Err(Op::Land { room: back, .. }) => room = back,
                Err(_) => unreachable!("a refused operation comes back"),
            }
        }
        Err(room)
    }

    /// Ends an operation of a stripe early.
    pub(super) fn cancel(&mut self, stripe: usize, op: OpId) {
        self.touched = true;
        if let Some(stripe) = self.get(stripe) {
            stripe.link.cancel(op);
        }
    }

    /// Asks the peer to tell when it has read all payload that went over a stripe so far; none where
    /// nothing reads the payload any more.
    pub(super) fn fence(&mut self, stripe: usize) -> Option<FenceOn> {
        let at = self.get(stripe).filter(|stripe| stripe.lingers)?;
        at.fences += 1;
        let number = at.fences;
        let sent = self.send(stripe, Frame::Fence { number }.encode(), Use::Other);
        sent.then_some(FenceOn { stripe, number })
    }

    /// Whether a fence was answered, or its stripe is lost.
    pub(super) fn is_passed(&self, fence: &FenceOn) -> bool {
        let at = self.place_of(fence.stripe).map(|place| &self.all[place]);
        at.is_none_or(|stripe| stripe.fenced >= fence.number)
    }
}
