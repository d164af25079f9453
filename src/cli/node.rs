//! A process as its peers see it.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use blockwire::endpoint::{Endpoint, EndpointOptions};
use blockwire::pool::BlockPool;
use blockwire::session::Identity;
use blockwire::transport::{Address, Transport};
use blockwire_runtime::files::ModelFiles;
use blockwire_serving::protocol::NodeRole;
use blockwire_shm::ShmTransport;
use blockwire_tcp::{TcpOptions, TcpTransport};
use bytes::Bytes;
use uuid::Uuid;

use crate::args::ServeArgs;
use crate::key;
use crate::runtime;

/// What all nodes say that take the caches of any arithmetic.
const ANY_ARITHMETIC: &str = "any";

/// This process.
pub(crate) fn instance() -> Uuid {
    static INSTANCE: OnceLock<Uuid> = OnceLock::new();
    *INSTANCE.get_or_init(Uuid::new_v4)
}

/// The endpoint of a node.
pub(crate) fn endpoint(
    args: &ServeArgs,
    files: &ModelFiles,
    role: NodeRole,
    pool: Option<&BlockPool>,
) -> Result<Arc<Endpoint>> {
    let identity = Identity {
        instance: instance(),
        model: files.id().to_owned(),
        fingerprint: Bytes::copy_from_slice(files.fingerprint().as_bytes()),
        backend: pool.map(|_| arithmetic(args).to_owned()).unwrap_or_default(),
        role: Bytes::from_static(role.as_str().as_bytes()),
        ..Identity::new(name(role, args.serving_bind.as_ref()))
    };
    let mut tcp = TcpOptions::default();
    tcp.instance = instance();
    tcp.cluster_key = key::cluster_key(args)?;
    tcp.loopback_only = tcp.cluster_key.is_none() && !args.insecure;
    let transports: Vec<Arc<dyn Transport>> =
        vec![Arc::new(ShmTransport::default()), Arc::new(TcpTransport::new(tcp))];
    let options = EndpointOptions::new(identity, pool.cloned(), transports);
    Ok(Arc::new(Endpoint::start(options).context("starting the endpoint")?))
}

/// Name and version of the arithmetic: nodes that differ here would differ in their last bits.
fn arithmetic(args: &ServeArgs) -> &'static str {
    match args.allow_cross_backend {
        true => ANY_ARITHMETIC,
        false => runtime::arithmetic(args.engine.runtime),
    }
}

/// What a node calls itself, for people: its role, and where it is.
pub(crate) fn name(role: NodeRole, place: Option<&Address>) -> String {
    let place = place.map(|place| format!(" {place}")).unwrap_or_default();
    format!("{role}{place}")
}
