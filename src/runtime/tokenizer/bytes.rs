//! The bytes that each token stands for.

use std::collections::HashMap;

use serde_json::Value;

use super::BuildError;

/// Larger than any vocabulary; bounds the table of a damaged file.
const MAX_ID: u32 = 1 << 24;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// GPT-2's: one printable character for each byte.
    ByteLevel,
    /// SentencePiece's: text with U+2581 for the space, and `<0xAB>` for single bytes.
    Pieces {
        /// Encoding puts a space before the text, so decoding drops one.
        strip: bool,
    },
}

/// SentencePiece's visible space.
const SPACE: char = '\u{2581}';

impl Style {
    /// The style of a `tokenizer.json`, from its decoder.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, BuildError> {
        let json = serde_json::to_value(tokenizer.get_decoder())
            .map_err(|e| BuildError::Invalid(e.to_string()))?;
        let steps = match json["decoders"].as_array() {
            Some(steps) => steps.as_slice(),
            None => std::slice::from_ref(&json),
        };
        let is = |step: &Value, name: &str| step["type"] == name;
        if steps.iter().any(|step| is(step, "ByteLevel")) {
            return Ok(Self::ByteLevel);
        }
        let space = SPACE.to_string();
        let replaces = |step: &Value| {
            is(step, "Replace") && step["pattern"]["String"] == *space && step["content"] == " "
        };
        if steps.iter().any(|step| is(step, "Metaspace") || replaces(step)) {
            let strips = |step: &Value| is(step, "Strip") && step["start"].as_u64() > Some(0);
            let prepends =
                |step: &Value| is(step, "Metaspace") && step["prepend_scheme"] != "never";
            let strip = steps.iter().any(|step| strips(step) || prepends(step));
            return Ok(Self::Pieces { strip });
        }
        let names: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
        Err(BuildError::Unsupported(format!("decoder {}", names.join(", "))))
    }
}

/// The bytes of all tokens, end to end.
#[derive(Debug)]
pub(super) struct TokenBytes {
    style: Style,
    /// Token `id` is `bytes[starts[id]..starts[id + 1]]`; unknown ids are `None` in `known`.
    starts: Vec<u32>,
    known: Vec<bool>,
    bytes: Vec<u8>,
}

impl TokenBytes {
    /// Spells out every token of `tokenizer`. Added tokens stand for their text as it is.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, style: Style) -> Result<Self, BuildError> {
        let mut tokens: Vec<(u32, String, bool)> = tokenizer
            .get_vocab(false)
            .into_iter()
            .map(|(text, id)| (id, text, false))
            .chain(
                tokenizer
                    .get_added_tokens_decoder()
                    .into_iter()
                    .map(|(id, token)| (id, token.content, true)),
            )
            .collect();
        // An added token comes first among those of its id, and the others are dropped.
        tokens.sort_by(|a, b| a.0.cmp(&b.0).then(b.2.cmp(&a.2)));
        tokens.dedup_by_key(|token| token.0);
        let last = tokens.last().map_or(0, |token| token.0);
        if last >= MAX_ID {
            return Err(BuildError::Invalid(format!("token id {last} is not below {MAX_ID}")));
        }
        let alphabet = byte_alphabet();
        let mut table = Self { style, starts: vec![0], known: Vec::new(), bytes: Vec::new() };
        for (id, text, added) in tokens {
            table.pad_to(id as usize);
            match (added, style) {
                (true, _) => table.bytes.extend(text.as_bytes()),
                (false, Style::ByteLevel) => table.bytes.extend(byte_level(&text, &alphabet)),
                (false, Style::Pieces { .. }) => table.bytes.extend(piece(&text)),
            }
            table.known.push(true);
            table.starts.push(table.end()?);
        }
        Ok(table)
    }

    /// How the vocabulary spells bytes.
    pub(super) fn style(&self) -> Style {
        self.style
    }

    /// A token's bytes.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        if !*self.known.get(id)? {
            return None;
        }
        self.bytes.get(self.starts[id] as usize..self.starts[id + 1] as usize)
    }

    fn pad_to(&mut self, id: usize) {
        let end = self.starts[self.known.len()];
        self.known.resize(id, false);
        self.starts.resize(id + 1, end);
    }

    fn end(&self) -> Result<u32, BuildError> {
        u32::try_from(self.bytes.len())
            .map_err(|_| BuildError::Invalid("the tokens' text exceeds 4 GiB".to_owned()))
    }
}

/// GPT-2's byte for each of its 256 characters (`bytes_to_unicode` in its `encoder.py`): printable
/// Latin-1 stands for itself, the rest is numbered from U+0100.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let (itself, other): (Vec<u8>, Vec<u8>) = (0..=255).partition(|byte| printable(*byte));
    let numbered = ('\u{100}'..).zip(other);
    itself.into_iter().map(|byte| (char::from(byte), byte)).chain(numbered).collect()
}

/// Text outside the alphabet stands for itself.
fn byte_level(text: &str, alphabet: &HashMap<char, u8>) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| alphabet.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn piece(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match digits.filter(|d| d.len() == 2).and_then(|d| u8::from_str_radix(d, 16).ok()) {
        Some(byte) => vec![byte],
        None => text.replace(SPACE, " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!((alphabet[&'Ġ'], alphabet[&'Ċ'], alphabet[&'a']), (b' ', b'\n', b'a'));
        let mut bytes: Vec<u8> = alphabet.into_values().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn pieces_are_bytes_or_text() {
        assert_eq!(piece("<0xC3>"), [0xc3]);
        assert_eq!(piece("<0xZZ>"), b"<0xZZ>");
        assert_eq!(piece("▁the"), b" the");
    }
}
