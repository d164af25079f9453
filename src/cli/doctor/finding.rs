//! What a check comes to.

use serde::Serialize;

/// Columns of a check's name.
const NAME_WIDTH: usize = 17;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but something is slower or weaker than it could be.
    Warn,
    /// A node cannot run like this.
    Fail,
}

/// One line of the doctor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { check, verdict: Verdict::Warn, found: found.into(), advice }
    }

    pub(super) fn fail(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(check, found, advice) }
    }

    /// For people: a line, and one more with what to do.
    pub(super) fn to_text(&self, coloured: bool) -> String {
        let (word, colour) = match self.verdict {
            Verdict::Ok => ("ok", "32"),
            Verdict::Warn => ("warn", "33"),
            Verdict::Fail => ("FAIL", "31"),
        };
        let word = format!("{word:<4}");
        let word = if coloured { format!("\x1b[{colour}m{word}\x1b[0m") } else { word };
        let mut text = format!("{word}  {:<NAME_WIDTH$} {}\n", self.check, self.found);
        if let Some(advice) = &self.advice {
            text += &format!("      {:<NAME_WIDTH$} -> {advice}\n", "");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_what_to_do() {
        let fine = Finding::ok("cores", "2");
        assert_eq!(fine.to_text(false), "ok    cores             2\n");
        let bad = Finding::fail("port", "7000 is taken", "choose another");
        let expected =
            "FAIL  port              7000 is taken\n                        -> choose another\n";
        assert_eq!(bad.to_text(false), expected);
        assert!(bad.to_text(true).starts_with("\x1b[31mFAIL\x1b[0m"), "{}", bad.to_text(true));
        let json = serde_json::to_value(&fine).unwrap();
        assert_eq!(json, serde_json::json!({ "check": "cores", "verdict": "ok", "found": "2" }));
    }
}
