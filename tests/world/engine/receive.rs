//! The receiver of a handoff.

use std::time::Duration;

use blockwire::endpoint::{Connection, Event, Events, IncomingHandoff};
use blockwire::ingest::{IngestError, IngestOptions, ingest_sequence_handoff};
use blockwire::pool::{KvSequence, ReservedBlock, TransferStats};
use blockwire::session::{DeclineCode, LandError};
use tokio::time::{sleep, timeout};

use super::host::Host;
use super::{BLOCK, content};
use crate::scenario::{Answer, Offer};

/// Takes what a peer offers, for as long as the connection lives.
pub(super) async fn events(host: Host, connection: Connection, mut events: Events) {
    while let Some(event) = events.next().await {
        if let Event::Handoff(incoming) = event {
            host.spawn(take(host.clone(), incoming));
        }
    }
    drop(connection);
}

async fn take(host: Host, incoming: IncomingHandoff) {
    let offer: Offer = match serde_json::from_slice(&incoming.manifest().meta) {
        Ok(offer) => offer,
        Err(error) => return host.oracle().fail(format!("a manifest that nobody sent: {error}")),
    };
    host.oracle().check(offer.to == host.number(), || format!("{offer:?} at {}", host.name()));
    host.oracle().check(incoming.manifest().tokens == offer.tokens, || format!("{offer:?}"));
    let endurance = Duration::from_millis(offer.endurance);
    let lingers = incoming.connection().capabilities().lingers;
    let sequence = match timeout(endurance, answer(&host, incoming, offer)).await {
        Ok(Ok(sequence)) => sequence,
        Ok(Err(error)) => return judge(&host, offer, &error, lingers),
        Err(_) => None,
    };
    if let Some(sequence) = sequence {
        host.oracle().note(|| format!("{}: has handoff {}", host.name(), offer.id));
        sleep(Duration::from_millis(offer.hold)).await;
        read(&host, sequence, offer).await;
    }
}

/// Answers an offer; the sequence that came of it.
async fn answer(
    host: &Host,
    incoming: IncomingHandoff,
    offer: Offer,
) -> Result<Option<KvSequence>, IngestError> {
    let pool = host.pool();
    match offer.answer {
        Answer::Decline => {
            incoming.decline(DeclineCode::DeclineBusy, "not now");
            Ok(None)
        }
        Answer::Copy | Answer::Adopt => {
            let adopt = offer.answer == Answer::Adopt;
            let options = IngestOptions { tokens_max: 1 << 20, growth: 0, adopt, keys: &[] };
            let taken = ingest_sequence_handoff(incoming, pool, options).await?;
            let good = taken.closing == content::closing(offer.id);
            host.oracle().check(good, || format!("{offer:?}: {:?} is its end", taken.closing));
            Ok(Some(taken.sequence))
        }
        Answer::Drop => {
            let blocks = pool.reserve(pool.spec().blocks_for(offer.tokens)).await?;
            drop(incoming.accept(pool, blocks, 0).await?);
            Ok(None)
        }
        Answer::From(block) => {
            // The last token is never here already.
            let from = (block * BLOCK).min((offer.tokens - 1) / BLOCK * BLOCK);
            let blocks = pool.reserve(pool.spec().blocks_for(offer.tokens - from)).await?;
            let landed = incoming.accept(pool, blocks, from).await?.commit().await?;
            let sealed: Vec<_> = landed.blocks.into_iter().map(ReservedBlock::seal).collect();
            let wrong = content::wrong_token(&sealed, offer.id, from, offer.tokens);
            host.oracle().check(wrong.is_none(), || format!("{offer:?}: token {wrong:?} differs"));
            Ok(None)
        }
    }
}

/// Brings a sequence home, and compares every token with what was written.
async fn read(host: &Host, mut sequence: KvSequence, offer: Offer) {
    let was_adopted = sequence.adopted().is_some();
    while let Some(adopted) = sequence.adopted() {
        let count = adopted.ids().len();
        let Ok(home) = host.pool().try_reserve_growth(1.min(count)) else {
            // Nothing to read it into: the lease just ends.
            return host.oracle().count("lease unread");
        };
        if sequence.bring_home(home, &TransferStats::default()).is_err() {
            host.oracle().count("lease lost");
            host.oracle().note(|| format!("{}: the lease of {} was lost", host.name(), offer.id));
            return;
        }
        // One a step: what lies between a block and the next can be a recall, or a death.
        sleep(Duration::from_millis(1)).await;
    }
    host.oracle().count(if was_adopted { "read adopted" } else { "read copied" });
    let len = sequence.len();
    let wrong = content::wrong_in(&mut sequence, offer.id);
    let good = wrong.is_none() && len == offer.tokens;
    host.oracle().check(good, || format!("{offer:?}: {len} tokens, token {wrong:?} differs"));
}

/// An error has to have a cause that somebody knows. Where memory lingers, what was sent before the end of
/// the sender's link may change; the digest is there to show it.
fn judge(host: &Host, offer: Offer, error: &IngestError, lingers: bool) {
    host.oracle().note(|| format!("{}: handoff {} is not taken: {error}", host.name(), offer.id));
    host.oracle().count(match error {
        IngestError::Land(LandError::Digest { .. }) => "not taken: digest",
        IngestError::Land(LandError::Withdrawn) => "not taken: withdrawn",
        IngestError::Land(LandError::Transport(_)) => "not taken: transport",
        _ => "not taken",
    });
    let odd = match error {
        IngestError::Land(LandError::Digest { .. }) => host.is_blameless() && !lingers,
        IngestError::Land(LandError::Room(_) | LandError::NoPath) => true,
        IngestError::Land(_) | IngestError::Reserve(_) => false,
        _ => true,
    };
    host.oracle().check(!odd, || format!("{offer:?}: {error}"));
}
