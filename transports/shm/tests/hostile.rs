//! Peers that break every rule, made by hand: their link ends, and nothing else does.
//!
//! The bytes here are written out on purpose: they are the description of the wire, a second time.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::future::poll_fn;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::time::Duration;

use blockwire::pool::{Backing, BlockPool, Extent, GatherList, PayloadOrder};
use blockwire::transport::{
    CloseReason, ConnectError, Link, LinkEvent, Listener, Op, OpError, RegionKey, StreamTag,
    Transport, Violation,
};
use blockwire::wire::Header;
use blockwire_shm::{ShmOptions, ShmTransport};
use common::{
    SMALL_RING, accept, address, bytes_of, completed, drive_one, fill, frame, pool, received, room,
    run, submit, to_the_end, transport,
};
use memmap2::MmapMut;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

const TAIL: usize = 0;
const HEAD: usize = 128;
const RING: usize = 16384;
const PAYLOAD: usize = RING + SMALL_RING;
const HALF_LEN: usize = PAYLOAD + SMALL_RING;
/// Distance from the control ring's words to the payload ring's.
const PAYLOAD_WORDS: usize = 512;

/// Memory as a peer should make it, and whether it does.
struct Memory {
    file: File,
    map: MmapMut,
}

fn memory(len: usize, backed: bool, seals: SealFlags) -> Memory {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("hostile", flags).unwrap());
    file.set_len(len as u64).unwrap();
    if backed {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64).unwrap();
    }
    // SAFETY: the test writes to it and the link only reads, by raw pointers and atomics.
    let map = unsafe { MmapMut::map_mut(&file).unwrap() };
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    Memory { file, map }
}

fn good_memory(len: usize) -> Memory {
    memory(len, true, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)
}

fn greeting(ring_len: u64) -> [u8; 32] {
    greeting_of(ring_len, SMALL_RING as u64)
}

fn greeting_of(ring_len: u64, payload_ring_len: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(b"BWIR-SHM");
    bytes[8] = 3;
    bytes[16..24].copy_from_slice(&ring_len.to_le_bytes());
    bytes[24..].copy_from_slice(&payload_ring_len.to_le_bytes());
    bytes
}

