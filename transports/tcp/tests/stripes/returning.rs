//! Stripes that are lost and dialled again.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use blockwire::transport::{CloseReason, Listener, Transport, Violation};
use blockwire::wire::{HEADER_LEN, Header};
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

use crate::common::*;
use crate::gathering::{answer, greet, refused, stripe_greeting, violation};
use crate::hostile::{join, joined, lost, resume};
use crate::proxy::Fate;
use crate::{STRIPES, exchange, pools, run_local, through_proxy};

/// Dials again at once.
fn eager(mut options: TcpOptions) -> TcpOptions {
    options.redial_pause = Duration::from_millis(1);
    options
}

/// Waits until both sides have so many stripes.
async fn have(a: &mut Side, b: &mut Side, stripes: u64) {
    until(&mut [a, b], |sides| {
        let closed: Vec<_> = sides.iter().map(|side| side.closed()).collect();
        assert!(closed.iter().all(Option::is_none), "{closed:?}");
        sides.iter().all(|side| side.link.stats().stripes() == stripes)
    })
    .await;
}

/// Cuts a stripe, and waits until both sides know.
async fn cut(proxy: &crate::proxy::Proxy, a: &mut Side, b: &mut Side, stripe: u16) {
    proxy.set(stripe, Fate::Cut);
    let whole = u64::from(STRIPES);
    until(&mut [a, b], |sides| sides.iter().all(|side| side.link.stats().stripes() < whole)).await;
}

async fn every_stripe_comes_back(options: TcpOptions) {
    // A pause that lets both sides see that one is missing.
    let mut options = options;
    options.redial_pause = Duration::from_millis(20);
    let (proxy, mut a, mut b) = through_proxy(options, STRIPES).await;
    let pools = pools();
    let mut tag = 1;
    for stripe in 0..STRIPES {
        cut(&proxy, &mut a, &mut b, stripe).await;
        have(&mut a, &mut b, STRIPES.into()).await;
        let last = *proxy.stripes().last().unwrap();
        let before = proxy.carried(last);
        exchange(&mut a, &mut b, &pools, tag).await;
        tag += 10;
        // A payload of 4 MiB each way has a part of more than a megabyte for each stripe.
        let carried = proxy.carried(last) - before;
        assert!(carried > 2 << 20, "only {carried} bytes went over stripe {last}");
    }
    // None of those that the link began with is left.
    assert!((0..STRIPES).all(|stripe| proxy.stripes().contains(&stripe)));
    assert!(proxy.stripes().len() >= 2 * usize::from(STRIPES));
    drop((a, b));
    assert!(pools.iter().all(|pool| pool.accounting().free == 700), "{pools:?}");
}

#[test]
fn a_lost_stripe_comes_back_and_is_used() {
    run_local(every_stripe_comes_back(TcpOptions::default()));
}

#[test]
fn it_proves_the_key_again() {
    run_local(every_stripe_comes_back(keyed(KEY)));
}

#[test]
fn stripes_come_and_go_amid_handoffs() {
    run_local(async {
        let (proxy, mut a, mut b) = through_proxy(eager(TcpOptions::default()), STRIPES).await;
        let pools = pools();
        for round in 0..12 {
            let living = proxy.stripes();
            // One of the newest, early or late in what follows.
            let stripe = living[living.len() - 1 - round % 3];
            proxy.set_after(stripe, 1 + 200_000 * round as u64, Fate::Cut);
            exchange(&mut a, &mut b, &pools, 1 + 10 * round as u64).await;
        }
        // What was to be cut late may live still.
        until(&mut [&mut a, &mut b], |sides| {
            sides.iter().all(|side| side.link.stats().stripes() == STRIPES.into())
        })
        .await;
        drop((a, b));
        assert!(pools.iter().all(|pool| pool.accounting().free == 700), "{pools:?}");
    });
}

#[test]
fn a_link_that_closes_dials_no_more() {
    run_local(async {
        let (proxy, mut a, mut b) = through_proxy(eager(TcpOptions::default()), STRIPES).await;
        a.link.close();
        proxy.set(1, Fate::Cut);
        until(&mut [&mut a, &mut b], |sides| sides.iter().all(|side| side.closed().is_some()))
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        until(&mut [&mut a, &mut b], |_| true).await;
        assert_eq!(proxy.stripes(), (0..STRIPES).collect::<Vec<_>>());
        assert!(matches!(a.closed(), Some(CloseReason::Local)), "{:?}", a.closed());
    });
}

/// A link of two stripes whose dialler is plain sockets, the second of which is lost.
struct Halved {
    listener: Box<dyn Listener>,
    link: Uuid,
    instance: Uuid,
    control: TcpStream,
    side: Side,
    /// What came over the first stripe.
    came: Vec<u8>,
}

