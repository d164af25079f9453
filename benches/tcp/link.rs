//! Links, driven as an endpoint drives them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use blockwire::clock;
use blockwire::pool::{GatherList, ScatterList};
use blockwire::transport::{Link, LinkEvent, Listener, Op, OpMemory, StreamTag, Transport};
use blockwire::wire::{Header, Kind, encode_frame};
use blockwire_tcp::{TcpOptions, TcpTransport};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use super::Waits;

/// A link with the runtime that polls it.
struct Driven {
    runtime: Runtime,
    link: Box<dyn Link>,
    waits: Waits,
    events: VecDeque<LinkEvent>,
}

impl Driven {
    fn new(runtime: Runtime, link: Box<dyn Link>, waits: Waits) -> Self {
        Self { runtime, link, waits, events: VecDeque::new() }
    }

    /// Polls the link until something happened that counts.
    fn wait<T>(&mut self, mut counts: impl FnMut(LinkEvent) -> Option<T>) -> T {
        let Self { runtime, link, waits, events } = self;
        let mut new = Vec::new();
        runtime.block_on(async {
            loop {
                while let Some(event) = events.pop_front() {
                    if let Some(found) = counts(event) {
                        return found;
                    }
                }
                poll_fn(|cx| match link.poll_progress(cx, &mut new) {
                    Poll::Pending if *waits == Waits::Asleep => Poll::Pending,
                    _ => Poll::Ready(()),
                })
                .await;
                events.extend(new.drain(..));
                if *waits == Waits::Polling {
                    // Looks for readiness, without sleep.
                    tokio::task::yield_now().await;
                }
            }
        })
    }

    fn tell(&mut self) {
        let header = Header::control(Kind::Message, Uuid::nil(), 0);
        let frame = encode_frame(header, &vec![1; 8]).expect("a small frame");
        self.link.submit(Op::Control(frame)).expect("an open link");
    }

    fn hear(&mut self) {
        self.wait(|event| match event {
            LinkEvent::Received(_) => Some(()),
            LinkEvent::Closed(reason) => panic!("{reason}"),
            LinkEvent::Completed(_) => None,
        });
    }
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driven({})", self.link.peer())
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[derive(Debug)]
pub(super) struct Sender {
    driven: Driven,
    tag: u64,
}

impl Sender {
    pub(super) fn connect(address: &str, options: TcpOptions, waits: Waits) -> Self {
        let (runtime, transport) = (runtime(), TcpTransport::new(options));
        let address = address.parse().expect("an address");
        let link = runtime.block_on(async { transport.connect(&address).await });
        let link = link.expect("a receiver");
        Self { driven: Driven::new(runtime, link, waits), tag: 0 }
    }

    /// Waits until the receiver is ready, then sends; how long it took until the answer.
    pub(super) fn send(&mut self, payload: GatherList) -> Duration {
        self.driven.hear();
        let start = clock::now();
        let tag = StreamTag(self.tag);
        self.tag += 1;
        self.driven.link.submit(Op::Stream { tag, payload }).expect("an open link");
        self.driven.hear();
        clock::now() - start
    }
}

pub(super) struct Receiver {
    runtime: Option<Runtime>,
    listener: Box<dyn Listener>,
    driven: Option<Driven>,
    waits: Waits,
    tag: u64,
}

impl Receiver {
    pub(super) fn listen(at: &str, options: TcpOptions, waits: Waits) -> Self {
        let (runtime, transport) = (runtime(), TcpTransport::new(options));
        let address = at.parse().expect("an address");
        let listener = runtime.block_on(async { transport.listen(&address).await });
        let listener = listener.expect("a free port");
        Self { runtime: Some(runtime), listener, driven: None, waits, tag: 0 }
    }

    pub(super) fn address(&self) -> String {
        self.listener.local_address().to_string()
    }

    pub(super) fn accept(&mut self) {
        let runtime = self.runtime.take().expect("accepted once");
        let link = runtime.block_on(poll_fn(|cx| self.listener.poll_accept(cx)));
        self.driven = Some(Driven::new(runtime, link.expect("a sender"), self.waits));
    }

    pub(super) fn receive(&mut self, room: ScatterList) -> ScatterList {
        let driven = self.driven.as_mut().expect("a sender");
        let tag = StreamTag(self.tag);
        self.tag += 1;
        driven.link.submit(Op::Land { tag, room }).expect("an open link");
        driven.tell();
        let room = driven.wait(|event| match event {
            LinkEvent::Completed(done) => match done.memory {
                OpMemory::Room(room) => Some(room),
                _ => None,
            },
            LinkEvent::Closed(reason) => panic!("{reason}"),
            LinkEvent::Received(_) => None,
        });
        driven.tell();
        // Sends it.
        driven.wait(|event| matches!(event, LinkEvent::Completed(_)).then_some(()));
        room
    }
}
