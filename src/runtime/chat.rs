//! Chat templates: from a conversation to the text that the model was trained on.
//!
//! Templates are Jinja, written for transformers; they get what transformers gives them
//! (`apply_chat_template` in its `chat_template_utils.py`): trimmed blocks, Python's string and
//! dict methods, `raise_exception`, `strftime_now`, `tojson`, the text of the BOS and EOS tokens.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{Environment, ErrorKind, context, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn of `role` that says `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Why a template could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template is not valid Jinja: the checkpoint's fault.
    #[error("the chat template is not valid")]
    Syntax(#[source] minijinja::Error),
    /// The template refused the conversation by `raise_exception`: the caller's fault.
    #[error("the chat template refuses the conversation: {reason}")]
    Refused {
        /// The template's words.
        reason: String,
    },
    /// The template asks for more time or memory than a conversation can take.
    #[error("the conversation takes more of the chat template than it may")]
    TooMuch,
    /// The template failed while it ran.
    #[error("the chat template failed")]
    Render(#[source] minijinja::Error),
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// The template's name inside its environment.
const NAME: &str = "chat";
/// What one rendering may cost: steps, and 64 bytes of text for each, so a second and a gigabyte at most. A
/// conversation of 100 KB takes some 10,000; a template is a stranger's program.
const FUEL: u64 = 16 << 20;
/// Marks an error that the template itself raised.
const RAISED: &str = "raise_exception: ";

impl ChatTemplate {
    /// Compiles `source`; `bos_token` and `eos_token` are the tokens' texts, empty when there are
    /// none.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`].
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(ChatError::Syntax)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: String| strftime(&format, now()));
        environment.add_template_owned(NAME, source.to_owned()).map_err(ChatError::Syntax)?;
        let (bos_token, eos_token) = (bos_token.to_owned(), eos_token.to_owned());
        Ok(Self { environment, bos_token, eos_token })
    }

    /// The conversation as text; with `add_generation_prompt`, up to where the assistant speaks.
    ///
    /// The text may itself begin with the BOS token; [`Tokenizer::encode`] then adds no second.
    ///
    /// # Errors
    ///
    /// [`ChatError::Refused`] when the template does not accept the conversation,
    /// [`ChatError::TooMuch`] when it does not come to an end with it, and [`ChatError::Render`] when it
    /// fails.
    ///
    /// [`Tokenizer::encode`]: crate::tokenizer::Tokenizer::encode
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with(messages, add_generation_prompt, &BTreeMap::new())
    }

    /// As [`render`](Self::render), with more variables for the template, such as
    /// `enable_thinking`.
    ///
    /// # Errors
    ///
    /// As [`render`](Self::render).
    pub fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &BTreeMap<String, serde_json::Value>,
    ) -> Result<String, ChatError> {
        let template = self.environment.get_template(NAME).map_err(ChatError::Render)?;
        let own = context! {
            messages => Serde(messages),
            add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
        };
        let all = context! { ..own, ..minijinja::Value::from(Serde(variables)) };
        template.render(all).map_err(refused_or_failed)
    }
}

fn raise_exception(reason: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{reason}")))
}

fn refused_or_failed(error: minijinja::Error) -> ChatError {
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatError::TooMuch;
    }
    match error.detail().and_then(|detail| detail.strip_prefix(RAISED)) {
        Some(reason) => ChatError::Refused { reason: reason.to_owned() },
        None => ChatError::Render(error),
    }
}

/// Seconds since 1970, UTC.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The part of C's `strftime` that templates use: `%Y %m %d %B %b %A %a %H %M %S %%`; UTC.
fn strftime(format: &str, seconds: u64) -> Result<String, minijinja::Error> {
    let (year, month, day) = civil_date(seconds / 86_400);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(seconds / 86_400 % 7) as usize]);
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match rest.next() {
            Some('Y') => text += &year.to_string(),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += day_name,
            Some('a') => text += &day_name[..3],
            Some('H') => text += &format!("{:02}", seconds / 3600 % 24),
            Some('M') => text += &format!("{:02}", seconds / 60 % 60),
            Some('S') => text += &format!("{:02}", seconds % 60),
            Some('%') => text.push('%'),
            other => {
                let detail = format!("strftime_now: unknown directive %{}", other.unwrap_or(' '));
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
    }
    Ok(text)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Day 0 was a Thursday.
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Year, month from 1 and day from 1 of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil_date(mut day: u64) -> (u64, usize, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Vec<Message> {
        vec![Message::new("user", " Hi ")]
    }

    #[test]
    fn python_methods_blocks_and_tokens_work() {
        let source = "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n\
                      [{{ m['content'].strip().upper() }}]\n  {% endif %}\n{% endfor %}\n\
                      {% if add_generation_prompt %}>{% endif %}{{ eos_token }}";
        let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
        assert_eq!(template.render(&hello(), true).unwrap(), "<s>[HI]\n></s>");
        assert_eq!(template.render(&hello(), false).unwrap(), "<s>[HI]\n</s>");
    }

    #[test]
    fn a_template_may_refuse() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let error = ChatTemplate::new(source, "", "").unwrap().render(&hello(), true).unwrap_err();
        assert!(
            matches!(&error, ChatError::Refused { reason } if reason == "roles must alternate"),
            "{error:?}"
        );
    }

    #[test]
    fn faults_of_the_template_are_told_apart() {
        let syntax = ChatTemplate::new("{% for %}", "", "").unwrap_err();
        assert!(matches!(syntax, ChatError::Syntax(_)));
        let failing = ChatTemplate::new("{{ messages[0].content.nothing() }}", "", "").unwrap();
        assert!(matches!(failing.render(&hello(), true), Err(ChatError::Render(_))));
    }

    #[test]
    fn a_template_without_end_or_measure_is_stopped() {
        for source in [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{{ 'a' * 1000000000000 }}",
            "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}\
             {% endfor %}",
            "{{ messages[0].content.replace('', 'a' * 99999).replace('', 'b' * 99999) }}",
        ] {
            let template = ChatTemplate::new(source, "", "").unwrap();
            let error = template.render(&hello(), true).unwrap_err();
            assert!(matches!(error, ChatError::TooMuch), "{source}: {error:?}");
        }
        // A long conversation is none of these.
        let source = "{% for m in messages %}{{ m.role + m.content.strip() | trim }}{% endfor %}";
        let long = vec![Message::new("user", "a".repeat(1000)); 8000];
        let template = ChatTemplate::new(source, "", "").unwrap();
        assert_eq!(template.render(&long, true).unwrap().len(), 8000 * 1004);
    }

    #[test]
    fn extra_variables_and_json() {
        let source = "{{ enable_thinking }} {{ messages[0] | tojson }}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        let variables = BTreeMap::from([("enable_thinking".to_owned(), false.into())]);
        let text = template.render_with(&hello(), true, &variables).unwrap();
        assert!(text.to_lowercase().starts_with("false {"), "{text}");
    }

    #[test]
    fn dates_are_right() {
        let at = |seconds| strftime("%A %d %B %Y %b %a %m %H:%M:%S%%", seconds).unwrap();
        assert_eq!(at(0), "Thursday 01 January 1970 Jan Thu 01 00:00:00%");
        assert_eq!(at(951_827_696), "Tuesday 29 February 2000 Feb Tue 02 12:34:56%");
        assert_eq!(at(1_735_689_599), "Tuesday 31 December 2024 Dec Tue 12 23:59:59%");
        assert!(strftime("%Q", 0).is_err());
    }
}
