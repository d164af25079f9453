//! The sender of a handoff.

use std::time::Duration;

use blockwire::handoff::{extract_sequence_handoff, send_handoff_payload};
use blockwire::pool::KvSequence;
use blockwire::session::{HandoffKey, OfferError};
use bytes::Bytes;
use tokio::time::timeout;
use uuid::Uuid;

use super::content;
use super::host::Host;
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
    let sent = timeout(HANG, send_handoff_payload(&connection, key, handoff, meta)).await;
    let Ok(sent) = sent else {
        host.oracle().fail(format!("{offer:?} hangs"));
        return Err("it hangs".to_owned());
    };
    match sent {
        Ok(_) => {
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
