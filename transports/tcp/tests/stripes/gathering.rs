//! Connections that come to a listener as parts of links.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use blockwire::transport::{ConnectError, Listener, Transport, Violation};
use blockwire_tcp::{TcpOptions, TcpTransport};
use uuid::Uuid;

use crate::common::*;
use crate::{STRIPES, dial, exchange, pools, run_local};

/// The greeting of one of a link's connections.
pub(crate) fn stripe_greeting(
    link: Uuid,
    instance: Uuid,
    stripe: u16,
    stripes: u16,
) -> [u8; GREETING_LEN] {
    let mut bytes = greeting(false);
    bytes[12..14].copy_from_slice(&stripe.to_le_bytes());
    bytes[14..16].copy_from_slice(&stripes.to_le_bytes());
    bytes[16..32].copy_from_slice(instance.as_bytes());
    bytes[32..48].copy_from_slice(link.as_bytes());
    bytes
}

/// Takes a connection of a dialler and answers its greeting as this instance; which stripe it is.
pub(crate) fn answer(acceptor: &TcpListener, instance: Uuid) -> (u16, TcpStream) {
    let mut stream = acceptor.accept().unwrap().0;
    let mut greeting = [0; GREETING_LEN];
    stream.read_exact(&mut greeting).unwrap();
    greeting[16..32].copy_from_slice(instance.as_bytes());
    stream.write_all(&greeting).unwrap();
    (u16::from_le_bytes([greeting[12], greeting[13]]), stream)
}

pub(crate) fn greet(listener: &dyn Listener, greeting: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(listener.local_address().target()).unwrap();
    stream.write_all(greeting).unwrap();
    stream
}

pub(crate) async fn refused(listener: &mut Box<dyn Listener>) -> ConnectError {
    poll_fn(|cx| listener.poll_accept(cx)).await.err().expect("no link")
}

pub(crate) fn violation(error: ConnectError) -> String {
    match error {
        ConnectError::Violated { violation: Violation::Greeting(what), .. } => what.to_owned(),
        other => panic!("{other}"),
    }
}

#[test]
fn one_link_is_made_of_as_many_connections_as_are_asked_for() {
    run_local(async {
        let transport = TcpTransport::new(TcpOptions::default());
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let target = listener.local_address().target().to_owned();
        for stripes in [1, 2, 3, 16] {
            let (mut a, mut b) = dial(&transport, &target, stripes, &mut listener).await;
            exchange(&mut a, &mut b, &pools(), 1).await;
        }
    });
}

#[test]
fn an_incomplete_link_ends_in_time_and_delays_nobody() {
    run_local(async {
        let mut options = TcpOptions::default();
        options.greeting_timeout = Duration::from_millis(500);
        let transport = TcpTransport::new(options);
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let (link, instance) = (Uuid::new_v4(), Uuid::new_v4());
        let mut held: Vec<_> = (0..2)
            .map(|stripe| greet(&*listener, &stripe_greeting(link, instance, stripe, 3)))
            .collect();
        let target = listener.local_address().target().to_owned();
        let (mut a, mut b) = dial(&transport, &target, STRIPES, &mut listener).await;
        exchange(&mut a, &mut b, &pools(), 1).await;
        let error = refused(&mut listener).await;
        assert!(error.to_string().contains("2 of the link's 3 stripes"), "{error}");
        // Both are let go, and one error told it.
        for stream in &mut held {
            stream.read_exact(&mut [0; GREETING_LEN]).unwrap();
            assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
        }
        dial(&transport, &target, STRIPES, &mut listener).await;
    });
}

