//! The life of one connection: joins a [`Sender`] and a [`Receiver`] with a [`Mover`], and knows how it
//! ends.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use blockwire::pool::{PeerMemory, Region, TransferStats};
use blockwire::transport::{
    Capabilities, CloseReason, Link, LinkEvent, Op, OpError, OpId, Refused, RegionKey,
    RegisterError,
};
use blockwire::wire::PAYLOAD_LEN_MAX;
use uuid::Uuid;

use crate::SCHEME;
use crate::credit::Unread;
use crate::greeting::Greeted;
use crate::mover::{self, Channel, Copies, Mover, Stop};
use crate::options::TcpOptions;
use crate::receive::Receiver;
use crate::seal::Sealer;
use crate::send::Sender;
use crate::socket;
use crate::stage::Stage;

/// The mechanism to one peer over TCP.
#[derive(Debug)]
pub(crate) struct TcpLink {
    /// None once the link has ended. Goes before the halves, whose memory the kernel may have from it.
    mover: Option<Box<dyn Mover>>,
    sender: Sender,
    receiver: Receiver,
    stage: Stage,
    /// Writing failed because the peer is gone; what it sent before may still be read.
    write_error: Option<io::Error>,
    /// What happened outside of a poll.
    pending: Vec<LinkEvent>,
    next_op: u64,
    same_host: bool,
    lingers: bool,
    copies: Copies,
    peer: String,
    authenticated: Option<Uuid>,
    stats: Arc<TransferStats>,
    flush_timeout: Duration,
    linger_timeout: Duration,
}

impl TcpLink {
    /// Takes a connection after its greeting; counts its traffic in `stats`.
    pub(crate) fn new(
        channel: Channel,
        greeted: &Greeted,
        options: &TcpOptions,
        stats: Arc<TransferStats>,
    ) -> io::Result<Self> {
        let socket = channel.socket();
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        let same_host = local.ip() == peer.ip() || peer.ip().to_canonical().is_loopback();
        socket::tune(socket, same_host, options);
        let mover = mover::choose(channel, options)?;
        let copies = mover.copies();
        let (own_sealer, their_sealer) =
            greeted.frame_keys.map(|(own, theirs)| (Sealer::new(own), Sealer::new(theirs))).unzip();
        let payload_len_max = options.payload_len_max.clamp(1, PAYLOAD_LEN_MAX);
        Ok(Self {
            sender: Sender::new(
                payload_len_max,
                Unread::new(same_host),
                options.digest,
                own_sealer,
                copies.sent,
                Arc::clone(&stats),
            ),
            receiver: Receiver::new(
                options.digest,
                their_sealer,
                mover.lends(),
                copies.landed,
                Arc::clone(&stats),
            ),
            stage: Stage::Open,
            write_error: None,
            pending: Vec::new(),
            next_op: 0,
            same_host,
            lingers: mover.lingers(),
            copies,
            mover: Some(mover),
            peer: format!("{SCHEME}://{peer}"),
            authenticated: greeted.authenticated,
            stats,
            flush_timeout: options.flush_timeout,
            linger_timeout: options.linger_timeout,
        })
    }

    /// Ends the link at once, as if it had been lost: every operation completes, then `Closed`.
    pub(crate) fn abort(&mut self, reason: CloseReason, events: &mut Vec<LinkEvent>) {
        events.append(&mut self.pending);
        self.end(reason, events);
    }

