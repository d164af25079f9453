//! `blockwire serve`: one node of a deployment, or all of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use blockwire::endpoint::Endpoint;
use blockwire::pool::Backing;
use blockwire::transport::Address;
use blockwire_runtime::files::ModelFiles;
use blockwire_serving::backend::{Backend, ModelCard};
use blockwire_serving::coordinator::{HandoffMetrics, ServingCoordinator};
use blockwire_serving::http::{self, FrontOptions, FrontState};
use blockwire_serving::metrics::Metrics;
use blockwire_serving::protocol::NodeRole;
use blockwire_serving::router::RequestRouter;
use blockwire_serving::scheduler::{BatchScheduler, LocalBackend};
use tokio::net::TcpListener;

use crate::args::{Fallback, Role, ServeArgs};
use crate::key;
use crate::model::{self, Unusable};
use crate::node;
use crate::stop::Stop;

/// Where the OpenAI API listens when nothing else is said.
const HTTP_DEFAULT: &str = "127.0.0.1:8000";

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(mut args: ServeArgs) -> Result<()> {
    if let Err(lacking) = check(&args) {
        if args.fallback != Fallback::Single {
            return Err(lacking.into());
        }
        tracing::warn!("{lacking}: serving alone, as --fallback single says");
        args.node_role = Role::Single;
    }
    check_keys(&args)?;
    let files = model::open(&args.model)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = Stop::on_signals()?;
        match args.node_role {
            Role::Single => single(&args, &files, stop).await,
            Role::Prefill => worker(&args, &files, NodeRole::Prefill, stop).await,
            Role::Decode => worker(&args, &files, NodeRole::Decode, stop).await,
            Role::Router => router(&args, &files, stop).await,
        }
    })
}

/// What the role needs and does not have.
fn check(args: &ServeArgs) -> Result<(), Unusable> {
    let lacks = |role: &str, what: &str| Err(Unusable(format!("--node-role {role} needs {what}")));
    match args.node_role {
        Role::Prefill if args.serving_bind.is_none() => lacks("prefill", "--serving-bind"),
        Role::Prefill if args.decode_peers.is_empty() => lacks("prefill", "--decode-peers"),
        Role::Decode if args.serving_bind.is_none() => lacks("decode", "--serving-bind"),
        Role::Router if args.prefill_peers.is_empty() => lacks("router", "--prefill-peers"),
        Role::Router if args.decode_peers.is_empty() => lacks("router", "--decode-peers"),
        _ => {
            let has_key = key::cluster_key(args.cluster_key_file.as_deref())?.is_some();
            if has_key || args.insecure { Ok(()) } else { key::check_exposure(args.addresses()) }
        }
    }
}

/// Whether there is a key where one is to be asked for. No fallback helps: nothing may be open that was to be closed.
fn check_keys(args: &ServeArgs) -> Result<(), Unusable> {
    if !args.keyed_metrics {
        return Ok(());
    }
    let problem = match args.node_role {
        Role::Prefill | Role::Decode => "prefill and decode nodes have no API keys",
        _ if args.api_key.is_empty() => "there is no --api-key",
        _ => return Ok(()),
    };
    Err(Unusable(format!("--keyed-metrics: {problem}")))
}

async fn single(args: &ServeArgs, files: &ModelFiles, stop: Stop) -> Result<()> {
    let scheduler = model::start(files, &args.engine, "single", Backing::Private)?;
    let metrics = Metrics::new();
    scheduler.register_metrics(&metrics);
    let (id, aliases) = names(args, files);
    let backend = Arc::new(LocalBackend::new(scheduler.clone(), &id, aliases));
    front(args, files, backend, metrics, stop).await?;
    scheduler.drain();
    say_goodbye(&scheduler);
    Ok(())
}

async fn worker(args: &ServeArgs, files: &ModelFiles, role: NodeRole, stop: Stop) -> Result<()> {
    let scheduler = model::start(files, &args.engine, role.as_str(), Backing::Shared)?;
    let bind = args.serving_bind.as_ref().context("--serving-bind")?;
    let endpoint = node::endpoint(args, files, role, Some(scheduler.pool()))?;
    let listening = endpoint.listen(bind).await.map_err(|error| Unusable(error.to_string()))?;
    let metrics = Metrics::new();
    scheduler.register_metrics(&metrics);
    let handoffs = HandoffMetrics::register(&metrics);
    let http = serve_node_http(args, &metrics).await?;
    let local = listening.local_address().clone();
    // Of tcp the port may be known only now; of shm the name that was given says more than the socket's path.
    if bind.scheme() == "tcp" {
        endpoint.rename(node::name(role, Some(&local)));
    }
    announce(role.as_str(), http, Some(&local));
    let node = ServingCoordinator::new(endpoint.clone(), scheduler.clone(), handoffs);
    let node = if args.no_adopt { node.without_adoption() } else { node };
    match role {
        NodeRole::Prefill => {
            let peers = args.decode_peers.clone();
            node.run_prefill_role_networked(listening, peers, stop.requested()).await;
        }
        _ => node.run_decode_role_networked(listening, stop.requested()).await,
    }
    scheduler.drain();
    drop(node);
    shut_down(endpoint).await;
    say_goodbye(&scheduler);
    Ok(())
}

