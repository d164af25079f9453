//! What the command line takes.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use blockwire::pool::{Dtype, Layout};
use blockwire::transport::Address;
use blockwire_serving::router::HandoffPolicy;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Moves the paged KV cache of a language model from a prefill to a decode process, and serves it.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one node of a deployment, or all of it in one process.
    Serve(ServeArgs),
    /// Show a handoff: router, prefill and decode as three processes over shared memory.
    Demo(DemoArgs),
    /// Look at this machine, or measure a link: what helps or hinders a node, and what to do about it.
    Doctor(DoctorArgs),
    /// Generate text with a local model, without any server.
    Generate(GenerateArgs),
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Everything in one process.
    Single,
    /// Computes prompts and hands their caches over.
    Prefill,
    /// Takes caches and generates.
    Decode,
    /// Speaks the OpenAI API and picks nodes.
    Router,
}

/// When a router has prompts handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Handoff {
    /// Each one.
    Always,
    /// Where it is estimated to pay; the decode node computes the others itself, and all of them while no prefill
    /// node is connected.
    Auto,
}

impl From<Handoff> for HandoffPolicy {
    fn from(handoff: Handoff) -> Self {
        match handoff {
            Handoff::Always => Self::Always,
            Handoff::Auto => Self::Auto,
        }
    }
}

/// What a misconfigured role does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fallback {
    /// Says what is missing and exits.
    None,
    /// Serves alone.
    Single,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvDtype {
    F16,
    Bf16,
    F32,
}

impl From<KvDtype> for Dtype {
    fn from(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F16 => Self::F16,
            KvDtype::Bf16 => Self::Bf16,
            KvDtype::F32 => Self::F32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvLayout {
    /// A block's layers lie together.
    BlockMajor,
    /// A layer's blocks lie together.
    LayerMajor,
}

impl From<KvLayout> for Layout {
    fn from(layout: KvLayout) -> Self {
        match layout {
            KvLayout::BlockMajor => Self::BlockMajor,
            KvLayout::LayerMajor => Self::LayerMajor,
        }
    }
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    /// Plain Rust, on this machine's cores.
    Cpu,
    /// MLX: Metal on Apple silicon, one core elsewhere. Of builds with feature `mlx`.
    Mlx,
}

/// How a model is loaded and run.
#[derive(Clone, Debug, Args)]
pub(crate) struct EngineArgs {
    /// What computes.
    #[arg(long, value_enum, default_value = "cpu")]
    pub(crate) runtime: Runtime,
    /// Threads that compute, with `--runtime cpu`.
    #[arg(long, default_value = "1", env = "BLOCKWIRE_THREADS")]
    pub(crate) threads: NonZeroUsize,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value = "f16")]
    pub(crate) kv_dtype: KvDtype,
    /// Order of the KV cache's dimensions; by default block-major, and layer-major with `--runtime mlx`, which
    /// needs that.
    #[arg(long, value_enum)]
    pub(crate) kv_layout: Option<KvLayout>,
    /// Tokens per block of the KV cache.
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) block_tokens: u32,
    /// Memory of the KV cache, in MiB.
    #[arg(long, value_name = "MIB", default_value = "512", conflicts_with = "kv_blocks")]
    pub(crate) kv_memory: usize,
    /// Blocks of the KV cache, instead of its memory.
    #[arg(long, value_name = "BLOCKS")]
    pub(crate) kv_blocks: Option<usize>,
    /// Longest sequence, in tokens; by default what the model was trained for.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_model_len: Option<usize>,
    /// Most sequences that generate at a time.
    #[arg(long, default_value = "32")]
    pub(crate) max_batch: NonZeroUsize,
    /// Most prompt tokens computed in one step, so that others' tokens are not held up for long.
    #[arg(long, value_name = "TOKENS", default_value = "256")]
    pub(crate) prefill_chunk: NonZeroUsize,
    /// Compute every prompt as a whole, also where an earlier one began alike.
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Refuse handoffs for models that keep state outside the cache, instead of handing that over too.
    #[arg(long)]
    pub(crate) no_state_handoff: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  One process:
    blockwire serve --model model.gguf --http 127.0.0.1:8000
  Three processes on one host, over shared memory:
    blockwire serve --node-role decode  --model model.gguf --serving-bind shm:decode
    blockwire serve --node-role prefill --model model.gguf --serving-bind shm:prefill \\
                    --decode-peers shm:decode
    blockwire serve --node-role router  --model model.gguf --http 127.0.0.1:8000 \\
                    --prefill-peers shm:prefill --decode-peers shm:decode
  Across hosts: tcp://HOST:PORT instead of shm:NAME, and a cluster key that all nodes share:
    (umask 077; openssl rand -hex 32 > cluster.key)
    blockwire serve ... --serving-bind tcp://0.0.0.0:7000 --cluster-key-file cluster.key
  From a file, and for once with more threads than it says:
    blockwire serve --config node.toml --threads 8
  BLOCKWIRE_CLUSTER_KEY may hold the key instead. The key authenticates, it does not encrypt; for that,
  write ?tls=key behind every tcp address: 'tcp://HOST:PORT?tls=key'.
  A peer's address may say how it is dialled: 'tcp://HOST:PORT?bind=eth0' from an interface or an own address,
  'tcp://HOST:PORT?stripes=4' over four connections, '...?stripes=2&bind=eth0&bind=eth1' over two interfaces.
  On Linux, '...?io=uring' lets the kernel make this side's transfers.")]
