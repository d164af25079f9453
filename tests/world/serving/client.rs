//! Who asks: a request ends once, in time, with the right tokens or an error that somebody is to blame for.
//!
//! At its deadline one half of the clients gives up, as the HTTP front does, whatever the nodes are at. What they
//! held for it has to come back. The other half waits for the nodes to say that the deadline has passed.

use std::time::{Duration, Instant};

use blockwire::clock;
use blockwire_serving::backend::{
    Backend, GenerateError, GenerateRequest, Generation, SamplingParams, TokenEvent, before,
};
use blockwire_serving::router::RequestRouter;
use tokio::time::timeout;
use uuid::Uuid;

use super::{BLOCK, model};
use crate::oracle::Oracle;
use crate::scenario::Ask;

/// Nothing takes so long, whatever fails: then it hangs.
const HANG: Duration = Duration::from_secs(120);
/// A client that gives up is done so long after its deadline, whatever fails: the ticks of two timers.
const SLACK: Duration = Duration::from_millis(2);
/// The nodes say so within this: a step of a model, a wait for blocks, or the silence of a node that died.
const NODES_SLACK: Duration = Duration::from_secs(5);

/// What a client knows of the world.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) router: RequestRouter,
    pub(super) oracle: Oracle,
    /// Whether nothing ever breaks: then nothing may fail.
    pub(super) calm: bool,
}

/// How a request ended.
enum End {
    Right,
    Failed(GenerateError),
    Left,
}

impl Client {
    /// Asks, and judges the answer.
    pub(super) async fn ask(self, ask: Ask) {
        let oracle = &self.oracle;
        oracle.note(|| format!("request {} begins", ask.id));
        let slack = if gives_up(ask) { SLACK } else { NODES_SLACK };
        let due = ask.deadline.map_or(HANG, |deadline| Duration::from_millis(deadline) + slack);
        // A client that would wait for longer than it can take does not leave.
        let patience = ask.patience.map(Duration::from_millis).filter(|patience| *patience < due);
        let end = match timeout(patience.unwrap_or(due), self.answer(ask)).await {
            Ok(end) => end,
            Err(_) if patience.is_some() => End::Left,
            Err(_) => return oracle.fail(format!("{ask:?} is not over after {due:?}")),
        };
        match end {
            End::Right => {
                oracle.count("answered");
                oracle.note(|| format!("request {} is answered", ask.id));
            }
            End::Left => {
                oracle.count("client left");
                oracle.note(|| format!("the client of request {} left", ask.id));
            }
            End::Failed(error) => self.judge(ask, &error),
        }
    }

    async fn answer(&self, ask: Ask) -> End {
        let prompt = model::prompt(ask.id, ask.common, ask.prompt);
        let deadline = ask.deadline.map(|millis| clock::now() + Duration::from_millis(millis));
        let request = GenerateRequest {
            id: Uuid::from_u128(u128::from(ask.id) + 1),
            prompt: prompt.clone(),
            max_tokens: ask.max_tokens,
            min_tokens: 0,
            sampling: SamplingParams::default(),
            ignore_eos: false,
            logprobs: None,
            deadline,
            cache_salt: None,
            retractable: false,
        };
        let deadline = deadline.filter(|_| gives_up(ask));
        match before(deadline, self.router.generate(request)).await {
            Some(Ok(generation)) => self.tokens(ask, &prompt, generation, deadline).await,
            Some(Err(error)) => End::Failed(error),
            None => End::Failed(GenerateError::Deadline),
        }
    }

    async fn tokens(
        &self,
        ask: Ask,
        prompt: &[u32],
        mut generation: Generation,
        deadline: Option<Instant>,
    ) -> End {
        let (expected, why) = model::answer(prompt, ask.max_tokens);
        let mut tokens = Vec::new();
        let mut end = None;
        loop {
            let Some(event) = before(deadline, generation.next()).await else {
                return End::Failed(GenerateError::Deadline);
            };
            let Some(event) = event else { break };
            match event {
                TokenEvent::Started(started) => {
                    let local = |(name, plan): &(&str, String)| {
                        *name == "plan" && plan.starts_with("local")
                    };
                    if started.notes.iter().any(local) {
                        self.oracle.count("served by a decode node alone");
                    }
                    if started.notes.iter().any(|(name, _)| *name == "attempts") {
                        self.oracle.count(match tokens.is_empty() {
                            true => "tried again",
                            false => "gone on elsewhere",
                        });
                    }
                }
                TokenEvent::Token { id, .. } => {
                    tokens.push(id);
                    let right = expected.starts_with(&tokens);
                    let wrong = || format!("{ask:?}: {tokens:?} instead of {expected:?}");
                    self.oracle.check(right && end.is_none(), wrong);
                }
                TokenEvent::Finished { reason, usage } => {
                    let whole = tokens == expected && reason == why;
                    let cached = usage.cached_tokens as usize;
                    let counted = usage.completion_tokens as usize == tokens.len()
                        && usage.prompt_tokens as usize == prompt.len()
                        && cached < prompt.len()
                        && cached.is_multiple_of(BLOCK);
                    if cached > 0 {
                        self.oracle.count("answered from a cached prefix");
                    }
                    let wrong = || format!("{ask:?}: {tokens:?}, {reason:?}, {usage:?}");
                    self.oracle.check(whole && counted && end.is_none(), wrong);
                    end = Some(End::Right);
                }
                TokenEvent::Failed(error) => {
                    self.oracle.check(end.is_none(), || format!("{ask:?} ends twice: {error}"));
                    end = Some(End::Failed(error));
                }
            }
        }
        end.unwrap_or_else(|| {
            self.oracle.fail(format!("{ask:?} ends without a word"));
            End::Left
        })
    }

    /// An error has to have a cause.
    fn judge(&self, ask: Ask, error: &GenerateError) {
        self.oracle.count(match error {
            GenerateError::Deadline if gives_up(ask) => "failed: deadline",
            GenerateError::Deadline => "failed: deadline, say the nodes",
            GenerateError::Busy { .. } => "failed: busy",
            GenerateError::NodeFailed(_) | GenerateError::NodeLost(_) => "failed: node",
            GenerateError::NodesLost { .. } => "failed: two nodes lost",
            GenerateError::NoNode(_) => "failed: no node",
            _ => "failed: other",
        });
        self.oracle.note(|| format!("request {} failed: {error}", ask.id));
        let caused = match error {
            GenerateError::Deadline => ask.deadline.is_some(),
            GenerateError::Busy { .. } => true,
            GenerateError::NodeFailed(_)
            | GenerateError::NodeLost(_)
            | GenerateError::NodesLost { .. }
            | GenerateError::NoNode(_) => !self.calm,
            _ => false,
        };
        self.oracle.check(caused, || format!("{ask:?} failed: {error}"));
    }
}

/// Whether the client minds its deadline itself.
fn gives_up(ask: Ask) -> bool {
    ask.id.is_multiple_of(2)
}
