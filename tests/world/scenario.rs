//! What happens in a run, as data.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Events of a drawn scenario.
const EVENTS: usize = 200;

/// A seed and what happens. The seed also decides what the network draws, and what the hosts are like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// Of everything that is not in the events.
    pub seed: u64,
    /// In the order of their times.
    pub events: Vec<Event>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since the start.
    pub at: u64,
    /// What.
    pub what: What,
}

/// Hosts are named by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A host hands a sequence to another.
    Offer(Offer),
    /// Nothing gets through between two hosts.
    Cut(usize, usize),
    /// Everything does again.
    Heal(usize, usize),
    /// All links between two hosts break.
    Reset(usize, usize),
    /// A host dies without a word.
    Kill(usize),
    /// A host ends in order.
    Stop(usize),
    /// A host that is gone comes back, as another instance under the same address.
    Start(usize),
    /// Another kind of weather between two hosts.
    Weather(usize, usize, Weather),
    /// Somebody takes blocks of a host's pool for a while.
    Hog(Hog),
    /// A host asks for all that it lent.
    Recall(usize),
    /// A client asks for tokens.
    Ask(Ask),
    /// From now on a step of a host's model takes so many milliseconds.
    Slow(usize, u64),
}

/// What the paths are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weather {
    /// Nothing takes time.
    Still,
    /// A fast network.
    Fair,
    /// A slow one that delivers in small pieces.
    Slow,
    /// Links refuse operations and dials.
    Rude,
    /// Bits change.
    Corrupt,
    /// Links break, with frames lost and doubled.
    Breaking,
}

/// One handoff, from the reservation of its blocks to the end of the received sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Of this handoff alone.
    pub id: u32,
    /// Who sends.
    pub from: usize,
    /// Who is to receive.
    pub to: usize,
    /// Tokens of the sequence.
    pub tokens: usize,
    /// What the receiver does.
    pub answer: Answer,
    /// After so many milliseconds the sender gives up.
    pub patience: u64,
    /// After so many milliseconds the receiver does.
    pub endurance: u64,
    /// So many milliseconds the receiver uses the sequence.
    pub hold: u64,
}

/// What a receiver does with an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Takes it, into blocks of its own.
    Copy,
    /// Takes it, and leaves in place what it can.
    Adopt,
    /// Takes what follows so many blocks that it has already.
    From(usize),
    /// Lands it, and then lets it go without a commit.
    Drop,
    /// Declines.
    Decline,
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Of this request alone.
    pub id: u32,
    /// Which router is asked.
    pub router: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// How many of them, the first ones, are those of other prompts too.
    #[serde(default)]
    pub common: usize,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// After so many milliseconds the client leaves.
    pub patience: Option<u64>,
    /// After so many milliseconds the request is to fail.
    pub deadline: Option<u64>,
}

/// Blocks that somebody else uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hog {
    /// Of which host.
    pub host: usize,
    /// How many.
    pub blocks: usize,
    /// For how many milliseconds.
    pub hold: u64,
}

impl What {
    /// Its kind, as it is counted.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Offer(_) => "event: offer",
            Self::Cut(..) => "event: cut",
            Self::Heal(..) => "event: heal",
            Self::Reset(..) => "event: reset",
            Self::Kill(_) => "event: kill",
            Self::Stop(_) => "event: stop",
            Self::Start(_) => "event: start",
            Self::Weather(_, _, Weather::Still) => "event: weather still",
            Self::Weather(_, _, Weather::Fair) => "event: weather fair",
            Self::Weather(_, _, Weather::Slow) => "event: weather slow",
            Self::Weather(_, _, Weather::Rude) => "event: weather rude",
            Self::Weather(_, _, Weather::Corrupt) => "event: weather corrupt",
            Self::Weather(_, _, Weather::Breaking) => "event: weather breaking",
            Self::Hog(_) => "event: hog",
            Self::Recall(_) => "event: recall",
            Self::Ask(_) => "event: ask",
            Self::Slow(..) => "event: slow",
        }
    }
}

impl Scenario {
    /// How many hosts the events name.
    pub fn hosts(&self) -> usize {
        let named = |what: &What| match *what {
            What::Offer(offer) => offer.from.max(offer.to),
            What::Cut(one, other)
            | What::Heal(one, other)
            | What::Reset(one, other)
            | What::Weather(one, other, _) => one.max(other),
            What::Kill(host)
            | What::Stop(host)
            | What::Start(host)
            | What::Recall(host)
            | What::Slow(host, _) => host,
            What::Hog(hog) => hog.host,
            What::Ask(ask) => ask.router,
        };
        self.events.iter().map(|event| named(&event.what) + 1).max().unwrap_or(0)
    }
}

/// What the events of a run are drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Hosts of the world.
    pub hosts: usize,
    /// Faults in a hundred events; six more are strains, the rest is work.
    pub faults: u32,
    /// Milliseconds between two events, below this.
    pub pace: u64,
}

/// Draws the events of a run: faults, strains, and work, each of which knows its number.
pub fn draw_events(
    seed: u64,
    mut random: Rng,
    share: Share,
    strain: impl Fn(&mut Rng, usize) -> What,
    work: impl Fn(&mut Rng, u32) -> What,
) -> Scenario {
    let mut at = 0;
    let draw = |id| {
        at += random.u64(0..share.pace);
        let what = match random.u32(0..100) {
            drawn if drawn < share.faults => draw_fault(&mut random, share.hosts),
            drawn if drawn < share.faults + 6 => strain(&mut random, share.hosts),
            _ => work(&mut random, id),
        };
        Event { at, what }
    };
    let events = (0..EVENTS as u32).map(draw).collect();
    Scenario { seed, events }
}

/// Draws faults between `hosts` hosts.
fn draw_fault(random: &mut Rng, hosts: usize) -> What {
    let one = random.usize(0..hosts);
    let other = (one + random.usize(1..hosts.max(2))) % hosts;
    match random.u8(0..20) {
        0..3 => What::Cut(one, other),
        3..8 => What::Heal(one, other),
        8..10 => What::Reset(one, other),
        10..12 => What::Kill(one),
        12 => What::Stop(one),
        13..17 => What::Start(one),
        _ => What::Weather(one, other, draw_weather(random)),
    }
}

fn draw_weather(random: &mut Rng) -> Weather {
    match random.u8(0..12) {
        0..2 => Weather::Still,
        2..6 => Weather::Fair,
        6..8 => Weather::Slow,
        8 => Weather::Rude,
        9 => Weather::Corrupt,
        _ => Weather::Breaking,
    }
}
