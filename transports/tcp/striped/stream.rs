//! Payloads on their way out: each part goes where the receiver's plan says.
//!
//! A plan comes before the tag is told, so a session never waits for one. Who knows the tag earlier asks
//! (UNPLANNED), and the receiver says what a plain link would: that the tag is unknown, or that the length
//! is wrong.
//!
//! The memory stays until the receiver has said that it is *over*, so that a part whose stripe was lost can
//! be sent again wherever the receiver wants it. When all has landed, nothing reads the memory any more.
//! When it ended otherwise, pages of it may be under way where the stripes linger: then a fence follows it
//! on each of them, and the operation completes when all are answered. So a striped link never lingers.

use std::collections::{BTreeMap, BTreeSet};

use blockwire::pool::{Cursor, Digest, GatherList};
use blockwire::transport::{
    Completion, LinkEvent, OpError, OpId, OpMemory, StreamTag, TagSet, Violation,
};

use super::frame::{Frame, Place, PlannedPart};
use super::stripes::{FenceOn, Stripes, Use};

/// Most plans that wait for their payload. They wait for no longer than the session's next step, except
/// for handoffs that ended meanwhile, and those are over soon.
const PLANS_MAX: usize = 4096;
/// Bytes that are digested in one step.
const DIGEST_STEP: usize = 2 << 20;

/// Everything that is sent.
#[derive(Debug)]
pub(super) struct Streams {
    /// Whether payload is digested; else every digest counts as 0.
    digests: bool,
    /// Whose payload has not come yet.
    plans: BTreeMap<StreamTag, Vec<PlannedPart>>,
    /// The last that ever came.
    planned: Option<StreamTag>,
    /// Those that the receiver does not want any more.
    dropped: TagSet,
    /// Whose plan has not come yet.
    waiting: Vec<Waiting>,
    open: BTreeMap<StreamTag, Stream>,
}

#[derive(Debug)]
struct Waiting {
    op: OpId,
    tag: StreamTag,
    payload: GatherList,
}

#[derive(Debug)]
struct Stream {
    op: OpId,
    payload: GatherList,
    parts: Vec<Part>,
    /// What the receiver said: whether it has everything.
    over: Option<bool>,
    ended: Option<OpError>,
    /// The stripes that it went over.
    used: BTreeSet<usize>,
    /// Once nothing of it is with a stripe.
    fences: Option<Vec<FenceOn>>,
}

#[derive(Debug)]
struct Part {
    start: u64,
    len: u64,
    attempt: u32,
    state: State,
}

/// How far a part is.
#[derive(Debug)]
enum State {
    /// Its stripe is lost; the receiver will name another.
    Stranded,
    /// A stripe has it.
    Streaming(usize, OpId),
    /// It is with the receiver, but what its stripe digested is lost.
    Digesting(Box<(Cursor, Digest)>),
    /// It is out, with this digest.
    Sent(u64),
}

