//! A process as its peers see it.

use std::net::ToSocketAddrs;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use blockwire::endpoint::{Endpoint, EndpointOptions};
use blockwire::pool::BlockPool;
use blockwire::session::Identity;
use blockwire::transport::Transport;
use blockwire_runtime::files::ModelFiles;
use blockwire_serving::protocol::NodeRole;
use blockwire_shm::ShmTransport;
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use uuid::Uuid;

use crate::args::ServeArgs;
use crate::model::Unusable;

/// Name and version of the arithmetic: nodes that differ here would differ in their last bits.
const BACKEND: &str = "cpu/1";

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
    let place = args.serving_bind.as_ref().map(|bind| format!(" {bind}")).unwrap_or_default();
    let identity = Identity {
        instance: instance(),
        model: files.id().to_owned(),
        fingerprint: Bytes::copy_from_slice(files.fingerprint().as_bytes()),
        backend: if pool.is_some() { BACKEND.to_owned() } else { String::new() },
        role: Bytes::from_static(role.as_str().as_bytes()),
        ..Identity::new(format!("{role}{place}"))
    };
    let transports: Vec<Arc<dyn Transport>> =
        vec![Arc::new(ShmTransport::default()), Arc::new(TcpTransport::default())];
    let options = EndpointOptions::new(identity, pool.cloned(), transports);
    Ok(Arc::new(Endpoint::start(options).context("starting the endpoint")?))
}

/// Refuses a tcp bind that other hosts reach, unless the user insists: peers are not authenticated.
pub(crate) fn check_exposure(args: &ServeArgs) -> Result<(), Unusable> {
    let Some(bind) = args.serving_bind.as_ref().filter(|bind| bind.scheme() == "tcp") else {
        return Ok(());
    };
    if args.allow_unauthenticated {
        return Ok(());
    }
    // A name that does not resolve is reported by the bind itself.
    let exposed = bind
        .target()
        .to_socket_addrs()
        .is_ok_and(|addresses| addresses.into_iter().any(|address| !address.ip().is_loopback()));
    if exposed {
        return Err(Unusable(format!(
            "--serving-bind {bind} is reachable from other hosts and peers are not authenticated: \
             bind a loopback address, or add --allow-unauthenticated on a trusted network"
        )));
    }
    Ok(())
}
