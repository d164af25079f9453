//! Dials the connections of a striped link: at first side by side, later in place of lost ones.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use blockwire::pool::TransferStats;
use blockwire::transport::{ConnectError, Violation};
use futures_util::future::try_join_all;
use uuid::Uuid;

use super::StripedLink;
use super::door::Door;
use super::growth::Growth;
use super::redial::Redial;
use crate::Dialler;
use crate::greeting::{Greeted, Place};
use crate::link::TcpLink;
use crate::mover::Channel;
use crate::options::TcpOptions;

/// A stripe that is silent is given up sooner than a whole link would be: others are left, and the
/// session's ping has to find its way over one of them before its own deadline.
const UNACKNOWLEDGED_SHARE: u32 = 4;

/// A connection after its greeting.
pub(crate) type Connection = (Channel, Greeted);

/// Makes a link of as many connections as the address says. All have to come to be, and to end in one
/// process.
///
/// # Cancel safety
/// Dropping the future closes every connection.
pub(crate) async fn connect(dialler: Dialler) -> Result<StripedLink, ConnectError> {
    let (link, stripes) = (Uuid::new_v4(), dialler.target.stripes());
    let dials = (0..stripes).map(|stripe| dialler.dial(Place { link, stripe, stripes }, stripe));
    let connections = try_join_all(dials).await?;
    let mut instances = connections.iter().map(|(_, greeted)| greeted.instance);
    let first = instances.next().expect("a link has a connection");
    if instances.any(|instance| instance != first) {
        return Err(dialler.violated(OTHER_PROCESS));
    }
    let maker = StripeMaker::new(&dialler.options);
    let links = maker.make_all(connections).map_err(|source| dialler.system(source))?;
    let dialler = Rc::new(dialler);
    let again = Rc::clone(&dialler);
    let dial = move |stripe, from| {
        let dialler = Rc::clone(&again);
        Box::pin(async move {
            let connection = dialler.dial(Place { link, stripe, stripes }, from).await?;
            // Whoever has the address now may not be whom the link is with.
            if connection.1.instance == first {
                Ok(connection)
            } else {
                Err(dialler.violated(OTHER_PROCESS))
            }
        }) as _
    };
    let redial = Redial::new(stripes.into(), &dialler.options, Box::new(dial));
    Ok(StripedLink::new(links, maker, Growth::dialler(redial), &dialler.options))
}

const OTHER_PROCESS: Violation = Violation::Greeting("the stripes reached different processes");

/// Makes a link of greeted connections, in the order of their numbers. Others come through the door.
pub(crate) fn assemble(
    connections: Vec<Connection>,
    door: Door<Connection>,
    options: &TcpOptions,
) -> io::Result<StripedLink> {
    let maker = StripeMaker::new(options);
    let links = maker.make_all(connections)?;
    Ok(StripedLink::new(links, maker, Growth::acceptor(door), options))
}

/// What all stripes of a link have in common.
#[derive(Debug)]
pub(super) struct StripeMaker {
    options: TcpOptions,
    pub(super) stats: Arc<TransferStats>,
}

impl StripeMaker {
    fn new(options: &TcpOptions) -> Self {
        let mut options = options.clone();
        options.unacknowledged_max /= UNACKNOWLEDGED_SHARE;
        Self { options, stats: Arc::default() }
    }

    /// Makes a stripe of a connection.
    pub(super) fn make(&self, (channel, greeted): Connection) -> io::Result<TcpLink> {
        TcpLink::new(channel, &greeted, &self.options, Arc::clone(&self.stats))
    }

    fn make_all(&self, connections: Vec<Connection>) -> io::Result<Vec<TcpLink>> {
        connections.into_iter().map(|connection| self.make(connection)).collect()
    }
}
