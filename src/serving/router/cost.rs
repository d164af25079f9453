//! Whether a handoff pays: a prompt is computed by a prefill node and handed over, or by the decode node itself.
//!
//! What is compared is how long callers wait:
//! - **handoff**: for the prompts that the prefill node has before this one, for this one without what is cached there, and
//!   for the link, as long as its handoffs of late were waited for.
//! - **local**: for the decode node in the same way, and there the callers of all answers that it generates wait too, while
//!   it computes.
//!
//! The rule has no memory, so that nothing can swing: local is what saves a fifth of the handoff's wait at least. What
//! is not known, since it was never measured or too long ago ([`KNOWN_FOR`](super::rates::KNOWN_FOR)), is measured: a
//! link and a prefill node by handing over, a decode node by one prompt of moderate length that it computes while it has
//! nothing else to do. Numbers without sense count as unknown. Whatever is estimated, a request is served.

use std::fmt;
use std::ops::RangeInclusive;

/// Times that the decode node's estimate has to fit into the handoff's, for the prompt to stay there.
const MARGIN: f64 = 1.25;
/// Tokens of a prompt that is good for measuring a decode node: fewer say little, more keep others waiting.
const EXPLORING: RangeInclusive<usize> = 32..=1024;

/// When prompts are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandoffPolicy {
    /// Each one.
    #[default]
    Always,
    /// Where it pays, and where a prefill node is connected.
    Auto,
}

/// Where a prompt is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// On a prefill node, which hands it over.
    Handoff,
    /// On the decode node.
    Local,
}

/// Why there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// The policy says so.
    Always,
    /// It is estimated to be waited for less, or not enough longer to matter.
    Cheaper,
    /// One of the two cannot be estimated.
    Unknown,
    /// To measure the decode node.
    Explores,
    /// No prefill node is connected.
    NoPrefillNode,
}

impl Place {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Local => "local",
        }
    }
}

impl Why {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Cheaper => "cheaper",
            Self::Unknown => "unknown",
            Self::Explores => "explores",
            Self::NoPrefillNode => "no_prefill_node",
        }
    }
}

/// Where a prompt is computed, why, and what either would be waited for, in seconds, where that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) place: Place,
    pub(super) why: Why,
    pub(super) handoff: Option<f64>,
    pub(super) local: Option<f64>,
}

impl Plan {
    /// That of [`HandoffPolicy::Always`].
    pub(super) const ALWAYS: Self = Self::unasked(Place::Handoff, Why::Always);

    const fn unasked(place: Place, why: Why) -> Self {
        Self { place, why, handoff: None, local: None }
    }
}

/// As in the header of an answer: `local; why=cheaper; handoff=81.5ms; local=12.0ms`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; why={}", self.place.as_str(), self.why.as_str())?;
        for (name, seconds) in [("handoff", self.handoff), ("local", self.local)] {
            if let Some(seconds) = seconds {
                write!(f, "; {name}={:.1}ms", seconds * 1e3)?;
            }
        }
        Ok(())
    }
}

/// A node that could compute a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Computer {
    /// Prompt tokens a second; none where not known.
    pub(super) rate: Option<f64>,
    /// Tokens of the prompts that it was given before, and has not answered with a token yet.
    pub(super) ahead: usize,
    /// First tokens of the prompt that it is taken to have.
    pub(super) cached: usize,
}

/// What a link's handoffs cost beyond their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LinkCost {
    /// Seconds that were waited for, by the token of the prompts.
    pub(super) by_token: f64,
    /// What the shortest of them took.
    pub(super) least: f64,
}

/// What the decision is made from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Question {
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// None where no prefill node is connected.
    pub(super) prefill: Option<Computer>,
    pub(super) decode: Computer,
    /// Answers that the decode node generates.
    pub(super) generating: usize,
    /// The way between the two; none where not known.
    pub(super) link: Option<LinkCost>,
}

/// Where to compute a prompt.
pub(super) fn decide(question: &Question) -> Plan {
    let Some(prefill) = &question.prefill else {
        return Plan::unasked(Place::Local, Why::NoPrefillNode);
    };
    let handoff = question.handoff(prefill).filter(|seconds| seconds.is_finite());
    let local = question.local().filter(|seconds| seconds.is_finite());
    let (place, why) = match (handoff, local) {
        (Some(handoff), Some(local)) if local * MARGIN < handoff => (Place::Local, Why::Cheaper),
        (Some(_), Some(_)) => (Place::Handoff, Why::Cheaper),
        (Some(_), None) if question.is_good_for_exploring() => (Place::Local, Why::Explores),
        _ => (Place::Handoff, Why::Unknown),
    };
    Plan { place, why, handoff, local }
}

