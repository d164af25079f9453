//! Faults around any transport: what a simulated path does to frames and completions, done to the links of
//! `mem`, `shm` or `tcp`.
//!
//! A [`Faulty`] end disturbs what its own link reports, and nothing that its peer sees: frames come late,
//! completions late and out of order, operations are refused, bits change on arrival, and at last frames
//! get lost or doubled before the link ends as a reset one does. Without those last faults a link keeps
//! every rule of [`blockwire::transport`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use blockwire::clock;
use blockwire::pool::{Cursor, PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Address, Capabilities, CloseReason, Completion, ConnectError, Link, LinkEvent, ListenError,
    Listener, LocalFuture, Op, OpError, OpId, OpMemory, Refused, RegionKey, RegisterError,
    Transport,
};
use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use tokio::time::Sleep;
use uuid::Uuid;

use super::conditions::Conditions;

/// Frames that wait here before the link's own are left with it.
const FRAMES_MAX: usize = 256;
/// Their bytes.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Longest time from the first fault of a broken link to its end.
const DOOM_MAX: Duration = Duration::from_millis(50);

/// Another transport, disturbed. Of the [`Conditions`], bandwidth and the length of pieces are the inner
/// link's own business, and so is the loss of a tail.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    disturbance: Disturbance,
}

/// What all links of a transport share.
#[derive(Clone, Debug)]
struct Disturbance {
    conditions: Arc<Mutex<Conditions>>,
    seed: Arc<AtomicU64>,
}

impl<T: Transport> Faulty<T> {
    /// Disturbs `inner`. Each link draws from a seed of its own, counted from `seed`.
    pub fn new(inner: T, seed: u64, conditions: Conditions) -> Self {
        let conditions = Arc::new(Mutex::new(conditions));
        Self {
            inner,
            disturbance: Disturbance { conditions, seed: Arc::new(AtomicU64::new(seed)) },
        }
    }

    /// Other conditions, for the links that exist too.
    pub fn set_conditions(&self, conditions: Conditions) {
        *self.disturbance.conditions.lock().unwrap_or_else(PoisonError::into_inner) = conditions;
    }
}

impl Disturbance {
    fn now(&self) -> Conditions {
        *self.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn random(&self) -> Rng {
        Rng::with_seed(self.seed.fetch_add(1, Relaxed))
    }

    fn disturb(&self, inner: Box<dyn Link>) -> Box<dyn Link> {
        Box::new(FaultyLink {
            inner,
            random: self.random(),
            disturbance: self.clone(),
            frames: VecDeque::new(),
            frame_bytes: 0,
            last_due: None,
            completions: BTreeMap::new(),
            completed: 0,
            doom: None,
            broken: false,
            ended: None,
            timer: None,
        })
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let (connecting, disturbance) = (self.inner.connect(address), self.disturbance.clone());
        let address = address.clone();
        Box::pin(async move {
            if disturbance.now().refuse_dial.strikes(&mut disturbance.random()) {
                let source = io::ErrorKind::ConnectionRefused.into();
                return Err(ConnectError::System { address, source });
            }
            Ok(disturbance.disturb(connecting.await?))
        })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (listening, disturbance) = (self.inner.listen(address), self.disturbance.clone());
        Box::pin(async move {
            let inner = listening.await?;
            Ok(Box::new(FaultyListener { inner, disturbance }) as Box<dyn Listener>)
        })
    }
}

struct FaultyListener {
    inner: Box<dyn Listener>,
    disturbance: Disturbance,
}

impl Listener for FaultyListener {
    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        let accepted = self.inner.poll_accept(cx);
        accepted.map(|link| link.map(|link| self.disturbance.disturb(link)))
    }
}

struct FaultyLink {
    inner: Box<dyn Link>,
    random: Rng,
    disturbance: Disturbance,
    /// Received, and not yet told; in order.
    frames: VecDeque<(Instant, Bytes)>,
    frame_bytes: usize,
    last_due: Option<Instant>,
    /// By the time when they are told.
    completions: BTreeMap<(Instant, u64), Completion>,
    completed: u64,
    /// When a broken link ends.
    doom: Option<Instant>,
    broken: bool,
    /// The inner link has, and why; told after everything else.
    ended: Option<Ended>,
    timer: Option<Pin<Box<Sleep>>>,
}

enum Ended {
    Untold(CloseReason),
    Told,
}

impl FaultyLink {
    /// Takes what the inner link reports.
    fn take(&mut self, event: LinkEvent, now: Instant, conditions: &Conditions) {
        match event {
            LinkEvent::Received(frame) => self.take_frame(frame, now, conditions),
            LinkEvent::Completed(mut completion) => {
                let lands = matches!(completion.memory, OpMemory::Room(_));
                if lands && conditions.corrupt_payload.strikes(&mut self.random) {
                    corrupt(&mut completion);
                }
                self.completed += 1;
                let due = now + conditions.completion(&mut self.random);
                self.completions.insert((due, self.completed), completion);
            }
            LinkEvent::Closed(reason) => {
                let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
                let reason =
                    if self.broken { CloseReason::Lost(Arc::new(reset())) } else { reason };
                self.ended = Some(Ended::Untold(reason));
            }
        }
    }

