//! Ten thousand strangers at the door: memory and sockets stay few, and who has the key gets through.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::task::Poll;

use blockwire::transport::Listener;
use blockwire_tcp::TcpTransport;
use common::*;
use socket2::{Domain, Socket, Type};

const STRANGERS: usize = 10_000;
/// Strangers that come at once.
const ROUND: usize = 400;
/// What a listener holds open at most, and what of one address.
const HALF_OPEN_MAX: usize = 256;
const OF_ONE_SOURCE_MAX: usize = 64;

/// A stranger from an address of the loopback, of which there are many.
fn stranger(from: [u8; 4], to: SocketAddr, says: &[u8]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::from(from), 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    let _ = stream.write_all(says);
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Whether the listener still has the connection.
fn is_held(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 200]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Lets the listener look at everybody who came; strangers that are refused are forgotten.
async fn settle(listener: &mut Box<dyn Listener>) {
    for _ in 0..4 * ROUND {
        poll_fn(|cx| {
            let _ = listener.poll_accept(cx);
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }
}

/// A crowd comes while a payload crosses and a new peer is let in.
async fn crowd(sources: u8, held_max: usize) {
    let transport = TcpTransport::new(keyed(KEY));
    let mut listener = listen(&transport, "tcp://0.0.0.0:0").await;
    let port = listener.local_address().target().rsplit_once(':').unwrap().1.parse().unwrap();
    let to = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port);
    let address = format!("tcp://{to}").parse().unwrap();
    let (from, into) = (pool(64), pool(64));
    let mut held: Vec<TcpStream> = Vec::new();
    let mut resident = 0;
    for round in 0..STRANGERS / ROUND {
        for number in 0..ROUND {
            let source = [127, 0, 1, (number % usize::from(sources)) as u8 + 1];
            // Some say nothing, some stop in the middle, some have no key.
            let says = [&[][..], &greeting(true)[..40], &greeting(true)[..]][number % 3].to_vec();
            held.push(stranger(source, to, &says));
        }
        settle(&mut listener).await;
        held.retain_mut(is_held);
        assert!(held.len() <= held_max, "{} of {held_max} are held", held.len());
        let (dialled, accepted) = tokio::join!(
            blockwire::transport::Transport::connect(&transport, &address),
            accept_good(&mut listener)
        );
        let (mut near, mut far) = (Side::new(dialled.unwrap()), accepted);
        let (list, bytes, digest) = payload(&from, 500, round as u8);
        let landed = land(&mut far, 0, room(&into, 500));
        stream(&mut near, 0, list);
        until(&mut [&mut near, &mut far], |sides| sides[1].completion(landed).is_some()).await;
        assert_eq!(far.outcome(landed).unwrap().unwrap(), digest);
        assert!(far.landed(landed) == bytes);
        if round == 2 {
            resident = resident_kib();
        }
    }
    assert!(held.len() > held_max / 2, "the crowd was not held, so nothing was tested");
    let grown = resident_kib().saturating_sub(resident);
    assert!(grown < 8 << 10, "{grown} KiB more after {STRANGERS} strangers");
}

/// The next link; strangers that fail meanwhile are forgotten.
async fn accept_good(listener: &mut Box<dyn Listener>) -> Side {
    loop {
        if let Ok(link) = poll_fn(|cx| listener.poll_accept(cx)).await {
            return Side::new(link);
        }
    }
}

#[test]
fn a_crowd_of_strangers_costs_little_and_keeps_nobody_out() {
    run(crowd(1, OF_ONE_SOURCE_MAX));
    run(crowd(100, HALF_OPEN_MAX));
}