impl Computer {
    /// Seconds until it begins with the prompt, and seconds that it then takes.
    fn seconds(&self, prompt: usize) -> Option<(f64, f64)> {
        let rate = self.rate.filter(|rate| rate.is_finite() && *rate > 0.0)?;
        // The last token is always computed.
        let own = prompt.saturating_sub(self.cached).max(1);
        Some((self.ahead as f64 / rate, own as f64 / rate))
    }
}

impl Question {
    fn handoff(&self, prefill: &Computer) -> Option<f64> {
        let link = self.link.filter(|link| link.by_token >= 0.0 && link.least >= 0.0)?;
        let (ahead, own) = prefill.seconds(self.prompt)?;
        Some(ahead + own + (self.prompt as f64 * link.by_token).max(link.least))
    }

    fn local(&self) -> Option<f64> {
        let (ahead, own) = self.decode.seconds(self.prompt)?;
        Some(ahead + own * (1 + self.generating) as f64)
    }

    fn is_good_for_exploring(&self) -> bool {
        let is_idle = self.generating == 0 && self.decode.ahead == 0;
        let computed = self.prompt.saturating_sub(self.decode.cached);
        is_idle && EXPLORING.contains(&computed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A prefill node with twice the decode node's speed, over a link that takes 10 ms for 1000 tokens.
    fn question(prompt: usize) -> Question {
        Question {
            prompt,
            prefill: Some(Computer { rate: Some(2_000.0), ..Computer::default() }),
            decode: Computer { rate: Some(1_000.0), ..Computer::default() },
            generating: 0,
            link: Some(LinkCost { by_token: 1e-5, least: 1e-3 }),
        }
    }

    fn placed(question: &Question) -> (Place, Why) {
        let plan = decide(question);
        (plan.place, plan.why)
    }

    #[test]
    fn a_prompt_is_handed_over_where_that_is_faster() {
        let plan = decide(&question(1_000));
        assert_eq!((plan.place, plan.why), (Place::Handoff, Why::Cheaper));
        assert_eq!(plan.to_string(), "handoff; why=cheaper; handoff=510.0ms; local=1000.0ms");
        assert_eq!(Plan::ALWAYS.to_string(), "handoff; why=always");
    }

    #[test]
    fn a_prompt_stays_where_the_link_is_slow_or_the_prefill_node_busy_or_the_beginning_here() {
        let local = (Place::Local, Why::Cheaper);
        let slow = Some(LinkCost { by_token: 1e-3, least: 1e-3 });
        assert_eq!(placed(&Question { link: slow, ..question(1_000) }), local);
        let far = Some(LinkCost { by_token: 0.0, least: 0.3 });
        assert_eq!(placed(&Question { link: far, ..question(100) }), local, "a short prompt");
        assert_eq!(placed(&Question { link: far, ..question(2_000) }).0, Place::Handoff);
        let busy = Some(Computer { rate: Some(2_000.0), ahead: 2_000, cached: 0 });
        assert_eq!(placed(&Question { prefill: busy, ..question(1_000) }), local);
        let warm = Computer { rate: Some(1_000.0), ahead: 0, cached: 900 };
        assert_eq!(placed(&Question { decode: warm, ..question(1_000) }), local);
    }

    #[test]
    fn whoever_generates_is_kept_from_prompts() {
        let slow = Some(LinkCost { by_token: 1e-3, least: 1e-3 });
        let idle = Question { link: slow, ..question(1_000) };
        assert_eq!(decide(&idle).place, Place::Local);
        assert_eq!(decide(&Question { generating: 1, ..idle }).place, Place::Handoff);
    }

    #[test]
    fn a_little_is_no_reason() {
        let equal = Computer { rate: Some(1_000.0), ..Computer::default() };
        let question = |by_token| Question {
            prefill: Some(equal),
            link: Some(LinkCost { by_token, least: 0.0 }),
            ..question(1_000)
        };
        assert_eq!(decide(&question(0.24e-3)).place, Place::Handoff);
        assert_eq!(decide(&question(0.26e-3)).place, Place::Local);
    }

    #[test]
    fn what_is_not_known_is_measured() {
        let unknown = Computer::default();
        let question = question(500);
        let no_link = Question { link: None, ..question };
        assert_eq!(placed(&no_link), (Place::Handoff, Why::Unknown));
        let no_prefill_rate = Question { prefill: Some(unknown), ..question };
        assert_eq!(placed(&no_prefill_rate), (Place::Handoff, Why::Unknown));
        let no_decode_rate = Question { decode: unknown, ..question };
        assert_eq!(placed(&no_decode_rate), (Place::Local, Why::Explores));
        for unsuitable in [
            Question { generating: 1, ..no_decode_rate },
            Question { decode: Computer { ahead: 1, ..unknown }, ..no_decode_rate },
            Question { decode: Computer { cached: 490, ..unknown }, ..no_decode_rate },
            Question { prompt: 1_025, ..no_decode_rate },
        ] {
            assert_eq!(placed(&unsuitable), (Place::Handoff, Why::Unknown), "{unsuitable:?}");
        }
        let alone = Question { prefill: None, decode: unknown, ..question };
        assert_eq!(placed(&alone), (Place::Local, Why::NoPrefillNode));
    }

    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => 1e-6..1e6f64,
            1 => proptest::sample::select(vec![
                0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX,
            ]),
        ]
    }