fn region(key: u32, len: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = 2;
    bytes[4..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let bytes = &[IoSlice::new(bytes)];
    rustix::net::sendmsg(stream, bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// A handmade peer behind a good greeting, and the real link to it.
struct Hostile {
    stream: UnixStream,
    memory: Memory,
}

impl Hostile {
    async fn meet(listener: &mut dyn Listener) -> (Self, Box<dyn Link>) {
        let stream = UnixStream::connect(listener.local_address().target()).unwrap();
        let memory = good_memory(HALF_LEN);
        send(&stream, &greeting(SMALL_RING as u64), &[memory.file.as_fd()]);
        let link = accept(listener).await.unwrap();
        (Self { stream, memory }, link)
    }

    fn set(&mut self, word: usize, value: u64) {
        self.memory.map[word..word + 8].copy_from_slice(&value.to_ne_bytes());
        let _ = self.stream.write_all(&[1]);
    }

    /// Puts bytes at the start of the payload ring.
    fn put_payload(&mut self, bytes: &[u8]) {
        self.memory.map[PAYLOAD..PAYLOAD + bytes.len()].copy_from_slice(bytes);
        self.set(PAYLOAD_WORDS + TAIL, bytes.len() as u64);
    }

    /// Begins a frame so long that the link has to look at the tail.
    fn put_beginning_and_tail(&mut self, tail: u64) {
        self.put(&frame(0, 10_000)[..64]);
        self.set(TAIL, tail);
    }

    /// Puts bytes at the start of the ring.
    fn put(&mut self, bytes: &[u8]) {
        self.memory.map[RING..RING + bytes.len()].copy_from_slice(bytes);
        self.set(TAIL, bytes.len() as u64);
    }
}

/// Drives a link until it sleeps over what is there.
async fn asleep(link: &mut dyn Link) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    poll_fn(|cx| match link.poll_progress(cx, &mut events) {
        Poll::Ready(()) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Poll::Pending => Poll::Ready(()),
    })
    .await;
    events
}

/// A sealed block of 16 KiB.
fn payload_of(pool: &BlockPool) -> GatherList {
    let order = PayloadOrder { block_tokens: 16 };
    let blocks: Vec<_> = fill(room(pool, 1), 3).into_iter().map(|block| block.seal()).collect();
    GatherList::new(pool, &blocks, order, 0..16).unwrap()
}

async fn proper_peers_are_served(listener: &mut dyn Listener) {
    let transport = transport(SMALL_RING);
    let dialling = transport.connect(&listener.local_address());
    let accepting = async {
        // Others may come first, and fail.
        while accept(listener).await.is_err() {}
    };
    let (dialled, ()) = tokio::join!(dialling, accepting);
    drop(dialled.unwrap());
}

#[test]
fn bad_greetings_fail_alone() {
    let good = good_memory(HALF_LEN);
    let small = good_memory(HALF_LEN - 4096);
    let unsealed = memory(HALF_LEN, true, SealFlags::empty());
    let shrinkable = memory(HALF_LEN, true, SealFlags::FUTURE_WRITE);
    let holes = memory(HALF_LEN, false, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(HALF_LEN as u64).unwrap();
    let fine = greeting(SMALL_RING as u64);
    let changed = |at: usize| {
        let mut bytes = fine;
        bytes[at] ^= 0x40;
        bytes
    };
    let good = good.file.as_fd();
    let cases: Vec<(&str, [u8; 32], Vec<BorrowedFd<'_>>)> = vec![
        ("magic", changed(7), vec![good]),
        ("version", changed(8), vec![good]),
        ("ring of no power of two", greeting(SMALL_RING as u64 + 1), vec![good]),
        ("ring of nothing", greeting(0), vec![good]),
        ("ring beyond the bound", greeting(1 << 40), vec![good]),
        ("ring beyond everything", greeting(u64::MAX), vec![good]),
        ("ring longer than the memory", greeting(2 * SMALL_RING as u64), vec![good]),
        ("payload ring of nothing", greeting_of(SMALL_RING as u64, 0), vec![good]),
        ("payload ring beyond everything", greeting_of(SMALL_RING as u64, u64::MAX), vec![good]),
        ("no descriptor", fine, vec![]),
        ("two descriptors", fine, vec![good, good]),
        ("eight descriptors", fine, vec![good; 8]),
        ("pipe", fine, vec![pipe.as_fd()]),
        ("file on a disk", fine, vec![disk.as_fd()]),
        ("too small", fine, vec![small.file.as_fd()]),
        ("unsealed", fine, vec![unsealed.file.as_fd()]),
        ("shrinkable", fine, vec![shrinkable.file.as_fd()]),
        ("holes", fine, vec![holes.file.as_fd()]),
    ];
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        for (what, bytes, descriptors) in cases {
            let stream = UnixStream::connect(listener.local_address().target()).unwrap();
            send(&stream, &bytes, &descriptors);
            match accept(listener.as_mut()).await {
                Err(ConnectError::Violated { .. }) => {}
                Err(other) => panic!("{what}: {other}"),
                Ok(_) => panic!("{what}: accepted"),
            }
            proper_peers_are_served(listener.as_mut()).await;
        }
        let stream = UnixStream::connect(listener.local_address().target()).unwrap();
        send(&stream, &fine[..10], &[]);
        drop(stream);
        let gone = accept(listener.as_mut()).await.err();
        assert!(matches!(gone, Some(ConnectError::System { .. })), "{gone:?}");
    });
}

#[test]
fn a_greeting_may_come_in_pieces() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let mut stream = UnixStream::connect(listener.local_address().target()).unwrap();
        let memory = good_memory(HALF_LEN);
        let bytes = greeting(SMALL_RING as u64);
        send(&stream, &bytes[..1], &[memory.file.as_fd()]);
        for byte in &bytes[1..] {
            assert!(futures_now(accept(listener.as_mut())).await.is_none());
            stream.write_all(&[*byte]).unwrap();
        }
        accept(listener.as_mut()).await.unwrap();
    });
}

