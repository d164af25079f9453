//! How one host reaches the others.

use blockwire::transport::{
    Address, ConnectError, Link, ListenError, Listener, LocalFuture, Transport,
};

use super::SCHEME;
use super::listener::SimListener;
use super::network::Network;

/// A host of a [`Network`]: dials `sim:NAME` and listens under such names.
///
/// `sim:` without a name listens under a fresh one.
#[derive(Clone, Debug)]
pub struct SimTransport {
    network: Network,
    host: String,
}

impl SimTransport {
    pub(crate) fn new(network: Network, host: &str) -> Self {
        Self { network, host: host.to_owned() }
    }
}

impl Transport for SimTransport {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn connect(&self, address: &Address) -> LocalFuture<Result<Box<dyn Link>, ConnectError>> {
        let (own, address) = (self.clone(), address.clone());
        Box::pin(async move {
            if address.scheme() != SCHEME {
                let reason = "the scheme is not sim".into();
                return Err(ConnectError::Address { address, reason });
            }
            let link = own.network.dial(&own.host, &address).await?;
            Ok(Box::new(link) as Box<dyn Link>)
        })
    }

    fn listen(&self, address: &Address) -> LocalFuture<Result<Box<dyn Listener>, ListenError>> {
        let (own, address) = (self.clone(), address.clone());
        Box::pin(async move {
            if address.scheme() != SCHEME {
                let reason = "the scheme is not sim".into();
                return Err(ListenError::Address { address, reason });
            }
            match own.network.bind(&own.host, address.target()) {
                Some(name) => {
                    Ok(Box::new(SimListener::new(own.network, name)) as Box<dyn Listener>)
                }
                None => Err(ListenError::InUse { address }),
            }
        })
    }
}
