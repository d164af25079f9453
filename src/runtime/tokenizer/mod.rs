//! Text to token ids and back.
//!
//! Encoding is the `tokenizers` crate's, fed from `tokenizer.json` or from a GGUF file's settings,
//! rebuilt by `gguf.rs`. Decoding is our own: a table holds the bytes that each token stands for,
//! so decoding all at once and decoding token by token ([`Detokenizer`]) are the same
//! concatenation, and cannot disagree.

mod bytes;
mod detokenizer;
pub(crate) mod gguf;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

pub use detokenizer::Detokenizer;

use bytes::{Style, TokenBytes};

/// Why a text could not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokenizer's rules do not cover the text.
    #[error("the text cannot be encoded")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why a tokenizer could not be built; [`LoadError`](crate::files::LoadError) adds the file.
#[derive(Debug)]
pub(crate) enum BuildError {
    /// A kind that we do not rebuild.
    Unsupported(String),
    /// Contradictory data.
    Invalid(String),
}

/// A model's tokenizer; clones share their tables.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    special: BTreeSet<u32>,
    bos: Option<u32>,
}

impl Tokenizer {
    /// The tokenizer of a `tokenizer.json`. `bos` is the token that must begin texts encoded with
    /// `add_special`, `None` when there is none.
    ///
    /// What the file says of cutting and padding texts is left out: that is for batches of equal length,
    /// and a prompt is taken whole or not at all.
    pub(crate) fn from_json(json: &[u8], bos: Option<u32>) -> Result<Self, BuildError> {
        contained(BuildError::Invalid, || {
            let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(invalid)?;
            inner.with_truncation(None).map_err(invalid)?;
            inner.with_padding(None);
            let style = Style::of(&inner)?;
            Self::new(inner, style, bos)
        })
    }

    /// Ids of `text`. Special tokens spelled out in the text become their ids.
    ///
    /// With `add_special`, the result begins with the BOS token if the model wants one; exactly
    /// one, also when the text (say, from a chat template) already begins with it.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = contained(
            |reason| TokenizerError::Encode(reason.into()),
            || self.shared.inner.encode_fast(text, add_special).map_err(TokenizerError::Encode),
        )?;
        let mut ids = encoding.get_ids().to_vec();
        if let (true, Some(bos)) = (add_special, self.shared.bos) {
            let present = ids.iter().take_while(|id| **id == bos).count();
            match present {
                0 => ids.insert(0, bos),
                several => drop(ids.drain(1..several)),
            }
        }
        Ok(ids)
    }

    /// The text of `ids`, without special tokens if `skip_special`. Bytes that are no UTF-8 become
    /// U+FFFD, and ids that the tokenizer does not know become nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = self.detokenizer(skip_special);
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.flush());
        text
    }

    /// A decoder for ids that come one by one.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special)
    }

    /// Number of tokens. The model's vocabulary may be larger: many are padded.
    pub fn vocab_size(&self) -> usize {
        self.shared.inner.get_vocab_size(true)
    }

    /// The bytes that a token stands for; they need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.shared.bytes.get(id)
    }

    /// The id of the token that is spelled `text` in the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.shared.inner.token_to_id(text)
    }

    /// Whether the token steers the model (BOS, end of turn) rather than standing for text.
    pub fn is_special(&self, id: u32) -> bool {
        self.shared.special.contains(&id)
    }

    fn new(
        inner: tokenizers::Tokenizer,
        style: Style,
        bos: Option<u32>,
    ) -> Result<Self, BuildError> {
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id);
        let special = special.collect();
        let bytes = TokenBytes::new(&inner, style)?;
        Ok(Self { shared: Arc::new(Shared { inner, bytes, special, bos }) })
    }

    /// Whether a text loses the space that encoding put before it.
    fn strips_first_space(&self) -> bool {
        self.shared.bytes.style() == Style::Pieces { strip: true }
    }
}

/// Runs the library on a stranger's data. It panics at some that it did not expect: that is an error like any
/// other, and nothing of it is kept that could be half done.
fn contained<T, E>(
    error: impl FnOnce(String) -> E,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(error(text.unwrap_or("the tokenizer library panicked").to_owned()))
    })
}

fn invalid(error: Box<dyn std::error::Error + Send + Sync>) -> BuildError {
    BuildError::Invalid(error.to_string())
}