impl Streams {
    /// Nothing to send.
    pub(super) fn new(digests: bool) -> Self {
        Self {
            digests,
            plans: BTreeMap::new(),
            planned: None,
            dropped: TagSet::default(),
            waiting: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    /// Takes a payload; what to tell the receiver, where it has sent no plan for it.
    pub(super) fn submit(
        &mut self,
        op: OpId,
        tag: StreamTag,
        payload: GatherList,
        stripes: &mut Stripes,
        events: &mut Vec<LinkEvent>,
    ) -> Option<Frame> {
        if payload.is_empty() || self.dropped.contains(tag) {
            // Nothing of it passes.
            let digest = Digest::default().value();
            events.push(completed(op, payload, Ok(digest)));
            return None;
        }
        let len = payload.len();
        let planned = |parts: &Vec<PlannedPart>| parts.iter().map(|part| part.len).sum::<u64>();
        let fits = self.plans.get(&tag).map(|parts| planned(parts) == len);
        if fits == Some(true)
            && let Some(parts) = self.plans.remove(&tag)
        {
            self.start(Waiting { op, tag, payload }, &parts, stripes);
            return None;
        }
        self.waiting.push(Waiting { op, tag, payload });
        let again = fits.is_none() && self.planned.is_some_and(|last| tag <= last);
        Some(Frame::Unplanned { tag, len, again })
    }

    /// A plan came.
    ///
    /// # Errors
    /// It cannot be.
    pub(super) fn plan(
        &mut self,
        tag: StreamTag,
        parts: Vec<PlannedPart>,
        stripes: &mut Stripes,
    ) -> Result<(), Violation> {
        if self.planned.is_some_and(|last| tag <= last) {
            return Err(Violation::Stripes("a plan for a tag that does not rise"));
        }
        let sum = |sum: u64, part: &PlannedPart| sum.checked_add(part.len).filter(|_| part.len > 0);
        let len = parts.iter().try_fold(0, sum);
        let len = len.filter(|len| *len > 0 && parts.len() <= stripes.width());
        let len = len.ok_or(Violation::Stripes("a plan of impossible parts"))?;
        self.planned = Some(tag);
        let fits = |waiting: &Waiting| waiting.tag == tag && waiting.payload.len() == len;
        if let Some(at) = self.waiting.iter().position(fits) {
            let waiting = self.waiting.remove(at);
            self.start(waiting, &parts, stripes);
        } else if self.plans.len() < PLANS_MAX {
            self.plans.insert(tag, parts);
        } else {
            return Err(Violation::Stripes("more plans than payloads"));
        }
        Ok(())
    }

    /// The receiver wants a part over another stripe.
    ///
    /// # Errors
    /// There is no such part, or it was moved more often than there are stripes.
    pub(super) fn replan(
        &mut self,
        tag: StreamTag,
        number: usize,
        to: Place,
        stripes: &mut Stripes,
    ) -> Result<(), Violation> {
        let unknown = Violation::Stripes("a new place for a part that was never planned");
        if let Some(parts) = self.plans.get_mut(&tag) {
            parts.get_mut(number).ok_or(unknown)?.to = to;
            return Ok(());
        }
        let Some(stream) = self.open.get_mut(&tag) else {
            // It ended here, and the receiver does not know yet.
            return if self.planned.is_some_and(|last| tag <= last) {
                Ok(())
            } else {
                Err(unknown)
            };
        };
        let part = stream.parts.get_mut(number).ok_or(unknown)?;
        if stream.over.is_some() || stream.ended.is_some() {
            return Ok(());
        }
        part.attempt += 1;
        if part.attempt as usize >= stripes.reached() {
            return Err(Violation::Stripes("a part is moved more often than stripes can be lost"));
        }
        if let State::Streaming(stripe, op) = part.state {
            stripes.cancel(stripe, op);
        }
        stream.send(number, tag, to, stripes);
        Ok(())
    }

    /// The receiver needs a payload no more.
    ///
    /// # Errors
    /// It was never planned, or landed without being sent.
    pub(super) fn over(
        &mut self,
        tag: StreamTag,
        landed: bool,
        stripes: &mut Stripes,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Violation> {
        if self.planned.is_none_or(|last| tag > last) {
            return Err(Violation::Stripes("the end of a payload that was never planned"));
        }
        let unsent = self.plans.remove(&tag).is_some();
        if landed && unsent {
            return Err(Violation::Stripes("a payload landed that was not sent"));
        }
        if let Some(stream) = self.open.get_mut(&tag) {
            stream.over.get_or_insert(landed);
            self.settle(tag, stripes, events);
        }
        if !landed {
            self.dropped.insert(tag);
            for waiting in self.waiting.extract_if(.., |waiting| waiting.tag == tag) {
                let digest = Digest::default().value();
                events.push(completed(waiting.op, waiting.payload, Ok(digest)));
            }
        }
        Ok(())
    }

    /// A stripe is done with a part.
    pub(super) fn part_done(
        &mut self,
        tag: StreamTag,
        number: usize,
        attempt: u32,
        outcome: Result<u64, OpError>,
        stripes: &mut Stripes,
        events: &mut Vec<LinkEvent>,
    ) {
        let Some(stream) = self.open.get_mut(&tag) else { return };
        let part = &mut stream.parts[number];
        if part.attempt == attempt {
            part.state = outcome.map_or(State::Stranded, State::Sent);
            self.settle(tag, stripes, events);
        }
    }

    /// Ends a payload early.
    pub(super) fn cancel(&mut self, op: OpId, stripes: &mut Stripes, events: &mut Vec<LinkEvent>) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.op == op) {
            let Waiting { op, payload, .. } = self.waiting.remove(at);
            return events.push(completed(op, payload, Err(OpError::Cancelled)));
        }
        let found = self.open.iter().find(|(_, stream)| stream.op == op).map(|(tag, _)| *tag);
        if let Some(tag) = found {
            self.end(tag, &OpError::Cancelled, stripes, events);
        }
    }

    /// Ends every payload early.
    pub(super) fn end_all(
        &mut self,
        error: &OpError,
        stripes: &mut Stripes,
        events: &mut Vec<LinkEvent>,
    ) {
        for Waiting { op, payload, .. } in self.waiting.drain(..) {
            events.push(completed(op, payload, Err(error.clone())));
        }
        let tags: Vec<_> = self.open.keys().copied().collect();
        tags.into_iter().for_each(|tag| self.end(tag, error, stripes, events));
    }

    /// Completes everything: no stripe has a part any more.
    pub(super) fn abort(&mut self, error: &OpError, events: &mut Vec<LinkEvent>) {
        for Waiting { op, payload, .. } in self.waiting.drain(..) {
            events.push(completed(op, payload, Err(error.clone())));
        }
        for (_, stream) in std::mem::take(&mut self.open) {
            let error = stream.ended.unwrap_or_else(|| error.clone());
            events.push(completed(stream.op, stream.payload, Err(error)));
        }
    }

    /// Looks after everything that waited for a fence, or for a stripe that is lost now.
    pub(super) fn settle_all(&mut self, stripes: &mut Stripes, events: &mut Vec<LinkEvent>) {
        let tags: Vec<_> = self.open.keys().copied().collect();
        tags.into_iter().for_each(|tag| self.settle(tag, stripes, events));
    }

    /// Digests some of what stripes took their digests of to the grave; whether there is more.
    pub(super) fn work(&mut self, stripes: &mut Stripes, events: &mut Vec<LinkEvent>) -> bool {
        let digests = |stream: &Stream| {
            stream.parts.iter().any(|part| matches!(part.state, State::Digesting(_)))
        };
        let found = self.open.iter_mut().find(|(_, stream)| digests(stream));
        let Some((&tag, stream)) = found else { return false };
        stream.digest_some();
        self.settle(tag, stripes, events);
        true
    }

    fn start(&mut self, waiting: Waiting, plan: &[PlannedPart], stripes: &mut Stripes) {
        let Waiting { op, tag, payload } = waiting;
        let mut start = 0;
        let parts = plan.iter().map(|part| {
            let at = start;
            start += part.len;
            Part { start: at, len: part.len, attempt: 0, state: State::Stranded }
        });
        let parts = parts.collect();
        let (used, fences) = (BTreeSet::new(), None);
        let mut stream = Stream { op, payload, parts, over: None, ended: None, used, fences };
        for (number, part) in plan.iter().enumerate() {
            stream.send(number, tag, part.to, stripes);
        }
        self.open.insert(tag, stream);
    }

    fn end(
        &mut self,
        tag: StreamTag,
        error: &OpError,
        stripes: &mut Stripes,
        events: &mut Vec<LinkEvent>,
    ) {
        let Some(stream) = self.open.get_mut(&tag).filter(|stream| stream.ended.is_none()) else {
            return;
        };
        stream.ended = Some(error.clone());
        for part in &stream.parts {
            if let State::Streaming(stripe, op) = part.state {
                stripes.cancel(stripe, op);
            }
        }
        self.settle(tag, stripes, events);
    }

    /// Completes a payload, if nothing keeps it.
    fn settle(&mut self, tag: StreamTag, stripes: &mut Stripes, events: &mut Vec<LinkEvent>) {
        let Some(stream) = self.open.get_mut(&tag) else { return };
        if let Some(outcome) = stream.outcome(self.digests, stripes)
            && let Some(stream) = self.open.remove(&tag)
        {
            events.push(completed(stream.op, stream.payload, outcome));
        }
    }
}

impl Stream {
    fn send(&mut self, number: usize, tag: StreamTag, to: Place, stripes: &mut Stripes) {
        let part = &mut self.parts[number];
        let bytes = self.payload.part(part.start..part.start + part.len);
        let to_do = Use::Sent { tag, part: number, attempt: part.attempt };
        self.used.insert(to.stripe);
        let op = stripes.stream(to, bytes, to_do);
        part.state = op.map_or(State::Stranded, |op| State::Streaming(to.stripe, op));
    }