impl Halved {
    async fn new(options: TcpOptions) -> Self {
        let mut listener = listen(&TcpTransport::new(options), "tcp://127.0.0.1:0").await;
        let (link, instance) = (Uuid::new_v4(), Uuid::new_v4());
        let greetings = [0, 1].map(|stripe| stripe_greeting(link, instance, stripe, 2));
        let [mut control, mut second] = greetings.map(|greeting| greet(&*listener, &greeting));
        let side = accept(&mut listener).await;
        for stream in [&mut control, &mut second] {
            stream.read_exact(&mut [0; GREETING_LEN]).unwrap();
        }
        drop(second);
        let mut halved = Self { listener, link, instance, control, side, came: Vec::new() };
        halved.say(&lost(1));
        assert_eq!(halved.hear().await, lost(1));
        halved
    }

    fn say(&mut self, frame: &[u8]) {
        self.control.write_all(frame).unwrap();
    }

    /// The next frame of the side.
    async fn hear(&mut self) -> Bytes {
        self.control.set_nonblocking(true).unwrap();
        loop {
            self.poll().await;
            let mut bytes = [0; 4096];
            match self.control.read(&mut bytes) {
                Ok(len) => self.came.extend_from_slice(&bytes[..len]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let header = self.came.first_chunk().map(|head| Header::parse(head).unwrap());
            let len = header.map_or(usize::MAX, |header| HEADER_LEN + header.body_len as usize);
            if self.came.len() >= len {
                self.control.set_nonblocking(false).unwrap();
                return self.came.drain(..len).collect::<Vec<_>>().into();
            }
        }
    }

    /// Lets the side and its listener work. Neither ends.
    async fn poll(&mut self) {
        until(&mut [&mut self.side], |_| true).await;
        assert!(self.side.closed().is_none(), "{:?}", self.side.closed());
        tokio::task::yield_now().await;
    }

    /// A connection that greets as a stripe of the link, and its nonce.
    async fn late(&mut self, stripe: u16) -> (TcpStream, [u8; 32]) {
        let greeting = stripe_greeting(self.link, self.instance, stripe, 2);
        let mut stream = greet(&*self.listener, &greeting);
        stream.set_nonblocking(true).unwrap();
        // It is answered, and then waits.
        while stream.read_exact(&mut [0; GREETING_LEN]).is_err() {
            let polling = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(self.listener.poll_accept(cx).is_ready())
            });
            assert!(!polling.await, "a link, or an error");
            tokio::task::yield_now().await;
        }
        stream.set_nonblocking(false).unwrap();
        (stream, greeting[48..].try_into().unwrap())
    }
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    match stream.read(&mut [0; 1]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn the_manual_is_enough_to_come_back() {
    run_local(async {
        for early in [false, true] {
            let mut halved = Halved::new(TcpOptions::default()).await;
            let mut stream = if early {
                // JOIN may be there before its connection is.
                let greeting = stripe_greeting(halved.link, halved.instance, 2, 2);
                halved.say(&join(2, &greeting[48..]));
                halved.poll().await;
                halved.poll().await;
                let mut dialled = greet(&*halved.listener, &greeting);
                dialled.set_nonblocking(true).unwrap();
                while dialled.read_exact(&mut [0; GREETING_LEN]).is_err() {
                    crate::gathering::poll_once(&mut halved.listener).await;
                }
                dialled.set_nonblocking(false).unwrap();
                dialled
            } else {
                let (stream, nonce) = halved.late(2).await;
                halved.say(&join(2, &nonce));
                stream
            };
            assert_eq!(halved.hear().await, joined(2));
            assert_eq!(halved.side.link.stats().stripes(), 2);
            // It carries: control changes to it. Two numbered frames went before: LOST and JOIN.
            stream.write_all(&resume(2)).unwrap();
            stream.write_all(&message(b"over the new one")).unwrap();
            let wanted = [message(b"over the new one")];
            until(&mut [&mut halved.side], |sides| sides[0].received() == wanted).await;
        }
    });
}

#[test]
fn a_late_stripe_that_does_not_belong_is_refused_alone() {
    run_local(async {
        let mut halved = Halved::new(TcpOptions::default()).await;
        let (link, instance) = (halved.link, halved.instance);
        for (greeting, wanted) in [
            (stripe_greeting(Uuid::new_v4(), instance, 2, 2), "not here"),
            (stripe_greeting(link, Uuid::new_v4(), 2, 2), "another process"),
            (stripe_greeting(link, instance, 3, 3), "how many"),
        ] {
            let _stranger = greet(&*halved.listener, &greeting);
            let found = violation(refused(&mut halved.listener).await);
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
        let (mut stream, nonce) = halved.late(2).await;
        halved.say(&join(2, &nonce));
        assert_eq!(halved.hear().await, joined(2));
        // A number of before, of a stripe that lives or of one that does not.
        let again = stripe_greeting(link, instance, 2, 2);
        let _stranger = greet(&*halved.listener, &again);
        let found = violation(refused(&mut halved.listener).await);
        assert!(found.contains("given up already"), "{found}");
        stream.write_all(&resume(2)).unwrap();
        stream.write_all(&message(b"x")).unwrap();
        until(&mut [&mut halved.side], |sides| sides[0].received() == [message(b"x")]).await;
    });
}

#[test]
fn only_the_connection_that_the_peer_names_is_taken() {
    run_local(async {
        let mut options = TcpOptions::default();
        options.greeting_timeout = Duration::from_millis(500);
        let mut halved = Halved::new(options).await;
        // A stranger knows everything but the nonce, and is there first.
        let (mut stranger, _) = halved.late(2).await;
        let (mut stream, nonce) = halved.late(2).await;
        halved.say(&join(2, &nonce));
        assert_eq!(halved.hear().await, joined(2));
        stream.write_all(&resume(2)).unwrap();
        stream.write_all(&message(b"x")).unwrap();
        until(&mut [&mut halved.side], |sides| sides[0].received() == [message(b"x")]).await;
        assert!(is_closed(&mut stranger));
    });
}

#[test]
fn nobody_waits_at_the_door_for_ever() {
    run_local(async {
        let mut options = TcpOptions::default();
        options.greeting_timeout = Duration::from_millis(300);
        let mut halved = Halved::new(options).await;
        let (mut stranger, _) = halved.late(2).await;
        let error = refused(&mut halved.listener).await;
        assert!(error.to_string().contains("not told of this stripe"), "{error}");
        assert!(is_closed(&mut stranger));
        // Many wait for one link: the oldest go.
        let mut crowd = Vec::new();
        for _ in 0..10 {
            crowd.push(halved.late(2).await);
        }
        let (_, nonce) = crowd[9];
        assert!(crowd[..6].iter_mut().all(|(stream, _)| is_closed(stream)));
        halved.say(&join(2, &nonce));
        assert_eq!(halved.hear().await, joined(2));
        // The end of the link is theirs too.
        let mut halved = Halved::new(TcpOptions::default()).await;
        let (mut stranger, _) = halved.late(2).await;
        drop(std::mem::replace(&mut halved.side, pair().await.0));
        crate::gathering::poll_once(&mut halved.listener).await;
        assert!(is_closed(&mut stranger));
    });
}

/// Takes the two connections of a link: the first stripe, then the second.
fn both(acceptor: &TcpListener, instance: Uuid) -> [TcpStream; 2] {
    let mut streams = [(); 2].map(|()| answer(acceptor, instance));
    streams.sort_by_key(|(stripe, _)| *stripe);
    streams.map(|(_, stream)| stream)
}

#[test]
fn a_peer_that_takes_no_stripe_is_not_pressed() {
    run_local(async {
        let acceptor = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = acceptor.local_addr().unwrap();
        let instance = Uuid::new_v4();
        let answering = tokio::task::spawn_blocking(move || {
            let streams = both(&acceptor, instance);
            (acceptor, streams)
        });
        let mut options = eager(TcpOptions::default());
        options.greeting_timeout = Duration::from_millis(200);
        let address = format!("tcp://{target}?stripes=2").parse().unwrap();
        let link = TcpTransport::new(options).connect(&address).await.unwrap();
        let mut side = Side::new(link);
        let (acceptor, [mut control, second]) = answering.await.unwrap();
        drop(second);
        let listening = tokio::task::spawn_blocking(move || {
            let (mut late, mut frames) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                late.push(answer(&acceptor, instance));
                // LOST of what was there before, then JOIN.
                for _ in 0..2 {
                    let mut head = [0; HEADER_LEN];
                    control.read_exact(&mut head).unwrap();
                    let mut body = vec![0; Header::parse(&head).unwrap().body_len as usize];
                    control.read_exact(&mut body).unwrap();
                    frames.push([&head[..], &body].concat());
                }
            }
            (control, late, frames)
        });
        // It says JOIN, waits, gives up, and tries again under the next number.
        until(&mut [&mut side], |_| listening.is_finished()).await;
        let (_control, late, frames) = listening.await.unwrap();
        assert_eq!(late.iter().map(|(stripe, _)| *stripe).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((&frames[0][..], &frames[2][..]), (&lost(1)[..], &lost(2)[..]));
        assert_eq!(frames[1].len(), join(2, &[0; 32]).len());
        assert!(side.closed().is_none() && side.link.stats().stripes() == 1);
    });
}

#[test]
fn a_dialler_takes_no_stripe_that_it_did_not_dial() {
    run_local(async {
        let acceptor = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = acceptor.local_addr().unwrap();
        let answering = tokio::task::spawn_blocking(move || both(&acceptor, Uuid::new_v4()));
        let address = format!("tcp://{target}?stripes=2").parse().unwrap();
        let link = TcpTransport::new(TcpOptions::default()).connect(&address).await.unwrap();
        let mut side = Side::new(link);
        let [mut control, _second] = answering.await.unwrap();
        control.write_all(&lost(1)).unwrap();
        control.write_all(&join(2, &[7; 32])).unwrap();
        until(&mut [&mut side], |sides| sides[0].closed().is_some()).await;
        let Some(CloseReason::Violated(Violation::Stripes(what))) = side.closed() else {
            panic!("{:?}", side.closed());
        };
        assert!(what.contains("did not dial"), "{what}");
    });
}
