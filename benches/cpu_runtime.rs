//! T11: how fast is the CPU runtime, against llama.cpp on the same file?
//!
//! Prefill and decode at three contexts, with 1 and 2 threads, interleaved with llama.cpp where
//! `llama-cpp-python` is installed (`tools/perf/llama_cpp.py`). Prints median [min..max] tokens per
//! second and the ratio of the medians. Not criterion: one sample takes seconds, and two programs
//! take turns.
//!
//! `cargo bench -p blockwire-benches --bench cpu_runtime`; `BLOCKWIRE_BENCH_RUNS` sets the repeats.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use blockwire::clock;
use blockwire::pool::{BlockPool, KvSequence, PoolOptions};
use blockwire_benches::{Samples, default_model};
use blockwire_runtime::cpu::{CpuModel, CpuOptions};
use blockwire_runtime::files::ModelFiles;
use blockwire_runtime::model::{Batch, Model};
use serde_json::{Value, json};

/// Contexts of the design's tables, in tokens.
const CONTEXTS: [usize; 3] = [45, 545, 1733];
/// Tokens decoded a sample.
const DECODED: usize = 16;
/// Prompt tokens computed in one step.
const CHUNK: usize = 512;

fn main() {
    let runs = std::env::var("BLOCKWIRE_BENCH_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let path = default_model();
    let files = ModelFiles::open(&path).expect("the model opens");
    let prompt: Vec<u32> = (0..1733).map(|i| 1000 + i * 7 % 40_000).collect();
    let mut peer = Peer::start(&path);
    println!("{} ({runs} runs, tokens per second)", files.id());
    for threads in [1, 2] {
        let mut own = Own::load(&files, threads);
        println!("\n{threads} thread(s), kernels {:?}", own.model.kernels());
        for context in CONTEXTS {
            let (mut ours, mut theirs) = (Sides::default(), Sides::default());
            for _ in 0..runs {
                ours.add(context, own.run(&prompt[..context]));
                if let Some(peer) = &mut peer {
                    theirs.add(context, peer.run(threads, &prompt[..context]));
                }
            }
            ours.print(context, peer.is_some().then_some(&theirs));
        }
    }
}

/// Tokens per second of both phases.
#[derive(Default)]
struct Sides {
    prefill: Samples,
    decode: Samples,
}

impl Sides {
    fn add(&mut self, context: usize, (prefill, decode): (f64, f64)) {
        self.prefill.push(context as f64 / prefill);
        self.decode.push(DECODED as f64 / decode);
    }

    fn print(&self, context: usize, floor: Option<&Self>) {
        for (phase, own, floor) in [
            ("prefill", &self.prefill, floor.map(|floor| &floor.prefill)),
            ("decode", &self.decode, floor.map(|floor| &floor.decode)),
        ] {
            print!("{phase:8} {context:5}  blockwire {own}");
            match floor {
                Some(floor) => {
                    println!("  llama.cpp {floor}  ratio {:.2}", own.median() / floor.median());
                }
                None => println!("  llama.cpp SKIPPED: llama-cpp-python is not installed"),
            }
        }
    }
}

struct Own {
    model: CpuModel,
    pool: BlockPool,
}

impl Own {
    fn load(files: &ModelFiles, threads: usize) -> Self {
        let threads = NonZeroUsize::new(threads).expect("not zero");
        let options = CpuOptions { threads, ..CpuOptions::new() };
        let model = CpuModel::load(files, options).expect("the model loads");
        let spec = model.kv_spec(16);
        let pool = BlockPool::new(PoolOptions::new(spec, 128)).expect("memory for the pool");
        Self { model, pool }
    }

    /// Seconds of prefill and of decode.
    fn run(&mut self, prompt: &[u32]) -> (f64, f64) {
        let mut sequence = KvSequence::new(&self.pool);
        let blocks = sequence.missing_blocks(prompt.len() + DECODED);
        let blocks = self.pool.try_reserve(blocks).expect("blocks");
        sequence.push(blocks).expect("blocks of this pool");
        let start = clock::now();
        for (index, chunk) in prompt.chunks(CHUNK).enumerate() {
            let last = (index + 1) * CHUNK >= prompt.len();
            self.step(&mut sequence, index * CHUNK, chunk, last);
        }
        let prefilled = clock::now();
        for (index, token) in prompt[..DECODED].iter().enumerate() {
            self.step(&mut sequence, prompt.len() + index, &[*token], true);
        }
        let done = clock::now();
        ((prefilled - start).as_secs_f64(), (done - prefilled).as_secs_f64())
    }

    fn step(&mut self, sequence: &mut KvSequence, at: usize, tokens: &[u32], logits: bool) {
        let mut batch = Batch::new([sequence]);
        batch.push(0, at, tokens, logits);
        self.model.forward(&mut batch, &mut ()).expect("the rows are in order");
    }
}

/// llama.cpp, in a process of its own.
struct Peer {
    _child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(model: &Path) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/perf/llama_cpp.py");
        let mut child = Command::new("python3")
            .args([Path::new(script), model])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (to, from) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut peer = Self { _child: child, to, from };
        let name = peer.answer()?;
        println!("beside {}", name["name"]);
        Some(peer)
    }

    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.from.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    fn run(&mut self, threads: usize, prompt: &[u32]) -> (f64, f64) {
        let job = json!({"threads": threads, "prompt": prompt, "decode": DECODED});
        writeln!(self.to, "{job}").expect("llama.cpp takes a job");
        let times = self.answer().expect("llama.cpp answers");
        let seconds = |name: &str| times[name].as_f64().expect("seconds");
        (seconds("prefill_s"), seconds("decode_s"))
    }
}
