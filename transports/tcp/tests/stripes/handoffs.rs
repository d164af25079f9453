//! Whole nodes over links that lose stripes: their sessions notice nothing.

use std::time::Duration;

use blockwire::session::Timing;
use blockwire_tcp::TcpOptions;

use crate::nodes::{Make, give, take_all};
use crate::proxy::{Fate, Proxy};
use crate::{STRIPES, run_local};

/// Blocks of a handoff: 8 MiB.
const BLOCKS: usize = 64;

#[test]
fn handoffs_outlive_all_stripes_but_one() {
    run_local(async {
        let timing = Timing::default();
        let make = Make { layers: 4, blocks: 4 * BLOCKS, timing, options: TcpOptions::default() };
        let (sender, receiver) = (make.node(), make.node());
        let mut listening = receiver.listen("tcp://127.0.0.1:0").await;
        let proxy = Proxy::start(listening.local_address().target());
        let address = format!("tcp://{}?stripes={STRIPES}", proxy.target).parse().unwrap();
        let (dialled, accepted) =
            tokio::join!(sender.endpoint.connect(&address), listening.accept());
        let ((connection, _events), (_held, events)) = (dialled.unwrap(), accepted.unwrap());
        let taking = tokio::task::spawn_local(take_all(events, receiver.pool.clone()));
        for round in 0..STRIPES {
            // The last round goes over the stripe that is left.
            if round + 1 < STRIPES {
                proxy.set_after(round, 1_500_000, Fate::Cut);
            }
            for byte in 0..2 {
                let byte = 1 + 2 * round as u8 + byte;
                let given = give(connection.clone(), sender.pool.clone(), BLOCKS, byte);
                given.await.unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        }
        connection.close("done");
        taking.await.unwrap();
        for node in [&sender, &receiver] {
            tokio::time::timeout(Duration::from_secs(10), node.settle()).await.unwrap();
        }
    });
}
