//! A model without a tokenizer: token ids in, token ids out.

use super::text::{TextCodec, TextDecoder, TextError};

/// Refuses text and gives none; requests with token ids are served like any other.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTokenizer;

impl TextCodec for NoTokenizer {
    fn encode(&self, _text: &str, _add_special: bool) -> Result<Vec<u32>, TextError> {
        let reason = "the model has no tokenizer; send token ids instead of text".to_owned();
        Err(TextError { reason })
    }

    fn decoder(&self) -> Box<dyn TextDecoder> {
        Box::new(Self)
    }

    fn token_bytes(&self, _id: u32) -> Vec<u8> {
        Vec::new()
    }
}

impl TextDecoder for NoTokenizer {
    fn push(&mut self, _id: u32) -> String {
        String::new()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}
