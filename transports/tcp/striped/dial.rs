//! Dials the connections of a striped link, side by side.

use std::io;
use std::sync::Arc;

use blockwire::transport::{ConnectError, Violation};
use futures_util::future::try_join_all;
use uuid::Uuid;

use super::StripedLink;
use crate::Dialler;
use crate::greeting::{Greeted, Place};
use crate::link::TcpLink;
use crate::mover::Channel;
use crate::options::TcpOptions;

/// A stripe that is silent is given up sooner than a whole link would be: others are left, and the
/// session's ping has to find its way over one of them before its own deadline.
const UNACKNOWLEDGED_SHARE: u32 = 4;

/// Makes a link of as many connections as the address says. All have to come to be, and to end in one
/// process.
///
/// # Cancel safety
/// Dropping the future closes every connection.
pub(crate) async fn connect(dialler: &Dialler<'_>) -> Result<StripedLink, ConnectError> {
    let (link, stripes) = (Uuid::new_v4(), dialler.target.stripes());
    let dials = (0..stripes).map(|stripe| dialler.dial(Place { link, stripe, stripes }));
    let connections = try_join_all(dials).await?;
    let mut instances = connections.iter().map(|(_, greeted)| greeted.instance);
    let first = instances.next();
    let address = || dialler.address.clone();
    if instances.any(|instance| Some(instance) != first) {
        let violation = Violation::Greeting("the stripes reached different processes");
        return Err(ConnectError::Violated { address: address(), violation });
    }
    assemble(connections, dialler.options)
        .map_err(|source| ConnectError::System { address: address(), source })
}

/// Makes a link of greeted connections, in the order of their numbers.
pub(crate) fn assemble(
    connections: Vec<(Channel, Greeted)>,
    options: &TcpOptions,
) -> io::Result<StripedLink> {
    let stats = Arc::default();
    let mut each = options.clone();
    each.unacknowledged_max /= UNACKNOWLEDGED_SHARE;
    let link =
        |(stream, greeted): (_, Greeted)| TcpLink::new(stream, &greeted, &each, Arc::clone(&stats));
    let links = connections.into_iter().map(link).collect::<Result<_, _>>()?;
    Ok(StripedLink::new(links, stats, options))
}