#[test]
fn who_does_not_fit_is_refused_alone() {
    run_local(async {
        let transport = TcpTransport::new(TcpOptions::default());
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let (link, instance) = (Uuid::new_v4(), Uuid::new_v4());
        let mut held = vec![greet(&*listener, &stripe_greeting(link, instance, 0, 2))];
        for (greeting, wanted) in [
            (stripe_greeting(link, instance, 0, 2), "there already"),
            (stripe_greeting(link, instance, 1, 3), "how many"),
            (stripe_greeting(link, Uuid::new_v4(), 1, 2), "another process"),
            (stripe_greeting(link, instance, 2, 2), "not here"),
            (stripe_greeting(link, instance, 1, 1), "that no link has"),
            (stripe_greeting(link, instance, 0, 0), "that no link has"),
            (stripe_greeting(link, instance, 0, 17), "that no link has"),
        ] {
            // The first is there before the others come.
            held[0].set_nonblocking(true).unwrap();
            while held[0].peek(&mut [0; 1]).is_err() {
                poll_once(&mut listener).await;
            }
            let _stranger = greet(&*listener, &greeting);
            assert!(violation(refused(&mut listener).await).contains(wanted), "{wanted}");
        }
        held.push(greet(&*listener, &stripe_greeting(link, instance, 1, 2)));
        let mut side = accept(&mut listener).await;
        held[0].set_nonblocking(false).unwrap();
        held[0].read_exact(&mut [0; GREETING_LEN]).unwrap();
        held[0].write_all(&message(b"over the first")).unwrap();
        until(&mut [&mut side], |sides| !sides[0].received().is_empty()).await;
    });
}

#[test]
fn a_stripe_without_the_key_harms_no_link() {
    run_local(async {
        let transport = TcpTransport::new(keyed(KEY));
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let (link, instance) = (Uuid::new_v4(), Uuid::new_v4());
        // It names a place in a link, and proves nothing.
        let mut greeting = stripe_greeting(link, instance, 1, 2);
        greeting[10] = 1;
        let mut stranger = greet(&*listener, &greeting);
        stranger.write_all(&[7; PROOF_LEN]).unwrap();
        let error = refused(&mut listener).await;
        assert!(matches!(error, ConnectError::Unauthenticated { .. }), "{error}");
        let target = listener.local_address().target().to_owned();
        let (mut a, mut b) = dial(&transport, &target, 2, &mut listener).await;
        assert!(b.link.authenticated_instance().is_some());
        exchange(&mut a, &mut b, &pools(), 1).await;
    });
}

#[test]
fn waiting_stripes_count_as_half_open() {
    run_local(async {
        let mut options = TcpOptions::default();
        options.greeting_timeout = Duration::from_secs(30);
        let transport = TcpTransport::new(options);
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        // More than one address may have waiting; each is of a link of its own.
        let mut held = Vec::new();
        for _ in 0..200 {
            let (link, instance) = (Uuid::new_v4(), Uuid::new_v4());
            held.push(greet(&*listener, &stripe_greeting(link, instance, 0, 2)));
            poll_once(&mut listener).await;
        }
        for _ in 0..50 {
            poll_once(&mut listener).await;
        }
        let mut open = 0;
        for stream in &mut held {
            stream.set_nonblocking(true).unwrap();
            let mut bytes = [0; GREETING_LEN + 1];
            let greeted = stream.read(&mut bytes).is_ok_and(|len| len == GREETING_LEN);
            let ended = matches!(stream.read(&mut bytes), Ok(0))
                || stream
                    .read(&mut bytes)
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
            open += usize::from(greeted && !ended);
        }
        assert!((1..=64).contains(&open), "{open} wait");
        let target = listener.local_address().target().to_owned();
        dial(&transport, &target, STRIPES, &mut listener).await;
    });
}

#[test]
fn stripes_that_reach_different_processes_are_no_link() {
    run_local(async {
        let acceptor = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = acceptor.local_addr().unwrap();
        let answering = tokio::task::spawn_blocking(move || {
            // Each says that it is somebody else.
            [(); 2].map(|()| answer(&acceptor, Uuid::new_v4()))
        });
        let transport = TcpTransport::new(TcpOptions::default());
        let address = format!("tcp://{target}?stripes=2").parse().unwrap();
        let error = transport.connect(&address).await.err().expect("no link");
        assert!(violation(error).contains("different processes"));
        answering.await.unwrap();
    });
}

pub(crate) async fn poll_once(listener: &mut Box<dyn Listener>) {
    let polled = poll_fn(|cx| std::task::Poll::Ready(listener.poll_accept(cx).is_ready())).await;
    assert!(!polled, "a link, or an error");
    tokio::task::yield_now().await;
}
