//! Payload operations: bytes that are read where they lie, when they arrive.
//!
//! What a link still reads of a sender's memory, it reads as a network card does: without holding the
//! blocks ([`Source`]). Were a block given to somebody else too early, the wrong bytes would arrive, and
//! the digests of the two sides would differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blockwire::pool::{
    Cursor, Digest, Extent, GatherList, PeerMemory, Pull, Region, ScatterList, TransferStats,
};
use blockwire::transport::{OpId, StreamTag, Violation};

use super::lane::Piece;

/// Where a payload lies. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Source(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: Arc<Region>,
    extents: Vec<Extent>,
    len: u64,
    /// Nothing more of it arrives.
    stopped: AtomicBool,
}

impl Source {
    fn of(payload: &GatherList) -> Self {
        let memory = Arc::clone(payload.pool().region());
        let (extents, len) = (payload.extents().to_vec(), payload.len());
        Self(Arc::new(Inner { memory, extents, len, stopped: AtomicBool::new(false) }))
    }

    /// Bytes of the whole payload.
    pub(crate) fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether both are one payload, sent once.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Lets nothing arrive any more.
    pub(crate) fn stop(&self) {
        self.0.stopped.store(true, Relaxed);
    }

    /// Whether nothing arrives any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.stopped.load(Relaxed)
    }

    fn pull(&self, room: ScatterList) -> Result<Pull, ScatterList> {
        let memory: Arc<dyn PeerMemory> = Arc::<Region>::clone(&self.0.memory);
        Pull::new(memory, self.0.extents.clone(), room).map_err(|(_, room)| room)
    }
}

/// A payload on its way out.
#[derive(Debug)]
pub(crate) struct StreamOp {
    pub(crate) op: OpId,
    pub(crate) tag: StreamTag,
    pub(crate) payload: GatherList,
    pub(crate) source: Source,
    cursor: Cursor,
    digest: Digest,
}

impl StreamOp {
    pub(crate) fn new(op: OpId, tag: StreamTag, payload: GatherList) -> Self {
        let (cursor, digest) = (Cursor::default(), Digest::default());
        Self { op, tag, source: Source::of(&payload), payload, cursor, digest }
    }

    /// Bytes that have left.
    pub(crate) fn position(&self) -> u64 {
        self.cursor.position()
    }

    /// Whether every byte has left.
    pub(crate) fn is_out(&self) -> bool {
        self.position() == self.payload.len()
    }

    /// The digest of what has left.
    pub(crate) fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// Lets up to `bytes_max` bytes leave; how many did.
    pub(crate) fn leave(&mut self, bytes_max: usize) -> usize {
        let mut len = 0;
        for slice in self.payload.slices(&self.cursor, bytes_max) {
            self.digest.update(slice);
            len += slice.len();
        }
        self.cursor.advance(self.payload.extents(), len);
        len
    }
}

/// Room for a payload.
#[derive(Debug)]
pub(crate) struct LandOp {
    pub(crate) op: OpId,
    state: LandState,
    filled: u64,
    corrupt: bool,
}

#[derive(Debug)]
enum LandState {
    Empty(ScatterList),
    Filling(Source, Box<Pull>),
    /// Between two of the others.
    Moving,
}

impl LandOp {
    pub(crate) fn new(op: OpId, room: ScatterList) -> Self {
        Self { op, state: LandState::Empty(room), filled: 0, corrupt: false }
    }

    /// Takes a piece; whether it was the last one, and the digest of what is here now.
    ///
    /// # Errors
    /// [`Violation`] when the piece does not fit, or does not go on where the room is filled to. The room
    /// is as it was.
    pub(crate) fn take(
        &mut self,
        piece: &Piece,
        stats: &TransferStats,
    ) -> Result<(bool, u64), Violation> {
        self.begin(piece)?;
        self.corrupt |= piece.corrupt;
        let LandState::Filling(_, pull) = &mut self.state else { return Ok((false, 0)) };
        self.filled += pull.copy(piece.len, stats) as u64;
        Ok((pull.is_complete(), pull.digest()))
    }

    /// Makes sure that the room is being filled with the piece's payload.
    fn begin(&mut self, piece: &Piece) -> Result<(), Violation> {
        let len = match &self.state {
            LandState::Filling(source, _) if source.is(&piece.source) => return Ok(()),
            LandState::Filling(source, _) => source.len(),
            LandState::Empty(room) => room.len(),
            LandState::Moving => 0,
        };
        let state = std::mem::replace(&mut self.state, LandState::Moving);
        self.state = match state {
            LandState::Empty(room) if piece.offset == 0 => match piece.source.pull(room) {
                Ok(pull) => {
                    self.state = LandState::Filling(piece.source.clone(), Box::new(pull));
                    return Ok(());
                }
                Err(room) => LandState::Empty(room),
            },
            other => other,
        };
        let (tag, offset, end) = (piece.tag, piece.offset, piece.source.len());
        Err(Violation::PayloadRange { tag, offset, end, expected: self.filled, len })
    }

    /// The room, and the digest of what is in it.
    pub(crate) fn into_room(self) -> (ScatterList, u64) {
        match self.state {
            LandState::Empty(room) => (room, 0),
            LandState::Filling(_, pull) => finish(*pull, self.corrupt),
            LandState::Moving => unreachable!("only while a piece is taken"),
        }
    }
}

/// The room of a pull, with a bit of it changed where it is to be corrupt.
pub(crate) fn finish(pull: Pull, corrupt: bool) -> (ScatterList, u64) {
    let digest = pull.digest();
    let mut room = pull.into_room();
    if !corrupt {
        return (room, digest);
    }
    if let Some(first) = room.slices(&Cursor::default(), 1).next() {
        first[0] ^= 0x10;
    }
    let mut digest = Digest::default();
    room.slices(&Cursor::default(), usize::MAX).for_each(|slice| digest.update(slice));
    (room, digest.value())
}
