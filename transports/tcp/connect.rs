//! From the address of a peer to a connected socket: names are looked up anew at every try, and the
//! addresses of a name race as in RFC 8305 (*happy eyeballs*), so that a dead address or a dead address
//! family costs a quarter of a second and not a timeout.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use blockwire::transport::{Address, ConnectError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use crate::address::Target;
use crate::options::TcpOptions;
use crate::socket;

/// Head start of an address before the next one is tried beside it (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to a peer, within the options' `connect_deadline`, from where the stripe of that number
/// starts.
///
/// # Cancel safety
/// Dropping the future closes every socket that it opened.
pub(crate) async fn connect(
    options: &TcpOptions,
    address: &Address,
    target: &Target,
    stripe: u16,
) -> Result<TcpStream, ConnectError> {
    let racing = async {
        let found = lookup_host((target.host.as_str(), target.port)).await?;
        let dial = async |at| {
            let dialling = socket::connect(at, target.source_of(stripe), options);
            timeout(options.connect_timeout, dialling).await.unwrap_or_else(|_| Err(timed_out()))
        };
        race(alternate(found), dial).await
    };
    let raced = timeout(options.connect_deadline, racing).await;
    raced
        .unwrap_or_else(|_elapsed| Err(timed_out()))
        .map_err(|source| ConnectError::System { address: address.clone(), source })
}

/// Tries the addresses, each with a head start; the first that connects wins, the others are closed.
/// Without a winner the first error counts: it is that of the resolver's first choice.
async fn race<T>(
    addresses: Vec<SocketAddr>,
    dial: impl AsyncFn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut running = FuturesUnordered::new();
    let mut first_error = None;
    for at in addresses {
        running.push(dial(at));
        tokio::select! {
            biased;
            Some(outcome) = running.next() => match outcome {
                Ok(won) => return Ok(won),
                Err(error) => first_error = first_error.or(Some(error)),
            },
            () = sleep(STAGGER) => {}
        }
    }
    while let Some(outcome) = running.next().await {
        match outcome {
            Ok(won) => return Ok(won),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(no_address))
}

/// The resolver's order, but with the address families taking turns.
fn alternate(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let found: Vec<_> = found.collect();
    let first_is_v4 = found.first().is_some_and(SocketAddr::is_ipv4);
    let (one, other): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| address.is_ipv4() == first_is_v4);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut turns = Vec::new();
    loop {
        let turn = [one.next(), other.next()];
        if turn == [None, None] {
            return turns;
        }
        turns.extend(turn.into_iter().flatten());
    }
}

/// What a name without addresses comes to.
pub(crate) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;

    use super::*;

    /// What becomes of a dialled port, after how many milliseconds.
    type Fate = (u64, Option<Result<(), io::ErrorKind>>);

    /// Lives as long as an attempt.
    struct Attempt<'a>(&'a RefCell<Vec<u16>>, u16);

    impl Drop for Attempt<'_> {
        fn drop(&mut self) {
            self.0.borrow_mut().retain(|port| *port != self.1);
        }
    }

    /// Races ports with these fates: the outcome, how long it took, and which were dialled. No attempt
    /// outlives the race.
    fn raced(fates: &[Fate]) -> (Result<u16, io::ErrorKind>, u128, Vec<u16>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (running, dialled) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
            let dial = async |at: SocketAddr| {
                running.borrow_mut().push(at.port());
                dialled.borrow_mut().push(at.port());
                let _attempt = Attempt(&running, at.port());
                let (after, fate) = fates[at.port() as usize];
                sleep(Duration::from_millis(after)).await;
                match fate {
                    Some(Ok(())) => Ok(at.port()),
                    Some(Err(kind)) => Err(kind.into()),
                    None => pending().await,
                }
            };
            let ports = 0..fates.len() as u16;
            let addresses = ports.map(|port| ([127, 0, 0, 1], port).into()).collect();
            let start = tokio::time::Instant::now();
            let outcome = race(addresses, dial).await.map_err(|error| error.kind());
            let took = start.elapsed().as_millis();
            assert!(running.borrow().is_empty(), "an attempt outlived the race");
            (outcome, took, dialled.into_inner())
        })
    }

    const REFUSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;
    const UNREACHABLE: io::ErrorKind = io::ErrorKind::NetworkUnreachable;

    #[test]
    fn the_first_address_that_answers_wins() {
        // Alone, if it is quick.
        assert_eq!(raced(&[(100, Some(Ok(()))), (0, Some(Ok(())))]), (Ok(0), 100, vec![0]));
        // A hole in the first path costs the head start.
        assert_eq!(raced(&[(0, None), (30, Some(Ok(())))]), (Ok(1), 280, vec![0, 1]));
        // A slow first one may still be first.
        assert_eq!(raced(&[(300, Some(Ok(()))), (100, Some(Ok(())))]), (Ok(0), 300, vec![0, 1]));
        // A refusal hands over at once.
        let fates = [(10, Some(Err(REFUSED))), (0, None), (5, Some(Ok(())))];
        assert_eq!(raced(&fates), (Ok(2), 265, vec![0, 1, 2]));
    }

    #[test]
    fn the_first_error_is_told_when_nobody_answers() {
        let fates = [(400, Some(Err(REFUSED))), (0, Some(Err(UNREACHABLE)))];
        assert_eq!(raced(&fates), (Err(UNREACHABLE), 400, vec![0, 1]));
        assert_eq!(raced(&[]), (Err(io::ErrorKind::NotFound), 0, vec![]));
    }

    #[test]
    fn families_take_turns() {
        let order = |texts: &[&str]| {
            let found = texts.iter().map(|text| format!("{text}:1").parse().unwrap());
            alternate(found).iter().map(|at| at.ip().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            order(&["[::1]", "[::2]", "[::3]", "1.1.1.1", "2.2.2.2"]),
            ["::1", "1.1.1.1", "::2", "2.2.2.2", "::3"]
        );
        assert_eq!(order(&["1.1.1.1", "[::1]"]), ["1.1.1.1", "::1"]);
        assert!(order(&[]).is_empty());
    }
}
