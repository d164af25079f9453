//! One link under test, with an owner that trusts nothing.
//!
//! A [`Node`] polls its link only when the contract obliges it to: after the waker *of the last poll*
//! was woken, after a poll that said `Ready`, and after `submit`, `cancel` or `close`. A wake-up that
//! a link forgets, or gives to a waker of an earlier poll, is therefore a test that gets stuck.
//!
//! It checks with every event what holds in every test: an operation completes once, with the memory
//! that it was given; nothing follows `Closed`; nothing is outstanding then.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use blockwire::pool::{Extent, TransferStats};
use blockwire::transport::{
    Capabilities, CloseReason, Completion, Link, LinkEvent, Op, OpError, OpId, OpMemory, Refused,
};
use bytes::Bytes;

/// A link and everything that it reported.
pub struct Node {
    name: &'static str,
    link: Option<Box<dyn Link>>,
    stats: Arc<TransferStats>,
    capabilities: Capabilities,
    wakes: Arc<Wakes>,
    must_poll: bool,
    outstanding: HashMap<OpId, Held>,
    used: HashSet<OpId>,
    done: HashMap<OpId, Completion>,
    received: VecDeque<Bytes>,
    closed: Option<CloseReason>,
    events: u64,
}

/// What an operation was given.
#[derive(Debug, PartialEq, Eq)]
pub enum Held {
    /// A control frame.
    Control,
    /// A payload to send, by its extents.
    Payload(Vec<Extent>),
    /// Room to fill, by its extents.
    Room(Vec<Extent>),
}

impl Held {
    /// What `op` holds.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Control(_) => Self::Control,
            Op::Stream { payload, .. } => Self::Payload(payload.extents().to_vec()),
            Op::Land { room, .. } | Op::Get { room, .. } => Self::Room(room.extents().to_vec()),
        }
    }

    fn came_back(memory: &OpMemory) -> Self {
        match memory {
            OpMemory::None => Self::Control,
            OpMemory::Payload(payload) => Self::Payload(payload.extents().to_vec()),
            OpMemory::Room(room) => Self::Room(room.extents().to_vec()),
        }
    }
}

impl Node {
    /// Takes a link; `name` is what failures call it.
    pub fn new(name: &'static str, link: Box<dyn Link>) -> Self {
        Self {
            name,
            stats: Arc::clone(link.stats()),
            capabilities: link.capabilities(),
            link: Some(link),
            wakes: Arc::default(),
            must_poll: true,
            outstanding: HashMap::new(),
            used: HashSet::new(),
            done: HashMap::new(),
            received: VecDeque::new(),
            closed: None,
            events: 0,
        }
    }

    /// What the link says that it can do.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Traffic of the link, also after its death.
    pub fn stats(&self) -> &TransferStats {
        &self.stats
    }

    /// The link, to register with.
    ///
    /// # Panics
    /// After [`kill`](Self::kill).
    pub fn link(&mut self) -> &mut dyn Link {
        self.link.as_deref_mut().expect("the link lives")
    }

    /// Submits an operation that the link has to take.
    ///
    /// # Panics
    /// When it refuses.
    pub fn submit(&mut self, op: Op) -> OpId {
        let name = self.name;
        self.try_submit(op).unwrap_or_else(|refused| panic!("{name} refused: {}", refused.error))
    }

    /// Submits an operation.
    ///
    /// # Errors
    /// What the link refused, after a check that it came back whole.
    #[expect(clippy::result_large_err, reason = "a refused operation comes back by value")]
    pub fn try_submit(&mut self, op: Op) -> Result<OpId, Refused> {
        let held = Held::of(&op);
        let frame = if let Op::Control(frame) = &op { Some(frame.clone()) } else { None };
        let kind = std::mem::discriminant(&op);
        match self.link().submit(op) {
            Ok(id) => {
                assert!(self.used.insert(id), "{}: {id:?} was given out twice", self.name);
                self.outstanding.insert(id, held);
                self.must_poll = true;
                Ok(id)
            }
            Err(refused) => {
                assert_eq!(std::mem::discriminant(&refused.op), kind, "{}: kind", self.name);
                assert_eq!(Held::of(&refused.op), held, "{}: refused memory", self.name);
                if let Op::Control(back) = &refused.op {
                    assert_eq!(Some(back), frame.as_ref(), "{}: refused frame", self.name);
                }
                Err(refused)
            }
        }
    }

    /// Cancels an operation.
    pub fn cancel(&mut self, op: OpId) {
        self.link().cancel(op);
        self.must_poll = true;
    }

    /// Begins an orderly end.
    pub fn close(&mut self) {
        self.link().close();
        self.must_poll = true;
    }