/// What a future gives within some turns of the reactor.
async fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(2), future).await.ok()
}

#[test]
fn silent_clients_delay_nobody_and_are_dropped() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let options =
            ShmOptions { setup_limit: Duration::from_millis(300), ..ShmOptions::default() };
        let mut listener = ShmTransport::new(options).listen(&address(dir.path())).await.unwrap();
        let connect = || UnixStream::connect(listener.local_address().target()).unwrap();
        let silent: Vec<_> = (0..100).map(|_| connect()).collect();
        let late = accept(listener.as_mut()).await.err();
        proper_peers_are_served(listener.as_mut()).await;
        assert!(
            matches!(&late, Some(ConnectError::System { source, .. })
                if source.kind() == std::io::ErrorKind::TimedOut),
            "{late:?}"
        );
        drop(silent);
        proper_peers_are_served(listener.as_mut()).await;
    });
}

#[test]
fn scribbled_words_and_frames_end_the_link_as_violated() {
    type Scribble = fn(&mut Hostile);
    let cases: [(&str, Scribble); 8] = [
        ("tail beyond the ring", |h| h.put_beginning_and_tail(SMALL_RING as u64 + 65)),
        ("tail beyond everything", |h| h.put_beginning_and_tail(u64::MAX)),
        ("head beyond the tail", |h| h.set(HEAD, 4097)),
        ("head far behind", |h| h.set(HEAD, u64::MAX - (1 << 40))),
        ("no header", |h| h.put(&[0xff; 64])),
        ("a body beyond the limit", |h| {
            let mut bytes = frame(0, 0).to_vec();
            bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
            h.put(&bytes);
        }),
        ("an unknown kind", |h| {
            let mut bytes = frame(0, 0).to_vec();
            bytes[6..8].copy_from_slice(&u16::MAX.to_le_bytes());
            h.put(&bytes);
        }),
        ("payload that nobody asked for", |h| h.put(&Header::payload(7, 0, 1).encode(&[]))),
    ];
    for (what, scribble) in cases {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
            let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
            // More than the ring takes, so that the link looks at the peer's head.
            let op = submit(link.as_mut(), Op::Control(frame(0, 10_000)));
            scribble(&mut hostile);
            let (events, reason) = to_the_end(link.as_mut()).await;
            assert!(matches!(reason, CloseReason::Violated(_)), "{what}: {reason}");
            assert_eq!(completed(&events), [op], "{what}");
            let refused = link.submit(Op::Control(frame(0, 0))).unwrap_err();
            assert!(matches!(refused.error, OpError::Closed(CloseReason::Violated(_))));
            proper_peers_are_served(listener.as_mut()).await;
        });
    }
}