    /// Ends the link: every operation completes, then `Closed`.
    fn end(&mut self, reason: CloseReason, events: &mut Vec<LinkEvent>) {
        let reason = self.stage.end(reason);
        self.mover = None;
        self.sender.abort(&reason, events);
        self.receiver.abort(&reason, events);
        self.stage = Stage::Closed(reason.clone());
        events.push(LinkEvent::Closed(reason));
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<Result<(), CloseReason>> {
        let Some(mover) = self.mover.as_mut().filter(|_| self.write_error.is_none()) else {
            return Poll::Pending;
        };
        match mover.poll_send(cx, &mut self.sender, events) {
            Poll::Ready(Err(error)) if peer_is_gone(&error) => {
                self.write_error = Some(error);
                Poll::Pending
            }
            sent => sent.map_err(lost),
        }
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<LinkEvent>,
    ) -> Poll<Result<(), CloseReason>> {
        let Some(mover) = &mut self.mover else { return Poll::Pending };
        let received = ready!(mover.poll_receive(cx, &mut self.receiver, events));
        Poll::Ready(received.map_err(|stop| match stop {
            Stop::EndOfStream => self.end_of_stream(),
            Stop::Lost(error) => lost(error),
            Stop::Violated(violation) => violation.into(),
        }))
    }

    /// Passes on what the peer has read, and tells it what was read here; says whether there is more to do.
    fn exchange_credits(&mut self) -> Result<bool, CloseReason> {
        let credit = self.receiver.take_credit();
        if let Some(read) = credit {
            self.sender.credited(read)?;
        }
        let tells = matches!(self.stage, Stage::Open) && self.sender.takes_credit();
        let news = tells.then(|| self.receiver.news()).flatten();
        if let Some(read) = news {
            self.sender.push_credit(read);
        }
        Ok(credit.is_some() || news.is_some())
    }

    fn end_of_stream(&mut self) -> CloseReason {
        match self.write_error.take() {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => lost(error),
            _ if self.receiver.at_boundary() => CloseReason::PeerGone,
            _ => lost(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Goes on with an orderly end; ready when it has come.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if matches!(self.stage, Stage::Flushing(_)) {
            let unsent = !self.sender.is_idle() && self.write_error.is_none();
            let finished = match &mut self.mover {
                Some(mover) if !unsent => mover.poll_finish(cx),
                Some(_) => Poll::Pending,
                None => Poll::Ready(Ok(())),
            };
            match finished {
                Poll::Ready(Ok(())) => self.stage.linger(self.linger_timeout),
                Poll::Ready(Err(_)) => return Poll::Ready(CloseReason::Local),
                Poll::Pending => {}
            }
        }
        self.stage.poll_overdue(cx, self.flush_timeout).map(|()| CloseReason::Local)
    }
}

impl Link for TcpLink {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            stream: Some(self.copies.sent + self.copies.landed),
            get: None,
            adopt: false,
            same_host: self.same_host,
            lingers: self.lingers,
        }
    }

    fn stats(&self) -> &Arc<TransferStats> {
        &self.stats
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn authenticated_instance(&self) -> Option<Uuid> {
        self.authenticated
    }

    fn register(&mut self, _region: &Arc<Region>) -> Result<RegionKey, RegisterError> {
        Err(RegisterError::Unsupported)
    }

    fn peer_memory(&mut self, _key: RegionKey) -> Option<Arc<dyn PeerMemory>> {
        None
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Refused> {
        if let Some(error) = self.stage.refusal(&op) {
            return Err(Refused { op, error });
        }
        let id = OpId(self.next_op);
        match op {
            Op::Control(frame) => self.sender.push_control(id, frame),
            Op::Stream { tag, payload } => {
                self.sender.push_stream(id, tag, payload, &mut self.pending);
            }
            Op::Land { tag, room } => {
                if let Err(room) = self.receiver.post(id, tag, room, &mut self.pending) {
                    let error = OpError::TagReused(tag);
                    return Err(Refused { op: Op::Land { tag, room }, error });
                }
            }
            Op::Get { .. } => return Err(Refused { op, error: OpError::Unsupported("get") }),
        }
        self.next_op += 1;
        Ok(id)
    }

    fn cancel(&mut self, op: OpId) {
        self.sender.cancel(op, &mut self.pending);
        self.receiver.cancel(op, &mut self.pending);
    }

    fn close(&mut self) {
        if matches!(self.stage, Stage::Open) {
            self.stage = Stage::Flushing(None);
            self.sender.end_streams(&CloseReason::Local, &mut self.pending);
            self.receiver.end_all(&CloseReason::Local, &mut self.pending);
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, events: &mut Vec<LinkEvent>) -> Poll<()> {
        let before = events.len();
        events.append(&mut self.pending);
        let sent = self.poll_send(cx, events);
        let received = match sent {
            Poll::Ready(Err(_)) => Poll::Pending,
            _ => self.poll_receive(cx, events),
        };
        let credits = self.exchange_credits();
        let more = sent.is_ready() || received.is_ready() || matches!(credits, Ok(true));
        let halves = [sent, received, Poll::Ready(credits.map(drop))];
        let ended = halves.into_iter().find_map(|half| match half {
            Poll::Ready(Err(reason)) => Some(reason),
            _ => None,
        });
        match ended {
            Some(reason) => self.end(reason, events),
            None => {
                if let Poll::Ready(reason) = self.poll_close(cx) {
                    self.end(reason, events);
                }
            }
        }
        if more || events.len() > before { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn peer_is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

fn lost(error: io::Error) -> CloseReason {
    CloseReason::Lost(Arc::new(error))
}
