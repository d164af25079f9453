//! The loop that makes progress: one task a listener, one task a connection.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::backlog::Backlog;
use super::connection::{Connection, Event, Events, OfferId, Offered, Request, Shared};
use super::handles::{Acceptance, How, IncomingHandoff};
use super::latch::{Latch, Setter, latch};
use super::queue::{Asker, Requests, queue};
use super::strangers::Strangers;
use super::{ConnectionError, Host, Listening, ListeningError};
use crate::clock;
use crate::pool::{BlockPool, Pressure};
use crate::session::{
    Action, Committed, HandoffKey, LandError, Landed, Notice, OfferError, PoolAccess, Session,
    SessionEnd,
};
use crate::transport::{Address, Link, LinkEvent, Listener, Transport};

/// Requests and link polls a turn, so that no connection starves the thread's others.
const TURNS_MAX: usize = 64;
/// Payload bytes of such a turn, for the same reason; the last link poll may go beyond.
const MOVED_MAX: u64 = 512 << 10;
/// Peers that arrived and were not accepted by the user yet.
const ARRIVALS_MAX: usize = 64;
/// Connections of one listener, open or shaking hands.
const CONNECTIONS_MAX: usize = 1024;
/// Longest wait for a link to end in order, once its session is over.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Longest wait for all links at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

pub(super) type Arrival = (Connection, Events);

/// What an endpoint asks of its driver.
#[derive(Debug)]
pub(super) enum Command {
    Connect { address: Address, reply: oneshot::Sender<Result<Arrival, ConnectionError>> },
    Listen { address: Address, reply: oneshot::Sender<Result<Listening, ListeningError>> },
    ShutDown,
}

/// Runs until the endpoint is gone, then ends every connection in order.
pub(super) async fn run(host: Arc<Host>, mut commands: Requests<Command>) {
    let (stop, stopped) = latch();
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            // A fixed order, for simulations. There are no more ends than commands: none can starve.
            biased;
            // A panic of one task is that task's end; the others go on.
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a connection's task failed");
            },
            command = commands.next() => match command {
                Some(Command::Connect { address, reply }) => {
                    tasks.spawn_local(connect(host.clone(), address, reply, stopped.clone()));
                }
                Some(Command::Listen { address, reply }) => {
                    tasks.spawn_local(listen(host.clone(), address, reply, stopped.clone()));
                }
                Some(Command::ShutDown) | None => break,
            },
        }
    }
    stop.set(());
    let all_ended = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, all_ended).await.is_err() {
        tracing::warn!("some links did not end in order");
    }
    drop(tasks);
    commands.end().await;
}

async fn connect(
    host: Arc<Host>,
    address: Address,
    reply: oneshot::Sender<Result<Arrival, ConnectionError>>,
    stopped: Latch<()>,
) {
    let Some(transport) = transport_for(&host, &address) else {
        let _ = reply.send(Err(ConnectionError::Scheme { address }));
        return;
    };
    match transport.connect(&address).await {
        Ok(link) => {
            let arrive = |arrival| {
                // A caller that left drops the handles, which closes the connection.
                let _ = reply.send(arrival);
            };
            Task::new(&host, link, stopped).run(arrive).await;
        }
        Err(error) => {
            let _ = reply.send(Err(error.into()));
        }
    }
}

