//! Measures links by handing caches over, between the endpoints that nodes have.
//!
//! ```text
//! blockwire doctor link --listen tcp://0.0.0.0:7100     takes what comes, says nothing of it
//! blockwire doctor link tcp://HOST:7100                 sends messages, then caches, and prints what they took
//! ```
//! A cache here has the shape of an 8-billion-parameter model with grouped heads: 32 layers, 8 heads of 128 values
//! of 16 bits, 128 KiB a token. The clock stops when the peer has committed, so digest, credits and acknowledgement
//! are in it.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use blockwire::clock;
use blockwire::endpoint::{Connection, Endpoint, EndpointOptions, Event, Events};
use blockwire::handoff::{SequenceHandoff, extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, PoolOptions};
use blockwire::session::{HandoffKey, Identity};
use blockwire::transport::Address;
use blockwire_tcp::ClusterKey;
use bytes::Bytes;
use uuid::Uuid;

use super::finding::Finding;
use crate::args::LinkArgs;
use crate::key;
use crate::node;
use crate::progress::Progress;
use crate::stop::Stop;

/// What both ends call themselves: caches are sent to nobody else.
const NAME: &str = "blockwire doctor";
const OTHER_END: &str = "blockwire doctor link --listen ADDRESS";
/// Tokens of the caches that are handed over.
const TOKENS: [usize; 3] = [16, 128, 1024];
/// Times that each is.
const HANDOFFS: usize = 5;
/// Messages that go there and back.
const MESSAGES: usize = 200;
const MESSAGE_LEN: usize = 64;
/// Longest time for one of the measurements.
const SHARE: Duration = Duration::from_secs(5);
/// What the offer's word to the receiver is when the blocks may stay where they are.
const IN_PLACE: &[u8] = b"in place";

/// Runs either end.
pub(super) fn run(args: &LinkArgs) -> Result<()> {
    in_runtime(async {
        let key = key::cluster_key(args.cluster_key_file.as_deref())?;
        if key.is_none() && !args.insecure {
            key::check_exposure([("link", &args.address)])?;
        }
        let (endpoint, pool) = endpoint(node::instance(), key, args.insecure)?;
        if args.listen {
            return listen(&endpoint, &pool, &args.address).await;
        }
        let measured = measure(&endpoint, &pool, &args.address, true).await?;
        print!("{}", measured.to_text(&args.address));
        Ok(())
    })
}

/// Handoffs within this host, over each transport.
pub(super) fn findings() -> Vec<Finding> {
    let shm = format!("shm:doctor-{}", std::process::id());
    let links = [("shared memory", shm.as_str()), ("tcp loopback", "tcp://127.0.0.1:0")];
    let measured = links.map(|(check, address)| match within_host(address) {
        Ok(measured) => Finding::ok(check, measured.to_line()),
        Err(error) => Finding::fail(
            check,
            format!("{error:#}"),
            "nodes on this host do not reach each other like this",
        ),
    });
    measured.into()
}

fn in_runtime<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(task)
}

fn within_host(address: &str) -> Result<Measured> {
    in_runtime(async {
        let address: Address = address.parse()?;
        let (there, pool_there) = endpoint(Uuid::new_v4(), None, false)?;
        let (endpoint, pool) = endpoint(Uuid::new_v4(), None, false)?;
        let mut listening = there.listen(&address).await?;
        let to = match address.scheme() {
            "tcp" => listening.local_address().clone(),
            _ => address,
        };
        let taking = async {
            while let Some((connection, events)) = listening.accept().await {
                take(&connection, events, &pool_there).await;
            }
            bail!("the listener ended")
        };
        tokio::select! {
            measured = measure(&endpoint, &pool, &to, false) => measured,
            never = taking => never,
        }
    })
}

/// An endpoint with a pool that holds the longest cache.
fn endpoint(
    instance: Uuid,
    key: Option<ClusterKey>,
    insecure: bool,
) -> Result<(Endpoint, BlockPool)> {
    let spec = KvSpec::uniform(16, 32, 8, 128, Dtype::F16);
    let blocks = spec.blocks_for(TOKENS[TOKENS.len() - 1]);
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, blocks) };
    let pool = BlockPool::faulted_in(options, &mut |_, _| {})?;
    let identity = Identity { instance, ..Identity::new(NAME) };
    let transports = node::transports(instance, key, insecure);
    let options = EndpointOptions::new(identity, Some(pool.clone()), transports);
    Ok((Endpoint::start(options).context("starting the endpoint")?, pool))
}