    /// How it ended, once it has.
    fn outcome(&mut self, digests: bool, stripes: &mut Stripes) -> Option<Result<u64, OpError>> {
        if digests && self.over.is_some() && self.ended.is_none() {
            self.begin_digests();
        }
        if self.parts.iter().any(Part::is_under_way) {
            return None;
        }
        let lost = if digests { None } else { Some(0) };
        let digests: Option<Vec<u64>> =
            self.parts.iter().map(|part| part.digest().or(lost)).collect();
        let outcome = match (digests, self.over, &self.ended) {
            (Some(digests), Some(_), _) => Ok(Digest::of_parts(&digests)),
            (_, _, Some(error)) => Err(error.clone()),
            _ => return None,
        };
        (self.over == Some(true) || self.is_unread(stripes)).then_some(outcome)
    }

    /// Whether every stripe that it went over is through with it.
    fn is_unread(&mut self, stripes: &mut Stripes) -> bool {
        let used = &self.used;
        let fences = self.fences.get_or_insert_with(|| {
            used.iter().filter_map(|stripe| stripes.fence(*stripe)).collect()
        });
        fences.iter().all(|fence| stripes.is_passed(fence))
    }

    fn begin_digests(&mut self) {
        for part in &mut self.parts {
            if let State::Stranded = part.state {
                let mut cursor = Cursor::default();
                cursor.advance(self.payload.extents(), part.start as usize);
                part.state = State::Digesting(Box::new((cursor, Digest::default())));
            }
        }
    }