async fn listen(
    host: Arc<Host>,
    address: Address,
    reply: oneshot::Sender<Result<Listening, ListeningError>>,
    stopped: Latch<()>,
) {
    let bound = match transport_for(&host, &address) {
        Some(transport) => transport.listen(&address).await.map_err(ListeningError::from),
        None => Err(ListeningError::Scheme { address }),
    };
    let mut listener = match bound {
        Ok(listener) => listener,
        Err(error) => {
            let _ = reply.send(Err(error));
            return;
        }
    };
    let (arrived, arrivals) = mpsc::channel(ARRIVALS_MAX);
    let local = listener.local_address();
    if reply.send(Ok(Listening { local, arrivals })).is_err() {
        return;
    }
    let for_tasks = stopped.clone();
    let mut tasks = JoinSet::new();
    let mut strangers = Strangers::new(clock::now());
    loop {
        tokio::select! {
            // A fixed order, for simulations: two ends of the loop, then ends of tasks, of which there are
            // no more than links.
            biased;
            () = stopped.over() => break,
            () = arrived.closed() => break,
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a connection's task failed");
            },
            link = next_link(listener.as_mut(), &mut strangers), if tasks.len() < CONNECTIONS_MAX => {
                let task = Task::new(&host, link, for_tasks.clone());
                let arrived = arrived.clone();
                tasks.spawn_local(task.run(move |arrival| match arrival {
                    Ok(arrival) => {
                        // Full or gone: dropping the handles closes the connection.
                        let _ = arrived.try_send(arrival);
                    }
                    // The peer is told too, but here is where its operator may not look.
                    Err(error) => tracing::warn!(%error, "a peer did not get in"),
                }));
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// The next link; peers that fail on the way in are logged and forgotten.
async fn next_link(listener: &mut dyn Listener, strangers: &mut Strangers) -> Box<dyn Link> {
    loop {
        match poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok(link) => return link,
            Err(error) => strangers.note(&error, clock::now()),
        }
    }
}

fn transport_for(host: &Host, address: &Address) -> Option<Arc<dyn Transport>> {
    host.options.transports.iter().find(|t| t.scheme() == address.scheme()).cloned()
}

/// One connection: its session, its link, and whoever waits for something.
struct Task {
    session: Session,
    link: Box<dyn Link>,
    peer_address: String,
    requests: Requests<Request>,
    requests_in: Option<Asker<Request>>,
    events: Option<mpsc::UnboundedSender<Event>>,
    backlog: Backlog,
    end: Setter<SessionEnd>,
    stopped: Pin<Box<dyn Future<Output = ()>>>,
    timer: Pin<Box<tokio::time::Sleep>>,
    grace: Option<Pin<Box<tokio::time::Sleep>>>,
    offers: BTreeMap<HandoffKey, OpenOffer>,
    landings: BTreeMap<HandoffKey, oneshot::Sender<Result<Landed, LandError>>>,
    pressure: Option<Pressure>,
    shared: std::sync::Weak<Shared>,
    link_events: Vec<LinkEvent>,
    /// Payload bytes of the link at the last look.
    moved: u64,
}

/// An offer of this side's whose end its user waits for.
struct OpenOffer {
    number: u64,
    reply: oneshot::Sender<Result<Committed, OfferError>>,
}

impl Task {
    fn new(host: &Host, mut link: Box<dyn Link>, stopped: Latch<()>) -> Self {
        let capabilities = link.capabilities();
        let pool = host.options.pool.as_ref();
        let pressure = pool.map(BlockPool::pressure);
        let pool = pool.filter(|_| capabilities.get.is_some());
        let access = pool.and_then(|pool| {
            let registered = link.register(pool.region());
            let registered =
                registered.map_err(|error| tracing::warn!(%error, "the pool is out of reach")).ok();
            registered.map(|region| PoolAccess { region, shape: pool.shape().clone() })
        });
        let now = clock::now();
        let timing = host.options.timing;
        let session = Session::new(host.identity(), capabilities, access, timing, now)
            .with_authenticated(link.authenticated_instance());
        let (requests_in, requests) = queue();
        let stopped = async move { stopped.over().await };
        Self {
            session,
            peer_address: link.peer(),
            link,
            requests,
            requests_in: Some(requests_in),
            events: None,
            backlog: Backlog::default(),
            end: latch().0,
            stopped: Box::pin(stopped),
            timer: Box::pin(tokio::time::sleep_until(now.into())),
            grace: None,
            offers: BTreeMap::new(),
            landings: BTreeMap::new(),
            pressure,
            shared: std::sync::Weak::new(),
            link_events: Vec::new(),
            moved: 0,
        }
    }

    /// Drives the connection to its end; `arrive` is called once, when the hellos fit or cannot.
    async fn run(mut self, arrive: impl FnOnce(Result<Arrival, ConnectionError>)) {
        let mut arrive = Some(arrive);
        while poll_fn(|cx| self.poll_share(cx, &mut arrive)).await == Share::Used {
            // A task that only wakes itself is polled again dozens of times before the runtime looks at
            // sockets and clocks, while other links of the thread wait. This lets it look first.
            tokio::task::yield_now().await;
        }
        self.requests.end().await;
    }

    /// Makes progress until the connection waits for something, is over, or has had its share.
    fn poll_share(
        &mut self,
        cx: &mut Context<'_>,
        arrive: &mut Option<impl FnOnce(Result<Arrival, ConnectionError>)>,
    ) -> Poll<Share> {
        let begin = self.moved;
        for _ in 0..TURNS_MAX {
            if self.moved - begin >= MOVED_MAX {
                break;
            }
            let progress = self.turn(cx);
            while let Some(notice) = self.session.poll_notice() {
                self.deliver(notice, arrive);
            }
            match progress {
                Progress::Closed => return Poll::Ready(Share::Over),
                Progress::Waiting => return Poll::Pending,
                Progress::More => {}
            }
        }
        Poll::Ready(Share::Used)
    }

    /// One round: what users ask, what the session wants, what the link reports, what time it is.
    fn turn(&mut self, cx: &mut Context<'_>) -> Progress {
        let mut more = self.take_requests(cx);
        if self.session.end().is_none() && self.stopped.as_mut().poll(cx).is_ready() {
            self.session.close("shutting down");
        }
        more |= self.session.work();
        self.recall(cx);
        self.act();
        if self.backlog.poll_room(cx).is_ready() || self.session.end().is_some() {
            let mut events = std::mem::take(&mut self.link_events);
            more |= self.link.poll_progress(cx, &mut events).is_ready();
            let now = clock::now();
            let moved = self.link.stats().sent() + self.link.stats().landed();
            if std::mem::replace(&mut self.moved, moved) != moved {
                self.session.handle_traffic(now);
            }
            for event in events.drain(..) {
                let closed = matches!(event, LinkEvent::Closed(_));
                self.session.handle_event(event, now);
                if closed {
                    return Progress::Closed;
                }
            }
            self.link_events = events;
        }
        more |= self.keep_time(cx);
        more |= self.act();
        if self.overdue(cx) {
            return Progress::Closed;
        }
        if let Some(shared) = self.shared.upgrade() {
            *shared.counters.lock().unwrap_or_else(PoisonError::into_inner) =
                self.session.counters();
        }
        if more { Progress::More } else { Progress::Waiting }
    }

    /// Asks the peer for blocks that it reads in place, while this side's pool is short of them.
    fn recall(&mut self, cx: &mut Context<'_>) {
        let Some(pressure) = &mut self.pressure else { return };
        while self.session.can_recall() && pressure.poll(cx).is_ready() {
            self.session.recall_oldest(clock::now());
        }
    }

    /// Does what the session wants done to its link; true if there was anything.
    fn act(&mut self) -> bool {
        let mut acted = false;
        while let Some(action) = self.session.poll_action() {
            acted = true;
            match action {
                Action::Submit(op, purpose) => match self.link.submit(op) {
                    Ok(id) => self.session.accepted(id, purpose),
                    Err(refused) => self.session.refused(refused, purpose),
                },
                Action::Map(region) => {
                    let memory = self.link.peer_memory(region);
                    self.session.mapped(memory);
                }
                Action::Cancel(op) => self.link.cancel(op),
                Action::Close => self.link.close(),
            }
        }
        acted
    }

    fn keep_time(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = self.session.next_deadline() else { return false };
        if self.timer.deadline() != deadline.into() {
            self.timer.as_mut().reset(deadline.into());
        }
        let due = self.timer.as_mut().poll(cx).is_ready();
        if due {
            self.session.handle_time(clock::now());
        }
        due
    }

    /// Whether the session is over and the link did not end in order for too long.
    fn overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if self.session.end().is_none() {
            return false;
        }
        let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(CLOSE_GRACE)));
        grace.as_mut().poll(cx).is_ready()
    }

    fn take_requests(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..TURNS_MAX {
            match self.requests.poll_next(cx) {
                Poll::Ready(Some(request)) => self.handle(request),
                Poll::Ready(None) => {
                    // The last handle is gone. Closing twice does nothing.
                    self.session.close("no longer needed");
                    return false;
                }
                Poll::Pending => return false,
            }
        }
        true
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Offer(id, offered, reply) => self.offer(id, offered, reply),
            Request::Push(id, blocks) if self.has(id) => self.session.push(id.key, blocks),
            Request::Finish(id, last, closing) if self.has(id) => {
                self.session.finish_offer(id.key, last, closing);
            }
            Request::Withdraw(id) if self.has(id) => {
                self.offers.remove(&id.key);
                self.session.withdraw(id.key);
            }
            // Of an offer that is over.
            Request::Push(..) | Request::Finish(..) | Request::Withdraw(_) => {}
            Request::Accept(key, Acceptance { pool, blocks, how, landed }) => {
                self.landings.insert(key, landed);
                match how {
                    How::From(from) => self.session.accept(key, &pool, blocks, from),
                    How::Adopting => self.session.adopt(key, &pool, blocks),
                }
            }
            Request::Decline(key, code, reason) => self.session.decline(key, code, &reason),
            Request::Abandon(key) => {
                self.landings.remove(&key);
                self.session.abandon(key);
            }
            Request::Commit(key, reply) => {
                let _ = reply.send(self.session.commit(key));
            }
            Request::Release(key) => self.session.release(key),
            Request::RecallAll => while self.session.recall_oldest(clock::now()) {},
            Request::Message(message, reply) => {
                if self.session.end().is_none() {
                    let _ = reply.send(self.session.send_message(message));
                }
            }
            Request::Close(reason) => self.session.close(&reason),
        }
    }

    fn offer(
        &mut self,
        OfferId { key, number }: OfferId,
        offered: Offered,
        reply: oneshot::Sender<Result<Committed, OfferError>>,
    ) {
        let outcome = match offered {
            Offered::Payload(payload) => self.session.offer(key, payload),
            Offered::Stream(stream) => self.session.offer_stream(key, stream),
        };
        match outcome {
            Ok(()) => {
                self.offers.insert(key, OpenOffer { number, reply });
            }
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        }
    }

    fn has(&self, id: OfferId) -> bool {
        self.offers.get(&id.key).is_some_and(|offer| offer.number == id.number)
    }

    fn deliver(
        &mut self,
        notice: Notice,
        arrive: &mut Option<impl FnOnce(Result<Arrival, ConnectionError>)>,
    ) {
        match notice {
            Notice::Ready(peer) => {
                if let Some((arrive, arrival)) = arrive.take().zip(self.open(peer)) {
                    arrive(Ok(arrival));
                }
            }
            Notice::Offered(key, manifest) => {
                if let Some(shared) = self.shared.upgrade() {
                    let handoff = IncomingHandoff::new(Connection::new(shared), key, manifest);
                    self.emit(Event::Handoff(handoff));
                }
            }
            Notice::Message(message) => self.emit(Event::Message(message)),
            Notice::Landed(key, payload) => {
                if let Some(landed) = self.landings.remove(&key) {
                    // Whoever waited is gone: the blocks are freed, its guard abandons the offer.
                    let _ = landed.send(Ok(payload));
                }
            }
            Notice::LandFailed(key, error) => {
                if let Some(landed) = self.landings.remove(&key) {
                    let _ = landed.send(Err(error));
                }
            }
            Notice::OfferEnded(key, outcome) => {
                if let Some(offer) = self.offers.remove(&key) {
                    let _ = offer.reply.send(outcome);
                }
            }
            Notice::Ended(end) => {
                tracing::debug!(peer = self.peer_address, %end, "connection ended");
                self.end.set(end.clone());
                self.events = None;
                if let Some(arrive) = arrive.take() {
                    let peer = self.peer_address.clone();
                    arrive(Err(ConnectionError::Handshake { peer, end }));
                }
            }
        }
    }

    /// Makes the handles of an open connection.
    fn open(&mut self, peer: crate::session::Identity) -> Option<Arrival> {
        let shared = Arc::new(Shared {
            peer,
            peer_address: self.peer_address.clone(),
            capabilities: self.link.capabilities(),
            traffic: self.link.stats().clone(),
            counters: Mutex::default(),
            offers: AtomicU64::new(0),
            requests: self.requests_in.take()?,
            end: self.end.latch(),
        });
        self.shared = Arc::downgrade(&shared);
        let (events, queue) = mpsc::unbounded_channel();
        self.events = Some(events);
        Some((Connection::new(shared), Events { queue, backlog: self.backlog.clone() }))
    }

    fn emit(&mut self, event: Event) {
        if let Some(events) = &self.events {
            let bytes = event.memory_len();
            self.backlog.added(bytes);
            if events.send(event).is_err() {
                self.backlog.taken(bytes);
            }
        }
    }
}

/// Why a connection stops making progress for now.
#[derive(PartialEq, Eq)]
enum Share {
    /// Others are next.
    Used,
    /// It has ended.
    Over,
}

enum Progress {
    More,
    Waiting,
    Closed,
}
