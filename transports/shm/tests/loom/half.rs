//! What `half.rs` gives to the ring, made of loom's memory: every order of the accesses that the
//! language allows is tried, and an access to bytes that races is a panic.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;

/// Bytes of a line: a mark and one word.
pub const LINE: usize = 16;
/// Bytes of a mark.
pub const MARK_LEN: usize = 8;
/// Bytes of the ring: few lines, so that few messages fill it and wrap.
pub const RING_LEN: usize = 3 * LINE;

/// What is left out of the protocol. Loom has to see each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// SYNC-3 without its fences.
    NoDekker,
    /// One of SYNC-1, SYNC-2 and SYNC-4 without its acquire side.
    NoAcquire(Pair),
    /// One of SYNC-1, SYNC-2 and SYNC-4 without its release side.
    NoRelease(Pair),
    /// The mark behind a frame stays what it was.
    NoClear,
}

/// What is released by one side and acquired by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// SYNC-1
    Tail,
    /// SYNC-2
    Head,
    /// SYNC-4
    Mark,
}

thread_local! {
    /// Loom runs all threads of a model on one thread of the system.
    static MUTANT: Cell<Mutant> = const { Cell::new(Mutant::None) };
    /// Whether somebody may sleep, and fences are needed.
    static SLEEPY: Cell<bool> = const { Cell::new(true) };
    /// What was loaded last, and so what an acquiring fence is for: loom changes threads at its own
    /// calls alone, and there is none between the two.
    static LOADED: Cell<Option<Pair>> = const { Cell::new(None) };
}

pub fn set_mutant(mutant: Mutant) {
    MUTANT.set(mutant);
    SLEEPY.set(true);
}

/// Leaves out the fences of SYNC-3, which a model needs in which somebody sleeps.
pub fn nobody_sleeps() {
    SLEEPY.set(false);
}

pub fn fence(order: Ordering) {
    let left_out = match MUTANT.get() {
        Mutant::NoDekker => order == Ordering::SeqCst,
        Mutant::NoAcquire(pair) => order == Ordering::Acquire && LOADED.get() == Some(pair),
        _ => false,
    };
    if !left_out && (SLEEPY.get() || order != Ordering::SeqCst) {
        loom::sync::atomic::fence(order);
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Word {
    Tail,
    Head,
    Sleeping,
    WantsSpace,
}

impl Word {
    fn pair(self) -> Option<Pair> {
        match self {
            Self::Tail => Some(Pair::Tail),
            Self::Head => Some(Pair::Head),
            Self::Sleeping | Self::WantsSpace => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Lane {
    Control,
}

#[derive(Debug)]
struct Memory {
    words: [AtomicU64; 4],
    lines: [Line; RING_LEN / LINE],
}

#[derive(Debug)]
struct Line {
    mark: AtomicU64,
    rest: UnsafeCell<[u8; LINE - MARK_LEN]>,
}

impl Memory {
    fn line(&self, at: u64) -> &Line {
        &self.lines[at as usize % RING_LEN / LINE]
    }
}

#[derive(Debug)]
pub struct OwnHalf(Rc<Memory>);

#[derive(Debug)]
pub struct PeerHalf(Rc<Memory>);

/// A half and the peer's view of it.
pub fn half() -> (OwnHalf, PeerHalf) {
    let line = |_| Line { mark: AtomicU64::new(0), rest: UnsafeCell::new([0; LINE - MARK_LEN]) };
    let lines = std::array::from_fn(line);
    let memory = Rc::new(Memory { words: [0; 4].map(AtomicU64::new), lines });
    (OwnHalf(Rc::clone(&memory)), PeerHalf(memory))
}

/// The parts of `len` bytes at `at`: where each is, its bytes, and whether it is a mark.
fn parts(mut at: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, bool)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let within = at as usize % LINE;
        let border = if within < MARK_LEN { MARK_LEN } else { LINE };
        let part = (at, start..len.min(start + border - within), within < MARK_LEN);
        at += part.1.len() as u64;
        start = part.1.end;
        (!part.1.is_empty()).then_some(part)
    })
}

impl OwnHalf {
    pub fn ring_len(&self, _lane: Lane) -> usize {
        RING_LEN
    }

    pub fn store(&self, _lane: Lane, word: Word, value: u64, order: Ordering) {
        self.0.words[word as usize].store(value, weakened(word.pair(), order));
    }

    pub fn set_mark(&self, _lane: Lane, at: u64, mark: [u8; MARK_LEN], order: Ordering) {
        if mark != [0; MARK_LEN] || MUTANT.get() != Mutant::NoClear {
            self.0.line(at).mark.store(u64::from_ne_bytes(mark), weakened(Some(Pair::Mark), order));
        }
    }

    pub fn write(&self, _lane: Lane, at: u64, bytes: &[u8]) {
        for (at, part, is_mark) in parts(at, bytes.len()) {
            let (line, bytes) = (self.0.line(at), &bytes[part]);
            if is_mark {
                // Whole marks, or the zero that fetches a line.
                let mark = bytes.try_into().unwrap_or([0; MARK_LEN]);
                line.mark.store(u64::from_ne_bytes(mark), Ordering::Relaxed);
            } else {
                let start = at as usize % LINE - MARK_LEN;
                // SAFETY: the cell panics where another thread may access it.
                line.rest.with_mut(|rest| unsafe {
                    (&mut *rest)[start..start + bytes.len()].copy_from_slice(bytes);
                });
            }
        }
    }

    /// # Safety
    /// As in the real one.
    pub unsafe fn fill(&self, lane: Lane, at: u64, len: usize, mut write: impl FnMut(&mut [u8])) {
        let mut bytes = vec![0; len];
        write(&mut bytes);
        self.write(lane, at, &bytes);
    }
}

fn weakened(stored: Option<Pair>, order: Ordering) -> Ordering {
    match MUTANT.get() {
        Mutant::NoRelease(pair) if stored == Some(pair) => Ordering::Relaxed,
        _ => order,
    }
}

impl PeerHalf {
    pub fn ring_len(&self, _lane: Lane) -> usize {
        RING_LEN
    }

    pub fn load(&self, _lane: Lane, word: Word) -> u64 {
        let value = self.0.words[word as usize].load(Ordering::Relaxed);
        LOADED.set(word.pair());
        value
    }

    pub fn mark(&self, _lane: Lane, at: u64) -> u64 {
        let value = self.0.line(at).mark.load(Ordering::Relaxed);
        LOADED.set(Some(Pair::Mark));
        value
    }

    pub fn runs(&self, lane: Lane, at: u64, len: usize, mut read: impl FnMut(*const u8, usize)) {
        let mut bytes = vec![0; len];
        self.read(lane, at, &mut bytes);
        read(bytes.as_ptr(), len);
    }

    pub fn read(&self, _lane: Lane, at: u64, into: &mut [u8]) {
        for (at, part, is_mark) in parts(at, into.len()) {
            let (line, into) = (self.0.line(at), &mut into[part]);
            if is_mark {
                let mark = line.mark.load(Ordering::Relaxed).to_ne_bytes();
                into.copy_from_slice(&mark[..into.len()]);
            } else {
                let start = at as usize % LINE - MARK_LEN;
                // SAFETY: the cell panics where another thread may access it.
                line.rest.with(|rest| unsafe {
                    into.copy_from_slice(&(&*rest)[start..start + into.len()]);
                });
            }
        }
    }

    pub fn append(&self, lane: Lane, at: u64, len: usize, into: &mut BytesMut) {
        let start = into.len();
        into.resize(start + len, 0);
        self.read(lane, at, &mut into[start..]);
    }
}