    fn digest_some(&mut self) {
        let Self { payload, parts, .. } = self;
        for part in parts {
            let State::Digesting(digesting) = &mut part.state else { continue };
            let (cursor, digest) = &mut **digesting;
            let left = part.start + part.len - cursor.position();
            let step = DIGEST_STEP.min(left as usize);
            payload.slices(cursor, step).for_each(|slice| digest.update(slice));
            cursor.advance(payload.extents(), step);
            if step as u64 == left {
                part.state = State::Sent(digest.value());
            }
            return;
        }
    }
}

impl Part {
    /// Whether a stripe has it, or it is read here.
    fn is_under_way(&self) -> bool {
        matches!(self.state, State::Streaming(..) | State::Digesting(_))
    }

    fn digest(&self) -> Option<u64> {
        if let State::Sent(digest) = self.state { Some(digest) } else { None }
    }
}

fn completed(op: OpId, payload: GatherList, outcome: Result<u64, OpError>) -> LinkEvent {
    LinkEvent::Completed(Completion { op, memory: OpMemory::Payload(payload), outcome })
}

#[cfg(test)]
mod tests {
    use blockwire::pool::{
        BlockPool, Dtype, KvSpec, Layout, PayloadOrder, PoolOptions, ReservedBlock, ScatterList,
    };

    use super::*;

    const TAG: StreamTag = StreamTag(3);

