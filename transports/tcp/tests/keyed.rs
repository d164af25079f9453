//! Who has no key, or changes what a peer with a key sends, gets nothing but a closed connection.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use blockwire::endpoint::{Endpoint, EndpointOptions};
use blockwire::pool::{BlockPool, Dtype, KvSpec, PoolOptions};
use blockwire::session::Identity;
use blockwire::transport::{
    CloseReason, ConnectError, KeyMismatch, Link, Listener, Transport, Violation,
};
use blockwire_tcp::{TcpOptions, TcpTransport};
use common::*;
use tokio::task::spawn_blocking;

const OTHER_KEY: &str = "another cluster key, fedcba9876543210";

/// How the next connection to a listener ends.
async fn next(listener: &mut Box<dyn Listener>) -> Result<Box<dyn Link>, ConnectError> {
    poll_fn(|cx| listener.poll_accept(cx)).await
}

/// Dials with one kind of options a listener with another: what either side is told.
async fn told(dialler: TcpOptions, acceptor: TcpOptions) -> (ConnectError, ConnectError) {
    let mut listener = listen(&TcpTransport::new(acceptor), "tcp://127.0.0.1:0").await;
    let transport = TcpTransport::new(dialler);
    let dialling = transport.connect(&listener.local_address());
    let (dialled, accepted) = tokio::join!(dialling, next(&mut listener));
    (dialled.err().unwrap(), accepted.err().unwrap())
}

fn mismatch(error: &ConnectError) -> KeyMismatch {
    match error {
        ConnectError::Unauthenticated { mismatch, .. } => *mismatch,
        other => panic!("{other}"),
    }
}