#[test]
fn a_lying_payload_ring_ends_the_link_as_violated() {
    type Lie = fn(&mut Hostile);
    let cases: [(&str, Lie); 10] = [
        ("tail beyond the ring", |h| h.set(PAYLOAD_WORDS + TAIL, SMALL_RING as u64 + 1)),
        ("tail beyond everything", |h| h.set(PAYLOAD_WORDS + TAIL, u64::MAX)),
        ("head beyond the tail", |h| h.set(PAYLOAD_WORDS + HEAD, SMALL_RING as u64 + 1)),
        ("head far behind", |h| h.set(PAYLOAD_WORDS + HEAD, u64::MAX - (1 << 40))),
        ("no header", |h| h.put_payload(&[0xff; 64])),
        ("a control frame", |h| h.put_payload(&frame(0, 100))),
        ("a header that changed", |h| {
            let mut bytes = Header::payload(1, 0, 100).encode(&[]);
            bytes[60] ^= 1;
            h.put_payload(&bytes);
        }),
        ("a tag that nobody gave out", |h| h.put_payload(&Header::payload(2, 0, 1).encode(&[]))),
        ("bytes of the middle", |h| h.put_payload(&Header::payload(1, 64, 1).encode(&[]))),
        ("bytes beyond the room", |h| {
            h.put_payload(&Header::payload(1, 0, 16 * 1024 + 1).encode(&[]));
        }),
    ];
    for (what, lie) in cases {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
            let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
            let mine = pool(2, Backing::Private);
            let land = Op::Land { tag: StreamTag(1), room: room(&mine, 1) };
            let land = submit(link.as_mut(), land);
            // More than the ring takes, so that the link looks at the peer's head.
            let stream = Op::Stream { tag: StreamTag(9), payload: payload_of(&mine) };
            let stream = submit(link.as_mut(), stream);
            lie(&mut hostile);
            let (events, reason) = to_the_end(link.as_mut()).await;
            assert!(matches!(reason, CloseReason::Violated(_)), "{what}: {reason}");
            let mut ended = completed(&events);
            ended.sort();
            assert_eq!(ended, [land, stream], "{what}");
            drop(events);
            assert_eq!(mine.accounting().free, 2, "{what}");
            proper_peers_are_served(listener.as_mut()).await;
        });
    }
}

#[test]
fn a_tail_that_goes_back_ends_the_link_as_violated() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
        hostile.put(&[&frame(0, 64)[..], &frame(0, 2000)[..500]].concat());
        let mut events = Vec::new();
        drive_one(link.as_mut(), &mut events, |events| received(events).len() == 1).await;
        hostile.set(TAIL, 600);
        asleep(link.as_mut()).await;
        hostile.set(TAIL, 500);
        let (_, reason) = to_the_end(link.as_mut()).await;
        assert!(matches!(reason, CloseReason::Violated(Violation::SharedMemory(_))), "{reason}");
    });
}

#[test]
fn a_payload_tail_that_goes_back_ends_the_link_as_violated() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
        let mine = pool(1, Backing::Private);
        submit(link.as_mut(), Op::Land { tag: StreamTag(1), room: room(&mine, 1) });
        hostile.put_payload(&[&Header::payload(1, 0, 500).encode(&[])[..], &[7; 100]].concat());
        // A control frame behind it, so that there is an event to wait for.
        hostile.put(&frame(0, 0));
        let mut events = Vec::new();
        drive_one(link.as_mut(), &mut events, |events| received(events).len() == 1).await;
        // Payload has its turn after the frame.
        asleep(link.as_mut()).await;
        hostile.set(PAYLOAD_WORDS + TAIL, 10);
        let (_, reason) = to_the_end(link.as_mut()).await;
        assert!(matches!(reason, CloseReason::Violated(Violation::SharedMemory(_))), "{reason}");
    });
}

/// Less than a header in the payload ring is nothing yet: the link sleeps over it.
#[test]
fn a_piece_of_a_payload_header_is_waited_for() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
        let mine = pool(1, Backing::Private);
        let land = submit(link.as_mut(), Op::Land { tag: StreamTag(1), room: room(&mine, 1) });
        let len = 2000;
        let whole = [&Header::payload(1, 0, len).encode(&[])[..], &[7; 2000]].concat();
        let mut events = Vec::new();
        for shown in [1, 63, 64, 65, 1000, whole.len()] {
            hostile.put_payload(&whole[..shown]);
            events.extend(asleep(link.as_mut()).await);
        }
        assert_eq!(link.stats().landed(), len);
        assert!(completed(&events).is_empty());
        link.cancel(land);
        drive_one(link.as_mut(), &mut events, |events| completed(events) == [land]).await;
    });
}

#[test]
fn half_a_frame_and_then_the_end_is_a_peer_that_died() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
        let whole = frame(1, 100);
        let half = frame(2, 2000).slice(..1200);
        hostile.put(&[&whole[..], &[0; 28], &half[..]].concat());
        drop(hostile);
        let (events, reason) = to_the_end(link.as_mut()).await;
        assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
        assert_eq!(received(&events), [whole]);
    });
}

