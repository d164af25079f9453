//! A stranger that plays a script of arbitrary bytes, before it is authenticated and after.
//!
//! ```text
//! script ──> a plain socket, the manual's protocol  <──tcp──>  a listener, a link, a pool
//! ```
//! Everything runs on one thread, so that a script plays nearly the same way each time.
#![allow(unreachable_pub, reason = "each binary uses its part")]

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use blockwire::transport::{Listener, Transport};
use blockwire_conformance::script::Script;
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use crate::common::*;

/// Looks at a side or a listener after each thing that the stranger does.
const TURNS: usize = 6;
/// Every payload byte that a stranger sends as it should.
const PAYLOAD: u8 = 7;
const BLOCKS: usize = 8;

/// Plays a script, and checks what must hold however the stranger behaves: nothing panics, nothing hangs,
/// without the key there is no link, with a key nothing is taken but whole frames in their order, every
/// operation completes, every block comes back, and the listener takes a good peer afterwards.
///
/// # Panics
/// When something of that does not hold.
pub fn play(bytes: &[u8]) {
    run(async {
        let mut script = Script::new(bytes);
        let how = script.byte();
        let is_keyed = how & 1 == 1;
        let mut options = if is_keyed { keyed(KEY) } else { TcpOptions::default() };
        options.greeting_timeout = Duration::from_millis(100);
        options.flush_timeout = Duration::from_millis(20);
        options.linger_timeout = Duration::from_millis(5);
        let transport = TcpTransport::new(options);
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        if how & 6 == 6 {
            before(&mut script, &mut listener, is_keyed).await;
        } else {
            after(&mut script, &mut listener, is_keyed).await;
        }
        let address = listener.local_address();
        let (dialled, accepted) =
            tokio::join!(transport.connect(&address), next_link(&mut listener));
        let (mut near, mut far) = (Side::new(dialled.unwrap()), accepted);
        near.control(&message(b"a good peer"));
        until(&mut [&mut near, &mut far], |sides| sides[1].received().len() == 1).await;
    });
}

/// The next link; strangers that fail meanwhile are forgotten.
async fn next_link(listener: &mut Box<dyn Listener>) -> Side {
    loop {
        if let Ok(link) = poll_fn(|cx| listener.poll_accept(cx)).await {
            return Side::new(link);
        }
    }
}

/// Says anything but a whole good exchange.
async fn before(script: &mut Script<'_>, listener: &mut Box<dyn Listener>, is_keyed: bool) {
    let mut stream = TcpStream::connect(listener.local_address().target()).await.unwrap();
    let mut bytes = greeting(is_keyed ^ script.rarely(6));
    for _ in 0..script.byte() % 3 {
        bytes[usize::from(script.byte()) % GREETING_LEN] ^= script.byte();
    }
    let cut = usize::from(script.byte()) % (2 * GREETING_LEN);
    let _ = stream.write_all(&bytes[..cut.min(GREETING_LEN)]).await;
    while !script.is_over() {
        let mut answer = [0; 256];
        let len = stream.try_read(&mut answer).unwrap_or(0);
        let said = match script.byte() % 3 {
            // What it was told, sent back.
            0 => answer[..len].to_vec(),
            1 => proof(KEY, ACCEPTOR, &[&bytes[..], &answer[..len]].concat()).to_vec(),
            _ => script.take(32).to_vec(),
        };
        let _ = stream.try_write(&said);
        for _ in 0..TURNS {
            let accepted = poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await;
            let link = matches!(accepted, Poll::Ready(Ok(_)));
            assert!(!link || !is_keyed, "a link without the key");
            yield_now().await;
        }
    }
}

/// A stranger that is through.
struct Peer {
    stream: TcpStream,
    /// None on a link without a key.
    key: Option<[u8; 32]>,
    frames: u64,
    /// Control frames that it sent with the right tag, in order.
    sent: Vec<Bytes>,
}