/// Takes whatever comes, from one peer after the other, until it is stopped.
async fn listen(endpoint: &Endpoint, pool: &BlockPool, address: &Address) -> Result<()> {
    let stop = Stop::on_signals()?;
    let listening = endpoint.listen(address).await.map_err(|error| anyhow!("{error}"));
    let mut listening = listening?;
    eprintln!("listening on {}; Ctrl-C ends it", listening.local_address());
    let taking = async {
        while let Some((connection, events)) = listening.accept().await {
            eprintln!("{} measures", connection.peer_address());
            take(&connection, events, pool).await;
        }
        bail!("the listener ended")
    };
    tokio::select! {
        ended = taking => ended,
        () = stop.requested() => Ok(()),
    }
}

/// Answers messages, takes handoffs and forgets them, until the peer is gone.
async fn take(connection: &Connection, mut events: Events, pool: &BlockPool) {
    while let Some(event) = events.next().await {
        match event {
            Event::Message(message) => {
                connection.post(message.request, message.epoch, message.kind, message.body);
            }
            Event::Handoff(incoming) => {
                let adopt = incoming.manifest().meta == IN_PLACE;
                let options = IngestOptions { tokens_max: usize::MAX, growth: 0, adopt, keys: &[] };
                // What went wrong the peer is told, and says.
                let _taken = ingest_sequence_handoff(incoming, pool, options).await;
            }
        }
    }
}

/// What a link takes.
struct Measured {
    connected: Duration,
    /// Of messages, there and back, in rising order.
    round_trips: Vec<Duration>,
    /// Of each length.
    copied: Vec<Handoffs>,
    /// Of the longest, where its blocks can stay where they are.
    in_place: Option<Handoffs>,
}

/// Handoffs of one length.
struct Handoffs {
    tokens: usize,
    bytes: u64,
    /// In rising order.
    took: Vec<Duration>,
}

impl Handoffs {
    fn rate(&self) -> f64 {
        self.bytes as f64 / median(&self.took).as_secs_f64().max(1e-9) / 1e9
    }

    fn to_line(&self) -> String {
        let (mib, took) = (self.bytes as f64 / f64::from(1 << 20), median(&self.took));
        format!("{} tokens, {mib:.0} MiB: {took:.1?}, {:.1} GB/s", self.tokens, self.rate())
    }
}

impl Measured {
    /// The longest handoff.
    fn longest(&self) -> Option<&Handoffs> {
        self.copied.last()
    }

    /// All of it in a line.
    fn to_line(&self) -> String {
        let round_trip = median(&self.round_trips);
        let copied = self.longest().map(|longest| format!(", {:.1} GB/s", longest.rate()));
        let in_place = self.in_place.as_ref().map(|handoffs| {
            format!(", {} MiB in place in {:.1?}", handoffs.bytes >> 20, median(&handoffs.took))
        });
        format!(
            "{round_trip:.1?} there and back{}{}",
            copied.unwrap_or_default(),
            in_place.unwrap_or_default()
        )
    }

    fn to_text(&self, address: &Address) -> String {
        let (trips, count) = (&self.round_trips, self.round_trips.len());
        let late = trips[(count * 99 / 100).min(count - 1)];
        let mut text = format!(
            "{address}: connected in {:.1?}\n\
             {MESSAGE_LEN} bytes there and back: {:.1?} (median), {late:.1?} (p99), of {count}\n\
             caches of a model of 8 billion parameters (128 KiB a token):\n",
            self.connected,
            median(trips),
        );
        for handoffs in &self.copied {
            text += &format!("  {}\n", handoffs.to_line());
        }
        if let Some(handoffs) = &self.in_place {
            let (mib, took) = (handoffs.bytes >> 20, median(&handoffs.took));
            text += &format!(
                "  {} tokens, {mib} MiB, left where they are: {took:.1?}\n",
                handoffs.tokens
            );
        }
        text
    }
}

