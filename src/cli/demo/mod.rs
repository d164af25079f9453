//! `blockwire demo`: a handoff between real processes, checked against a single node.

mod chat;
mod child;

use std::time::Duration;

use anyhow::{Result, bail};
use blockwire::pool::Backing;
use blockwire_runtime::chat::{ChatTemplate, Message};
use blockwire_runtime::sampling::SamplingParams;
use blockwire_serving::backend::{GenerateRequest, TokenEvent};
use blockwire_serving::http::TextCodec;
use uuid::Uuid;

use crate::args::{DemoArgs, EngineArgs};
use crate::{fetch, model};
use chat::{Answer, metric};
use child::Node;

/// Starts the three processes, asks, shows, compares.
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let path = match &args.model {
        Some(path) => path.clone(),
        None => fetch::default_model()?,
    };
    println!("model      {}", path.display());
    let files = model::open(&path)?;
    let (codec, template) = model::text(&files)?;
    let Some(template) = template else {
        bail!("{} has no chat template: the demo needs one", path.display());
    };
    let nodes = Nodes::start(args, &path)?;
    println!("\nuser       {}\n", args.prompt);
    let answer = Answer::ask(nodes.router.http()?, files.name(), args)?;
    let report = Report::read(&nodes, &answer)?;
    nodes.stop()?;
    let expected = single_node(args, &files, codec.as_ref(), &template)?;
    report.print();
    if answer.tokens != expected {
        bail!("tokens differ from a single node's: {:?} and {expected:?}", answer.tokens);
    }
    println!("parity     {} tokens equal to a single node's", expected.len());
    Ok(())
}

/// The three processes, in the order in which they stop.
struct Nodes {
    router: Node,
    prefill: Node,
    decode: Node,
}

impl Nodes {
    fn start(args: &DemoArgs, path: &std::path::Path) -> Result<Self> {
        let bind = |role: &str| match args.transport.as_str() {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("shm:demo-{}-{role}", std::process::id()),
        };
        let start = |role: &str, flags: &[String]| {
            let model = path.display().to_string();
            let own = ["serve", "--node-role", role, "--model", &model, "--http", "127.0.0.1:0"];
            let own = own.map(str::to_owned);
            let all: Vec<String> =
                own.into_iter().chain(engine_flags(&args.engine)).chain(flags.to_vec()).collect();
            Node::start(role, &all)
        };
        let flag = |name: &str, value: &str| [name.to_owned(), value.to_owned()];
        let decode = start("decode", &flag("--serving-bind", &bind("decode")))?;
        let to_decode = flag("--decode-peers", decode.serving()?);
        let prefill = start(
            "prefill",
            &[flag("--serving-bind", &bind("prefill")), to_decode.clone()].concat(),
        )?;
        let to_prefill = flag("--prefill-peers", prefill.serving()?);
        let router = start("router", &[to_prefill, to_decode].concat())?;
        let nodes = Self { router, prefill, decode };
        for node in [&nodes.decode, &nodes.prefill, &nodes.router] {
            println!("{:10} pid {} {}", node.role(), node.pid(), node.serving().unwrap_or(""));
        }
        nodes.router.wait_until_ready(Duration::from_secs(60))?;
        Ok(nodes)
    }

    fn stop(self) -> Result<()> {
        let Self { router, prefill, decode } = self;
        router.stop()?;
        prefill.stop()?;
        decode.stop()
    }
}

/// The flags that make a child compute as this process does.
fn engine_flags(engine: &EngineArgs) -> Vec<String> {
    let mut flags = vec![
        format!("--runtime={:?}", engine.runtime).to_lowercase(),
        format!("--threads={}", engine.threads),
        format!("--kv-dtype={:?}", engine.kv_dtype).to_lowercase(),
        format!("--block-tokens={}", engine.block_tokens),
        format!("--max-batch={}", engine.max_batch),
        format!("--prefill-chunk={}", engine.prefill_chunk),
    ];
    flags.push(match engine.kv_blocks {
        Some(blocks) => format!("--kv-blocks={blocks}"),
        None => format!("--kv-memory={}", engine.kv_memory),
    });
    flags.extend(engine.no_prefix_cache.then(|| "--no-prefix-cache".to_owned()));
    flags.extend(engine.no_state_handoff.then(|| "--no-state-handoff".to_owned()));
    flags.extend(engine.max_model_len.map(|len| format!("--max-model-len={len}")));
    flags
}

/// What the nodes measured.
struct Report {
    tokens: usize,
    first_token: Duration,
    total: Duration,
    payload: f64,
    adopted: f64,
    handoff: Duration,
    copied: f64,
}

impl Report {
    fn read(nodes: &Nodes, answer: &Answer) -> Result<Self> {
        let (prefill, decode) = (nodes.prefill.http()?, nodes.decode.http()?);
        let copied = metric(decode, "blockwire:payload_copied_bytes_total")?
            + metric(prefill, "blockwire:payload_copied_bytes_total")?;
        Ok(Self {
            tokens: answer.tokens.len(),
            first_token: answer.first_token,
            total: answer.total,
            payload: metric(prefill, "blockwire:handoff_sent_bytes_total")?,
            adopted: metric(decode, "blockwire:handoff_adopted_bytes_total")?,
            handoff: Duration::from_secs_f64(metric(
                prefill,
                "blockwire:handoff_exposed_seconds_sum",
            )?),
            copied,
        })
    }

    fn print(&self) {
        let seconds = (self.total.saturating_sub(self.first_token)).as_secs_f64();
        let rate = self.tokens.saturating_sub(1) as f64 / seconds.max(1e-9);
        println!("\ntokens     {} ({rate:.0} tok/s after the first)", self.tokens);
        println!("first      {:.1} ms to the first token", self.first_token.as_secs_f64() * 1e3);
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let moved = self.payload - self.adopted;
        println!("KV         {:.2} MiB handed over", mib(self.payload));
        println!(
            "adopted    {:.2} MiB read in place, {:.2} MiB moved",
            mib(self.adopted),
            mib(moved)
        );
        println!("handoff    {:.2} ms from offer to commit", self.handoff.as_secs_f64() * 1e3);
        let copies = self.copied / self.payload.max(1.0);
        println!("copies     {copies:.2} per byte of KV in user space");
    }
}

/// The same request on one node, in this process.
fn single_node(
    args: &DemoArgs,
    files: &blockwire_runtime::files::ModelFiles,
    codec: &dyn TextCodec,
    template: &ChatTemplate,
) -> Result<Vec<u32>> {
    let text = template.render(&[Message::new("user", &args.prompt)], true)?;
    let request = GenerateRequest {
        id: Uuid::new_v4(),
        prompt: codec.encode(&text, false)?,
        max_tokens: args.max_tokens,
        min_tokens: 0,
        sampling: SamplingParams::default(),
        ignore_eos: false,
        logprobs: None,
        deadline: None,
        cache_salt: None,
        retractable: false,
    };
    let scheduler = model::start(files, &args.engine, "reference", Backing::Private)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let mut generation = scheduler.generate(request)?;
        let mut tokens = Vec::new();
        while let Some(event) = generation.next().await {
            match event {
                TokenEvent::Token { id, .. } => tokens.push(id),
                TokenEvent::Failed(error) => return Err(error.into()),
                TokenEvent::Started(_) | TokenEvent::Finished { .. } => {}
            }
        }
        Ok(tokens)
    })
}
