//! Arbitrary text as a chat template, and as what it is given.

use blockwire_runtime::chat::{ChatTemplate, Message};

/// The text before the first zero byte is the template; what follows is said by the user.
///
/// # Panics
/// Never, where all is well.
pub(crate) fn play(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (source, said) = text.split_once('\0').unwrap_or((&text, "Hi"));
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    let messages =
        [Message::new("system", "Be brief."), Message::new("user", said), Message::new(said, "")];
    for add_generation_prompt in [false, true] {
        if let Err(error) = template.render(&messages, add_generation_prompt) {
            drop(error.to_string());
        }
    }
}
