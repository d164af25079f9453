//! What TLS is for: nobody on the way reads, changes, cuts or impersonates, and nobody at the door holds up
//! the others.
#![cfg(all(feature = "tls", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod peer;
mod tap;

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use blockwire::transport::{
    CloseReason, ConnectError, KeyMismatch, Link, Listener, Transport, Violation,
};
use blockwire_tcp::{SendWay, SocketPath, TcpOptions, TcpTransport};
use common::*;
use peer::exporter;
use tap::{Fate, Meddle, Tap, honest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const OTHER_KEY: &str = "another cluster key, fedcba9876543210";
const THERE: &[u8] = b"said to whoever listens";
const BACK: &[u8] = b"said to whoever dials";
const PLAIN: &str = "tcp://127.0.0.1:0";
const TLS: &str = "tcp://127.0.0.1:0?tls=key";

/// How the next connection to a listener ends.
async fn next(listener: &mut Box<dyn Listener>) -> Result<Box<dyn Link>, ConnectError> {
    poll_fn(|cx| listener.poll_accept(cx)).await
}

fn mismatch(error: &ConnectError) -> KeyMismatch {
    match error {
        ConnectError::Unauthenticated { mismatch, .. } => *mismatch,
        other => panic!("{other}"),
    }
}

/// A listener, and links to it that go through a tap.
async fn tapped(at: &str, of_dialler: Meddle, of_acceptor: Meddle) -> (Tap, Side, Side) {
    let transport = TcpTransport::new(keyed(KEY));
    let mut listener = listen(&transport, at).await;
    let tap = Tap::before(listener.local_address().target(), of_dialler, of_acceptor).await;
    let address = tap.address.parse().unwrap();
    let (dialled, accepted) = tokio::join!(transport.connect(&address), next(&mut listener));
    (tap, Side::new(dialled.unwrap()), Side::new(accepted.unwrap()))
}

/// A payload crosses, and a control frame each way.
async fn exchange(near: &mut Side, far: &mut Side) -> Vec<u8> {
    let (from, into) = (pool(32), pool(32));
    let (list, bytes, digest) = payload(&from, 500, 3);
    let landed = land(far, 0, room(&into, 500));
    stream(near, 0, list);
    near.control(&message(THERE));
    far.control(&message(BACK));
    until(&mut [near, far], |sides| {
        sides[1].completion(landed).is_some() && sides.iter().all(|side| side.received().len() == 1)
    })
    .await;
    assert_eq!(far.outcome(landed).unwrap().unwrap(), digest);
    assert!(far.landed(landed) == bytes);
    bytes
}

/// That a listener goes on.
async fn serves(transport: &TcpTransport, listener: &mut Box<dyn Listener>) {
    let dialling = transport.connect(&listener.local_address());
    let accepting = async {
        loop {
            if let Ok(link) = next(listener).await {
                return Side::new(link);
            }
        }
    };
    let (dialled, mut far) = tokio::join!(dialling, accepting);
    exchange(&mut Side::new(dialled.unwrap()), &mut far).await;
}

#[test]
fn links_are_made_over_both_families_and_told_by_a_dialable_address() {
    run(async {
        for at in [TLS, "tcp://[::1]:0?tls=key", "tcp://0.0.0.0:0?tls=key"] {
            let transport = TcpTransport::new(keyed(KEY));
            let mut listener = listen(&transport, at).await;
            let told = listener.local_address().to_string();
            assert!(told.ends_with("?tls=key") && !told.contains(":0?"), "{told}");
            let (mut near, mut far) = meet(&transport, &mut listener).await;
            assert!(near.link.authenticated_instance().is_some());
            assert!(far.link.authenticated_instance().is_some());
            exchange(&mut near, &mut far).await;
        }
    });
}

#[test]
fn without_a_cluster_key_the_address_is_refused() {
    run(async {
        let transport = TcpTransport::default();
        let address = TLS.parse().unwrap();
        let listened = transport.listen(&address).await.err().unwrap().to_string();
        let dialled = transport.connect(&"tcp://127.0.0.1:9?tls=key".parse().unwrap()).await;
        for said in [listened, dialled.err().unwrap().to_string()] {
            assert!(said.contains("tls=key") && said.contains("give both sides the same key"));
        }
    });
}

#[test]
fn keys_that_differ_are_told_to_both_sides() {
    run(async {
        let mut listener = listen(&TcpTransport::new(keyed(OTHER_KEY)), TLS).await;
        let transport = TcpTransport::new(keyed(KEY));
        let dialling = transport.connect(&listener.local_address());
        let (dialled, accepted) = tokio::join!(dialling, next(&mut listener));
        assert_eq!(mismatch(&dialled.err().unwrap()), KeyMismatch::NotAccepted);
        assert_eq!(mismatch(&accepted.err().unwrap()), KeyMismatch::Different);
    });
}

#[test]
fn a_side_with_tls_and_a_side_without_tell_each_other() {
    use KeyMismatch::{TlsOnlyHere, TlsOnlyThere};
    run(async {
        let mut key = keyed(KEY);
        // Nothing here ends by the clock.
        key.greeting_timeout = Duration::from_secs(600);
        let mut open = key.clone();
        open.cluster_key = None;
        for (dialler, acceptor, dialler_has_tls) in
            [(&key, &key, true), (&key, &key, false), (&key, &open, true), (&open, &key, false)]
        {
            let (at, query, expected) = if dialler_has_tls {
                (PLAIN, "?tls=key", (TlsOnlyHere, TlsOnlyThere))
            } else {
                (TLS, "", (TlsOnlyThere, TlsOnlyHere))
            };
            let accepting = TcpTransport::new(acceptor.clone());
            let mut listener = listen(&accepting, at).await;
            let local = listener.local_address();
            let place = local.target().split('?').next().unwrap();
            let transport = TcpTransport::new(dialler.clone());
            let address = format!("tcp://{place}{query}").parse().unwrap();
            let dialling = transport.connect(&address);
            let (dialled, accepted) = tokio::join!(dialling, next(&mut listener));
            let told = (dialled.err().unwrap(), accepted.err().unwrap());
            assert_eq!((mismatch(&told.0), mismatch(&told.1)), expected);
            assert!(told.0.to_string().contains("`?tls=key`"), "{}", told.0);
            serves(&accepting, &mut listener).await;
        }
    });
}

/// Reads what the link sends while it is polled.
async fn read_while(
    from: &mut (impl AsyncReadExt + Unpin),
    len: usize,
    link: &mut Side,
) -> Vec<u8> {
    let (mut found, mut sides) = (vec![0; len], [link]);
    tokio::select! {
        read = from.read_exact(&mut found) => drop(read.unwrap()),
        () = until(&mut sides, |_| false) => unreachable!("it is never done"),
    }
    found
}

#[test]
fn a_stranger_with_the_key_is_taken_in_its_own_session_only() {
    run(async {
        for bound in [true, false] {
            let mut listener = listen(&TcpTransport::new(keyed(KEY)), TLS).await;
            let target = listener.local_address().target().to_owned();
            let dialling = tokio::spawn(async move { peer::stranger(&target, bound).await });
            let accepted = next(&mut listener).await;
            let dialled = dialling.await.unwrap();
            if !bound {
                assert_eq!(mismatch(&accepted.err().unwrap()), KeyMismatch::Different);
                assert_eq!(dialled.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
                continue;
            }
            let (mut stranger, mut link) = (dialled.unwrap(), Side::new(accepted.unwrap()));
            // Frames have no tags: what is written is what the manual calls a frame.
            stranger.write_all(&message(b"hello")).await.unwrap();
            link.control(&message(b"and back"));
            let expected = message(b"and back");
            assert!(read_while(&mut stranger, expected.len(), &mut link).await == expected);
            until(&mut [&mut link], |sides| sides[0].received() == [message(b"hello")]).await;
        }
    });
}

#[test]
fn whoever_ends_tls_on_both_sides_is_refused_by_both() {
    run(async {
        let transport = TcpTransport::new(keyed(KEY));
        let mut listener = listen(&transport, TLS).await;
        let target = listener.local_address().target().to_owned();
        let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}?tls=key", door.local_addr().unwrap()).parse().unwrap();
        // He has sessions with both, and hands on every greeting and proof as it was said.
        let middle = tokio::spawn(async move {
            let mut near = peer::accept(door.accept().await.unwrap().0).await.unwrap();
            let mut far = peer::dial(&target).await.unwrap();
            let (mut dialler, mut acceptor) = ([0; GREETING_LEN], [0; GREETING_LEN]);
            near.read_exact(&mut dialler).await.unwrap();
            far.write_all(&dialler).await.unwrap();
            far.read_exact(&mut acceptor).await.unwrap();
            near.write_all(&acceptor).await.unwrap();
            let mut proved = [0; PROOF_LEN];
            near.read_exact(&mut proved).await.unwrap();
            far.write_all(&proved).await.unwrap();
            let answered = far.read_exact(&mut [0; PROOF_LEN]).await;
            let transcript = [dialler, acceptor].concat();
            let [here, there] = [exporter!(near), exporter!(far)];
            (proved, answered.map(drop), transcript, here, there)
        });
        let (dialled, accepted) = tokio::join!(transport.connect(&address), next(&mut listener));
        assert_eq!(mismatch(&accepted.err().unwrap()), KeyMismatch::Different);
        assert_eq!(mismatch(&dialled.err().unwrap()), KeyMismatch::NotAccepted);
        let (proved, answered, transcript, here, there) = middle.await.unwrap();
        assert!(answered.is_err(), "the acceptor proved itself to him");
        // It is the proof of the session that he has with the dialler, and of no other.
        let of_session =
            |exporter: [u8; 32]| proof(KEY, DIALLER, &[&transcript[..], &exporter].concat());
        assert!(proved == of_session(here) && proved != of_session(there));
    });
}

#[test]
fn a_tap_sees_nothing_of_what_is_said() {
    run(async {
        for (at, is_read) in [(PLAIN, true), (TLS, false)] {
            let (tap, mut near, mut far) = tapped(at, honest(), honest()).await;
            let bytes = exchange(&mut near, &mut far).await;
            assert!(tap.len() > bytes.len());
            let magics = [&b"BWIR-TCP"[..], b"BWIR\x01\0"];
            for secret in magics.into_iter().chain([&bytes[4096..4112], THERE, BACK]) {
                assert_eq!(tap.saw(secret), is_read, "{at}: {secret:?}");
            }
        }
    });
}

/// Starts a payload to the far side, and drives both until the far side ends: why, and whether it landed.
async fn interrupted(near: &mut Side, far: &mut Side) -> (CloseReason, bool) {
    let (from, into) = (pool(32), pool(32));
    let landed = land(far, 0, room(&into, 500));
    stream(near, 0, payload(&from, 500, 3).0);
    until(&mut [near, far], |sides| sides[1].closed().is_some()).await;
    until(&mut [near], |sides| sides[0].closed().is_some()).await;
    let closed = near.closed().unwrap();
    assert!(matches!(closed, CloseReason::Lost(_) | CloseReason::PeerGone), "{closed}");
    let done = far.outcome(landed).unwrap();
    let reason = far.closed().unwrap().clone();
    near.events.clear();
    far.events.clear();
    for pool in [from, into] {
        assert_eq!(pool.accounting().free, pool.accounting().total);
    }
    (reason, done.is_ok())
}

#[test]
fn no_bit_of_a_record_can_be_changed() {
    run(async {
        // Headers, bodies and tags of records are hit alike; more follows than a wrong length can ask for.
        for number in 0..48 {
            let at: usize = 8000 + number * 19_997;
            let flip: Meddle = Box::new(move |first, bytes| {
                if let Some(byte) = at.checked_sub(first).and_then(|at| bytes.get_mut(at)) {
                    *byte ^= 1 << (number % 8);
                }
                Fate::Forward
            });
            let (_tap, mut near, mut far) = tapped(TLS, flip, honest()).await;
            let (reason, landed) = interrupted(&mut near, &mut far).await;
            assert!(
                matches!(reason, CloseReason::Violated(Violation::Tls(_))) && !landed,
                "byte {at}: {reason}"
            );
        }
    });
}

#[test]
fn a_stream_that_is_cut_is_lost_and_never_at_its_end() {
    run(async {
        for at in [8000_usize, 70_001, 400_000, 900_000] {
            let cut: Meddle = Box::new(move |first, bytes| {
                let left = at.saturating_sub(first);
                if left > bytes.len() {
                    return Fate::Forward;
                }
                bytes.truncate(left);
                Fate::Cut
            });
            let (_tap, mut near, mut far) = tapped(TLS, cut, honest()).await;
            let (reason, landed) = interrupted(&mut near, &mut far).await;
            assert!(matches!(reason, CloseReason::Lost(_)) && !landed, "byte {at}: {reason}");
        }
    });
}

#[test]
fn only_a_goodbye_of_tls_is_an_end_between_two_frames() {
    run(async {
        for says_goodbye in [true, false] {
            let (mut near, mut far) = pair_at(keyed(KEY), TLS).await;
            exchange(&mut near, &mut far).await;
            near.events.clear();
            if says_goodbye {
                near.link.close();
                until(&mut [&mut near, &mut far], |sides| sides[1].closed().is_some()).await;
                assert!(matches!(far.closed(), Some(CloseReason::PeerGone)), "{:?}", far.closed());
            } else {
                drop(near);
                until(&mut [&mut far], |sides| sides[0].closed().is_some()).await;
                assert!(matches!(far.closed(), Some(CloseReason::Lost(_))), "{:?}", far.closed());
            }
        }
    });
}

#[test]
fn keys_may_be_renewed_but_not_for_ever() {
    run(async {
        let mut listener = listen(&TcpTransport::new(keyed(KEY)), TLS).await;
        let target = listener.local_address().target().to_owned();
        let dialling = tokio::spawn(async move { peer::stranger(&target, true).await });
        let mut link = Side::new(next(&mut listener).await.unwrap());
        let mut stranger = dialling.await.unwrap().unwrap();
        for number in 1..=100 {
            stranger.get_mut().1.refresh_traffic_keys().unwrap();
            stranger.write_all(&message(b"with a new key")).await.unwrap();
            until(&mut [&mut link], |sides| sides[0].received().len() == number).await;
            link.control(&message(b"with a new key too"));
            let len = message(b"with a new key too").len();
            read_while(&mut stranger, len, &mut link).await;
        }
        for _ in 0..100 {
            stranger.get_mut().1.refresh_traffic_keys().unwrap();
        }
        stranger.flush().await.unwrap();
        until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
        let closed = link.closed().unwrap();
        assert!(matches!(closed, CloseReason::Violated(Violation::Tls(_))), "{closed}");
    });
}

/// The first bytes of a dialler with TLS.
async fn client_hello() -> Vec<u8> {
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}?tls=key", door.local_addr().unwrap()).parse().unwrap();
    let transport = TcpTransport::new(keyed(KEY));
    let dialling = transport.connect(&address);
    let listening = async {
        let (mut stream, _) = door.accept().await.unwrap();
        let mut head = [0; 5];
        stream.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; u16::from_be_bytes([head[3], head[4]]).into()];
        stream.read_exact(&mut body).await.unwrap();
        [&head[..], &body].concat()
    };
    let (dialled, hello) = tokio::join!(dialling, listening);
    assert!(matches!(dialled.err().unwrap(), ConnectError::System { .. }));
    hello
}