pub(crate) struct ServeArgs {
    /// A TOML file with what flags would say: a key is a flag's name without its dashes. A flag wins over the
    /// environment, and that over the file.
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// What this process is.
    #[arg(long, value_enum, default_value = "single")]
    pub(crate) node_role: Role,
    /// A .gguf file, or a folder with config.json and safetensors.
    #[arg(long, env = "BLOCKWIRE_MODEL", value_name = "PATH")]
    pub(crate) model: PathBuf,
    /// Name of the model in requests; by default the file's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,
    /// Address of the OpenAI API (single, router; default 127.0.0.1:8000) or of /health and /metrics
    /// (prefill, decode; default none). Port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<SocketAddr>,
    /// Where peers reach this node (prefill, decode): shm:NAME, tcp://HOST:PORT or, with a cluster key,
    /// tcp://HOST:PORT?tls=key.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) serving_bind: Option<Address>,
    /// Prefill nodes (router).
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) prefill_peers: Vec<Address>,
    /// Decode nodes (router, prefill).
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) decode_peers: Vec<Address>,
    /// Which prompts a prefill node computes and hands over (router).
    #[arg(long, value_enum, default_value = "always", env = "BLOCKWIRE_HANDOFF")]
    pub(crate) handoff: Handoff,
    /// Copy every cache into the own pool (decode), also where the prefill node's memory can be read in
    /// place.
    #[arg(long)]
    pub(crate) no_adopt: bool,
    /// What to do when the role lacks an address.
    #[arg(long, value_enum, default_value = "none")]
    pub(crate) fallback: Fallback,
    /// Key that HTTP callers must send; may be repeated.
    #[arg(long, value_name = "KEY", env = "BLOCKWIRE_API_KEY")]
    pub(crate) api_key: Vec<String>,
    /// Ask for an API key at /metrics and /stats too (single, router); without this, only what begins with /v1 does.
    /// The live page is then http://HOST:PORT/#key=KEY.
    #[arg(long)]
    pub(crate) keyed_metrics: bool,
    /// File with the key that all nodes of a deployment share; only its owner may read it. Without
    /// one, BLOCKWIRE_CLUSTER_KEY may hold the key.
    #[arg(long, value_name = "PATH")]
    pub(crate) cluster_key_file: Option<PathBuf>,
    /// Use tcp addresses off the loopback without a cluster key: whoever reaches a port is a peer.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Exchange caches with nodes of another runtime, if they say this too: every node is right for itself, but
    /// tokens may differ from a single node's.
    #[arg(long)]
    pub(crate) allow_cross_backend: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

impl ServeArgs {
    /// The addresses of this node and its peers, each behind its flag.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&str, &Address)> {
        let bind = self.serving_bind.iter().map(|address| ("--serving-bind", address));
        let prefill = self.prefill_peers.iter().map(|address| ("--prefill-peers", address));
        let decode = self.decode_peers.iter().map(|address| ("--decode-peers", address));
        bind.chain(prefill).chain(decode)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// A model; by default SmolLM2-135M-Instruct, fetched once with pip.
    #[arg(long, env = "BLOCKWIRE_MODEL", value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// What to ask.
    #[arg(long, default_value = "What is the capital of France? Answer in one sentence.")]
    pub(crate) prompt: String,
    /// Most tokens of the answer.
    #[arg(long, default_value = "64")]
    pub(crate) max_tokens: u32,
    /// What carries the cache: `shm`, or `tcp` over the loopback.
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp"])]
    pub(crate) transport: String,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  This machine, with what a decode node would use:
    blockwire doctor --port 0.0.0.0:7000 --cluster-key-file cluster.key
  The way to another one, from both ends:
    blockwire doctor link --listen tcp://0.0.0.0:7100 --cluster-key-file cluster.key
    blockwire doctor link tcp://HOST:7100 --cluster-key-file cluster.key
Exit status: 1 if a check failed; warnings do not count."
)]
pub(crate) struct DoctorArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DoctorCommand>,
    /// A port that a node is to listen on; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) port: Vec<SocketAddr>,
    /// File with the cluster key that nodes are to use.
    #[arg(long, value_name = "PATH")]
    pub(crate) cluster_key_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DoctorCommand {
    /// Measure a link by handing caches over it.
    Link(LinkArgs),
}

/// One end of a link that is measured.
#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    /// The other end, as nodes would name it: tcp://HOST:PORT, with ?stripes=4 or ?tls=key if they would, or
    /// shm:NAME. With --listen, where this end listens.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: Address,
    /// Be the end that listens.
    #[arg(long)]
    pub(crate) listen: bool,
    /// File with the cluster key; both ends need the same.
    #[arg(long, value_name = "PATH")]
    pub(crate) cluster_key_file: Option<PathBuf>,
    /// Use tcp addresses off the loopback without a cluster key.
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// A .gguf file, or a folder with config.json and safetensors.
    #[arg(long, env = "BLOCKWIRE_MODEL", value_name = "PATH")]
    pub(crate) model: PathBuf,
    /// The text to continue.
    pub(crate) prompt: String,
    /// Treat the prompt as a user's message of a chat.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Most tokens to generate.
    #[arg(long, default_value = "128", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// 0 takes the most probable token.
    #[arg(long, default_value = "0")]
    pub(crate) temperature: f32,
    /// Keep the most probable tokens that together reach this probability.
    #[arg(long, default_value = "1")]
    pub(crate) top_p: f32,
    /// Key of the randomness.
    #[arg(long, default_value = "0")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}
