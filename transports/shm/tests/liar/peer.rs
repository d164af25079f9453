//! The liar: the wire by hand, and every way to get it wrong.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use blockwire::pool::{Digest, Layout, PoolShape, REGION_ALIGN};
use blockwire::session::HandoffKey;
use blockwire::wire::{Header, Kind, body, encode_frame};
use blockwire_conformance::script::Script;
use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::task::yield_now;
use uuid::Uuid;

use super::host::{OFFERS, offered_key, offered_tokens, settle, spec};
use super::memory::Memory;

/// The smallest ring, so that everything wraps and waits.
pub const SMALL_RING: usize = 4096;
const RINGS: usize = 16384;
const HALF_LEN: usize = RINGS + 2 * SMALL_RING;
const TAIL: usize = 0;
const HEAD: usize = 128;
/// Distance from the control ring's words to the payload ring's.
const PAYLOAD_WORDS: usize = 512;
/// Where control frames begin.
const LINE: usize = 64;
/// Blocks of the liar's pool.
const BLOCKS: u32 = 8;
/// Leases that are in force from the start.
const LEASES: u32 = 8;
/// Bytes that wait for space in the ring.
const QUEUE_MAX: usize = 64 * 1024;

/// One connection of a peer that lies.
pub struct Liar {
    stream: Option<UnixStream>,
    half: Memory,
    /// The honest side's half, to know what it has read and written.
    theirs: Option<Mmap>,
    region: Memory,
    /// What every byte of the pool was filled with last.
    filled: u8,
    /// Whether the hello named the pool.
    reachable: bool,
    tail: u64,
    payload_tail: u64,
    queue: Vec<u8>,
    /// Own offers so far.
    offers: u32,
    /// The honest side's offer to be adopted next.
    adopted: u32,
}

/// A liar that is dialled.
pub struct Place(UnixListener);

impl Place {
    pub async fn accept(self, script: &mut Script<'_>) -> Liar {
        for _ in 0..100 {
            yield_now().await;
            if let Ok((stream, _)) = self.0.accept() {
                return Liar::meet(stream, script).await;
            }
        }
        panic!("nobody dials");
    }
}

impl Liar {
    pub fn listen(place: &Path) -> Place {
        let listener = UnixListener::bind(place).unwrap();
        listener.set_nonblocking(true).unwrap();
        Place(listener)
    }

    pub async fn dial(place: &Path, script: &mut Script<'_>) -> Self {
        Self::meet(UnixStream::connect(place).unwrap(), script).await
    }

    async fn meet(stream: UnixStream, script: &mut Script<'_>) -> Self {
        stream.set_nonblocking(true).unwrap();
        let (odd, how) = (script.rarely(12), script.byte());
        let half = if odd { Memory::odd(HALF_LEN, how) } else { Memory::good(HALF_LEN) };
        let shape = PoolShape::new(spec(), Layout::BlockMajor, BLOCKS as usize).unwrap();
        let mut liar = Self {
            stream: Some(stream),
            half,
            theirs: None,
            region: Memory::good(shape.region_len()),
            filled: 0,
            reachable: how & 7 != 7,
            tail: 0,
            payload_tail: 0,
            queue: vec![],
            offers: 0,
            adopted: 0,
        };
        for slot in 0..LEASES {
            liar.set_lease(slot, 1);
        }
        liar.greet(odd, script);
        for _ in 0..60 {
            yield_now().await;
            if liar.receive_greeting() {
                break;
            }
        }
        if how & 0xF0 != 0 {
            liar.announce(0, liar.region.len() as u64, None);
            let hello = liar.hello();
            liar.frame(Kind::Hello, HandoffKey { request: Uuid::nil(), epoch: 0 }, &hello);
        }
        liar
    }