/// Dials a listener, and says bytes.
fn say(listener: &dyn Listener, bytes: &[u8]) -> std::net::TcpStream {
    let address = listener.local_address();
    let at = address.target().split('?').next().unwrap();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

#[test]
fn whoever_stalls_inside_the_handshake_is_dropped_at_the_deadline() {
    run(async {
        let hello = client_hello().await;
        let mut options = keyed(KEY);
        options.greeting_timeout = Duration::from_millis(300);
        let transport = TcpTransport::new(options);
        let mut listener = listen(&transport, TLS).await;
        for len in [0, 1, 5, 100, hello.len() - 1, hello.len()] {
            let mut slow = say(&*listener, &hello[..len]);
            match next(&mut listener).await.err() {
                Some(ConnectError::System { source, .. }) => {
                    assert_eq!(source.kind(), io::ErrorKind::TimedOut, "after {len} bytes");
                }
                other => panic!("after {len} bytes: {other:?}"),
            }
            // Whatever it was told, it is told no more.
            slow.read_to_end(&mut Vec::new()).unwrap();
        }
        serves(&transport, &mut listener).await;
    });
}

#[test]
fn a_bent_hello_costs_nobody_else_anything() {
    run(async {
        let hello = client_hello().await;
        let mut options = keyed(KEY);
        options.greeting_timeout = Duration::from_millis(100);
        let transport = TcpTransport::new(options);
        let mut listener = listen(&transport, TLS).await;
        for at in 0..hello.len() {
            let mut bent = hello.clone();
            bent[at] ^= 1 << (at % 8);
            drop(say(&*listener, &bent));
            assert!(next(&mut listener).await.is_err(), "byte {at}");
        }
        serves(&transport, &mut listener).await;
    });
}

#[test]
fn a_crowd_amid_its_handshakes_keeps_nobody_out_and_holds_little() {
    run(async {
        let hello = client_hello().await;
        // A handshake message that claims to be as long as TLS can say, and goes on for two megabytes.
        let mut endless = [&[22, 3, 1, 0x40, 0][..], &[0; 16 << 10]].concat().repeat(128);
        endless[5..9].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
        let kinds = [hello[..150].to_vec(), hello, endless].map(Arc::new);
        let transport = TcpTransport::new(keyed(KEY));
        let mut listener = listen(&transport, TLS).await;
        serves(&transport, &mut listener).await;
        let before = resident_kib();
        let at = listener.local_address().target().split('?').next().unwrap().to_owned();
        let strangers = (0..64).map(|number| {
            let at = at.clone();
            let says = Arc::clone(&kinds[number % kinds.len()]);
            std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(at).unwrap();
                // It may be sent away before it said everything.
                let _ = stream.write_all(&says);
                stream
            })
        });
        let crowd: Vec<_> = strangers.collect();
        while !crowd.iter().all(|stranger| stranger.is_finished()) {
            poll_fn(|cx| {
                let _ = listener.poll_accept(cx);
                Poll::Ready(())
            })
            .await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let grown = resident_kib().saturating_sub(before);
        assert!(grown < 16 << 10, "{grown} KiB more for strangers who said 42 MiB");
        serves(&transport, &mut listener).await;
        crowd.into_iter().for_each(|stranger| drop(stranger.join().unwrap()));
    });
}

#[test]
fn other_ways_to_move_bytes_are_not_taken() {
    run(async {
        let sets: [fn(&mut TcpOptions); 2] = [
            |options| options.path = SocketPath::Uring,
            |options| options.send_way = SendWay::Pages,
        ];
        for set in sets {
            let mut options = keyed(KEY);
            set(&mut options);
            let (mut near, mut far) = pair_at(options, TLS).await;
            let can = near.link.capabilities();
            assert_eq!((can.stream, can.lingers), (Some(3), false));
            exchange(&mut near, &mut far).await;
        }
    });
}