    fn take_frame(&mut self, frame: Bytes, now: Instant, conditions: &Conditions) {
        if self.broken {
            return;
        }
        if self.doom.is_none() && conditions.doom.strikes(&mut self.random) {
            let micros = self.random.u64(0..=DOOM_MAX.as_micros() as u64);
            self.doom = Some(now + Duration::from_micros(micros));
        }
        let copies = if self.doom.is_some() { self.random.usize(0..=2) } else { 1 };
        let corrupt = conditions.corrupt_control.strikes(&mut self.random) && !frame.is_empty();
        let frame = if corrupt { self.corrupted(&frame) } else { frame };
        let due = now + conditions.travel(&mut self.random);
        let due = self.last_due.map_or(due, |last| due.max(last));
        self.last_due = Some(due);
        for _ in 0..copies {
            self.frame_bytes += frame.len();
            self.frames.push_back((due, frame.clone()));
        }
    }

    fn corrupted(&mut self, frame: &Bytes) -> Bytes {
        let mut changed = BytesMut::from(&frame[..]);
        let at = self.random.usize(0..changed.len());
        changed[at] ^= 1 << self.random.u8(0..8);
        changed.freeze()
    }

    /// Tells what is due.
    fn tell(&mut self, now: Instant, events: &mut Vec<LinkEvent>) {
        while let Some((_, frame)) = self.frames.pop_front_if(|(due, _)| *due <= now) {
            self.frame_bytes -= frame.len();
            events.push(LinkEvent::Received(frame));
        }
        while let Some(entry) = self.completions.first_entry() {
            if entry.key().0 > now {
                break;
            }
            events.push(LinkEvent::Completed(entry.remove()));
        }
        if self.frames.is_empty()
            && self.completions.is_empty()
            && let Some(Ended::Untold(_)) = self.ended
            && let Some(Ended::Untold(reason)) = self.ended.replace(Ended::Told)
        {
            events.push(LinkEvent::Closed(reason));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let frame = self.frames.front().map(|(due, _)| *due);
        let completion = self.completions.first_key_value().map(|((due, _), _)| *due);
        let doom = self.doom.filter(|_| !self.broken && self.ended.is_none());
        [frame, completion, doom].into_iter().flatten().min()
    }

    /// Ready once `due` has come; else the task is woken then.
    fn poll_timer(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let timer =
            self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.into())));
        if timer.deadline() != due.into() {
            timer.as_mut().reset(due.into());
        }
        timer.as_mut().poll(cx)
    }
}

/// Changes a bit of what landed, and the digest with it.
fn corrupt(completion: &mut Completion) {
    if let (OpMemory::Room(room), Ok(digest)) = (&mut completion.memory, &mut completion.outcome)
        && let Some(first) = room.slices(&Cursor::default(), 1).next()
    {
        first[0] ^= 0x10;
        *digest ^= 0x10;
    }
}

impl Link for FaultyLink {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn stats(&self) -> &Arc<TransferStats> {
        self.inner.stats()
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn authenticated_instance(&self) -> Option<Uuid> {
        self.inner.authenticated_instance()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        self.inner.register(region)
    }

    fn peer_memory(&mut self, key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        self.inner.peer_memory(key)
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        let is_payload = !matches!(op, Op::Control(_));
        let refuses = is_payload && self.ended.is_none() && !self.broken;
        if refuses && self.disturbance.now().refuse.strikes(&mut self.random) {
            return Err(Refused { op, error: OpError::Unsupported("luck") });
        }
        self.inner.submit(op)
    }

    fn cancel(&mut self, op: OpId) {
        self.inner.cancel(op);
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let (now, before) = (clock::now(), events.len());
        if !self.broken && self.doom.is_some_and(|doom| doom <= now) {
            self.broken = true;
            self.frames.clear();
            self.frame_bytes = 0;
            self.inner.close();
        }
        let mut inner = Poll::Pending;
        let has_room = self.frames.len() < FRAMES_MAX && self.frame_bytes < FRAME_BYTES_MAX;
        if has_room && self.ended.is_none() {
            let (mut taken, conditions) = (Vec::new(), self.disturbance.now());
            inner = self.inner.poll_progress(cx, &mut taken);
            taken.into_iter().for_each(|event| self.take(event, now, &conditions));
        }
        self.tell(now, events);
        if events.len() > before || inner.is_ready() {
            return Poll::Ready(());
        }
        match self.next_due() {
            Some(due) if due <= now => Poll::Ready(()),
            Some(due) => self.poll_timer(cx, due),
            None => Poll::Pending,
        }
    }
}
