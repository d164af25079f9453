//! Where a `Stream` meets the `Land` of its tag: one copy, from blocks to blocks.

use blockwire::pool::{Cursor, Digest, GatherList, ScatterList, TransferStats, copy_payload};
use blockwire::transport::{OpId, StreamTag, Violation};

/// A payload on its way out.
#[derive(Debug)]
pub(crate) struct StreamOp {
    pub(crate) op: OpId,
    pub(crate) tag: StreamTag,
    pub(crate) payload: GatherList,
    cursor: Cursor,
    digest: Digest,
}

/// Room for a payload.
#[derive(Debug)]
pub(crate) struct LandOp {
    pub(crate) op: OpId,
    pub(crate) room: ScatterList,
    cursor: Cursor,
}

impl StreamOp {
    pub(crate) fn new(op: OpId, tag: StreamTag, payload: GatherList) -> Self {
        Self { op, tag, payload, cursor: Cursor::default(), digest: Digest::default() }
    }

    /// Whether every byte has left.
    pub(crate) fn is_done(&self) -> bool {
        self.cursor.position() == self.payload.len()
    }

    /// The digest of what has left.
    pub(crate) fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// Copies up to `bytes_max` bytes into `land`; counts them at the receiver.
    ///
    /// # Errors
    /// [`Violation`] when the payload does not fit, or does not go on where the room is filled to.
    /// Nothing is touched then.
    pub(crate) fn copy_into(
        &mut self,
        land: &mut LandOp,
        bytes_max: usize,
        receiver: &TransferStats,
    ) -> Result<usize, Violation> {
        let (offset, expected) = (self.cursor.position(), land.cursor.position());
        if self.payload.len() != land.room.len() || offset != expected {
            let (tag, end, len) = (self.tag, self.payload.len(), land.room.len());
            return Err(Violation::PayloadRange { tag, offset, end, expected, len });
        }
        let mut sources = self.payload.slices(&self.cursor, bytes_max);
        let mut from: &[u8] = &[];
        let mut moved = 0;
        for mut to in land.room.slices(&land.cursor, bytes_max) {
            while !to.is_empty() {
                if from.is_empty() {
                    from = sources.next().expect("both lists have one length");
                }
                let step = from.len().min(to.len());
                let (now, later) = to.split_at_mut(step);
                copy_payload(&from[..step], now, &mut self.digest, receiver);
                (from, to, moved) = (&from[step..], later, moved + step);
            }
        }
        drop(sources);
        self.cursor.advance(self.payload.extents(), moved);
        land.cursor.advance(land.room.extents(), moved);
        Ok(moved)
    }

    /// Passes up to `bytes_max` bytes that nobody wants any more: digested, not copied.
    pub(crate) fn discard(&mut self, bytes_max: usize) -> usize {
        let mut moved = 0;
        for slice in self.payload.slices(&self.cursor, bytes_max) {
            self.digest.update(slice);
            moved += slice.len();
        }
        self.cursor.advance(self.payload.extents(), moved);
        moved
    }
}

impl LandOp {
    pub(crate) fn new(op: OpId, room: ScatterList) -> Self {
        Self { op, room, cursor: Cursor::default() }
    }
}
