//! What every file target does with a model that opened: touch all that opening yields.

use std::cell::OnceCell;
use std::fs;
use std::path::Path;

use blockwire_runtime::chat::Message;
use blockwire_runtime::files::ModelFiles;
use blockwire_runtime::tokenizer::Tokenizer;
use tempfile::TempDir;

/// A text with what tokenizers treat apart: spaces, digits, other scripts, marks that combine, a control
/// character, and the names of special tokens.
const TEXT: &str = " Hi 12345  Ä日本e\u{301}\u{1F600}\n\t<|a|></s>\u{0}▁hi";

/// Lays the files out in a folder that only this thread uses, and gives the folder to `then`.
///
/// # Panics
/// When the system does not let it.
pub(crate) fn with_files(files: &[(&str, &[u8])], then: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir().expect("a temporary folder"));
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).expect("a file can be written");
        }
        then(folder.path());
        for (name, _) in files {
            fs::remove_file(folder.path().join(name)).expect("a file can be removed");
        }
    });
}

/// Opens the model, and reads whatever it offers.
///
/// # Panics
/// When an invariant of an opened model does not hold.
pub(crate) fn open(path: &Path) {
    let files = match ModelFiles::open(path) {
        Ok(files) => files,
        // People read it.
        Err(error) => return drop(error.to_string()),
    };
    let config = files.config();
    assert!(config.heads.is_multiple_of(config.kv_heads) && config.head_dim.is_multiple_of(2));
    assert_eq!(config.rope_inverse_frequencies.len(), config.head_dim / 2);
    assert!(config.rope_inverse_frequencies.iter().all(|frequency| frequency.is_finite()));
    for name in files.tensor_names() {
        if let Ok(tensor) = files.tensor(name) {
            assert_eq!(Some(tensor.bytes.len()), tensor.ty.tensor_bytes(&tensor.shape));
        }
    }
    files.fingerprint();
    assert!(!files.id().is_empty() || files.name().is_empty());
    match files.tokenizer() {
        Ok(tokenizer) => encode(&tokenizer),
        Err(error) => drop(error.to_string()),
    }
    if let Ok(Some(template)) = files.chat_template() {
        drop(template.render(&[Message::new("user", TEXT)], true));
    }
}

/// Encodes and decodes with whatever was built.
fn encode(tokenizer: &Tokenizer) {
    for special in [false, true] {
        let Ok(ids) = tokenizer.encode(TEXT, special) else { continue };
        // A character may become a token for each of its bytes, and a few begin and end the text.
        assert!(ids.len() <= 4 * TEXT.len() + 64, "{} tokens", ids.len());
        for id in &ids {
            assert!(
                tokenizer.token_bytes(*id).is_none_or(|bytes| !bytes.is_empty())
                    || ids.len() < 4096
            );
        }
        tokenizer.decode(&ids, special);
    }
    tokenizer.decode(&[0, 1, u32::MAX, 7], true);
}