fn violation(error: Option<ConnectError>) -> String {
    match error {
        Some(ConnectError::Violated { violation, .. }) => violation.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_are_told_how_their_keys_differ() {
    use KeyMismatch::{Different, NoneHere, NoneThere, NotAccepted};
    run(async {
        let open = TcpOptions::default;
        for (dialler, acceptor, expected) in [
            (keyed(KEY), keyed(OTHER_KEY), (NotAccepted, Different)),
            (open(), keyed(KEY), (NoneHere, NoneThere)),
            (keyed(KEY), open(), (NoneThere, NoneHere)),
        ] {
            let told = told(dialler, acceptor).await;
            assert_eq!((mismatch(&told.0), mismatch(&told.1)), expected);
            for error in [told.0, told.1].map(|error| error.to_string()) {
                assert!(error.starts_with("tcp://127.0.0.1:") && error.contains("same key"));
                assert!(![KEY, OTHER_KEY].iter().any(|key| error.contains(key)), "{error}");
            }
        }
    });
}

#[test]
fn a_key_is_in_no_debug_output() {
    let transport = format!("{:?}", TcpTransport::new(keyed(KEY)));
    assert!(transport.contains("ClusterKey") && !transport.contains("0123"), "{transport}");
    run(async {
        let (a, _b) = pair_at(keyed(KEY), "tcp://127.0.0.1:0").await;
        assert!(a.link.authenticated_instance().is_some());
        let (a, _b) = pair().await;
        assert!(a.link.authenticated_instance().is_none());
    });
}

#[test]
fn what_is_no_greeting_is_refused_at_once() {
    run(async {
        let mut listener = listen(&TcpTransport::default(), "tcp://127.0.0.1:0").await;
        let target = listener.local_address().target().to_owned();
        let mut greetings = vec![(b"GET / HTTP/1.1\r\n".to_vec(), "not a Blockwire peer")];
        for (at, wanted) in [(8, "version"), (10, "flags"), (12, "stripe"), (15, "stripe")] {
            let mut bytes = greeting(false);
            bytes[at] ^= 2;
            greetings.push((bytes.to_vec(), wanted));
        }
        for (bytes, wanted) in greetings {
            let mut stream = TcpStream::connect(&target).unwrap();
            stream.write_all(&bytes).unwrap();
            let found = violation(next(&mut listener).await.err());
            assert!(found.contains(wanted), "{found}");
        }
    });
}

#[test]
fn a_recorded_greeting_and_proof_are_worthless() {
    run(async {
        let mut listener = listen(&TcpTransport::new(keyed(KEY)), "tcp://127.0.0.1:0").await;
        let target = listener.local_address().target().to_owned();
        let dialling = spawn_blocking(move || Stranger::dial(&target, KEY).unwrap());
        let _link = next(&mut listener).await.unwrap();
        let recorded = dialling.await.unwrap().sent;
        let mut stream = TcpStream::connect(listener.local_address().target()).unwrap();
        stream.write_all(&recorded).unwrap();
        let refused = next(&mut listener).await.err().unwrap();
        assert_eq!(mismatch(&refused), KeyMismatch::Different);
        // Nothing was proved to whoever replayed it.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), GREETING_LEN);
    });
}

/// Dials a fake acceptor with a key, and says what the dialler is told.
async fn dial_fake(talk: impl FnOnce(&mut TcpStream) + Send + 'static) -> ConnectError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let accepting = spawn_blocking(move || Stranger::accept(&listener, talk));
    let refused = TcpTransport::new(keyed(KEY)).connect(&address).await.err().unwrap();
    accepting.await.unwrap();
    refused
}

#[test]
fn a_reflected_proof_proves_nothing() {
    run(async {
        let refused = dial_fake(|stream| {
            let mut back = [0; GREETING_LEN];
            stream.read_exact(&mut back).unwrap();
            stream.write_all(&back).unwrap();
            let mut back = [0; PROOF_LEN];
            stream.read_exact(&mut back).unwrap();
            stream.write_all(&back).unwrap();
        });
        assert_eq!(mismatch(&refused.await), KeyMismatch::Different);
    });
}

#[test]
fn a_proof_is_bound_to_every_byte_of_both_greetings() {
    run(async {
        for at in 0..2 * GREETING_LEN {
            let mut listener = listen(&TcpTransport::new(keyed(KEY)), "tcp://127.0.0.1:0").await;
            let target = listener.local_address().target().to_owned();
            let dialling = spawn_blocking(move || {
                let mut stream = TcpStream::connect(target).unwrap();
                let (ours, mut theirs) = (greeting(true), [0; GREETING_LEN]);
                stream.write_all(&ours).unwrap();
                stream.read_exact(&mut theirs).unwrap();
                let mut transcript = [ours, theirs].concat();
                transcript[at] ^= 1;
                stream.write_all(&proof(KEY, DIALLER, &transcript)).unwrap();
                stream.read_to_end(&mut Vec::new()).unwrap()
            });
            let refused = next(&mut listener).await.err().unwrap();
            assert_eq!(mismatch(&refused), KeyMismatch::Different, "byte {at}");
            assert_eq!(dialling.await.unwrap(), 0);
        }
    });
}

#[test]
fn an_answer_about_another_link_is_refused() {
    run(async {
        let refused = dial_fake(|stream| {
            stream.read_exact(&mut [0; GREETING_LEN]).unwrap();
            stream.write_all(&greeting(true)).unwrap();
        });
        assert!(violation(Some(refused.await)).contains("another link"));
    });
}

/// A pool whose token is 64 bytes.
fn small_pool() -> BlockPool {
    BlockPool::new(PoolOptions::new(KvSpec::uniform(16, 1, 1, 16, Dtype::F16), 2)).unwrap()
}

/// Sends bytes to a link that expects a payload, then nothing more: how the link ends, and what it took.
async fn ends(make: impl FnOnce(&Stranger) -> Vec<u8>) -> (CloseReason, usize, bool) {
    let (mut stranger, mut link) = known().await;
    let pool = small_pool();
    let landing = land(&mut link, 1, room(&pool, 1));
    let bytes = make(&stranger);
    stranger.stream.write_all(&bytes).unwrap();
    stranger.stream.shutdown(Shutdown::Write).unwrap();
    until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
    let landed = link.outcome(landing).unwrap().is_ok();
    (link.closed().unwrap().clone(), link.received().len(), landed)
}

fn is_seal(reason: &CloseReason, number: u64) -> bool {
    matches!(reason, CloseReason::Violated(Violation::Seal { frame }) if *frame == number)
}

#[test]
fn sealed_frames_are_taken() {
    run(async {
        let (reason, frames, landed) = ends(|stranger| {
            let key = &stranger.own_key;
            let frames =
                [message(b"a").to_vec(), payload_frame(1, 0, &[7; 64]), message(b"b").to_vec()];
            (0..).zip(&frames).flat_map(|(number, frame)| sealed(key, number, frame)).collect()
        })
        .await;
        assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
        assert_eq!((frames, landed), (2, true));
    });
}

#[test]
fn no_bit_of_a_sealed_frame_can_be_changed() {
    run(async {
        for frame in [message(b"abc").to_vec(), payload_frame(1, 0, &[7; 64])] {
            for at in 0..frame.len() + TAG_LEN {
                let (reason, frames, landed) = ends(|stranger| {
                    let mut bytes = sealed(&stranger.own_key, 0, &frame);
                    bytes[at] ^= 1 << (at % 8);
                    bytes
                })
                .await;
                // A frame that claims to be longer is waited for, until the peer ends.
                let ended = matches!(reason, CloseReason::Violated(_) | CloseReason::Lost(_));
                assert!(ended && frames == 0 && !landed, "byte {at}: {reason}");
            }
        }
    });
}

#[test]
fn no_sealed_frame_can_be_cut_replayed_moved_left_out_or_sent_back() {
    run(async {
        let frame = |body: &[u8]| message(body).to_vec();
        let (first, second) = (frame(b"first"), frame(b"second"));
        let whole = first.len() + TAG_LEN;
        for cut in [1, 63, 64, whole - TAG_LEN, whole - 1] {
            let (reason, frames, _) =
                ends(|stranger| sealed(&stranger.own_key, 0, &first)[..cut].to_vec()).await;
            assert!(matches!(reason, CloseReason::Lost(_)) && frames == 0, "{cut}: {reason}");
        }
        let pair = |key: &[u8; 32], numbers: [u64; 2]| {
            [sealed(key, numbers[0], &first), sealed(key, numbers[1], &second)].concat()
        };
        for (numbers, wrong, taken) in [([0, 0], 1, 1), ([1, 0], 0, 0), ([0, 2], 1, 1)] {
            let (reason, frames, _) = ends(|stranger| pair(&stranger.own_key, numbers)).await;
            assert!(is_seal(&reason, wrong) && frames == taken, "{numbers:?}: {reason}");
        }
        let twice = ends(|stranger| sealed(&stranger.own_key, 0, &first).repeat(2)).await;
        assert!(is_seal(&twice.0, 1) && twice.1 == 1, "{}", twice.0);
        let reflected = ends(|stranger| sealed(&stranger.their_key, 0, &first)).await;
        assert!(is_seal(&reflected.0, 0) && reflected.1 == 0, "{}", reflected.0);
        let (other, _link) = known().await;
        let foreign = ends(|_| sealed(&other.own_key, 0, &first)).await;
        assert!(is_seal(&foreign.0, 0) && foreign.1 == 0, "{}", foreign.0);
        let bare = ends(|_| [&first[..], &second].concat()).await;
        assert!(is_seal(&bare.0, 0) && bare.1 == 0, "{}", bare.0);
    });
}

#[test]
fn payload_counts_only_with_its_tag() {
    run(async {
        let (mut stranger, mut link) = known().await;
        let pool = small_pool();
        let landing = land(&mut link, 1, room(&pool, 1));
        let bytes = sealed(&stranger.own_key, 0, &payload_frame(1, 0, &[7; 64]));
        let (before, tag) = bytes.split_at(bytes.len() - 1);
        stranger.stream.write_all(before).unwrap();
        until(&mut [&mut link], |sides| sides[0].link.stats().landed() == 64).await;
        assert!(link.completion(landing).is_none());
        stranger.stream.write_all(tag).unwrap();
        until(&mut [&mut link], |sides| sides[0].completion(landing).is_some()).await;
        assert!(link.outcome(landing).unwrap().is_ok());
        // The same for a payload that is cancelled on its way.
        let landing = land(&mut link, 2, room(&pool, 1));
        let bytes = sealed(&stranger.own_key, 1, &payload_frame(2, 0, &[8; 64]));
        stranger.stream.write_all(&bytes[..100]).unwrap();
        until(&mut [&mut link], |sides| sides[0].link.stats().landed() > 64).await;
        link.link.cancel(landing);
        stranger.stream.write_all(&bytes[100..]).unwrap();
        stranger.frames = 2;
        stranger.frame(&message(b"after"));
        until(&mut [&mut link], |sides| sides[0].received().len() == 1).await;
    });
}

#[test]
fn frames_of_a_link_are_sealed_as_the_manual_says() {
    run(async {
        let (mut stranger, mut link) = known().await;
        let from = pool(4);
        let (list, bytes, _) = payload(&from, 3, 1);
        let cancelled = link.control(&message(b"never sent"));
        link.control(&message(b"control"));
        stream(&mut link, 9, list);
        link.link.cancel(cancelled);
        let mut expected = sealed(&stranger.their_key, 0, &message(b"control"));
        expected.extend(sealed(&stranger.their_key, 1, &payload_frame(9, 0, &bytes)));
        let len = expected.len();
        let reading = spawn_blocking(move || {
            let mut found = vec![0; len];
            stranger.stream.read_exact(&mut found).unwrap();
            found
        });
        until(&mut [&mut link], |sides| sides[0].events.len() >= 3).await;
        assert!(poll_until(&mut link, reading).await == expected);
    });
}

#[test]
fn frames_behind_a_cancelled_one_are_numbered_anew() {
    run(async {
        let mut options = keyed(KEY);
        options.send_buffer_len = Some(4096);
        let (mut a, mut b) = pair_at(options, "tcp://127.0.0.1:0").await;
        let frames = [message(&vec![1; 8 << 20]), message(b"cancelled"), message(b"sent")];
        let ops = frames.clone().map(|frame| a.control(&frame));
        // All three are planned, and the first fills the socket.
        poll_fn(|cx| {
            let _ = a.link.poll_progress(cx, &mut a.events);
            Poll::Ready(())
        })
        .await;
        a.link.cancel(ops[1]);
        until(&mut [&mut a, &mut b], |sides| {
            sides[1].received().len() == 2 || sides[1].closed().is_some()
        })
        .await;
        assert!(b.received() == [frames[0].clone(), frames[2].clone()], "{:?}", b.closed());
    });
}

/// Polls the link while a thread reads what it sends.
async fn poll_until(link: &mut Side, reading: tokio::task::JoinHandle<Vec<u8>>) -> Vec<u8> {
    let mut link = [link];
    tokio::select! {
        found = reading => found.unwrap(),
        () = until(&mut link, |_| false) => unreachable!("it is never done"),
    }
}

#[test]
fn a_slow_greeting_ends_by_itself_and_holds_up_nobody() {
    run(async {
        let mut options = keyed(KEY);
        options.greeting_timeout = Duration::from_millis(300);
        let transport = TcpTransport::new(options);
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        let mut slow = TcpStream::connect(listener.local_address().target()).unwrap();
        slow.write_all(&greeting(true)[..79]).unwrap();
        let (mut near, mut far) = meet(&transport, &mut listener).await;
        near.control(&message(b"not held up"));
        until(&mut [&mut near, &mut far], |sides| !sides[1].received().is_empty()).await;
        match next(&mut listener).await.err() {
            Some(ConnectError::System { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::TimedOut);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(slow.read_to_end(&mut Vec::new()).unwrap(), 0);
    });
}

#[test]
fn a_huge_length_is_not_allocated_for() {
    run(async {
        let (mut stranger, mut link) = known().await;
        let mut header = message(b"").to_vec();
        header[8..12].copy_from_slice(&(16_u32 << 20).to_le_bytes());
        let before = resident_kib();
        stranger.stream.write_all(&header).unwrap();
        stranger.stream.write_all(&[0; 1000]).unwrap();
        stranger.stream.shutdown(Shutdown::Write).unwrap();
        until(&mut [&mut link], |sides| sides[0].closed().is_some()).await;
        assert!(resident_kib() < before + (8 << 10), "memory follows a length");
        assert!(link.received().is_empty());
    });
}

#[test]
fn other_addresses_than_the_loopback_can_be_ruled_out() {
    run(async {
        let mut options = TcpOptions::default();
        options.loopback_only = true;
        let transport = TcpTransport::new(options);
        let outside = transport.connect(&"tcp://192.0.2.1:9".parse().unwrap()).await.err();
        assert!(outside.unwrap().to_string().contains("192.0.2.1:9 is no loopback address"));
        for at in ["tcp://0.0.0.0:0", "tcp://[::]:0"] {
            let refused = transport.listen(&at.parse().unwrap()).await.err().unwrap();
            assert!(refused.to_string().contains("no loopback address"), "{refused}");
        }
        let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
        meet(&transport, &mut listener).await;
    });
}

#[test]
fn a_hello_of_another_process_than_the_one_with_the_proof_is_refused() {
    let endpoint = |options: TcpOptions, identity: Identity| {
        let transport: Arc<dyn Transport> = Arc::new(TcpTransport::new(options));
        Endpoint::start(EndpointOptions::new(identity, None, vec![transport])).unwrap()
    };
    run(async {
        let honest = Identity::new("honest");
        let mut options = keyed(KEY);
        options.instance = honest.instance;
        let server = endpoint(options, honest);
        let mut listening = server.listen(&"tcp://127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listening.local_address().clone();
        let liar = Identity::new("liar");
        let mut options = keyed(KEY);
        let client = endpoint(options.clone(), liar.clone());
        // Its own side may be content before the other one refuses.
        let refused = match client.connect(&address).await {
            Ok((connection, _events)) => connection.closed().await.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(refused.contains("was authenticated"), "{refused}");
        options.instance = liar.instance;
        let client = endpoint(options, liar);
        client.connect(&address).await.unwrap();
        assert_eq!(listening.accept().await.unwrap().0.peer().name, "liar");
    });
}
