//! A pull from a peer's region: bytes that are read where they lie, piece by piece.
//!
//! The peer may not touch them before the puller's last word, however early the handoff was withdrawn. Of a
//! pull that nobody waits for any more no digest tells. So a pull remembers what lay there when it began, and
//! compares every piece. To read all of it at once needs the room, which is then spoilt: whoever takes the
//! room before the bytes are there finds none of them.

use std::sync::Arc;
use std::time::Instant;

use blockwire::pool::{Cursor, Digest, Extent, Pull, Region, ScatterList, TransferStats};
use blockwire::transport::OpId;

use super::payload::finish;

/// What a room is full of until its bytes come.
const SPOILT: u8 = 0xd6;

/// Bytes that are pulled from a region of the peer's.
#[derive(Debug)]
pub(crate) struct GetOp {
    pub(crate) op: OpId,
    /// When the next piece is here.
    pub(crate) due: Instant,
    pub(crate) corrupt: bool,
    pull: Pull,
    /// What lay there when the pull began, and how much of it was compared.
    promised: Vec<u8>,
    compared: usize,
    expected: Digest,
    changed: bool,
}

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// Bytes.
    pub(crate) len: usize,
    /// Whether this is the first piece that is not what lay there when the pull began.
    pub(crate) changed: bool,
}

impl GetOp {
    /// Begins a pull.
    ///
    /// # Errors
    /// The room comes back when the extents are not in the region, or not as long as the room.
    pub(crate) fn new(
        op: OpId,
        memory: &Arc<Region>,
        extents: Vec<Extent>,
        room: ScatterList,
        due: Instant,
    ) -> Result<Self, ScatterList> {
        let pull = |extents: Vec<Extent>, room| {
            Pull::new(Arc::<Region>::clone(memory), extents, room).map_err(|(_, room)| room)
        };
        let mut look = pull(extents.clone(), room)?;
        look.copy(usize::MAX, &TransferStats::default());
        let mut room = look.into_room();
        let mut promised = Vec::with_capacity(room.len() as usize);
        for slice in room.slices(&Cursor::default(), usize::MAX) {
            promised.extend_from_slice(slice);
            slice.fill(SPOILT);
        }
        let pull = pull(extents, room)?;
        let (corrupt, compared, expected, changed) = <_>::default();
        Ok(Self { op, due, corrupt, pull, promised, compared, expected, changed })
    }

    /// Copies at most `len_max` bytes.
    pub(crate) fn copy(&mut self, len_max: usize, stats: &TransferStats) -> Pulled {
        let len = self.pull.copy(len_max, stats);
        self.expected.update(&self.promised[self.compared..][..len]);
        self.compared += len;
        let differs = self.pull.digest() != self.expected.value();
        let changed = differs && !std::mem::replace(&mut self.changed, differs);
        Pulled { len, changed }
    }

    /// Whether all bytes are here.
    pub(crate) fn is_complete(&self) -> bool {
        self.pull.is_complete()
    }

    /// The room, and the digest of what is in it.
    pub(crate) fn into_room(self) -> (ScatterList, u64) {
        finish(self.pull, self.corrupt)
    }
}
