//! Tokenizers rebuilt from a GGUF file's settings.
//!
//! GGUF stores a vocabulary, not a tokenizer: what else is needed is named
//! (`tokenizer.ggml.model`, `tokenizer.ggml.pre`) and has to be known. Two kinds are: `gpt2`,
//! byte-level BPE with a merge list, whose pre-tokenizers follow llama.cpp's `llama-vocab.cpp` and
//! the models' own `tokenizer.json`; and `llama`, SentencePiece BPE with scores, whose merge list
//! is rebuilt from the scores.

use std::collections::HashMap;

use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    decoders, models::bpe, normalizers, pre_tokenizers,
};

use super::{BuildError, Tokenizer, bytes::Style, contained, invalid};

/// Llama 3's split.
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's and Qwen 3's: as Llama 3's, but digits one by one.
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Longest piece for which merges are rebuilt, in bytes; SentencePiece's default limit is 16
/// characters.
const MAX_PIECE: usize = 256;

/// Token types, `enum llama_token_type`.
const NORMAL: u32 = 1;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;

/// What the settings `tokenizer.ggml.*` say.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    /// `model`: the kind.
    pub(crate) model: String,
    /// `pre`: the pre-tokenizer's name; empty in old files.
    pub(crate) pre: String,
    /// `tokens`: every token's text, by id.
    pub(crate) tokens: Vec<String>,
    /// `token_type`: every token's type; may be missing.
    pub(crate) types: Vec<u32>,
    /// `scores`, of SentencePiece vocabularies.
    pub(crate) scores: Vec<f32>,
    /// `merges`, of byte-level vocabularies: two tokens around a space.
    pub(crate) merges: Vec<String>,
    /// `unknown_token_id`.
    pub(crate) unknown: Option<u32>,
    /// `add_space_prefix`: whether a text is encoded as if a space came first.
    pub(crate) add_space_prefix: bool,
    /// The token that begins texts, if the model wants one.
    pub(crate) bos: Option<u32>,
}

impl Vocabulary {
    /// Builds the tokenizer.
    pub(crate) fn build(&self) -> Result<Tokenizer, BuildError> {
        contained(BuildError::Invalid, || self.built())
    }

    fn built(&self) -> Result<Tokenizer, BuildError> {
        let (mut inner, style) = match self.model.as_str() {
            "gpt2" => (self.byte_level()?, Style::ByteLevel),
            "llama" => (self.pieces()?, Style::Pieces { strip: self.add_space_prefix }),
            other => return Err(BuildError::Unsupported(other.to_owned())),
        };
        let typed = || self.tokens.iter().zip(&self.types);
        let control = typed().filter(|(_, ty)| **ty == CONTROL);
        inner
            .add_special_tokens(control.map(|(text, _)| AddedToken::from(text.clone(), true)))
            .map_err(invalid)?;
        let user = typed().filter(|(_, ty)| **ty == USER_DEFINED);
        // Only a token that is spelled with visible spaces has to be sought after normalising.
        let user = user.map(|(text, _)| {
            AddedToken::from(text.clone(), false).normalized(text.contains('\u{2581}'))
        });
        inner.add_tokens(user).map_err(invalid)?;
        Tokenizer::new(inner, style, self.bos)
    }

