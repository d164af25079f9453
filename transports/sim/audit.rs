//! A transport whose links are watched: do they keep the rules that hold on every link, in every weather?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use blockwire::pool::{Extent, PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Address, Capabilities, Completion, ConnectError, Link, LinkEvent, ListenError, Listener,
    LocalFuture, Op, OpId, OpMemory, Refused, RegionKey, RegisterError, Transport,
};
use uuid::Uuid;

type Report = Arc<dyn Fn(String) + Send + Sync>;

/// Watches another transport. What breaks a rule is told to whoever made it:
/// - an accepted operation completes once, with the memory that it was given;
/// - nothing comes after `Closed`, and then nothing is outstanding;
/// - a poll that adds events is ready.
#[derive(Clone)]
pub struct Audited<T> {
    inner: T,
    report: Report,
}

impl<T: Transport> Audited<T> {
    /// Watches `inner`.
    pub fn new(inner: T, report: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self { inner, report: Arc::new(report) }
    }
}

impl<T: Transport> Transport for Audited<T> {
    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let (connecting, report) = (self.inner.connect(address), self.report.clone());
        Box::pin(async move { Ok(watched(connecting.await?, &report)) })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (listening, report) = (self.inner.listen(address), self.report.clone());
        Box::pin(async move {
            let inner = listening.await?;
            Ok(Box::new(AuditedListener { inner, report }) as Box<dyn Listener>)
        })
    }
}

impl<T: fmt::Debug> fmt::Debug for Audited<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Audited").field(&self.inner).finish()
    }
}

struct AuditedListener {
    inner: Box<dyn Listener>,
    report: Report,
}

impl Listener for AuditedListener {
    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        let report = &self.report;
        self.inner.poll_accept(cx).map(|link| link.map(|link| watched(link, report)))
    }
}

fn watched(inner: Box<dyn Link>, report: &Report) -> Box<dyn Link> {
    let (report, outstanding) = (report.clone(), BTreeMap::new());
    Box::new(AuditedLink { inner, report, outstanding, closed: false })
}

/// What an operation was given.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    Payload(Vec<Extent>),
    Room(Vec<Extent>),
}

struct AuditedLink {
    inner: Box<dyn Link>,
    report: Report,
    outstanding: BTreeMap<OpId, Held>,
    closed: bool,
}

impl AuditedLink {
    fn check(&mut self, event: &LinkEvent) {
        if self.closed {
            (self.report)(format!("{event:?} came after the link had closed"));
        }
        match event {
            LinkEvent::Completed(completion) => self.check_completion(completion),
            LinkEvent::Received(_) => {}
            LinkEvent::Closed(_) => {
                self.closed = true;
                if !self.outstanding.is_empty() {
                    (self.report)(format!("closed with {:?} outstanding", self.outstanding));
                }
            }
        }
    }

    fn check_completion(&mut self, completion: &Completion) {
        let held = match &completion.memory {
            OpMemory::None => Held::Nothing,
            OpMemory::Payload(payload) => Held::Payload(payload.extents().to_vec()),
            OpMemory::Room(room) => Held::Room(room.extents().to_vec()),
        };
        let op = completion.op;
        match self.outstanding.remove(&op) {
            None => (self.report)(format!("{op:?} completed twice, or never was")),
            Some(given) if given != held => {
                (self.report)(format!("{op:?} was given {given:?} and gave back {held:?}"));
            }
            Some(_) => {}
        }
    }
}

impl Link for AuditedLink {
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
        let held = match &op {
            Op::Control(_) => Held::Nothing,
            Op::Stream { payload, .. } => Held::Payload(payload.extents().to_vec()),
            Op::Land { room, .. } | Op::Get { room, .. } => Held::Room(room.extents().to_vec()),
        };
        let accepted = self.inner.submit(op)?;
        if self.outstanding.insert(accepted, held).is_some() {
            (self.report)(format!("{accepted:?} was given out twice"));
        }
        Ok(accepted)
    }

    fn cancel(&mut self, op: OpId) {
        self.inner.cancel(op);
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let before = events.len();
        let poll = self.inner.poll_progress(cx, events);
        if poll.is_pending() && events.len() > before {
            (self.report)("events were added by a poll that is pending".to_owned());
        }
        for event in &events[before..] {
            self.check(event);
        }
        poll
    }
}
