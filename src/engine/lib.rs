//! Blockwire: moves the paged KV cache of a language model from pool block to wire and from wire to
//! pool block.
//!
//! Read the modules in the order that data flows: [`pool`] (memory), [`handoff`] (a finished sequence
//! to a peer), [`transport`] (the interface that carries it), [`ingest`] (a peer's offer to a
//! sequence). The protocol is in [`session`], a state machine without sockets or clock; [`endpoint`] is
//! what users hold; [`wire`] is what the bytes look like.
//!
//! ```
//! use std::sync::Arc;
//! use blockwire::endpoint::{Endpoint, EndpointOptions, Event};
//! use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
//! use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
//! use blockwire::pool::{BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
//! use blockwire::session::{HandoffKey, Identity};
//! use blockwire::transport::Transport;
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let wire: Arc<dyn Transport> = Arc::new(blockwire_mem::MemTransport::default());
//! let side = |name: &str| {
//!     let spec = KvSpec::uniform(16, 2, 2, 16, Dtype::F16);
//!     let pool = BlockPool::new(PoolOptions::new(spec, 8)).unwrap();
//!     let identity = Identity::new(name);
//!     let options = EndpointOptions::new(identity, Some(pool.clone()), vec![wire.clone()]);
//!     (Endpoint::start(options).unwrap(), pool)
//! };
//! let ((prefill, prefill_pool), (decode, decode_pool)) = (side("prefill"), side("decode"));
//! let mut listening = decode.listen(&"mem:decode".parse().unwrap()).await.unwrap();
//! let (connection, _) = prefill.connect(&"mem:decode".parse().unwrap()).await.unwrap();
//! let (_peer, mut events) = listening.accept().await.unwrap();
//!
//! // A sequence of 20 tokens, as a model would leave it behind.
//! let mut sequence = KvSequence::new(&prefill_pool);
//! sequence.push(prefill_pool.try_reserve(2).unwrap()).unwrap();
//! sequence.set_len(20);
//! let handoff = extract_sequence_handoff(&mut sequence).unwrap();
//!
//! let key = HandoffKey { request: uuid::Uuid::new_v4(), epoch: 1 };
//! let send = send_handoff_payload(&connection, key, handoff, "meta".into());
//! let receive = async {
//!     let Some(Event::Handoff(incoming)) = events.next().await else { panic!("no offer") };
//!     let options = IngestOptions { tokens_max: 1024, growth: 0, adopt: true, keys: &[] };
//!     ingest_sequence_handoff(incoming, &decode_pool, options).await.unwrap()
//! };
//! let (sent, received) = tokio::join!(send, receive);
//! assert_eq!(sent.unwrap().payload_len, received.sequence.len() as u64 * 256);
//! # });
//! ```
//!
//! # Crates that do not fit
//! `shared_memory` names its segments and passes no descriptors: a name outlives a kill, so pools are
//! nameless `memfd`s here (`shm_open` and an immediate unlink on macOS), mapped with `memmap2`.
//! `crossbeam`'s queues live in one process's heap; the ring between two processes is `blockwire-shm`'s.

pub mod clock;
pub mod endpoint;
pub mod handoff;
pub mod ingest;
pub mod pool;
pub mod session;
mod sys;
pub mod transport;
pub mod wire;
