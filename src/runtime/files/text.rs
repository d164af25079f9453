//! A model's tokenizer and chat template.

use super::{LoadError, ModelFiles, Source, gguf::Gguf, gguf_config::token};
use crate::{
    chat::ChatTemplate,
    tokenizer::{BuildError, Tokenizer, gguf::Vocabulary},
};

impl ModelFiles {
    /// Builds the model's tokenizer: from `tokenizer.json`, or from the GGUF file's vocabulary.
    ///
    /// Takes some 100 ms for 50,000 tokens; keep the result.
    ///
    /// # Errors
    ///
    /// [`LoadError::MissingTokenizer`] when the model brings none (its token ids can still be
    /// used), [`LoadError::UnsupportedTokenizer`] or [`LoadError::InvalidTokenizer`].
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        let bos = self.config.bos.filter(|_| self.config.add_bos);
        let built = match &self.source {
            Source::Gguf(file) => self.vocabulary(file, bos)?.build(),
            Source::Folder(folder) => match folder.tokenizer_bytes() {
                [] => return Err(self.missing_tokenizer("tokenizer.json in the folder")),
                json => Tokenizer::from_json(json, bos),
            },
        };
        let path = self.path.clone();
        built.map_err(|error| match error {
            BuildError::Unsupported(kind) => LoadError::UnsupportedTokenizer { path, kind },
            BuildError::Invalid(reason) => LoadError::InvalidTokenizer { path, reason },
        })
    }

    /// Compiles the model's chat template; `None` when it brings none.
    ///
    /// # Errors
    ///
    /// [`LoadError::InvalidChatTemplate`], or what reading the special tokens' texts may yield.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, LoadError> {
        let (source, bos, eos) = match &self.source {
            Source::Gguf(file) => {
                let tokens = self.texts(file, "tokenizer.ggml.tokens")?.unwrap_or_default();
                let text = |key| -> Result<String, LoadError> {
                    let id = token(file, key)?;
                    Ok(id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default())
                };
                let bos = text("tokenizer.ggml.bos_token_id")?;
                let eos = text("tokenizer.ggml.eos_token_id")?;
                (file.text("tokenizer.chat_template")?, bos, eos)
            }
            Source::Folder(folder) => {
                let tokens = folder.tokenizer_config();
                let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
                (folder.chat_template(), owned(tokens.bos()), owned(tokens.eos()))
            }
        };
        let template = source.map(|source| ChatTemplate::new(source, &bos, &eos)).transpose();
        template
            .map_err(|source| LoadError::InvalidChatTemplate { path: self.path.clone(), source })
    }

    fn vocabulary(&self, file: &Gguf, bos: Option<u32>) -> Result<Vocabulary, LoadError> {
        let text = |key| Ok::<_, LoadError>(file.text(key)?.unwrap_or_default().to_owned());
        let Some(tokens) = self.texts(file, "tokenizer.ggml.tokens")? else {
            return Err(self.missing_tokenizer("the setting tokenizer.ggml.tokens"));
        };
        Ok(Vocabulary {
            model: text("tokenizer.ggml.model")?,
            pre: text("tokenizer.ggml.pre")?,
            tokens,
            types: self.numbers(file, "tokenizer.ggml.token_type")?.map(|n| n as u32).collect(),
            scores: self.numbers(file, "tokenizer.ggml.scores")?.map(|n| n as f32).collect(),
            merges: self.texts(file, "tokenizer.ggml.merges")?.unwrap_or_default(),
            unknown: token(file, "tokenizer.ggml.unknown_token_id")?,
            // llama.cpp's default, for SentencePiece vocabularies.
            add_space_prefix: file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            bos,
        })
    }

    fn texts(&self, file: &Gguf, key: &str) -> Result<Option<Vec<String>>, LoadError> {
        file.texts(key, self.maps[0].bytes())
    }

    fn numbers(
        &self,
        file: &Gguf,
        key: &str,
    ) -> Result<impl Iterator<Item = f64> + use<>, LoadError> {
        Ok(file.numbers(key, self.maps[0].bytes())?.unwrap_or_default().into_iter())
    }

    fn missing_tokenizer(&self, expected: &'static str) -> LoadError {
        LoadError::MissingTokenizer { path: self.path.clone(), expected }
    }
}
