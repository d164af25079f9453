//! The sender of a handoff.

use std::time::Duration;

use blockwire::handoff::{HandoffSender, SequenceHandoff, extract_sequence_handoff};
use blockwire::pool::{KvSequence, SealedBlock};
use blockwire::session::{HandoffKey, OfferError, PieceCut};
use bytes::Bytes;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::host::Host;
use super::{BLOCK, content};
use crate::scenario::{Answer, Offer};

/// Receivers give up long before, and so do links that are silent.
const HANG: Duration = Duration::from_secs(20);

/// Computes a sequence and hands it over.
pub(super) async fn offer(host: Host, offer: Offer) {
    // Whatever happens, it is over by then.
    let patience = Duration::from_millis(offer.patience);
    let outcome = timeout(patience, hand_over(&host, offer)).await;
    host.oracle().count(match &outcome {
        Ok(Ok(())) => "offer committed",
        Ok(Err(_)) => "offer failed",
        Err(_) => "offer given up",
    });
    host.oracle().note(|| match &outcome {
        Ok(Ok(())) => format!("{}: handoff {} is committed", host.name(), offer.id),
        Ok(Err(why)) => format!("{}: handoff {} failed: {why}", host.name(), offer.id),
        Err(_) => format!("{}: handoff {} is given up by its sender", host.name(), offer.id),
    });
}

async fn hand_over(host: &Host, offer: Offer) -> Result<(), String> {
    let pool = host.pool();
    let needed = pool.spec().blocks_for(offer.tokens);
    let mut blocks = pool.reserve(needed).await.map_err(|error| error.to_string())?;
    content::write(&mut blocks, offer.id, offer.tokens);
    let mut sequence = KvSequence::new(pool);
    sequence.push(blocks).map_err(|error| error.to_string())?;
    sequence.set_len(offer.tokens);
    let handoff = extract_sequence_handoff(&mut sequence);
    let handoff = handoff.map_err(|error| error.to_string())?;
    drop(sequence);
    let connection = host.connection(offer.to).await.ok_or("nobody answers")?;
    let key = HandoffKey { request: Uuid::from_u128(u128::from(offer.id) + 1), epoch: 1 };
    let meta: Bytes = serde_json::to_vec(&offer).unwrap().into();
    let mut sender = HandoffSender::new(connection, key, pool, offer.tokens, meta);
    let layers = offer.id / 4 % 2;
    sender = sender.in_pieces(PieceCut { tokens: BLOCK as u32, layered_from: BLOCK, layers });
    if offer.id % 2 == 1 {
        compute(&mut sender, &handoff, offer).await.map_err(|error| error.to_string())?;
    }
    let Ok(sent) = timeout(HANG, sender.finish(handoff, content::closing(offer.id))).await else {
        host.oracle().fail(format!("{offer:?} hangs"));
        return Err("it hangs".to_owned());
    };
    match sent {
        Ok(report) => {
            host.oracle().count(if report.ahead_len > 0 { "sent ahead" } else { "sent whole" });
            let wanted = !matches!(offer.answer, Answer::Drop | Answer::Decline);
            host.oracle().check(wanted, || format!("{offer:?} is committed by nobody"));
            Ok(())
        }
        Err(error) => {
            if host.is_blameless() {
                let odd = matches!(error, OfferError::Duplicate | OfferError::TooLarge(_));
                host.oracle().check(!odd, || format!("handoff {}: {error}", offer.id));
            }
            Err(error.to_string())
        }
    }
}

/// Sends blocks ahead, as if the others were still computed. Some are told of twice.
async fn compute(
    sender: &mut HandoffSender,
    handoff: &SequenceHandoff,
    offer: Offer,
) -> Result<(), OfferError> {
    let blocks: Vec<SealedBlock> = handoff.run().blocks().cloned().collect();
    let chunk = 1 + offer.id as usize / 2 % 3;
    let millis = u64::from(offer.id / 6 % 4);
    for first in (0..blocks.len().saturating_sub(chunk)).step_by(chunk) {
        sender.push(first.saturating_sub(1), &blocks[first.saturating_sub(1)..first + chunk]);
        tokio::select! {
            biased;
            error = sender.failed() => return Err(error),
            () = sleep(Duration::from_millis(millis)) => {}
        }
    }
    Ok(())
}