impl Peer {
    async fn dial(to: &str, is_keyed: bool) -> Self {
        let mut stream = TcpStream::connect(to).await.unwrap();
        let (ours, mut theirs) = (greeting(is_keyed), [0; GREETING_LEN]);
        stream.write_all(&ours).await.unwrap();
        stream.read_exact(&mut theirs).await.unwrap();
        let transcript = [ours, theirs].concat();
        if is_keyed {
            stream.write_all(&proof(KEY, DIALLER, &transcript)).await.unwrap();
            stream.read_exact(&mut [0; PROOF_LEN]).await.unwrap();
        }
        let key = is_keyed.then(|| frame_key(KEY, DIALLER, &transcript));
        Self { stream, key, frames: 0, sent: Vec::new() }
    }

    /// A frame as it goes over the wire.
    fn wrap(&mut self, frame: &[u8]) -> Vec<u8> {
        let number = self.frames;
        self.frames += 1;
        self.key.map_or_else(|| frame.to_vec(), |key| sealed(&key, number, frame))
    }

    /// Sends as much as the socket takes: never more than a few KiB lie in it.
    fn send(&self, bytes: &[u8]) {
        let _ = self.stream.try_write(bytes);
    }

    /// Does the next thing.
    fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 11 {
            0..=2 => {
                let frame = message(&vec![1; usize::from(script.byte()) * 3]);
                let bytes = self.wrap(&frame);
                self.send(&bytes);
                self.sent.push(frame);
            }
            3..=5 => {
                let (tag, offset) = (script.number(&[1, 2, 3]), script.number(&[0, 256, 512]));
                let len = script.number(&[256, 512, 8192]) as usize % 9000;
                let bytes = self.wrap(&payload_frame(tag, offset, &vec![PAYLOAD; len.max(1)]));
                self.send(&bytes);
            }
            6 => {
                // A header of the stranger's own making, with the tag that it should have.
                let mut frame = message(script.take(16)).to_vec();
                let at = usize::from(script.byte()) % frame.len();
                frame[at] ^= script.byte();
                let bytes = self.wrap(&frame);
                self.send(&bytes);
                self.sent.push(frame.into());
            }
            7 => {
                let mut bytes = self.wrap(&message(script.take(16)));
                let at = usize::from(script.byte()) % bytes.len();
                bytes[at] ^= script.byte() | 1;
                self.send(&bytes);
            }
            8 => {
                let len = usize::from(script.byte());
                self.send(script.take(len));
            }
            9 => {
                let bytes = self.wrap(&credit(script.number(&[0, 256, 20 * 2048])));
                self.send(&bytes);
            }
            _ => {
                let mut answer = [0; 4096];
                let _ = self.stream.try_read(&mut answer);
            }
        }
    }
}

async fn after(script: &mut Script<'_>, listener: &mut Box<dyn Listener>, is_keyed: bool) {
    let target = listener.local_address().target().to_owned();
    let (mut peer, mut side) = tokio::join!(Peer::dial(&target, is_keyed), next_link(listener));
    let blocks = pool(BLOCKS);
    let landings = [1, 2, 3].map(|tag| land(&mut side, tag, room(&blocks, tag as usize)));
    let (list, ..) = payload(&blocks, 20, 5);
    stream(&mut side, 9, list);
    side.control(&message(b"to the stranger"));
    while !script.is_over() && side.closed().is_none() {
        peer.act(script);
        if script.rarely(12) {
            side.link.cancel(landings[usize::from(script.byte()) % landings.len()]);
        }
        turns(&mut side).await;
    }
    if script.byte() & 1 == 1 {
        side.link.close();
    }
    let Peer { stream, sent, .. } = peer;
    drop(stream);
    until(&mut [&mut side], |sides| sides[0].closed().is_some()).await;
    let received = side.received();
    assert!(!is_keyed || sent.starts_with(&received), "frames were taken that nobody sealed");
    for landing in landings {
        if side.outcome(landing).expect("it completes").is_ok() {
            assert!(side.landed(landing).iter().all(|byte| *byte == PAYLOAD), "other bytes landed");
        }
    }
    drop(side);
    assert_eq!(blocks.accounting().free, BLOCKS);
}

async fn turns(side: &mut Side) {
    for _ in 0..TURNS {
        poll_fn(|cx| {
            let _ = side.link.poll_progress(cx, &mut side.events);
            Poll::Ready(())
        })
        .await;
        yield_now().await;
    }
}
