//! A bound name, and the links that wait behind it.

use std::task::{Context, Poll};

use blockwire::transport::{Address, ConnectError, Link, Listener};

use super::SCHEME;
use super::network::Network;

/// A bound name. Dropping it frees the name; links not accepted yet die.
#[derive(Debug)]
pub struct SimListener {
    network: Network,
    name: String,
}

impl SimListener {
    pub(crate) fn new(network: Network, name: String) -> Self {
        Self { network, name }
    }
}

impl Listener for SimListener {
    fn local_address(&self) -> Address {
        Address::new(SCHEME, &self.name)
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Link>, ConnectError>> {
        match self.network.poll_accept(&self.name, cx) {
            Poll::Ready(link) => Poll::Ready(Ok(Box::new(link))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        // Outside the network's lock: the links that die wake their peers.
        let unaccepted = self.network.unbind(&self.name);
        drop(unaccepted);
    }
}
