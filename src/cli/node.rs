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
use blockwire_tcp::{ClusterKey, TcpOptions, TcpTransport};
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
    let key = key::cluster_key(args.cluster_key_file.as_deref())?;
    let transports = transports(instance(), key, args.insecure);
    let options = EndpointOptions::new(identity, pool.cloned(), transports);
    Ok(Arc::new(Endpoint::start(options).context("starting the endpoint")?))
}

/// Every way to a peer. Without a key nobody beyond this host is one, unless that is `insecure`ly allowed.
pub(crate) fn transports(
    instance: Uuid,
    key: Option<ClusterKey>,
    insecure: bool,
) -> Vec<Arc<dyn Transport>> {
    let mut tcp = TcpOptions::default();
    tcp.instance = instance;
    tcp.loopback_only = key.is_none() && !insecure;
    tcp.cluster_key = key;
    vec![Arc::new(ShmTransport::default()), Arc::new(TcpTransport::new(tcp))]
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
