//! The floor: bare sockets, gathering writes and scattering reads of the same memory, no digest. Also with
//! `MSG_ZEROCOPY`; nobody reads when the pages are free, which makes it cheaper than it can be used.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use blockwire::clock;
use blockwire::pool::{Cursor, GatherList, ScatterList};
use socket2::SockRef;

use super::Waits;
use crate::host::{self, lends_too_much};

/// Bytes of a call, as a link has them.
const PIECE_LEN: usize = 512 << 10;
const SLICES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Sender {
    stream: TcpStream,
    /// Of each call.
    flags: i32,
}

impl Sender {
    pub(super) fn connect(address: &str, waits: Waits, lends: bool) -> Self {
        let stream = TcpStream::connect(address).expect("a receiver");
        tune(&stream, waits);
        let flags = if lends { host::lend_pages(&stream).expect("Linux 4.14") } else { 0 };
        Self { stream, flags }
    }

    /// Waits until the receiver is ready, then sends; how long it took until the answer.
    pub(super) fn send(&mut self, list: &GatherList) -> Duration {
        read_all(&mut self.stream, &mut [0]);
        let start = clock::now();
        let mut cursor = Cursor::default();
        while cursor.position() < list.len() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (place, slice) in slices.iter_mut().zip(list.slices(&cursor, PIECE_LEN)) {
                *place = IoSlice::new(slice);
                count += 1;
            }
            let socket = SockRef::from(&self.stream);
            let len = again(|| socket.send_vectored_with_flags(&slices[..count], self.flags));
            cursor.advance(list.extents(), len);
        }
        read_all(&mut self.stream, &mut [0]);
        clock::now() - start
    }
}

#[derive(Debug)]
pub(super) struct Receiver {
    listener: TcpListener,
    stream: Option<TcpStream>,
    waits: Waits,
}

impl Receiver {
    pub(super) fn listen(host: &str, waits: Waits) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("a free port");
        Self { listener, stream: None, waits }
    }

    pub(super) fn address(&self) -> String {
        self.listener.local_addr().expect("a bound socket").to_string()
    }

    pub(super) fn accept(&mut self) {
        let (stream, _) = self.listener.accept().expect("a sender");
        tune(&stream, self.waits);
        self.stream = Some(stream);
    }

    pub(super) fn receive(&mut self, mut room: ScatterList) -> ScatterList {
        let stream = self.stream.as_mut().expect("a sender");
        again(|| stream.write(&[1]));
        let mut cursor = Cursor::default();
        while cursor.position() < room.len() {
            let mut slices: [IoSliceMut<'_>; SLICES_MAX] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let mut count = 0;
            for (place, slice) in slices.iter_mut().zip(room.slices(&cursor, PIECE_LEN)) {
                *place = IoSliceMut::new(slice);
                count += 1;
            }
            let len = again(|| stream.read_vectored(&mut slices[..count]));
            assert!(len > 0, "the sender is gone");
            cursor.advance(room.extents(), len);
        }
        again(|| stream.write(&[1]));
        room
    }
}

/// As a link sets its sockets.
fn tune(stream: &TcpStream, waits: Waits) {
    stream.set_nodelay(true).expect("a connected socket");
    stream.set_nonblocking(waits == Waits::Polling).expect("a socket");
    let same_host = stream.local_addr().ok().zip(stream.peer_addr().ok());
    if same_host.is_some_and(|(local, peer)| local.ip() == peer.ip()) {
        let _ = cubic(stream);
    }
}

#[cfg(target_os = "linux")]
fn cubic(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_tcp_congestion(b"cubic")
}

#[cfg(not(target_os = "linux"))]
fn cubic(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_tcp_nodelay(true)
}

fn read_all(stream: &mut TcpStream, bytes: &mut [u8]) {
    let len = again(|| stream.read(bytes));
    assert_eq!(len, bytes.len(), "the other end is gone");
}

fn again(mut call: impl FnMut() -> io::Result<usize>) -> usize {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || lends_too_much(&error) => {}
            done => return done.expect("the other end"),
        }
    }
}