    fn greet(&mut self, odd: bool, script: &mut Script<'_>) {
        let ring = SMALL_RING as u64;
        let mut greeting = [0; 32];
        greeting[..8].copy_from_slice(b"BWIR-SHM");
        greeting[8] = 3;
        greeting[16..24].copy_from_slice(&ring.to_le_bytes());
        greeting[24..].copy_from_slice(&ring.to_le_bytes());
        let mut len = greeting.len();
        if odd {
            match script.byte() % 4 {
                0 => greeting[script.byte() as usize % 32] ^= script.byte(),
                1 => greeting[16..24].copy_from_slice(&script.number(&[ring]).to_le_bytes()),
                2 => greeting[24..].copy_from_slice(&script.number(&[ring]).to_le_bytes()),
                _ => len = script.byte() as usize % 32,
            }
        }
        let count = if odd { script.byte() as usize % 4 } else { 1 };
        let file = self.half.file.try_clone().unwrap();
        self.send(&greeting[..len], &vec![file.as_fd(); count]);
    }

    /// Takes the honest side's greeting. True when there is nothing to wait for.
    fn receive_greeting(&mut self) -> bool {
        let Some(stream) = &self.stream else { return true };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 32];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(stream, parts, &mut control, flags) {
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(_) => return true,
            Ok(_) => {}
        }
        let descriptor = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        // SAFETY: the honest side's half is sealed, and read on this thread, which also writes it.
        let map = |file: OwnedFd| unsafe { MmapOptions::new().len(HALF_LEN).map(&file) };
        self.theirs = descriptor.and_then(|file| map(file).ok());
        true
    }

    /// Does what the script says next. False once the connection is over.
    pub async fn act(&mut self, script: &mut Script<'_>) -> bool {
        match script.byte() % 36 {
            0 => self.scribble_word(script),
            1 => {
                let at = RINGS + script.number(&[0, self.tail, 4096]) as usize % (2 * SMALL_RING);
                let len = script.byte() as usize;
                self.half.write(at, script.take(len));
            }
            2 if script.rarely(4) => {
                let len = script.byte() as usize;
                self.queue.extend_from_slice(script.take(len));
            }
            3 if script.rarely(4) => self.payload(script),
            4 if script.rarely(3) => self.odd_hello(script),
            5 | 6 => self.rts(script),
            7 if script.rarely(3) => self.rtr(script),
            8 => self.key_frame(Kind::Release, script),
            9 => {
                let digest = script.number(&[Digest::default().value(), self.digest(4)]);
                let key = self.key(script);
                self.frame(Kind::Atp, key, &body::Atp { digest, closing: Bytes::new() });
            }
            10 if script.rarely(4) => self.key_frame(Kind::Ats, script),
            11 => {
                let code = i32::from(script.byte());
                let decline = body::Decline { code, reason: "a lie".into() };
                let key = self.key(script);
                self.frame(Kind::Decline, key, &decline);
            }
            12 => self.key_frame(Kind::Withdraw, script),
            13 => self.key_frame(Kind::Release, script),
            14 => self.key_frame(Kind::Recall, script),
            15 => self.other_frame(script),
            16 if script.rarely(3) => self.odd_region(script),
            17 => self.flood(usize::from(script.byte()) * 64),
            18 if script.rarely(4) => {
                let len = script.byte() as usize % 32;
                self.send(script.take(len), &[]);
            }
            19 if script.rarely(4) => {
                let file = self.region.file.try_clone().unwrap();
                self.send(&[1], &vec![file.as_fd(); 1 + script.byte() as usize % 3]);
            }
            20 if script.rarely(6) => self.leave(script),
            21 => self.disturb(),
            22 => self.change_pool(script),
            23 => self.partial_frame(script).await,
            24 | 25 => self.adopt(script).await,
            26 | 27 => self.offer(script).await,
            28..=30 => self.drain(),
            _ => {
                for _ in 0..script.byte() % 16 {
                    yield_now().await;
                }
            }
        }
        self.pump();
        yield_now().await;
        self.stream.is_some()
    }

    /// Says nothing until the other side has had enough.
    pub async fn wait_for_the_end(&mut self) {
        while self.stream.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            self.drain();
        }
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let Some(stream) = &self.stream else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // It fails where the socket is full, or the other side was faster.
        let _ = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags);
    }

    fn flood(&self, doorbells: usize) {
        if let Some(mut stream) = self.stream.as_ref() {
            let _ = stream.write(&vec![1; doorbells]);
        }
    }

    /// A word of the honest side.
    fn look(&self, word: usize) -> u64 {
        let bytes = self.theirs.as_ref().map_or(&[0; 8][..], |map| &map[word..word + 8]);
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }

    fn set(&mut self, word: usize, value: u64) {
        self.half.write(word, &value.to_ne_bytes());
    }

    /// Takes all that the honest side wrote, unread.
    fn drain(&mut self) {
        self.set(HEAD, self.look(TAIL));
        self.set(PAYLOAD_WORDS + HEAD, self.look(PAYLOAD_WORDS + TAIL));
        let mut bytes = [0; 4096];
        while let Some(mut stream) = self.stream.as_ref() {
            match stream.read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                _ => self.stream = None,
            }
        }
        self.flood(1);
    }

    /// Moves what waits into the control ring, and rings.
    fn pump(&mut self) {
        self.queue.truncate(QUEUE_MAX);
        let used = self.tail.wrapping_sub(self.look(HEAD)) as usize;
        // A line stays free for the mark behind the last frame, which says that there is none.
        let len = (SMALL_RING - LINE).saturating_sub(used).min(self.queue.len());
        let bytes: Vec<u8> = self.queue.drain(..len).collect();
        self.tail = self.put(RINGS, self.tail, &bytes);
        if len > 0 {
            self.put(RINGS, self.tail, &[0; 8]);
            self.set(TAIL, self.tail);
            self.flood(1);
        }
    }

    /// Writes into a ring at a position, and gives the position behind it.
    fn put(&mut self, ring: usize, at: u64, bytes: &[u8]) -> u64 {
        for (index, byte) in bytes.iter().enumerate() {
            let position = at.wrapping_add(index as u64) as usize % SMALL_RING;
            self.half.write(ring + position, &[*byte]);
        }
        at.wrapping_add(bytes.len() as u64)
    }

    fn scribble_word(&mut self, script: &mut Script<'_>) {
        let words = if script.rarely(2) { 0 } else { PAYLOAD_WORDS };
        // Flags may say anything; an index that lies ends the link, so it lies less often.
        let word = match script.byte() % 16 {
            0 | 1 => TAIL,
            2 | 3 => HEAD,
            4..=9 => 256,
            _ => 384,
        };
        let known = [self.tail, self.payload_tail, self.look(TAIL), self.look(HEAD), 4096];
        let value = script.number(&known);
        self.set(words + word, value);
        self.flood(1);
    }

    fn frame(&mut self, kind: Kind, key: HandoffKey, body: &impl Body) {
        let header = Header::control(kind, key.request, key.epoch);
        self.queue.extend_from_slice(&body.encode(header));
        self.end_frame();
        self.pump();
    }

    /// The next frame begins on a line.
    fn end_frame(&mut self) {
        let len = self.queue.len() + (self.tail as usize % LINE);
        self.queue.resize(self.queue.len() + len.next_multiple_of(LINE) - len, 0);
    }

    fn key_frame(&mut self, kind: Kind, script: &mut Script<'_>) {
        let key = self.key(script);
        self.frame(kind, key, &body::Ats {});
    }

    /// A handoff of the honest side, one of this side, or none that anybody knows.
    fn key(&self, script: &mut Script<'_>) -> HandoffKey {
        match script.byte() {
            number @ 0..=127 => offered_key(u32::from(number) % OFFERS),
            number @ 128..=239 => own_key(self.offers.saturating_sub(u32::from(number) % 4)),
            number => {
                let request = Uuid::from_u128(script.number(&[1, 1000]).into());
                HandoffKey { request, epoch: u32::from(number % 3) }
            }
        }
    }

    fn hello(&self) -> body::Hello {
        let segment = |part: body::Part| body::Segment {
            part: part.into(),
            heads: 1,
            head_dim: 16,
            dtype: body::Dtype::F16.into(),
        };
        let segments = vec![segment(body::Part::Key), segment(body::Part::Value)];
        let layers = vec![body::LayerRun { count: 2, segments }];
        let layout = body::PoolLayout::BlockMajor.into();
        let pool = body::PoolAccess { region_key: 0, layout, blocks: BLOCKS };
        body::Hello {
            version_min: 3,
            version_max: 3,
            instance: vec![7; 16].into(),
            name: "liar".into(),
            geometry: Some(body::Geometry { block_tokens: 4, layers }),
            pool: self.reachable.then_some(pool),
            ..body::Hello::default()
        }
    }

    fn odd_hello(&mut self, script: &mut Script<'_>) {
        let mut hello = self.hello();
        let value = script.number(&[u64::from(BLOCKS), 4, 16, 2]) as u32;
        let geometry = hello.geometry.as_mut().unwrap();
        let mut pool = hello.pool.unwrap_or_default();
        match script.byte() % 10 {
            0 => geometry.block_tokens = value,
            1 => geometry.layers[0].count = value,
            2 => geometry.layers[0].segments[0].heads = value,
            3 => geometry.layers[0].segments[1].head_dim = value,
            4 => pool.blocks = value,
            5 => pool.region_key = value,
            6 => pool.layout = value as i32,
            7 => hello.version_max = value,
            8 => hello.instance = script.take(value as usize % 64).to_vec().into(),
            _ => hello.name = "x".repeat(value as usize % 4000),
        }
        hello.pool = Some(pool);
        self.frame(Kind::Hello, HandoffKey { request: Uuid::nil(), epoch: 0 }, &hello);
    }

    fn rts(&mut self, script: &mut Script<'_>) {
        let tokens = if script.rarely(4) {
            script.number(&[8, 1 << 31, 1 << 32])
        } else {
            u64::from(script.byte() % 20)
        };
        let block_tokens = if script.rarely(6) { script.number(&[4, 3, 8]) as u32 } else { 4 };
        let mut count = tokens.min(64).div_ceil(4) as usize;
        if script.rarely(6) {
            count = script.byte() as usize;
        }
        let mut blocks: Vec<u32> = (0..count).map(|_| u32::from(script.byte()) % BLOCKS).collect();
        if script.rarely(6)
            && let Some(first) = blocks.first_mut()
        {
            *first = script.number(&[u64::from(BLOCKS)]) as u32;
        }
        let (slot, generation) = (u32::from(script.byte()) % LEASES, 1);
        let lease = match script.byte() % 8 {
            0 => None,
            1 => Some(body::Lease {
                slot: script.number(&[2047, 2048]) as u32,
                generation: script.number(&[1, 2]),
            }),
            _ => Some(body::Lease { slot, generation }),
        };
        let meta = vec![script.byte()].into();
        let key = if script.rarely(6) { self.key(script) } else { self.next_key() };
        let mut blocks = block_ids(blocks);
        if script.rarely(6) {
            blocks.truncate(blocks.len().saturating_sub(1));
        }
        let rts = body::Rts { tokens, block_tokens, meta, blocks, lease, ..body::Rts::default() };
        self.frame(Kind::Rts, key, &rts);
    }

    fn next_key(&mut self) -> HandoffKey {
        self.offers += 1;
        own_key(self.offers)
    }

    fn rtr(&mut self, script: &mut Script<'_>) {
        let number = u32::from(script.byte()) % OFFERS;
        let tokens = offered_tokens(number) as u64;
        let needed_from =
            if script.rarely(6) { script.number(&[tokens, 4, 8]) } else { tokens / 4 * 4 };
        let tag = if script.rarely(3) { script.number(&[1, 2, 3]) } else { 0 };
        let adopts = script.rarely(2);
        let key = if script.rarely(8) { self.key(script) } else { offered_key(number) };
        self.frame(Kind::Rtr, key, &body::Rtr { tag, needed_from, adopts });
    }

    fn other_frame(&mut self, script: &mut Script<'_>) {
        let key = self.key(script);
        let reason = "x".repeat(script.byte() as usize);
        match script.byte() {
            0..=7 => self.frame(Kind::Goodbye, key, &body::Goodbye { reason }),
            8..=15 => {
                let code = i32::from(script.byte());
                self.frame(Kind::Refuse, key, &body::Refuse { code, reason });
            }
            16..=99 => self.frame(Kind::Ping, key, &body::Ping { nonce: 3 }),
            100..=139 => self.frame(Kind::Pong, key, &body::Ping { nonce: 3 }),
            _ => {
                let body = vec![0; script.byte() as usize * 40].into();
                self.frame(Kind::Message, key, &body::AppMessage { kind: 1, body });
            }
        }
    }

    fn payload(&mut self, script: &mut Script<'_>) {
        let tag = script.number(&[1, 2, 3, 4]);
        let offset = if script.rarely(4) { script.number(&[512, 64]) } else { 0 };
        let len = u64::from(script.byte()) * 4;
        let lie = if script.rarely(4) { script.number(&[len, 1 << 20]) } else { len };
        self.payload_frame(tag, offset, len as usize, lie);
    }

    fn payload_frame(&mut self, tag: u64, offset: u64, len: usize, announced: u64) {
        let header = Header::payload(tag, offset, announced).encode(&[]);
        let bytes = [&header[..], &vec![self.filled; len][..]].concat();
        self.payload_tail = self.put(RINGS + SMALL_RING, self.payload_tail, &bytes);
        self.set(PAYLOAD_WORDS + TAIL, self.payload_tail);
        self.flood(1);
    }

    fn announce(&self, key: u32, len: u64, memory: Option<&Memory>) {
        let mut record = [0; 16];
        record[0] = 2;
        record[4..8].copy_from_slice(&key.to_le_bytes());
        record[8..].copy_from_slice(&len.to_le_bytes());
        self.send(&record, &[memory.unwrap_or(&self.region).file.as_fd()]);
    }

    fn odd_region(&mut self, script: &mut Script<'_>) {
        let key = script.number(&[0, 1, 2]) as u32;
        let len = script.number(&[self.region.len() as u64, 4096]);
        match script.byte() % 8 {
            // More than is faulted in at once.
            0 => {
                let memory = Memory::good(5 << 20);
                self.announce(key, memory.len() as u64, Some(&memory));
            }
            1 => {
                let disk = tempfile::tempfile().unwrap();
                self.send(&[2, 0, 0, 0, 1, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0], &[disk.as_fd()]);
            }
            2 => {
                // In two pieces, and doorbells in between are part of the record.
                let mut record = [0; 16];
                record[0] = 2;
                record[4] = key as u8;
                record[9] = 16;
                let (head, rest) = record.split_at(1 + script.byte() as usize % 15);
                self.send(head, &[self.region.file.as_fd()]);
                self.send(rest, &[]);
            }
            how => {
                let memory = Memory::odd(self.region.len(), how ^ script.byte());
                self.announce(key, len, Some(&memory));
            }
        }
    }

    fn leave(&mut self, script: &mut Script<'_>) {
        match (script.byte() % 3, &self.stream) {
            (0, Some(stream)) => drop(stream.shutdown(Shutdown::Write)),
            (1, Some(stream)) => drop(stream.shutdown(Shutdown::Read)),
            _ => self.stream = None,
        }
    }

    fn disturb(&self) {
        self.half.disturb();
        self.region.disturb();
    }

    fn change_pool(&mut self, script: &mut Script<'_>) {
        match script.byte() % 3 {
            0 => {
                self.filled = script.byte();
                let blocks = self.region.len() - REGION_ALIGN;
                let bytes = vec![self.filled; blocks];
                self.region.write(0, &bytes);
            }
            1 => {
                let slot = u32::from(script.byte()) % LEASES;
                let generation = u64::from(script.byte() % 4);
                self.set_lease(slot, generation);
            }
            _ => {
                let at = script.number(&[0, 16384]) as usize % self.region.len();
                self.region.write(at, script.take(8));
            }
        }
    }

    fn set_lease(&mut self, slot: u32, generation: u64) {
        let words = self.region.len() - REGION_ALIGN;
        self.region.write(words + slot as usize * 8, &generation.to_ne_bytes());
    }

    /// Half a frame now, the rest later, or something else instead.
    async fn partial_frame(&mut self, script: &mut Script<'_>) {
        let before = self.queue.len();
        let header = Header::control(Kind::Message, Uuid::nil(), 0);
        let message = body::AppMessage { kind: 2, body: vec![1; script.byte() as usize].into() };
        let mut frame = encode_frame(header, &message).unwrap().to_vec();
        if script.rarely(8) {
            let at = script.byte() as usize % frame.len();
            frame[at] ^= 1 << (script.byte() % 8);
        }
        // Short frames come whole: a cut one is a lie that a mark tells.
        let cut = script.byte() as usize % frame.len();
        self.queue.extend_from_slice(&frame[..cut]);
        self.pump();
        yield_now().await;
        if before == 0 {
            self.queue.extend_from_slice(&frame[cut..]);
            self.end_frame();
        }
    }

    /// Adopts an offer as it should be done, then perhaps lets go, perhaps twice.
    async fn adopt(&mut self, script: &mut Script<'_>) {
        let number = match script.byte() {
            odd @ 0..=31 => u32::from(odd) % OFFERS,
            _ => self.adopted % OFFERS,
        };
        self.adopted = number + 1;
        let (key, tokens) = (offered_key(number), offered_tokens(number) as u64);
        let needed_from = tokens / 4 * 4;
        let adopts = needed_from > 0;
        self.drain();
        self.frame(Kind::Rtr, key, &body::Rtr { tag: 0, needed_from, adopts });
        settle().await;
        self.drain();
        if !script.rarely(5) {
            self.frame(Kind::Ats, key, &body::Ats {});
        }
        settle().await;
        self.drain();
        if script.rarely(3) {
            self.frame(Kind::Release, key, &body::Release {});
        }
    }

    /// Offers as it should be done: a lease in force, the right digest, and all payload.
    async fn offer(&mut self, script: &mut Script<'_>) {
        let tokens = 1 + u64::from(script.byte() % 18);
        let how = script.byte();
        let key = self.next_key();
        let lease = body::Lease { slot: self.offers % LEASES, generation: 1 };
        let count = if self.reachable { tokens.div_ceil(4) } else { 0 };
        let blocks = block_ids(0..count as u32);
        let lease = self.reachable.then_some(lease);
        let meta = vec![how].into();
        self.drain();
        let rts =
            body::Rts { tokens, block_tokens: 4, meta, blocks, lease, ..body::Rts::default() };
        self.frame(Kind::Rts, key, &rts);
        settle().await;
        self.drain();
        let adopts = lease.is_some() && tokens >= 4 && !matches!(how % 8, 3..=5);
        let moved = if adopts { tokens % 4 } else { tokens };
        if !self.reachable {
            let tag = u64::from(script.byte() % 4);
            self.payload_frame(tag, 0, moved as usize * spec().token_bytes(), moved * 128);
        }
        self.frame(
            Kind::Atp,
            key,
            &body::Atp { digest: self.digest(moved), closing: Bytes::new() },
        );
        settle().await;
        self.drain();
        if script.rarely(3) {
            self.frame(Kind::Recall, key, &body::Recall {});
        }
    }

    /// Of so many tokens of this side's pool.
    fn digest(&self, tokens: u64) -> u64 {
        let mut digest = Digest::default();
        digest.update(&vec![self.filled; tokens as usize * spec().token_bytes()]);
        digest.value()
    }
}

fn own_key(number: u32) -> HandoffKey {
    HandoffKey { request: Uuid::from_u128(1000 + u128::from(number)), epoch: 1 + number % 2 }
}

/// A body that can be put into a frame.
trait Body {
    fn encode(&self, header: Header) -> bytes::Bytes;
}

macro_rules! bodies {
    ($($body:ident),*) => {$(
        impl Body for body::$body {
            fn encode(&self, header: Header) -> bytes::Bytes {
                encode_frame(header, self).unwrap()
            }
        }
    )*};
}

bodies!(Hello, Refuse, Rts, Rtr, Atp, Ats, Decline, Release, Recall, AppMessage, Ping, Goodbye);

fn block_ids(ids: impl IntoIterator<Item = u32>) -> Bytes {
    ids.into_iter().flat_map(u32::to_le_bytes).collect()
}