    fn byte_level(&self) -> Result<tokenizers::Tokenizer, BuildError> {
        let (pre_tokenizer, ignore_merges) = self.pre_tokenizer()?;
        let merges: Option<Vec<(String, String)>> = self
            .merges
            .iter()
            .map(|merge| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())))
            .collect();
        let merges = merges
            .ok_or_else(|| BuildError::Invalid("a merge without a space between".to_owned()))?;
        let model = bpe::BPE::builder()
            .vocab_and_merges(self.vocab(), merges)
            .ignore_merges(ignore_merges)
            .build()
            .map_err(invalid)?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        if self.pre.starts_with("qwen") {
            // In the models' own tokenizer.json, though not in llama.cpp.
            tokenizer.with_normalizer(Some(normalizers::unicode::NFC)).map_err(invalid)?;
        }
        tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
        tokenizer.with_decoder(Some(decoders::byte_level::ByteLevel::new(false, true, true)));
        Ok(tokenizer)
    }

    /// The split before BPE, and whether a word that is a token needs no merging.
    fn pre_tokenizer(&self) -> Result<(PreTokenizerWrapper, bool), BuildError> {
        let bytes =
            |gpt2_split| pre_tokenizers::byte_level::ByteLevel::new(false, true, gpt2_split);
        let sequence = |first: PreTokenizerWrapper, gpt2_split| {
            let steps = vec![first, bytes(gpt2_split).into()];
            pre_tokenizers::sequence::Sequence::new(steps).into()
        };
        let split = |regex: &str| {
            let pattern = pre_tokenizers::split::SplitPattern::Regex(regex.to_owned());
            pre_tokenizers::split::Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(invalid)
        };
        Ok(match self.pre.as_str() {
            "" | "default" | "gpt-2" => (bytes(true).into(), false),
            "smollm" => (sequence(pre_tokenizers::digits::Digits::new(true).into(), true), false),
            "llama-bpe" | "llama3" | "llama-v3" => {
                (sequence(split(LLAMA3_SPLIT)?.into(), false), true)
            }
            "qwen2" => (sequence(split(QWEN2_SPLIT)?.into(), false), false),
            other => {
                return Err(BuildError::Unsupported(format!("gpt2 with pre-tokenizer {other}")));
            }
        })
    }

    fn pieces(&self) -> Result<tokenizers::Tokenizer, BuildError> {
        let mut builder = bpe::BPE::builder()
            .vocab_and_merges(self.vocab(), self.rebuilt_merges()?)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = self.tokens.get(self.unknown.unwrap_or(0) as usize) {
            builder = builder.unk_token(unknown.clone());
        }
        let mut tokenizer = tokenizers::Tokenizer::new(builder.build().map_err(invalid)?);
        let visible = normalizers::Replace::new(" ", "\u{2581}").map_err(invalid)?;
        let normalizer: NormalizerWrapper = if self.add_space_prefix {
            let prepend = normalizers::Prepend::new("\u{2581}".to_owned());
            normalizers::Sequence::new(vec![prepend.into(), visible.into()]).into()
        } else {
            visible.into()
        };
        tokenizer.with_normalizer(Some(normalizer)).map_err(invalid)?;
        let space = normalizers::Replace::new("\u{2581}", " ").map_err(invalid)?;
        let steps = vec![
            DecoderWrapper::Replace(space),
            DecoderWrapper::ByteFallback(Default::default()),
            DecoderWrapper::Fuse(Default::default()),
        ];
        tokenizer.with_decoder(Some(decoders::sequence::Sequence::new(steps)));
        Ok(tokenizer)
    }

    /// Every way to make a normal token from two others, best score first: the order in which
    /// SentencePiece would merge.
    fn rebuilt_merges(&self) -> Result<Vec<(String, String)>, BuildError> {
        if self.scores.len() != self.tokens.len() {
            let (scores, tokens) = (self.scores.len(), self.tokens.len());
            return Err(BuildError::Invalid(format!("{scores} scores for {tokens} tokens")));
        }
        let ids: HashMap<&str, usize> =
            self.tokens.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
        let mut merges = Vec::new();
        for (id, text) in self.tokens.iter().enumerate() {
            let normal = self.types.get(id).is_none_or(|ty| *ty == NORMAL);
            if !normal || text.len() > MAX_PIECE {
                continue;
            }
            for (cut, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(cut);
                if let (Some(left), Some(right)) = (ids.get(left), ids.get(right)) {
                    merges.push((self.scores[id], *left, *right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let text = |id: usize| self.tokens[id].clone();
        Ok(merges.into_iter().map(|(_, left, right)| (text(left), text(right))).collect())
    }

    fn vocab(&self) -> bpe::Vocab {
        self.tokens.iter().cloned().zip(0..).collect()
    }
}