#[test]
fn nonsense_on_the_socket_ends_the_link_as_violated() {
    type Nonsense = fn(&UnixStream);
    let cases: [(&str, Nonsense); 8] = [
        ("an unknown message", |s| send(s, &[9], &[])),
        ("a region without memory", |s| send(s, &region(0, 4096), &[])),
        ("memory without a region", |s| send(s, &[1], &[good_memory(4096).file.as_fd()])),
        ("a region of a pipe", |s| {
            send(s, &region(0, 4096), &[std::io::pipe().unwrap().0.as_fd()]);
        }),
        ("a region longer than its memory", |s| {
            send(s, &region(0, 8192), &[good_memory(4096).file.as_fd()]);
        }),
        ("a region of nothing", |s| send(s, &region(0, 0), &[good_memory(4096).file.as_fd()])),
        ("a region of everything", |s| {
            send(s, &region(0, u64::MAX), &[good_memory(4096).file.as_fd()]);
        }),
        ("a key that is used twice", |s| {
            send(s, &region(3, 4096), &[good_memory(4096).file.as_fd()]);
            send(s, &region(3, 4096), &[good_memory(4096).file.as_fd()]);
        }),
    ];
    for (what, nonsense) in cases {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
            let (hostile, mut link) = Hostile::meet(listener.as_mut()).await;
            nonsense(&hostile.stream);
            let (_, reason) = to_the_end(link.as_mut()).await;
            let expected = matches!(reason, CloseReason::Violated(Violation::SharedMemory(_)));
            assert!(expected, "{what}: {reason}");
            proper_peers_are_served(listener.as_mut()).await;
        });
    }
}

#[test]
fn regions_are_bounded_in_number() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let (hostile, mut link) = Hostile::meet(listener.as_mut()).await;
        let memory = good_memory(4096);
        let stream = hostile.stream.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            (0..17).for_each(|key| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let descriptors = [memory.file.as_fd()];
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
                let record = region(key, 4096);
                // Fails once the link has ended.
                let bytes = &[IoSlice::new(&record)];
                let _ = rustix::net::sendmsg(&stream, bytes, &mut control, SendFlags::NOSIGNAL);
            });
        });
        let (_, reason) = to_the_end(link.as_mut()).await;
        assert!(matches!(reason, CloseReason::Violated(_)), "{reason}");
        flood.join().unwrap();
    });
}

/// A record in pieces, in the middle of doorbells, is read; memory that changes while it is pulled
/// gives some bytes and their digest.
#[test]
fn a_region_in_pieces_is_one_and_may_change_while_it_is_pulled() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = transport(SMALL_RING).listen(&address(dir.path())).await.unwrap();
        let (mut hostile, mut link) = Hostile::meet(listener.as_mut()).await;
        let mine = pool(64, Backing::Private);
        let room = room(&mine, 64);
        let len = room.len() as usize;
        let mut theirs = good_memory(len);
        let record = region(5, len as u64);
        hostile.stream.write_all(&[1; 300]).unwrap();
        send(&hostile.stream, &record[..3], &[theirs.file.as_fd()]);
        hostile.stream.write_all(&record[3..]).unwrap();
        hostile.stream.write_all(&[1; 300]).unwrap();
        let extents = vec![Extent { offset: 0, len }];
        submit(link.as_mut(), Op::Get { region: RegionKey(5), extents, room });
        let stop = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let mut events = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u8;
                while !stop.load(relaxed) {
                    value = value.wrapping_add(1);
                    theirs.map.fill(value);
                }
            });
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            while completed(&events).is_empty() {
                let _ = link.poll_progress(&mut cx, &mut events);
            }
            stop.store(true, relaxed);
        });
        let Some(LinkEvent::Completed(done)) = events.pop() else { panic!("{events:?}") };
        let blockwire::transport::OpMemory::Room(mut room) = done.memory else { panic!() };
        let mut digest = blockwire::pool::Digest::default();
        digest.update(&bytes_of(&mut room));
        assert_eq!(done.outcome.unwrap(), digest.value());
    });
}