    /// Drops the link: the death that its peer sees.
    pub fn kill(&mut self) {
        self.link = None;
        self.outstanding.clear();
    }

    /// Whether the operation completed.
    pub fn is_done(&self, op: OpId) -> bool {
        self.done.contains_key(&op)
    }

    /// Operations accepted and not completed.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Takes a completion.
    ///
    /// # Panics
    /// When there is none.
    pub fn take(&mut self, op: OpId) -> Completion {
        let name = self.name;
        self.done.remove(&op).unwrap_or_else(|| panic!("{name}: {op:?} has not completed"))
    }

    /// Every completion that was not taken, to look at what became of many.
    pub fn take_all(&mut self) -> Vec<Completion> {
        self.done.drain().map(|(_, completion)| completion).collect()
    }

    /// Frames received and not taken.
    pub fn received(&mut self) -> &mut VecDeque<Bytes> {
        &mut self.received
    }

    /// Why the link ended, once it said so.
    pub fn closed(&self) -> Option<&CloseReason> {
        self.closed.as_ref()
    }

    /// Grows with everything that the link does.
    pub fn progress(&self) -> u64 {
        self.events + self.stats.sent() + self.stats.landed() + self.stats.copied()
    }

    /// Polls the link if it has a right to be polled; whether it was.
    pub fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(link) = &mut self.link else { return false };
        *self.wakes.task.lock().expect("no panic inside") = Some(cx.waker().clone());
        let woken = self.wakes.woken();
        if !woken && !self.must_poll {
            return false;
        }
        let waker = self.wakes.next();
        let mut events = Vec::new();
        let poll = link.poll_progress(&mut Context::from_waker(&waker), &mut events);
        self.must_poll = poll == Poll::Ready(());
        if !events.is_empty() {
            assert!(poll.is_ready(), "{}: events were added and the poll is pending", self.name);
        }
        for event in events {
            self.take_event(event);
        }
        true
    }

    fn take_event(&mut self, event: LinkEvent) {
        let name = self.name;
        self.events += 1;
        assert!(self.closed.is_none(), "{name}: {event:?} came after Closed");
        match event {
            LinkEvent::Received(frame) => self.received.push_back(frame),
            LinkEvent::Completed(completion) => self.take_completion(completion),
            LinkEvent::Closed(reason) => {
                let left = &self.outstanding;
                assert!(left.is_empty(), "{name}: Closed came before the completion of {left:?}");
                self.closed = Some(reason);
            }
        }
    }

    fn take_completion(&mut self, completion: Completion) {
        let (name, op) = (self.name, completion.op);
        let held = self.outstanding.remove(&op);
        let held = held.unwrap_or_else(|| panic!("{name}: {op:?} completed twice, or never was"));
        let back = Held::came_back(&completion.memory);
        assert_eq!(back, held, "{name}: {op:?} gives back other memory");
        if held == Held::Control && completion.outcome.is_ok() {
            assert!(matches!(completion.outcome, Ok(0)), "{name}: control has no digest");
        }
        self.done.insert(op, completion);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name)
            .field("alive", &self.link.is_some())
            .field("outstanding", &self.outstanding.keys())
            .field("completed, not taken", &self.done.len())
            .field("received, not taken", &self.received.len())
            .field("closed", &self.closed)
            .field("stats", &self.stats)
            .field("polls", &self.wakes.current.load(SeqCst))
            .field("must be polled", &self.must_poll)
            .finish_non_exhaustive()
    }
}

/// Whether an outcome is what a dead or closed link gives.
pub fn is_closed(outcome: &Result<u64, OpError>) -> bool {
    matches!(outcome, Err(OpError::Closed(_)))
}

/// Wake-ups of one node: only those through the waker of its last poll count.
#[derive(Debug, Default)]
struct Wakes {
    current: AtomicU64,
    woken: AtomicU64,
    task: Mutex<Option<Waker>>,
}

impl Wakes {
    fn woken(&self) -> bool {
        let current = self.current.load(SeqCst);
        current > 0 && self.woken.load(SeqCst) == current
    }

    fn next(self: &Arc<Self>) -> Waker {
        let number = self.current.fetch_add(1, SeqCst) + 1;
        Waker::from(Arc::new(OneWaker { number, wakes: Arc::clone(self) }))
    }
}

/// The waker of one poll.
struct OneWaker {
    number: u64,
    wakes: Arc<Wakes>,
}

impl Wake for OneWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A late wake-up of an earlier poll must not hide that of a later one.
        self.wakes.woken.fetch_max(self.number, SeqCst);
        if let Some(task) = &*self.wakes.task.lock().expect("no panic inside") {
            task.wake_by_ref();
        }
    }
}
