//! What the front needs of a tokenizer.

use blockwire_runtime::tokenizer::{Detokenizer, Tokenizer};

/// Text to token ids and back.
pub trait TextCodec: Send + Sync {
    /// The ids of `text`; with `add_special`, with the tokens that begin a text. A text that begins
    /// with such a token gets no second one.
    ///
    /// # Errors
    /// [`TextError`] when the text cannot be tokenized.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError>;

    /// A decoder for one sequence.
    fn decoder(&self) -> Box<dyn TextDecoder>;

    /// The bytes of one token, special ones included.
    fn token_bytes(&self, id: u32) -> Vec<u8>;
}

/// Turns the ids of one sequence into text, whole characters only; special tokens have no text.
pub trait TextDecoder: Send {
    /// Takes one more token and gives the text that is now certain; often none.
    fn push(&mut self, id: u32) -> String;

    /// The text that was held back, with replacement characters for what is not whole.
    fn finish(&mut self) -> String;
}

/// A text that cannot be tokenized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text cannot be tokenized: {reason}")]
pub struct TextError {
    /// What the tokenizer says.
    pub reason: String,
}

impl TextCodec for Tokenizer {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let ids = Self::encode(self, text, add_special);
        ids.map_err(|error| TextError { reason: error.to_string() })
    }

    fn decoder(&self) -> Box<dyn TextDecoder> {
        Box::new(self.detokenizer(true).continuing())
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        Self::token_bytes(self, id).unwrap_or_default().to_vec()
    }
}

impl TextDecoder for Detokenizer {
    fn push(&mut self, id: u32) -> String {
        Self::push(self, id)
    }

    fn finish(&mut self) -> String {
        self.flush()
    }
}
