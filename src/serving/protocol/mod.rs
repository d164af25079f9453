//! What the serving roles say to each other, over any transport.
//!
//! ```text
//! router ──PrefillRequestFrame──> prefill ──DecodeMetaFrame, blocks, FirstTokenFrame──> decode
//!    ^ <──────ResultFrame: FirstToken──┘                                                  │
//!    └ <──────────────ResultFrame: Continuation───────────────────────────────────────────┘
//! ```
//! A decode node that is asked to compute a prompt itself is asked by the same frame, and sends both phases.
//! Results return on the connection that the router itself opened: no address travels in a frame.
//! Token ids travel, never text. A frame that cannot be read fails its request, not its connection.

mod convert;

pub use convert::FrameError;

/// The generated messages.
pub mod frames {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/blockwire.serving.rs"));
}

pub use frames::{
    DecodeMetaFrame, FirstTokenFrame, HandoffReport, Phase, PrefillRequestFrame, ResultFrame,
};

/// Kinds of messages on a connection.
pub mod kind {
    /// Router to prefill, or to a decode node that shall do both: a [`PrefillRequestFrame`](super::PrefillRequestFrame).
    pub const PREFILL_REQUEST: u32 = 1;
    /// Node to router: a [`ResultFrame`](super::ResultFrame).
    pub const RESULT: u32 = 2;
    /// Router to both nodes: the request is over, whatever its state. No body.
    pub const CANCEL: u32 = 3;
}

/// What a process is to its peers; travels in the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRole {
    /// Computes prompts and hands their caches over.
    Prefill,
    /// Takes caches and generates.
    Decode,
    /// Speaks HTTP, picks nodes.
    Router,
}

impl NodeRole {
    /// As it travels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Router => "router",
        }
    }

    /// Reads what travelled; none for a role of a newer peer.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        [Self::Prefill, Self::Decode, Self::Router]
            .into_iter()
            .find(|role| role.as_str().as_bytes() == bytes)
    }
}

impl std::fmt::Display for NodeRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