    /// A payload of noise in many extents, and its bytes.
    fn payload() -> (GatherList, Vec<u8>) {
        let spec = KvSpec::uniform(16, 4, 2, 64, Dtype::F16);
        let options = PoolOptions { layout: Layout::LayerMajor, ..PoolOptions::new(spec, 160) };
        let pool = BlockPool::new(options).unwrap();
        let (order, tokens) = (PayloadOrder { block_tokens: 16 }, 0..160 * 16);
        let blocks = pool.try_reserve(160).unwrap();
        let mut room = ScatterList::new(&pool, blocks, order, tokens.clone()).unwrap();
        let mut bytes = Vec::new();
        for slice in room.slices(&Cursor::default(), usize::MAX) {
            for byte in slice {
                *byte = (bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7];
                bytes.push(*byte);
            }
        }
        let blocks: Vec<_> = room.into_blocks().into_iter().map(ReservedBlock::seal).collect();
        (GatherList::new(&pool, &blocks, order, tokens).unwrap(), bytes)
    }

    fn plan(lens: &[u64]) -> Vec<PlannedPart> {
        let to = Place { stripe: 0, tag: StreamTag(1) };
        lens.iter().map(|len| PlannedPart { len: *len, to }).collect()
    }

    fn outcome(events: &[LinkEvent]) -> Result<u64, OpError> {
        match events {
            [LinkEvent::Completed(completion)] => completion.outcome.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_lost_stripes_had_digested_is_digested_again() {
        let (list, bytes) = payload();
        let lens = [3 << 20, (1 << 20) + 7, bytes.len() as u64 - (4 << 20) - 7];
        let (mut streams, mut stripes) = (Streams::new(true), Stripes::lost(4));
        let mut events = Vec::new();
        streams.plan(TAG, plan(&lens), &mut stripes).unwrap();
        assert_eq!(streams.submit(OpId(1), TAG, list, &mut stripes, &mut events), None);
        assert!(!streams.work(&mut stripes, &mut events), "the receiver may name other stripes");
        streams.over(TAG, true, &mut stripes, &mut events).unwrap();
        let mut steps = 0;
        while streams.work(&mut stripes, &mut events) {
            steps += 1;
        }
        assert_eq!(steps, 4, "bounded work");
        let (mut digests, mut rest) = (Vec::new(), &bytes[..]);
        for len in lens {
            let (part, after) = rest.split_at(len as usize);
            let mut digest = Digest::default();
            digest.update(part);
            digests.push(digest.value());
            rest = after;
        }
        assert_eq!(outcome(&events).unwrap(), Digest::of_parts(&digests));
    }

    #[test]
    fn a_payload_that_nobody_wants_any_more_is_done() {
        for early in [false, true] {
            let (list, bytes) = payload();
            let (mut streams, mut stripes) = (Streams::new(false), Stripes::lost(4));
            let mut events = Vec::new();
            if early {
                streams.plan(TAG, plan(&[bytes.len() as u64]), &mut stripes).unwrap();
                streams.over(TAG, false, &mut stripes, &mut events).unwrap();
                assert_eq!(streams.submit(OpId(1), TAG, list, &mut stripes, &mut events), None);
            } else {
                let len = bytes.len() as u64;
                let asked = streams.submit(OpId(1), TAG, list, &mut stripes, &mut events);
                assert_eq!(asked, Some(Frame::Unplanned { tag: TAG, len, again: false }));
                streams.plan(TAG, plan(&[len - 1]), &mut stripes).unwrap();
                streams.over(TAG, false, &mut stripes, &mut events).unwrap();
            }
            outcome(&events).unwrap();
        }
    }

    #[test]
    fn a_used_plan_is_told_from_one_that_is_on_its_way() {
        let (list, bytes) = payload();
        let (mut streams, mut stripes) = (Streams::new(true), Stripes::lost(4));
        let mut events = Vec::new();
        let len = bytes.len() as u64;
        streams.plan(TAG, plan(&[len]), &mut stripes).unwrap();
        let mut submit = |op, events: &mut Vec<LinkEvent>| {
            let asked = streams.submit(OpId(op), TAG, list.clone(), &mut stripes, events);
            streams.cancel(OpId(op), &mut stripes, events);
            asked
        };
        assert_eq!(submit(1, &mut events), None);
        assert!(matches!(outcome(&events), Err(OpError::Cancelled)));
        let again = Some(Frame::Unplanned { tag: TAG, len, again: true });
        assert_eq!(submit(2, &mut events), again);
        assert_eq!(events.len(), 2);
    }
}