    fn computer() -> impl Strategy<Value = Computer> {
        let count = || prop_oneof![4 => 0..5_000usize, 1 => Just(usize::MAX)];
        (proptest::option::of(number()), count(), count())
            .prop_map(|(rate, ahead, cached)| Computer { rate, ahead, cached })
    }

    fn any_question() -> impl Strategy<Value = Question> {
        let link = (number(), number()).prop_map(|(by_token, least)| LinkCost { by_token, least });
        let parts = (
            0..100_000usize,
            proptest::option::weighted(0.9, computer()),
            computer(),
            0..100usize,
            proptest::option::weighted(0.9, link),
        );
        parts.prop_map(|(prompt, prefill, decode, generating, link)| Question {
            prompt,
            prefill,
            decode,
            generating,
            link,
        })
    }

    /// One of which everything is known.
    fn measured_question() -> impl Strategy<Value = Question> {
        let computer =
            || {
                (1.0..1e5f64, 0..5_000usize, 0..5_000usize)
                    .prop_map(|(rate, ahead, cached)| Computer { rate: Some(rate), ahead, cached })
            };
        let link = (0.0..1e-2f64, 0.0..1.0f64);
        let link = link.prop_map(|(by_token, least)| LinkCost { by_token, least });
        (1..10_000usize, computer(), computer(), 0..20usize, link).prop_map(
            |(prompt, prefill, decode, generating, link)| Question {
                prompt,
                prefill: Some(prefill),
                decode,
                generating,
                link: Some(link),
            },
        )
    }

    proptest! {
        #[test]
        fn every_number_gives_a_plan_that_keeps_the_rule(question in any_question()) {
            let plan = decide(&question);
            let known = plan.handoff.zip(plan.local);
            prop_assert!(plan.handoff.is_none_or(f64::is_finite));
            prop_assert!(plan.local.is_none_or(f64::is_finite));
            let (place, why) = match (question.prefill, known) {
                (None, _) => (Place::Local, Why::NoPrefillNode),
                (_, Some((handoff, local))) if local * MARGIN < handoff => (Place::Local, Why::Cheaper),
                (_, Some(_)) => (Place::Handoff, Why::Cheaper),
                _ if plan.why == Why::Explores => {
                    prop_assert!(plan.handoff.is_some() && question.generating == 0);
                    (Place::Local, Why::Explores)
                }
                _ => (Place::Handoff, Why::Unknown),
            };
            prop_assert_eq!((plan.place, plan.why), (place, why));
        }

        /// What speaks for a place more than before never moves a prompt away from it.
        #[test]
        fn more_reasons_never_turn_a_plan(question in measured_question(), more in 1..1_000usize) {
            let before = decide(&question);
            prop_assert_eq!(before.why, Why::Cheaper);
            let mut after = question;
            match before.place {
                Place::Local => {
                    after.link = question.link.map(|link| LinkCost { by_token: link.by_token * 2.0, ..link });
                    after.prefill =
                        question.prefill.map(|node| Computer { ahead: node.ahead + more, ..node });
                }
                Place::Handoff => after.generating += more,
            }
            prop_assert_eq!(decide(&after).place, before.place);
        }
    }
}