/// The last line of a node with a pool: whether it kept its books.
fn say_goodbye(scheduler: &BatchScheduler) {
    let end = scheduler.pool().accounting();
    match end.total - end.available() {
        0 => tracing::info!(blocks = end.total, "stopped, all blocks are free"),
        held => tracing::error!(held, ?end, "stopped, blocks are still held: please report this"),
    }
}

async fn router(args: &ServeArgs, files: &ModelFiles, stop: Stop) -> Result<()> {
    let endpoint = node::endpoint(args, files, NodeRole::Router, None)?;
    let context = args.engine.max_model_len.unwrap_or(usize::MAX).min(files.config().context);
    let (id, aliases) = names(args, files);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let card =
        ModelCard { id, aliases, context_len: context, vocab: files.config().vocab, created };
    let router = RequestRouter::new(node::instance(), card, args.handoff.into());
    let (prefill, decode) = (args.prefill_peers.clone(), args.decode_peers.clone());
    let running = tokio::spawn(router.clone().run(endpoint.clone(), prefill, decode));
    let metrics = Metrics::new();
    router.register_metrics(&metrics);
    front(args, files, Arc::new(router), metrics, stop).await?;
    running.abort();
    let _ = running.await;
    shut_down(endpoint).await;
    Ok(())
}

/// Serves the OpenAI API until the process is told to stop.
async fn front(
    args: &ServeArgs,
    files: &ModelFiles,
    backend: Arc<dyn Backend>,
    metrics: Metrics,
    stop: Stop,
) -> Result<()> {
    let (codec, chat) = model::text(files)?;
    let options = FrontOptions {
        api_keys: args.api_key.clone(),
        keyed_metrics: args.keyed_metrics,
        ..FrontOptions::default()
    };
    let state = FrontState::new(backend, codec, chat, metrics, options);
    let address = args.http.map_or_else(|| HTTP_DEFAULT.parse(), Ok)?;
    let listener = bind_http(address).await?;
    let role = if args.node_role == Role::Router { "router" } else { "single" };
    announce(role, Some(listener.local_addr()?), None);
    let served = http::serve(listener, http::app(state), stop.clone().requested());
    tokio::select! {
        served = served => served?,
        () = stop.overdue() => tracing::warn!("stopping with requests in flight"),
    }
    Ok(())
}

/// `/health` and `/metrics` of a node, where asked for.
async fn serve_node_http(args: &ServeArgs, metrics: &Metrics) -> Result<Option<SocketAddr>> {
    let Some(address) = args.http else { return Ok(None) };
    let listener = bind_http(address).await?;
    let local = listener.local_addr()?;
    tokio::spawn(http::serve(listener, http::node_app(metrics.clone()), std::future::pending()));
    Ok(Some(local))
}

async fn bind_http(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    Ok(bound.map_err(|error| Unusable(format!("--http {address}: {error}")))?)
}

/// One line on stdout that a person or a script can wait for.
fn announce(role: &str, http: Option<SocketAddr>, serving: Option<&Address>) {
    let http = http.map(|http| format!(" http=http://{http}")).unwrap_or_default();
    let serving = serving.map(|serving| format!(" serving={serving}")).unwrap_or_default();
    println!("blockwire {role} ready{http}{serving}");
}

/// The model's name in requests, and the names that mean the same: the file's, and the one that the
/// checkpoint gives itself.
fn names(args: &ServeArgs, files: &ModelFiles) -> (String, Vec<String>) {
    let id = args.served_model_name.as_deref().unwrap_or(files.id());
    let mut aliases = vec![files.id().to_owned(), files.name().to_owned()];
    aliases.dedup();
    aliases.retain(|alias| alias != id);
    (id.to_owned(), aliases)
}

/// Closes all connections in order; joins the driver's thread away from the async threads.
async fn shut_down(endpoint: Arc<Endpoint>) {
    let _ = tokio::task::spawn_blocking(move || drop(endpoint)).await;
}
