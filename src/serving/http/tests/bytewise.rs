//! A codec in which every byte is a token. The fuzz bodies of this crate take it too, from outside.

use super::{TextCodec, TextDecoder, TextError};

/// Every byte is a token.
#[derive(Debug)]
pub(crate) struct Bytewise;

impl TextCodec for Bytewise {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, TextError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decoder(&self) -> Box<dyn TextDecoder> {
        Box::<BytewiseDecoder>::default()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        u8::try_from(id).into_iter().collect()
    }
}

/// Keeps the beginning of a character until the rest of it comes.
#[derive(Default)]
struct BytewiseDecoder(Vec<u8>);

impl TextDecoder for BytewiseDecoder {
    fn push(&mut self, id: u32) -> String {
        self.0.extend(u8::try_from(id).ok());
        let whole = self.0.utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
        String::from_utf8_lossy(&self.0.drain(..whole).collect::<Vec<_>>()).into_owned()
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}
