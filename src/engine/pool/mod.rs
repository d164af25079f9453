//! Paged KV memory: where every block's bytes live, and who may touch them.
//!
//! Read in this order: [`spec`](KvSpec) (the shape), [`layout`](Layout) (where bytes lie),
//! [`region`](Region) (the pages), [`block`](BlockPool) (the typestate and the accounting),
//! [`sequence`](KvSequence) (the blocks of one sequence, and what its model [keeps elsewhere](ModelState)), [`run`](SealedRun) (the same, finished), [`list`](GatherList) (what an operation
//! holds on to while it moves bytes), [`copy`](TransferStats) (the one place that copies payload),
//! [`lease`](Grant) and [`peer`](PeerPool) (blocks that another process reads in place: who lends them, who
//! borrows them), [`filling`](FillingBlock) (blocks that are read while a model fills them), [`prefix`](PrefixKey)
//! (blocks that are found again by what they hold).
//!
//! ```text
//! reserve ──> ReservedBlock ──seal──> SealedBlock ──last drop──> free, or cached until it is needed
//!             exclusive,              shared, cloneable,
//!             writable                read-only
//!                 │                        │
//!             ScatterList              GatherList       loans: held by an operation until its link
//!                 └── abandoned: quarantined until the link is done with the memory ──> free
//! ```
//! A pool has a hard size. [`BlockPool::reserve`] is first come, first served, all or nothing: this
//! is where backpressure lives.

mod block;
mod copy;
mod digest;
mod filling;
mod layout;
mod lease;
mod limit;
mod list;
mod model_state;
mod payload;
mod peer;
mod prefix;
mod pull;
mod region;
mod reserve;
mod run;
mod sequence;
mod spec;
mod state;
mod stripes;

pub use block::{BlockPool, PoolError, PoolOptions, ReservedBlock, SealedBlock};
pub use copy::{Stores, TransferStats, copy_payload, copy_payload_from_peer};
pub use digest::Digest;
pub use filling::FillingBlock;
pub use layout::{KvPlane, Layout, PoolShape};
pub use lease::{Grant, LEASES_MAX, LeaseId, Pressure};
pub(crate) use limit::Available;
pub use limit::MemoryLimit;
pub use list::{Cursor, Extent, GatherList, ListError, Loan, ScatterList, TokenRange};
pub use model_state::ModelState;
pub use payload::{PayloadOrder, Span};
pub use peer::{AdoptedBlocks, Lease, LeaseLost, PeerMemory, PeerPool};
pub use prefix::{PrefixChain, PrefixKey, PrefixRoot, ReserveRoom, Room};
pub use pull::Pull;
pub use region::{Backing, PageKind, REGION_ALIGN, Region, RegionView};
pub use reserve::{Reserve, ReserveError};
pub use run::SealedRun;
pub use sequence::{KvSequence, SequenceError};
pub use spec::{Dtype, KvSpec, LayerSpec, Part, SegmentSpec};
pub use state::Accounting;
