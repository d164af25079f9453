//! What `half.rs` gives to the ring, made of loom's memory: every order of the accesses that the
//! language allows is tried, and an access to bytes that races is a panic.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;

/// Bytes of the ring: few, so that few messages fill it and wrap.
pub const RING_LEN: usize = 2;

/// What is left out of the protocol. Loom has to see each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// SYNC-3 without its fences.
    NoDekker,
    /// SYNC-1 and SYNC-2 without their acquire side.
    NoAcquire,
    /// SYNC-1 and SYNC-2 without their release side.
    NoRelease,
}

thread_local! {
    /// Loom runs all threads of a model on one thread of the system.
    static MUTANT: Cell<Mutant> = const { Cell::new(Mutant::None) };
}

pub fn set_mutant(mutant: Mutant) {
    MUTANT.set(mutant);
}

pub fn fence(order: Ordering) {
    let left_out = match MUTANT.get() {
        Mutant::NoDekker => order == Ordering::SeqCst,
        Mutant::NoAcquire => order == Ordering::Acquire,
        _ => false,
    };
    if !left_out {
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

#[derive(Clone, Copy, Debug)]
pub enum Lane {
    Control,
}

#[derive(Debug)]
struct Memory {
    words: [AtomicU64; 4],
    bytes: [UnsafeCell<u8>; RING_LEN],
}

#[derive(Debug)]
pub struct OwnHalf(Rc<Memory>);

#[derive(Debug)]
pub struct PeerHalf(Rc<Memory>);

/// A half and the peer's view of it.
pub fn half() -> (OwnHalf, PeerHalf) {
    let words = [0; 4].map(AtomicU64::new);
    let memory = Rc::new(Memory { words, bytes: [0; RING_LEN].map(UnsafeCell::new) });
    (OwnHalf(Rc::clone(&memory)), PeerHalf(memory))
}

fn cell(memory: &Memory, at: u64) -> &UnsafeCell<u8> {
    &memory.bytes[at as usize % RING_LEN]
}

impl OwnHalf {
    pub fn ring_len(&self, _lane: Lane) -> usize {
        RING_LEN
    }

    pub fn store(&self, _lane: Lane, word: Word, value: u64, order: Ordering) {
        let weak = MUTANT.get() == Mutant::NoRelease;
        let order = if weak { Ordering::Relaxed } else { order };
        self.0.words[word as usize].store(value, order);
    }

    pub fn write(&self, _lane: Lane, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            // SAFETY: the cell panics where another thread may access it.
            cell(&self.0, at).with_mut(|to| unsafe { *to = *byte });
        }
    }

    /// # Safety
    /// As in the real one.
    pub unsafe fn fill(&self, _lane: Lane, at: u64, len: usize, mut write: impl FnMut(&mut [u8])) {
        for at in at..at + len as u64 {
            // SAFETY: the cell panics where another thread may access it.
            cell(&self.0, at).with_mut(|to| write(std::slice::from_mut(unsafe { &mut *to })));
        }
    }
}

impl PeerHalf {
    pub fn ring_len(&self, _lane: Lane) -> usize {
        RING_LEN
    }

    pub fn load(&self, _lane: Lane, word: Word) -> u64 {
        self.0.words[word as usize].load(Ordering::Relaxed)
    }

    pub fn runs(&self, _lane: Lane, at: u64, len: usize, mut read: impl FnMut(*const u8, usize)) {
        (at..at + len as u64).for_each(|at| cell(&self.0, at).with(|from| read(from, 1)));
    }

    pub fn read(&self, lane: Lane, at: u64, into: &mut [u8]) {
        let mut to = into.iter_mut();
        self.runs(lane, at, to.len(), |from, _| {
            // SAFETY: the cell panics where another thread may access it.
            *to.next().expect("as many bytes as asked for") = unsafe { *from };
        });
    }

    pub fn append(&self, lane: Lane, at: u64, len: usize, into: &mut BytesMut) {
        // SAFETY: the cell panics where another thread may access it.
        self.runs(lane, at, len, |from, _| into.extend_from_slice(&[unsafe { *from }]));
    }
}
