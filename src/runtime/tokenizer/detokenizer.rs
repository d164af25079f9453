//! Decoding as the tokens come.

use super::Tokenizer;

/// Turns token ids into text one by one, and never cuts a character in two.
///
/// The concatenation of all that [`push`](Self::push) and the final [`flush`](Self::flush) return
/// is what [`Tokenizer::decode`] returns for the same ids.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    at_start: bool,
    /// The beginning of a character, at most three bytes between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, at_start: true, pending: Vec::new() }
    }

    /// For text that goes on after a prompt: a leading space is text, not the tokenizer's own.
    pub fn continuing(mut self) -> Self {
        self.at_start = false;
        self
    }

    /// The text that is complete with this token: often a word, empty while a character is
    /// incomplete, and for special tokens if those are skipped.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        let mut bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        if self.at_start && !bytes.is_empty() {
            self.at_start = false;
            if self.tokenizer.strips_first_space() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.pending.extend_from_slice(bytes);
        self.take_whole()
    }

    /// What is left at the end: U+FFFD if a character stayed incomplete, else nothing.
    pub fn flush(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }

    /// Moves all but the beginning of an unfinished character out of `pending`.
    fn take_whole(&mut self) -> String {
        let mut whole = self.pending.len();
        let mut at = 0;
        while let Err(error) = std::str::from_utf8(&self.pending[at..]) {
            match error.error_len() {
                Some(len) => at += error.valid_up_to() + len,
                None => {
                    whole = at + error.valid_up_to();
                    break;
                }
            }
        }
        let text = String::from_utf8_lossy(&self.pending[..whole]).into_owned();
        self.pending.drain(..whole);
        text
    }
}
