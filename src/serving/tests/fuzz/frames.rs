//! Arbitrary bytes as what nodes say to each other: a request, the meta of an offer, a result.

use blockwire::clock;
use blockwire_serving::backend::{GenerateRequest, TokenEvent};
use blockwire_serving::protocol::{
    DecodeMetaFrame, FirstTokenFrame, NodeRole, PrefillRequestFrame, ResultFrame,
};
use bytes::Bytes;
use prost::Message;
use uuid::Uuid;

/// Reads the bytes as each of the frames, and writes again what was read.
///
/// # Panics
/// When a frame does not say the same afterwards.
pub(crate) fn play(bytes: &[u8]) {
    let (bytes, id) = (Bytes::copy_from_slice(bytes), Uuid::from_u128(1));
    if let Ok((request, decode, reply_to)) = PrefillRequestFrame::read(id, bytes.clone()) {
        let again = PrefillRequestFrame::new(&request, decode, reply_to).encode_to_vec();
        let again = PrefillRequestFrame::read(id, again.into()).expect("a frame of this side's");
        assert_eq!((again.1, again.2), (decode, reply_to));
        compare(&again.0, &request);
    }
    if let Ok((request, reply_to, state)) = DecodeMetaFrame::read(id, bytes.clone()) {
        let again = DecodeMetaFrame::new(&request, reply_to, state.clone()).encode_to_vec();
        let again = DecodeMetaFrame::read(id, again.into()).expect("a frame of this side's");
        assert_eq!((again.1, again.2), (reply_to, state));
        compare(&again.0, &request);
    }
    if let Ok(first_token) = FirstTokenFrame::read(bytes.clone()) {
        let again = FirstTokenFrame::new(first_token).encode_to_vec();
        assert_eq!(FirstTokenFrame::read(again.into()), Ok(first_token));
    }
    if let Ok(result) = ResultFrame::read(bytes.clone()) {
        let phase = result.phase();
        let (ends, tokens) =
            (result.finished.is_some() || result.failure.is_some(), result.tokens.len());
        let events: Vec<TokenEvent> = result.into_events().collect();
        let count = events.iter().filter(|e| matches!(e, TokenEvent::Token { .. })).count();
        assert_eq!((count, ends), (tokens, events.len() > tokens));
        for event in events {
            drop(ResultFrame::carrying(phase, event).encode_to_vec());
        }
    }
    if let Some(role) = NodeRole::parse(&bytes) {
        assert_eq!(role.as_str().as_bytes(), bytes);
    }
}

fn compare(again: &GenerateRequest, before: &GenerateRequest) {
    assert!(again.deadline.is_some() == before.deadline.is_some());
    // The wait that is left is counted anew, and a zero loses its sign, as in every proto3 message.
    // Everything else is as it was, to the last bit.
    let plain = |request: &GenerateRequest| {
        let mut request = GenerateRequest { deadline: None, ..request.clone() };
        let sampling = &mut request.sampling;
        let numbers = [
            &mut sampling.temperature,
            &mut sampling.top_p,
            &mut sampling.min_p,
            &mut sampling.repetition_penalty,
            &mut sampling.frequency_penalty,
            &mut sampling.presence_penalty,
        ];
        let numbers = numbers.into_iter().chain(sampling.logit_bias.values_mut());
        numbers.filter(|number| **number == 0.0).for_each(|number| *number = 0.0);
        format!("{request:?}")
    };
    assert_eq!(plain(again), plain(before));
    if let (Some(again), Some(before)) = (again.deadline, before.deadline) {
        assert!(again <= before.max(clock::now()));
    }
}