fn median(rising: &[Duration]) -> Duration {
    rising[rising.len() / 2]
}

/// Connects to a doctor that listens, and measures; `shows` how far that is.
async fn measure(
    endpoint: &Endpoint,
    pool: &BlockPool,
    address: &Address,
    shows: bool,
) -> Result<Measured> {
    let start = clock::now();
    // Its text has its causes already.
    let refused = |error| anyhow!("{error}; is `{OTHER_END}` running there?");
    let (connection, mut events) = endpoint.connect(address).await.map_err(refused)?;
    let connected = clock::now() - start;
    if connection.peer().name != NAME {
        let name = &connection.peer().name;
        bail!("{address} is `{name}`, which takes no caches of a doctor; run `{OTHER_END}` there");
    }
    let can = connection.capabilities();
    let steps = 1 + TOKENS.len() as u64 + u64::from(can.adopt);
    let mut progress = shows.then(|| Progress::new("measuring", steps));
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress.iter_mut().for_each(|progress| progress.set(done));
    };
    let round_trips = trips(&connection, &mut events).await?;
    step();
    let mut copied = Vec::new();
    for tokens in TOKENS {
        copied.push(hand_over(&connection, pool, tokens, Bytes::new()).await?);
        step();
    }
    let mut in_place = None;
    if can.adopt {
        let word = Bytes::from_static(IN_PLACE);
        in_place = Some(hand_over(&connection, pool, TOKENS[TOKENS.len() - 1], word).await?);
        step();
    }
    drop(progress);
    Ok(Measured { connected, round_trips, copied, in_place })
}

/// Messages, there and back.
async fn trips(connection: &Connection, events: &mut Events) -> Result<Vec<Duration>> {
    let (begin, mut trips) = (clock::now(), Vec::new());
    while trips.len() < MESSAGES && (trips.is_empty() || clock::now() - begin < SHARE) {
        let start = clock::now();
        connection.post(Uuid::nil(), 0, 0, Bytes::from_static(&[0; MESSAGE_LEN]));
        let answer = events.next().await;
        answer.ok_or_else(|| anyhow!("the peer left amid messages"))?;
        trips.push(clock::now() - start);
    }
    trips.sort_unstable();
    Ok(trips)
}

/// Hands a cache over, again and again.
async fn hand_over(
    connection: &Connection,
    pool: &BlockPool,
    tokens: usize,
    word: Bytes,
) -> Result<Handoffs> {
    let cache = cache(pool, tokens)?;
    let (begin, mut took, mut bytes) = (clock::now(), Vec::new(), 0);
    while took.len() < HANDOFFS && (took.is_empty() || clock::now() - begin < SHARE) {
        let key = HandoffKey { request: Uuid::new_v4(), epoch: 1 };
        let start = clock::now();
        let sent = send_handoff_payload(connection, key, cache.clone(), word.clone()).await?;
        took.push(clock::now() - start);
        bytes = sent.payload_len;
    }
    took.sort_unstable();
    Ok(Handoffs { tokens, bytes, took })
}

/// A written cache of so many tokens.
fn cache(pool: &BlockPool, tokens: usize) -> Result<SequenceHandoff> {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(pool.spec().blocks_for(tokens))?;
    blocks.iter_mut().for_each(|block| block.fill(1));
    sequence.push(blocks)?;
    sequence.set_len(tokens);
    Ok(extract_sequence_handoff(&mut sequence)?)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn handoffs_within_a_host_are_measured() {
        for finding in findings() {
            assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
            assert!(finding.found.contains("GB/s"), "{finding:?}");
        }
    }

    #[test]
    fn where_nobody_listens_the_error_says_so() {
        let measured = in_runtime(async {
            let (endpoint, pool) = endpoint(Uuid::new_v4(), None, false)?;
            measure(&endpoint, &pool, &"tcp://127.0.0.1:1".parse()?, false).await.map(drop)
        });
        let error = format!("{:#}", measured.unwrap_err());
        assert!(error.contains("127.0.0.1:1"), "{error}");
    }
}
